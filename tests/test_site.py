"""The documentation site builds without warnings, loads nothing from other servers, and has every
page."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install -e '.[docs]'")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--config-file",
        "scripts/docs/mkdocs.yml",
    ]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--site-dir", folder],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, (
        done.stderr
    )  # broken links and anchors are warnings
    return folder


class Loaded(HTMLParser):
    """What a page loads (scripts, style sheets, pictures, fonts), and its links to other pages of
    the site."""

    def __init__(self, page):
        super().__init__()
        self.addresses = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if (
            tag in ("script", "img", "iframe", "source")
            and given.get("src")
            and not given["src"].startswith("data:")
        ):
            self.addresses.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "preconnect", "icon"):
            self.addresses.append(given["href"])
        if (
            tag == "a"
            and "://" not in given.get("href", "#")
            and not given.get("href", "#").startswith(("#", "mailto:"))
        ):
            self.addresses.append(given["href"])


@pytest.mark.slow
def test_pages_load_and_name_files_of_the_site_alone(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 48
    for page in pages:
        for address in Loaded(page).addresses:
            target = page.parent / re.split(r"[?#]", address)[0]
            assert (
                target.is_file()
                or (target / "index.html").is_file()
                or (page.name == "404.html" and address.startswith("/"))
            ), (
                page.name,
                address,
            )


@pytest.mark.slow
def test_every_page_of_the_repository_is_in_the_site(site):
    written = {
        path.relative_to(ROOT / "docs").with_suffix(".html")
        for path in (ROOT / "docs").rglob("*.md")
    }
    assert not [path for path in written if not (site / path).is_file()]
    assert (site / "RESPONSIBLE_USE.html").is_file() and (
        site / "genomic_benchmarks" / "index.html"
    ).is_file()


def test_notebooks_are_stored_with_their_outputs():
    paths = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    assert len(paths) == 6
    for path in paths:
        cells = [
            cell
            for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
            if cell["cell_type"] == "code"
        ]
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), (
            path.name
        )  # from the first to the last, once
        kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
        assert kinds and "error" not in kinds, path.name


@pytest.mark.slow
def test_the_reference_shows_signatures_and_docstrings(site):
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "model.html").read_text(encoding="utf-8"))
    assert (
        "dnadiff.model.Model" in text
        and "num_draws" in text
        and "An estimate of an upper bound on -log p" in text
    )
    assert "infill" in text  # inherited
