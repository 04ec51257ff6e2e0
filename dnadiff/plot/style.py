"""The look of all figures: colors, matplotlib's settings, sizes and parts of panels.

Drawing and saving happen inside `style`, so that matplotlib's settings stay as the user has them;
pyplot is not used. The same input gives the same bytes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from dnadiff.fields import Json

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
    width: float = WIDTH, height: float = HEIGHT, rows: int = 1, columns: int = 1, **grid: Any
) -> Iterator[tuple[Figure, ndarray]]:
    """A figure, in inches, with its axes row by row, which are drawn on in this context."""
    from matplotlib.figure import Figure

    with style():
        made = Figure(figsize=(width, height), layout="constrained")
        yield made, made.subplots(rows, columns, squeeze=False, **grid).ravel()


def rendered(figure: Figure, kind: str, pixels: int | None = 1200) -> bytes:
    """The bytes of a picture, `png` or `svg`, `pixels` wide; None is the size of the figure."""
    buffer = io.BytesIO()
    dpi = "figure" if pixels is None else pixels / figure.get_figwidth()
    with style():
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=_METADATA[kind])
    return buffer.getvalue()


def logo(axes: Axes, heights: ndarray, width: int, top: float = 2.0, low: float = 0.0) -> None:
    """Draw letters of these `heights` (n, 4), the largest farthest from 0, negative ones below it,
    with room for `width` positions from `low` to `top`; NaN is nothing."""
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


def mark_tens(axes: Axes, first: int, count: int) -> None:
    """Ticks at those of `count` positions from number `first` on that are multiples of 10."""
    places = [i for i in range(count) if (first + i) % 10 == 0]
    axes.set(xticks=places, xticklabels=[f"{first + i:,}" for i in places])


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
