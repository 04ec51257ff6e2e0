"""Sequence logos: at each position the letters, as high as their information (Schneider and
Stephens 1990)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dnadiff.report import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {"A": "#009E73", "C": "#0072B2", "G": "#E69F00", "T": "#D55E00"}
LINE = 60  # positions in a line of a picture, at most
_SMALLEST = 0.01  # of the axis; smaller letters are left out
_TOPS = (0.25, 0.5, 1.0, 2.0)  # bits


def logo(axes: Axes, heights: np.ndarray, width: int, top: float = 2.0) -> None:
    """Draw letters of these `heights` (n, 4) in bits, the largest on top, with room for `width`
    positions and `top` bits; NaN is nothing."""
    from matplotlib.patches import PathPatch
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    shapes = {base: TextPath((0, 0), base, size=1) for base in COLORS}
    for place, of_position in enumerate(np.nan_to_num(heights)):
        bottom = 0.0
        for height, base in sorted(zip(of_position, COLORS)):
            if height >= _SMALLEST * top:
                box = shapes[base].get_extents()
                fit = (
                    Affine2D()
                    .translate(-box.x0, -box.y0)
                    .scale(0.9 / box.width, height / box.height)
                    .translate(place - 0.45, bottom)
                )
                axes.add_patch(PathPatch(shapes[base].transformed(fit), color=COLORS[base], lw=0))
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
    top = next((top for top in _TOPS if heights.sum(1).max() <= top), _TOPS[-1])
    with figures.style():
        figure = Figure(figsize=(10.5, 1.25 * lines + 0.3), layout="constrained")
        for line, axes in enumerate(figure.subplots(lines, 1, squeeze=False)[:, 0]):
            first = line * width
            logo(axes, heights[first : first + width], width, top)
            places = [i for i in range(min(width, size - first)) if (first + i + 1) % 10 == 0]
            axes.set(xticks=places, xticklabels=[f"{first + i + 1}" for i in places])
        axes.set_xlabel("position, 1-based")
    return figure
