"""Panels of a downstream study: metrics with published ones, ROC curves, confusion matrices,
predicted against measured values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dnadiff.checks import is_number
from dnadiff.report.panels import FAINT, MODEL, OTHER, REAL, label_rows, legend_below
from dnadiff.report.results import Results, metric_of
from dnadiff.supervised.tables import PublishedResult, num_training_sequences

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = (MODEL, OTHER, "#009E73", "#CC79A7", REAL)  # Okabe and Ito
_LINES = ("-", "--", "-.", ":", (0, (5, 1)))
NETWORKS = ("fine-tuned", "scratch")


def in_order(result: Results) -> list[str]:
    """The names of the models: fully trained networks first, then the others by decreasing
    accuracy, or the metric of the task."""
    models, metric = result["models"], metric_of(result).name
    first = [name for name in NETWORKS if name in models]
    return first + sorted(
        (name for name in models if name not in first), key=lambda name: -models[name][metric]
    )


def accuracy_bars(axes: Axes, result: Results, published: Sequence[PublishedResult] = ()) -> None:
    """Accuracy (or the metric of the task) of each model with its 95 % interval; below, in gray,
    published accuracies."""
    models, names, metric = result["models"], in_order(result), metric_of(result)
    for row, name in enumerate(names):
        one = models[name]
        axes.barh(
            row,
            metric.factor * one[metric.name],
            height=0.62,
            color=MODEL if name in NETWORKS else OTHER,
            alpha=0.85,
            lw=0,
        )
        if is_number(one.get("low")) and is_number(one.get("high")):
            axes.plot(
                [metric.factor * one[end] for end in ("low", "high")],
                [row, row],
                color=REAL,
                lw=1.6,
            )
    for row, known in enumerate(published, len(names)):
        axes.barh(row, 100 * known.accuracy, height=0.62, color=FAINT, lw=0)
    labels = names + [f"{known.model}, published ({known.train:,})" for known in published]
    values = [metric.form.format(metric.factor * models[name][metric.name]) for name in names]
    values += [
        f"{100 * known.accuracy:.1f}"
        + ("" if known.spread is None else f" ± {100 * known.spread:.1f}")
        for known in published
    ]
    label_rows(axes, labels, values, width=30)
    axes.axvline(metric.factor * result["task"]["chance"], color=REAL, lw=1, ls=(0, (1, 1.5)))
    lowest = min(0.0, *(metric.factor * models[name][metric.name] for name in names)) * 1.1
    title = f"Trained on {num_training_sequences(result):,} sequences"
    axes.set(title=title, xlabel=f"{metric.axis} (dotted: chance)", xlim=(lowest, metric.factor))


def scatter(axes: Axes, result: Results, name: str, target: str) -> None:
    """Predicted against measured values of the test items, first seed, with the diagonal."""
    points = result["models"][name]["scatter"][target]
    axes.plot(points["measured"], points["predicted"], "o", color=MODEL, ms=2.5, alpha=0.35, mew=0)
    ends = [min(points["measured"]), max(points["measured"])]
    axes.plot(ends, ends, color=REAL, lw=1, ls=(0, (1, 1.5)))
    axes.set(title=name, xlabel=f"measured {target}", ylabel="predicted")


def roc(axes: Axes, result: Results, max_curves: int = 5) -> None:
    """ROC curves. Two classes: one for each model. More classes: one for each class against the
    rest, of the first model."""
    names = [name for name in in_order(result) if result["models"][name].get("roc")][:max_curves]
    classes = result["task"]["classes"]
    if len(classes) == 2:
        curves = [(name, result["models"][name]["roc"][0]) for name in names]
        title = f"ROC: {classes[1]} vs. {classes[0]}"
    else:
        curves = list(zip(classes, result["models"][names[0]]["roc"]))[:max_curves] if names else []
        title = f"ROC: {names[0]}, each class vs. the rest" if names else "ROC"
    axes.plot([0, 100], [0, 100], color=FAINT, lw=1)
    for number, (name, curve) in enumerate(curves):
        x, y = (100 * np.asarray(curve[key]) for key in ("false", "true"))
        axes.plot(
            x,
            y,
            ls=_LINES[number % len(_LINES)],
            color=_COLORS[number % len(_COLORS)],
            lw=1.5,
            label=name,
        )
    axes.set(
        title=title,
        xlabel="false positive rate, %",
        ylabel="true positive rate, %",
        xlim=(0, 100),
        ylim=(0, 100),
        aspect="equal",
    )
    legend_below(axes)


def confusion(axes: Axes, result: Results, name: str) -> None:
    """Test sequences of each true class (row) by predicted class (column), mean over seeds; the
    shade is the fraction of the row."""
    counts, classes = np.asarray(result["models"][name]["confusion"]), result["task"]["classes"]
    fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1e-9)
    axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
    for (row, column), fraction in np.ndenumerate(fractions):
        text = f"{counts[row, column]:,.0f}\n{100 * fraction:.0f} %"
        axes.text(
            column,
            row,
            text,
            ha="center",
            va="center",
            fontsize=8.5,
            color="white" if fraction > 0.55 else REAL,
        )
    axes.set_xticks(range(len(classes)), classes)
    axes.set_yticks(range(len(classes)), classes)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.set(title=name, xlabel="predicted", ylabel="true")
