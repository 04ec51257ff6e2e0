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

import numpy as np
from markupsafe import Markup, escape

from dnadiff.fields import Json
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


LOGO_COLORS = {"A": "#009E73", "C": "#0072B2", "G": "#E69F00", "T": "#D55E00"}
LINE = 60  # positions in a line of a picture, at most
_SMALLEST_LETTER = 0.01  # of the axis; smaller letters are left out
_LOGO_TOPS = (0.25, 0.5, 1.0, 2.0)  # bits


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


def panel(draw: Callable[..., None], height: float = HEIGHT, **values: object) -> Figure:
    """A figure with one panel: `draw(axes, **values)`."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure.subplots(), **values)
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
    """A figure with up to three panels in a row."""
    from matplotlib.figure import Figure

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


def rendered(figure: Figure, kind: str, pixels: int | None = 1200) -> bytes:
    """The bytes of a picture, `png` or `svg`, `pixels` wide; None is the size of the figure."""
    buffer = io.BytesIO()
    dpi = "figure" if pixels is None else pixels / figure.get_figwidth()
    with style():
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=_METADATA[kind])
    return buffer.getvalue()


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """The picture as an `<svg>` element for a page, `label` for screen readers: ids start with
    `name`; there are no metadata and no external references."""
    text = rendered(figure, "svg", None).decode()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    for size in ("height", "width"):
        text = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text).strip()
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))


def logo(axes: Axes, heights: np.ndarray, width: int, top: float = 2.0) -> None:
    """Draw letters of these `heights` (n, 4) in bits, the largest on top, with room for `width`
    positions and `top` bits; NaN is nothing."""
    from matplotlib.patches import PathPatch
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    shapes = {base: TextPath((0, 0), base, size=1) for base in LOGO_COLORS}
    for place, of_position in enumerate(np.nan_to_num(heights)):
        bottom = 0.0
        for height, base in sorted(zip(of_position, LOGO_COLORS)):
            if height >= _SMALLEST_LETTER * top:
                box = shapes[base].get_extents()
                fit = (
                    Affine2D()
                    .translate(-box.x0, -box.y0)
                    .scale(0.9 / box.width, height / box.height)
                    .translate(place - 0.45, bottom)
                )
                axes.add_patch(
                    PathPatch(shapes[base].transformed(fit), color=LOGO_COLORS[base], lw=0)
                )
                bottom += height
    axes.set(
        xlim=(-0.5, width - 0.5), ylim=(0, top), yticks=(0, top / 2, top), xticks=(), ylabel="bits"
    )
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(False)


def logo_figure(heights: np.ndarray) -> Figure:
    """A logo of `heights` (L, 4) in bits, in equal lines of at most 60 positions, on an axis that
    ends at 0.25, 0.5, 1 or 2 bits."""
    from matplotlib.figure import Figure

    size = len(heights)
    lines = -(-size // LINE)
    width = -(-size // lines)
    top = next((top for top in _LOGO_TOPS if heights.sum(1).max() <= top), _LOGO_TOPS[-1])
    with style():
        figure = Figure(figsize=(10.5, 1.25 * lines + 0.3), layout="constrained")
        for line, axes in enumerate(figure.subplots(lines, 1, squeeze=False)[:, 0]):
            first = line * width
            logo(axes, heights[first : first + width], width, top)
            places = [i for i in range(min(width, size - first)) if (first + i + 1) % 10 == 0]
            axes.set(xticks=places, xticklabels=[f"{first + i + 1}" for i in places])
        axes.set_xlabel("position, 1-based")
    return figure
