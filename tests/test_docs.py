"""What the pages name exists: files, links, dotted names, and every command line composes."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from dnadiff.options.command import command_names, compose, named
from dnadiff.options.compose import PLUGINS

ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    "configs/experiment/hg38/genomic_benchmark.yaml"
}  # files of other projects that a page names
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "genomic_benchmarks").glob("*.md")),
]
COMMAND = re.compile(r"^\s*(?:\$ )?python -m dnadiff\.(\w+)((?: +(?!#).*)?)$", re.MULTILINE)


def ids(path):
    return str(path.relative_to(ROOT))


def commands():
    for page in PAGES:
        for name, rest in COMMAND.findall(page.read_text(encoding="utf-8")):
            words = shlex.split(re.split(r"\s{2,}#|\s#\s", rest)[0])
            if not any(word.startswith("-") or word in ("...", "|") for word in words):
                yield pytest.param(
                    name, [w for w in words if w != "\\"], id=f"{page.stem}-{name}-{len(rest)}"
                )


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_named_files_exist(page):
    text = re.sub(r"https?://\S+", "", page.read_text(encoding="utf-8"))  # files of other projects
    named = re.findall(
        r"\b((?:scripts|configs|dnadiff|docs|tests)/[\w./-]+\.(?:py|sh|json|yaml|md|png|csv))\b",
        text,
    )
    own = (
        page.stem == "extending"
    )  # its files are those of a user, which test_extending writes and runs
    assert own or not [
        name for name in named if name not in ELSEWHERE and not (ROOT / name).exists()
    ]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_dotted_names_resolve(page):
    def resolves(name):
        parts = name.split(".")
        for cut in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:cut]))
            except ModuleNotFoundError:
                continue
            for attribute in parts[cut:]:
                found = getattr(found, attribute)
            return True
        return False

    text = page.read_text(encoding="utf-8")
    names = set(re.findall(r"`(dnadiff(?:\.\w+)+)", text))
    names.discard(f"dnadiff.{PLUGINS}")  # a group of entry points
    assert not [name for name in names if not resolves(name)]


@pytest.mark.parametrize(("name", "overrides"), list(commands()))
def test_documented_command_lines_compose(name, overrides):
    compose(name, overrides, resolve=False)


def test_the_table_of_models_has_every_command_that_takes_one():
    section = (
        (ROOT / "docs" / "models.md")
        .read_text(encoding="utf-8")
        .split("## What each command needs", 1)[1]
        .split("\n## ", 1)[0]
    )
    listed = [
        name
        for line in section.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    ]
    taking = [
        name
        for name in command_names()
        if named(name).options.model_fields.keys() & {"checkpoint", "init_from", "a", "judge"}
    ]
    assert sorted(name for name in listed if name in command_names()) == sorted(taking)


def test_every_cell_about_a_peer_links_to_where_it_was_read():
    tables = {}
    for name in ("README.md", "docs/peers.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        links = dict(re.findall(r"^\[([\w-]+)\]: (https://\S+)$", text, re.MULTILINE))
        rows = text.split("| | dnadiff | GPN |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
        cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
        assert all(len(row) == 9 for row in cells)
        found = [[re.fullmatch(r"\[(.+)\]\[([\w-]+)\]", cell) for cell in row[2:]] for row in cells]
        assert all(match and match[2] in links for row in found for match in row), name
        tables[name] = {row[0]: row[2:] for row in cells}
    assert tables["README.md"].items() <= tables["docs/peers.md"].items()


def test_tables_of_studies_name_no_path_of_a_machine():
    tables = sorted((ROOT / "docs" / "tables").glob("*.json"))
    assert tables
    for table in tables:
        assert not re.findall(r"""["=']/[^"]*""", table.read_text(encoding="utf-8")), table.name
