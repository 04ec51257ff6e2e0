"""Hooks of MkDocs: pages of the repository that are outside docs/, the style of the site, and links
between these pages and the pages in docs/."""

from __future__ import annotations

import posixpath
import re
import textwrap
from html import escape
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from dnadiff.options.command import reference

ROOT = Path(__file__).parents[2]
OUTSIDE = (
    "RESPONSIBLE_USE.md",
    "CHANGELOG.md",
    "genomic_benchmarks/README.md",
    "genomic_benchmarks/protocol.md",
    "dnadiff/bundled/ecoli/README.md",
    "dnadiff/bundled/enterobacteria/README.md",
    "dnadiff/bundled/yeast/README.md",
    "dnadiff/bundled/human_chr20/README.md",
    "dnadiff/bundled/multi/README.md",
)
HREF = re.compile(r'href="([^":]+)\.md"')
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")
HELP = re.compile(r"```text\n(.*?)\n```", re.DOTALL)
KEY = re.compile(r"^  (\S+)\s+(.*(?:\n {4,}.*)*)", re.MULTILINE)
HEADING = re.compile(r"(?<=doc-heading\">)(?:(?!</h).)+(?=</h)", re.DOTALL)
INDENTED = re.compile(r'(<span id="__span-[\d-]+")(>(?:<a [^>]*></a>)?(?:<span class="w">)?)( +)')
PAGE = re.compile(r"docs/([\w/]+)\.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/ under their paths in the repository, and the style."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    style = Path(__file__).with_name("site.css")
    files.append(File.generated(config, style.name, abs_src_path=str(style)))
    return files


def commands() -> str:
    """The page of all commands, whose keys are tables."""
    return HELP.sub(
        lambda found: "\n\n".join(map(paragraph, re.split(r"\n\s*\n", found[1]))), reference()
    )


def paragraph(text: str) -> str:
    """A paragraph of `--help`: examples, keys with what they mean, or prose."""
    if text.strip().startswith("python -m "):
        lines = re.sub(r"\n(?! *python -m )\s*", " ", text)
        return f"```text\n{textwrap.dedent(lines)}\n```"
    linked = PAGE.sub(r'<a href="../\1.html">\1</a>', escape(text))
    if not text.startswith("  "):
        return f"<p>{linked}</p>"
    rows = (f"<tr><td><code>{key}</code></td><td>{of}</td></tr>" for key, of in KEY.findall(linked))
    return f"<table><tr><th>key</th><th>meaning</th></tr>{''.join(rows)}</table>"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make relative links, which are those of the repository, links of the site."""
    return LINK.sub(
        lambda found: found[1] + moved(page.file.src_uri, found[2]) + (found[3] or "") + found[4],
        markdown,
    )


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The same for notebooks, whose Markdown is converted by another program; and the indent of
    each line of code, for the style, and breaks after the dots of names in headings."""
    html = HEADING.sub(lambda found: re.sub(r"\b\.(?=\w+[^<>]*<)", ".<wbr>", found[0]), html)
    html = INDENTED.sub(
        lambda found: f'{found[1]} style="--indent: {len(found[3])}ch"{found[2]}{found[3]}', html
    )
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    return HREF.sub(lambda found: f'href="{moved(page.file.src_uri, found[1])}.html"', html)


def in_repository(uri: str) -> str:
    """The path in the repository of a page of the site."""
    return uri if uri in OUTSIDE else f"docs/{uri}"


def moved(uri: str, link: str) -> str:
    """A link of the page at `uri`, as it is on the site.

    >>> moved("results/demo.md", "../../RESPONSIBLE_USE.md")
    '../RESPONSIBLE_USE.md'
    >>> moved("genomic_benchmarks/README.md", "../docs/classifying.md")
    '../classifying.md'
    """
    if "://" in link or link.startswith(("/", "mailto:")):
        return link
    target = posixpath.normpath(posixpath.join(posixpath.dirname(in_repository(uri)), link))
    return posixpath.relpath(target.removeprefix("docs/"), posixpath.dirname(uri) or ".")
