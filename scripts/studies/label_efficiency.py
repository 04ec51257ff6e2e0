"""The picture of label efficiency: the score on the test part against the number of training items,
from the pieces `few-` of fine_tuning.py.

    python scripts/studies/label_efficiency.py [--table docs/tables/fine_tuning.json] [--output
    docs/label_efficiency.svg]

Each point is the mean over seeds, and its bar the lowest and the highest seed. Each seed draws
other training items.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import study
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dnadiff.supervised.metrics import title

DEFAULT_TABLE = Path("docs/tables/fine_tuning.json")
DEFAULT_OUTPUT = Path("docs/label_efficiency.svg")
ADAPTER = "fine-tuned, LoRA"
# The networks that start from a pretrained model have solid lines.
STYLES: dict[str, tuple[str, dict[str, Any]]] = {
    "fine-tuned": ("pretrained, fine-tuned", {"color": "#c0392b", "marker": "o"}),
    ADAPTER: ("pretrained, LoRA", {"color": "#d99000", "marker": "s"}),
    "frozen": ("pretrained, frozen features", {"color": "#7b4fa3", "marker": "^"}),
    "scratch": (
        "the same network from scratch",
        {"color": "#8a8f98", "marker": "o", "linestyle": "--"},
    ),
    **dict.fromkeys(  # the second is its name in earlier tables
        ("small network on the bases", "same head on one-hot"),
        ("head on bases, no network", {"color": "#c2649b", "marker": "x", "linestyle": "--"}),
    ),
    "CNN": ("published CNN", {"color": "#3b6fb6", "marker": "D", "linestyle": "--"}),
    "6-mers": ("6-mers", {"color": "#1b9e77", "marker": "v", "linestyle": "--"}),
}

REPEATED = (
    "6-mers",
    "small network on the bases",
    "same head on one-hot",
)  # rows of every piece, of which those of `full` are shown


class Point(NamedTuple):
    """The score of a model with `items` training items, and the scores of its seeds."""

    items: int
    value: float
    seeds: Sequence[float]


def few(pieces: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Set, kind and result of the pieces `few-SET-N-KIND`."""
    for name, row in pieces.items():
        if name.startswith("few-"):
            task, _, kind = name.removeprefix("few-").rsplit("-", 2)
            yield task, kind, row


def curves(pieces: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, list[Point]]]:
    """Points of each model for each set, by the number of training items."""
    found: dict[str, dict[str, list[Point]]] = {}
    for task, kind, row in few(pieces):
        items = sum(row["task"]["items"]["train"].values())
        for model, scores in row["models"].items():
            key = shown_as(model, kind)
            if key in STYLES and (kind == "full" or key not in REPEATED):
                found.setdefault(task, {}).setdefault(key, []).append(
                    Point(items, scores["value"], scores["per_seed"])
                )
    return {
        task: {key: sorted(models[key]) for key in STYLES if key in models}
        for task, models in found.items()
    }


def shown_as(model: str, kind: str) -> str:
    """The key of `STYLES` of a row of `finetune`; linear models have other names for values."""
    if model.startswith("6-mer"):
        return "6-mers"
    if model.startswith("frozen + "):
        return "frozen"
    return ADAPTER if (model, kind) == ("fine-tuned", "lora") else model


def draw(axes: Axes, task: str, metric: str, models: Mapping[str, Sequence[Point]]) -> None:
    """One set."""
    for key, points in models.items():
        label, style = STYLES[key]
        values = np.array([point.value for point in points])
        low, high = (
            np.array([edge(point.seeds or [point.value]) for point in points])
            for edge in (min, max)
        )
        bars = np.stack([np.maximum(values - low, 0), np.maximum(high - values, 0)])
        axes.errorbar(
            [point.items for point in points],
            values,
            yerr=bars,
            label=label,
            markersize=4,
            linewidth=1.2,
            capsize=2,
            **style,
        )
    axes.set(xscale="log", title=task, ylabel=title(metric))
    axes.spines[["top", "right"]].set_visible(False)


def picture(pieces: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw all sets.

    Raises:
        ValueError: if no piece `few-` is finished.
    """
    found = curves(pieces)
    if not found:
        raise ValueError(
            "the table has no piece few-; run python scripts/studies/fine_tuning.py --only "
            "few- --collect FILE"
        )
    metrics = {task: row["task"]["metric"] for task, _, row in few(pieces)}
    columns = min(2, len(found))
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "dnadiff",
            "svg.fonttype": "path",
            "font.family": "DejaVu Sans",
            "font.size": 8,
        }
    )
    figure = Figure(
        figsize=(2.4 * columns, 1.9 * -(-len(found) // columns) + 0.9), layout="constrained"
    )
    grid = figure.subplots(-(-len(found) // columns), columns, squeeze=False).ravel()
    for axes, (task, models) in zip(grid, found.items()):
        draw(axes, task, metrics[task], models)
        axes.set_xlabel("training items")
    for axes in grid[len(found) :]:
        axes.set_visible(False)
    handles = {
        label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels())
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--table",
        type=Path,
        default=DEFAULT_TABLE,
        help="what fine_tuning.py --collect wrote (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="default: %(default)s")
    options = parser.parse_args()
    picture(study.read_json(options.table), options.output)
    print(options.output)


if __name__ == "__main__":
    main()
