"""Pages of HTML, and what they are made of: pictures, tables, facts.

`write` puts a `Page` into the template next to this file: one sentence, the pictures, the table,
sections, and how it was made. A page is one file that opens without a network; its templates escape
all text that they get. The same input gives the same bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape

from dnadiff.fields import Json, is_number
from dnadiff.plot import rendered
from dnadiff.progress import without_controls
from dnadiff.renamed import VERSION
from dnadiff.report.charts import Chart, script, specification
from dnadiff.store.disk import write_bytes
from dnadiff.store.objects import config_dir

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_TEMPLATES = Path(__file__).parent / "templates"
MAX_ROWS = 1000  # of a table on a page
_LONG = 24  # characters of a name that may be broken
_DNA = re.compile("[ACGTN]{20,}")
# Colors of the figures that follow the text of a page, which is light in dark mode.
_OF_PAGE = {"#24292e|#4a4f55|#3d3d3d": "currentColor", "#6b7075": "var(--soft)"}
_OF_PAGE |= {"#e6e8eb": "var(--line)", "#ffffff": "var(--paper)"}
_PATHS = {"path": 1, "checkpoint": 3}  # names of files, and how many of their last parts are shown


@dataclass(frozen=True)
class Facts:
    """Names and values, in two columns."""

    heading: str
    values: Mapping[str, Json]


@dataclass(frozen=True)
class Table:
    """A table that the reader can sort by each column, and filter if it is long.

    Attributes:
        head: names of the columns.
        rows: text, or numbers, which are shown with four digits; the first column has the names of
            the rows. The first 1,000 rows are on the page.
        numbers: columns of text that are aligned on the right, as numbers are.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Json]]
    caption: str = ""
    numbers: Collection[int] = ()

    @classmethod
    def of(cls, frame: pandas.DataFrame, caption: str = "") -> Table:
        """The table of a frame; what is not known is a dash."""
        cells = frame.astype(object).where(frame.notna(), None)
        return cls([*frame], cells.to_numpy().tolist(), caption)

    @property
    def shown(self) -> Sequence[Sequence[Json]]:
        """The rows on the page."""
        return self.rows[:MAX_ROWS]

    @property
    def text(self) -> str:
        """The caption, with what is left out."""
        left = len(self.rows) - len(self.shown)
        more = f"The first {MAX_ROWS:,} of {len(self.rows):,} rows; the output has all."
        return f"{self.caption} {more}".strip() if left else self.caption


@dataclass(frozen=True)
class Picture:
    """A picture with its caption.

    Attributes:
        name: unique on the page.
        label: the text for screen readers, which says what is drawn.
        caption: how to read it.
        content: a figure of Matplotlib, or an interactive chart of `dnadiff.report.charts`.
        wide: whether it has the whole width of the page.
    """

    name: str
    label: str
    caption: str
    content: Any
    wide: bool = False

    @property
    def drawn(self) -> Markup:
        """The element that shows it."""
        if not isinstance(self.content, Chart):
            return inline_svg(self.content, self.name, self.label)
        spec = htmlsafe_json_dumps(specification(self.content, self.label))
        kind = 'type="application/json"'
        label = escape(self.label)
        return Markup(
            f'<div class="chart" role="group" aria-label="{label}"><script {kind}>{spec}</script>'
            "<noscript>This picture is drawn by JavaScript.</noscript></div>"
        )


Part = Picture | Table | Facts | str


@dataclass(frozen=True)
class Section:
    """A heading, and what is below it; a text is a paragraph."""

    heading: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """One sentence with the result, pictures, a table, and what explains them.

    Attributes:
        made: how it was made, by name; after the sections, folded.
        commands: command lines that make it again.
        script: what draws parts besides charts, with all that it reads.
        synthetic: whether it shows generated sequences: the page then says what they are not.
    """

    title: str
    sentence: str
    pictures: Sequence[Picture] = ()
    table: Table | None = None
    sections: Sequence[Section] = ()
    made: Mapping[str, Json] = field(default_factory=dict)
    commands: Sequence[str] = ()
    script: str = ""
    synthetic: bool = False

    @property
    def has_charts(self) -> bool:
        """Whether a part is drawn by JavaScript."""
        every = chain(self.pictures, *(section.parts for section in self.sections))
        return any(isinstance(p, Picture) and isinstance(p.content, Chart) for p in every)


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """The picture as an `<svg>` element for a page, `label` for screen readers: ids start with
    `name`; there are no metadata and no external references."""
    text = rendered(figure, "svg", None).decode()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    for size in ("height", "width"):
        text = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", text, count=1)
    for colors, of_page in _OF_PAGE.items():
        text = re.sub(colors, of_page, text)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text).strip()
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))


def interval(low: Json, high: Json) -> str:
    """An interval in a table, with true minus signs; a dash if there is none."""
    both = is_number(low) and is_number(high)
    return f"{low:.4g} to {high:.4g}".replace("-", "−") if both else "—"


def shown(value: object, key: str = "") -> str:
    """A value as text; absolute paths are cut to their last parts, so that a shared page does not
    show the folders of its author."""
    if isinstance(value, Mapping):
        inner = {name: key if key in _PATHS else str(name) for name in value}
        return ", ".join(f"{name} {shown(value[name], inner[name])}" for name in value)
    if isinstance(value, list | tuple):
        return ", ".join(shown(each, key) for each in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "—"}[value]
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if key in _PATHS:  # several are joined
        parts = str(value).split(", ")
        return ", ".join(
            str(Path(*Path(one).parts[-_PATHS[key] :])) if os.path.isabs(one) else one
            for one in parts
        )
    return str(value)


def link(text: str, address: str) -> Markup:
    """A text in a table that leads to an address."""
    return Markup('<a href="{}">{}</a>').format(address, text)


def cell(value: Json) -> Markup:
    """A value in a table: numbers with all their four digits, DNA in letters of one width; long
    names, which would push the last columns off the screen, may be broken."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return escape(f"{value:#.4g}".rstrip("."))
    text = escape(shown(value))
    if _DNA.fullmatch(text):
        return Markup(f"<code>{text}</code>")
    return text if len(text) <= _LONG else text.replace("_", Markup("_<wbr>"))


ENVIRONMENT = Environment(
    loader=PackageLoader("dnadiff.report"),
    autoescape=True,
    finalize=lambda value: without_controls(value) if type(value) is str else value,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
ENVIRONMENT.filters |= {
    "cell": cell,
    "label": lambda key: key[:1].upper() + key[1:].replace("_", " "),
    "shown": shown,
}
ENVIRONMENT.globals |= {
    "sorting": Markup((_TEMPLATES / "table.js").read_text(encoding="utf-8").rstrip("\n")),
    "style": Markup((_TEMPLATES / "style.css").read_text(encoding="utf-8").rstrip("\n")),
    "version": VERSION,
    "responsible_use": lambda: (config_dir().parent / "RESPONSIBLE_USE.md").read_text("utf-8"),
}


def html_of(page: Page) -> bytes:
    """The file of a page."""
    bundle = Markup(page.script or script()) if page.script or page.has_charts else None
    return ENVIRONMENT.get_template("page.html.j2").render(page=page, bundle=bundle).encode()


def write(page: Page, path: str | os.PathLike[str]) -> Path:
    """Write a page atomically, print its size, and return its path."""
    content = html_of(page)
    write_bytes(Path(path), content)
    print(f"the page is {path} ({len(content) / 1e6:.1f} MB)")
    return Path(path)
