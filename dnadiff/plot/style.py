"""The look of all figures: colors, matplotlib's settings, sizes and parts of panels.

Drawing and saving happen inside `style`, so that matplotlib's settings stay as the user has them;
pyplot is not used. The same input gives the same bytes.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from dnadiff.fields import Json, is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# inches: half the width of a page, about the width of a phone
WIDTH = 4.7
HEIGHT = 3.3
# Okabe and Ito's palette: distinguishable by color-blind readers, and in grayscale by lightness and
# marker
MODEL = "#0072B2"
OTHER = "#D55E00"
REAL = "#3D3D3D"
FAINT = "#B4BCC4"
BAND: Json = {"color": FAINT, "alpha": 0.55, "lw": 0}  # of real windows
DOTTED: Json = {"color": REAL, "lw": 1, "ls": (0, (1, 1.5))}
LOGO_COLORS = {"A": "#009E73", "C": "#0072B2", "G": "#E69F00", "T": "#D55E00"}
# of the groups of a chart, in their order
PALETTE = [MODEL, OTHER, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8B6F47", "#7F7F7F"]
LINE = 60  # positions in a line of a picture, at most
_SMALLEST_LETTER = 0.01  # of the axis; smaller letters are left out
_LOGO_TOPS = (0.25, 0.5, 1.0, 2.0)  # bits
_METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
}  # None: left out


@contextmanager
def style() -> Iterator[None]:
    """A context with matplotlib's defaults and the settings in `figures.mplstyle`."""
    import matplotlib

    settings: Json = dict(
        matplotlib.rc_params_from_file(Path(__file__).parent / "figures.mplstyle")
    )
    del settings["backend"]  # the user's
    with matplotlib.rc_context(settings):
        yield


@contextmanager
def figure(
    width: float, height: float, rows: int = 1, columns: int = 1, **grid: Any
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure, in inches, with its axes row by row, which are drawn on in this context."""
    from matplotlib.figure import Figure

    with style():
        made = Figure(figsize=(width, height), layout="constrained")
        yield made, list(made.subplots(rows, columns, squeeze=False, **grid).ravel())


def panel(draw: Callable[..., None], height: float = HEIGHT, **values: object) -> Figure:
    """A figure with one panel: `draw(axes, **values)`."""
    with figure(WIDTH, height) as (made, (axes,)):
        draw(axes, **values)
    return made


def rendered(figure: Figure, kind: str, pixels: int | None = 1200) -> bytes:
    """The bytes of a picture, `png` or `svg`, `pixels` wide; None is the size of the figure."""
    buffer = io.BytesIO()
    dpi = "figure" if pixels is None else pixels / figure.get_figwidth()
    with style():
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=_METADATA[kind])
    return buffer.getvalue()


def logo(axes: Axes, heights: ndarray, width: int, top: float = 2.0, low: float = 0.0) -> None:
    """Draw letters of these `heights` (n, 4), the largest farthest from 0, negative ones below it,
    with room for `width` positions from `low` to `top`; NaN is nothing. The unit is bits where
    `low` is 0."""
    from matplotlib.patches import PathPatch
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    shapes = {base: TextPath((0, 0), base, size=1) for base in LOGO_COLORS}
    for place, of_position in enumerate(np.nan_to_num(heights)):
        above = below = 0.0
        for height, base in sorted(
            zip(of_position, LOGO_COLORS), key=lambda letter: abs(letter[0])
        ):
            if abs(height) < _SMALLEST_LETTER * (top - low):
                continue
            box = shapes[base].get_extents()
            fit = Affine2D()
            fit.translate(-box.x0, -box.y0).scale(0.9 / box.width, abs(height) / box.height)
            bottom = above if height > 0 else below + height
            shape = shapes[base].transformed(fit.translate(place - 0.45, bottom))
            axes.add_patch(PathPatch(shape, color=LOGO_COLORS[base], lw=0))
            above, below = (above + height, below) if height > 0 else (above, below + height)
    ticks = (low, 0, top) if low else (0, top / 2, top)
    axes.set(xlim=(-0.5, width - 0.5), ylim=(low, top), yticks=ticks, xticks=())
    if low:
        axes.axhline(0, color=REAL, lw=0.6)
    else:
        axes.set_ylabel("bits")
    axes.yaxis.set_major_formatter("{x:.2g}")
    axes.grid(False)


def information(counts: ndarray) -> ndarray:
    """Heights of A, C, G, T in a sequence logo, (L, 4) in bits, from counts (L, 4 or more); 0 at
    positions without a known base.

    A letter is as high as its frequency times the information of its position, 2 - H - e, where e =
    3 / (2 ln 2 N) corrects the entropy H of N letters for the small sample (Schneider and Stephens
    1990, Nucleic Acids Research 18:6097).
    """
    known = counts[:, :4].astype(float)
    number = np.maximum(known.sum(1, keepdims=True), 1)
    share = known / number
    logs = np.log2(np.where(share > 0, share, 1))
    entropy = -np.where(share > 0, share * logs, 0).sum(1, keepdims=True)
    return share * np.maximum(2 - entropy - 3 / (2 * math.log(2) * number), 0)


def top_of(heights: ndarray) -> float:
    """The end of an axis of bits that fits all letters: 0.25, 0.5, 1 or 2."""
    highest = np.nan_to_num(heights).sum(-1).max(initial=0)
    return next((top for top in _LOGO_TOPS if highest <= top), _LOGO_TOPS[-1])


def logo_figure(heights: ndarray) -> Figure:
    """A logo of `heights` (L, 4) in bits, in equal lines of at most 60 positions, on an axis that
    ends at 0.25, 0.5, 1 or 2 bits."""
    size = len(heights)
    lines = -(-size // LINE)
    width = -(-size // lines)
    top = top_of(heights)
    with figure(10.5, 1.25 * lines + 0.3, lines) as (made, every):
        for first, axes in zip(range(0, size, width), every):
            part = heights[first : first + width]
            logo(axes, part, width, top)
            mark_tens(axes, first + 1, len(part), "{}")
        every[-1].set_xlabel("position, 1-based")
    return made


def mark_tens(axes: Axes, first: int, count: int, form: str = "{:,}") -> None:
    """Ticks at those of `count` positions from number `first` on that are multiples of 10."""
    places = [i for i in range(count) if (first + i) % 10 == 0]
    axes.set(xticks=places, xticklabels=[form.format(first + i) for i in places])


def interval_line(axes: Axes, y: float, low: Json, high: Json, color: str, lw: float = 2) -> None:
    """A horizontal line from `low` to `high`; nothing if one of them is not known."""
    if is_number(low) and is_number(high):
        axes.plot([low, high], [y, y], color=color, lw=lw)


def forest(axes: Axes, rows: Sequence[tuple[Json, ...]], form: str, better: int) -> None:
    """Differences (name, value, low, high): blue if the first is better, orange if it is worse,
    gray if the interval contains 0."""
    axes.axvline(0, color=REAL, lw=1)
    for y, (_, value, low, high) in enumerate(rows):
        known = is_number(low) and is_number(high)
        sign = int(low > 0) - int(high < 0) if known else 0
        color = REAL if sign == 0 else (MODEL if sign == better else OTHER)
        interval_line(axes, y, low, high, color)
        if is_number(value):
            axes.plot(value, y, "D", color=color, ms=5, mfc="white" if sign == 0 else color)
    values = [number(value, form) if is_number(value) else "" for _, value, *_ in rows]
    label_rows(axes, [name for name, *_ in rows], values)
    axes.margins(x=0.08)


def label_rows(axes: Axes, names: Sequence[str], values: Sequence[str], width: int = 17) -> None:
    """Label rows with names on the left, in at most three lines, and values on the right, the first
    row at the top."""
    wrapped = [
        [part for line in name.split("\n") for part in textwrap.wrap(line, width)] for name in names
    ]
    labels = ["\n".join(lines[:3] + ["…"] * (len(lines) > 3)) for lines in wrapped]
    axes.set_yticks(range(len(names)), labels)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    beside: Json = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
    for y, text in enumerate(values):
        axes.annotate(text, (1, y), (6, 0), va="center", fontsize=8.5, **beside)
    axes.spines["left"].set_visible(False)


def legend_below(axes: Axes) -> None:
    """A legend below the label of the x axis, where it covers nothing."""
    from matplotlib.transforms import ScaledTranslation

    half_an_inch = ScaledTranslation(0, -0.5, axes.figure.dpi_scale_trans)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=axes.transAxes + half_an_inch,
        ncols=2,
        borderaxespad=0,
        columnspacing=1,
        handlelength=1.6,
    )


def percentages(values: ndarray, edges: ndarray) -> ndarray:
    """% of the values in each bin."""
    return 100 * np.histogram(values, edges)[0] / len(values)


def number(value: Json, form: str = "{:.4f}") -> str:
    """A number in a table, with a true minus sign; a dash if there is none."""
    return form.format(value).replace("-", "−") if is_number(value) else "—"
