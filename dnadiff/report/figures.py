"""From panels to figures, and from figures to files and pages.

A panel is a function that draws on matplotlib axes. Drawing and saving happen inside `style`, so
that matplotlib's settings stay as the user has them; pyplot is not used. The same input gives the
same bytes.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff.config import Json
from dnadiff.report.results import Results, shown_groups
from dnadiff.store.disk import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.7, 3.3  # inches: half the width of a page, about the width of a phone

_METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
}  # None: left out


@contextmanager
def style() -> Iterator[None]:
    """A context with matplotlib's defaults and the settings in `figures.mplstyle`."""
    import matplotlib

    settings: Json = dict(
        matplotlib.rc_params_from_file(Path(__file__).with_name("figures.mplstyle"))
    )
    del settings["backend"]  # the user's
    with matplotlib.rc_context(settings):
        yield


def panel(draw: Callable[[Axes], None], height: float = HEIGHT) -> Figure:
    """A figure with one panel."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure.subplots())
    return figure


def group_panels(
    draw: Callable[[Axes, Results, str, str], None], evaluation: Results, unit: str = "base"
) -> Figure:
    """A figure with one panel for each group of bases, from top to bottom:
    `draw(axes, evaluation, group, unit)`, each with its own scale."""
    from matplotlib.figure import Figure

    groups, rows = shown_groups(evaluation), 1 + len(evaluation.get("markov") or ())
    with style():
        figure = Figure(figsize=(WIDTH, len(groups) * (0.75 + 0.19 * rows)), layout="constrained")
        for axes, group in zip(figure.subplots(len(groups), 1, squeeze=False)[:, 0], groups):
            draw(axes, evaluation, group, unit)
            axes.set_xlabel(axes.get_xlabel() if group == groups[-1] else "")
    return figure


def overview(panels: Sequence[Callable[[Axes], None]]) -> Figure:
    """A figure with up to three panels in a row; raises ValueError if there is no panel."""
    from matplotlib.figure import Figure

    if not panels:
        raise ValueError(
            "nothing to draw: give metrics, evaluation, samples with real windows, or finetune"
        )
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    with style():
        figure = Figure(figsize=(4 * columns, 3.1 * rows))
        figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
        spaces = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, draw in zip(spaces, panels):
            draw(axes)
        for axes in spaces[len(panels) :]:
            axes.set_visible(False)
    return figure


def save(figure: Figure, path: str | os.PathLike[str], pixels: int = 1200) -> Path:
    """Write a picture as `.png` (`pixels` wide) or `.svg`, atomically; raises ValueError if the
    name has another suffix."""
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _METADATA:
        raise ValueError(
            f"{path.name}: a picture is saved as .png or .svg, not "
            f"{path.suffix or 'without a suffix'}"
        )
    content = rendered(figure, kind, pixels)
    with atomic_write(path, overwrite=True) as file:
        file.write(content)
    return path


def rendered(figure: Figure, kind: str, pixels: int = 1200) -> bytes:
    """The bytes of a picture, `png` (`pixels` wide) or `svg`."""
    buffer = io.BytesIO()
    with style():
        figure.savefig(
            buffer, format=kind, dpi=pixels / figure.get_figwidth(), metadata=_METADATA[kind]
        )
    return buffer.getvalue()


def inline_svg(figure: Figure, name: str) -> str:
    """The picture as an `<svg>` element for a page: ids start with `name`; there are no metadata
    and no external references."""
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", metadata=_METADATA["svg"])
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(
        r'(<svg[^>]*?) width="[^"]*"',
        r"\1",
        re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1),
        count=1,
    )
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text).strip()
