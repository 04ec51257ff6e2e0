"""Building blocks of a self-contained HTML page: tables, pictures, facts, the document. They escape
all text that they get."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dnadiff.report import figures
from dnadiff.store.disk import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PATHS = {"path": 1, "checkpoint": 3}  # names of files, and how many of their last parts are shown
_LABELS = {
    "n_policy": "N policy",
    "num_draws": "Draws",
    "path": "File",
    "scan": "Scan kernel",
    "step": "Steps",
}


def _document(title: str, body: str) -> str:
    """A complete HTML document. Its content security policy forbids loading anything from
    elsewhere."""
    style = resources.files("dnadiff.report").joinpath("style.css").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def section(heading: str, content: str) -> str:
    """A section with a heading."""
    return f"<section><h2>{escape(heading)}</h2>{content}</section>"


def pair(*columns: str) -> str:
    """Columns next to each other; on a narrow screen one below the other."""
    return (
        f'<div class="pair">{"".join(f"<div>{column}</div>" for column in columns)}</div>'
        if columns
        else ""
    )


def picture(figure: Figure, name: str, label: str, caption: str) -> str:
    """A figure as inline SVG; `name` is unique on the page, `label` is the text for screen
    readers."""
    svg = figures.inline_svg(figure, name).replace(
        "<svg", f'<svg role="img" aria-label="{escape(label)}"', 1
    )
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[int] = (),
    caption: str = "",
    kind: str = "",
) -> str:
    """A table with row headers in its first column; the columns `numbers` are right-aligned."""
    mark = ['class="number"' if column in numbers else "" for column in range(len(head))]
    top = "".join(f'<th scope="col" {m}>{escape(text)}</th>' for text, m in zip(head, mark))
    body = "".join(
        f'<tr><th scope="row" {mark[0]}>{_cell(row[0])}</th>'
        + "".join(f"<td {m}>{_cell(text)}</td>" for text, m in zip(row[1:], mark[1:]))
        + "</tr>"
        for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        '<div class="scroll" tabindex="0"><table '
        f'class="{kind}">{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(text: str) -> str:
    """The text with a line break allowed after each underscore: long names would push the last
    columns off the screen."""
    return escape(text).replace("_", "_<wbr>")


def facts(heading: str, values: Mapping[str, object]) -> str:
    """Names and values in two columns; empty without values."""
    if not values:
        return ""
    names = [_LABELS.get(key) or key[:1].upper() + key[1:].replace("_", " ") for key in values]
    shown = [_shown(value, key) for key, value in values.items()]
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in zip(names, shown)
    )
    return f'<h3>{escape(heading)}</h3><table class="facts"><tbody>{rows}</tbody></table>'


def _shown(value: object, key: str = "") -> str:
    """A value as text; absolute paths are cut to their last parts, so that a shared page does not
    show the folders of its author."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name} {_shown(each, key if key in _PATHS else str(name))}"
            for name, each in value.items()
        )
    if isinstance(value, list | tuple):
        return ", ".join(_shown(each, key) for each in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "—"}[value]
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if key in _PATHS:  # several are joined
        return ", ".join(
            str(Path(*Path(one).parts[-_PATHS[key] :])) if os.path.isabs(one) else one
            for one in str(value).split(", ")
        )
    return str(value)


def write(path: str | os.PathLike[str], title: str, sections: Iterable[str]) -> Path:
    """Write a page of sections atomically and return its path; empty sections are left out."""
    with atomic_write(Path(path), overwrite=True) as file:
        file.write(_document(title, "\n".join(filter(None, sections))).encode())
    return Path(path)
