"""From panels to figures, and from figures to files and pages.

No pyplot and no lasting change of matplotlib's settings: drawing and saving happen inside `style`. Bytes depend on the input alone.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnadiff.report.results import shown_groups

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.7, 3.3  # inches: half a page, and nearly the width of a phone

_SETTINGS = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#6B7075",
    "axes.grid": True,
    "axes.labelcolor": "#24292E",
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the layout is the same everywhere
    "font.size": 9,
    "grid.color": "#E6E8EB",
    "grid.linewidth": 0.7,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may hold a $
    "svg.hashsalt": "dnadiff",
    "xtick.color": "#4A4F55",
    "ytick.color": "#4A4F55",
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's defaults with the settings of these pictures, for as long as the block lasts."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcParams.update({key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"})
        matplotlib.rcParams.update(_SETTINGS)
        yield


def panel(draw: Callable[..., None], *args: Any, height: float = HEIGHT, **kwargs: Any) -> Figure:
    """A figure of one panel: `draw(axes, *args, **kwargs)`."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure.subplots(), *args, **kwargs)
    return figure


def group_panels(draw: Callable[..., None], evaluation: Mapping[str, Any], unit: str = "base") -> Figure:
    """One panel below the other for each group of bases: `draw(axes, evaluation, group)`, each on a scale of its own."""
    from matplotlib.figure import Figure

    groups, rows = shown_groups(evaluation), 1 + len(evaluation.get("markov") or ())
    with style():
        figure = Figure(figsize=(WIDTH, len(groups) * (0.75 + 0.19 * rows)), layout="constrained")
        for axes, group in zip(figure.subplots(len(groups), 1, squeeze=False)[:, 0], groups):
            draw(axes, evaluation, group, unit)
            axes.set_xlabel(axes.get_xlabel() if group == groups[-1] else "")
    return figure


def overview(panels: Sequence[tuple[Callable[..., None], Sequence[Any]]]) -> Figure:
    """Up to three panels a row; 1,200 pixels wide when saved as PNG."""
    from matplotlib.figure import Figure

    if not panels:
        raise ValueError("there is nothing to draw: give metrics, evaluation, samples with real windows, or finetune")
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    with style():
        figure = Figure(figsize=(4 * columns, 3.1 * rows), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
        spaces = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, (draw, args) in zip(spaces, panels):
            draw(axes, *args)
        for axes in spaces[len(panels) :]:
            axes.set_visible(False)
    return figure


def save(figure: Figure, path: str | os.PathLike[str], pixels: int = 1200) -> Path:
    """Write a picture as `.png` (`pixels` wide) or `.svg`, beside the target and then renamed.

    Raises:
        ValueError: if the name ends otherwise.
    """
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"{path.name}: a picture is saved as .png or .svg, not {path.suffix or 'without an ending'}")
    kind = path.suffix.lower()[1:]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with style():
        figure.savefig(
            temporary, format=kind, dpi=pixels / figure.get_figwidth(), metadata={"Software": None} if kind == "png" else {"Date": None}
        )
    os.replace(temporary, path)
    return path


def inline_svg(figure: Figure, name: str) -> str:
    """The picture as an `<svg>` element for a page: ids begin with `name`, no metadata, nothing refers to the outside."""
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1), count=1)
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text).strip()
