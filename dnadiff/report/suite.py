"""The page of a downstream study: a table of all tasks, then for each task its metric with
published ones, and pictures of the predictions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dnadiff.fields import Json, is_number
from dnadiff.report.page import (
    DOTTED,
    ENVIRONMENT,
    FAINT,
    MODEL,
    OTHER,
    REAL,
    Results,
    forest,
    interval_line,
    label_rows,
    legend_below,
    write_page,
)
from dnadiff.supervised.metrics import title as title_of
from dnadiff.supervised.study import (
    PublishedResult,
    num_training_sequences,
    of_rounds,
    on_subsets,
    published_accuracies,
    published_counterpart,
    remarks,
    suite_rows,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NETWORKS = ("fine-tuned", "scratch")
_CURVES = tuple(  # color and line of a ROC curve
    zip((MODEL, OTHER, "#009E73", "#CC79A7", REAL), ("-", "--", "-.", ":", (0, (5, 1))))
)


class ReportedMetric(NamedTuple):
    """The metric that a study compares models by, as reports show it: its values times `factor`, in
    the format `form`."""

    name: str
    title: str
    factor: float = 1.0
    unit: str = ""
    form: str = "{:.3f}"

    @property
    def signed(self) -> str:
        """The format of a difference."""
        return self.form.replace(":", ":+")

    @property
    def axis(self) -> str:
        """The label of an axis."""
        return f"test {self.title if self.unit == '' else self.name}{self.unit}"

    def scaled(self, value: Json) -> float | None:
        """A value as it is shown; None if it is not a number."""
        return self.factor * value if is_number(value) else None


ACCURACY = ReportedMetric("accuracy", "Accuracy", 100, ", %", "{:.1f}")


def metric_of(finetune: Results) -> ReportedMetric:
    """The metric of a study; accuracy in the results of earlier versions."""
    name = (finetune.get("task") or {}).get("metric", ACCURACY.name)
    return ACCURACY if name == ACCURACY.name else ReportedMetric(name, title_of(name))


def in_order(result: Results) -> list[str]:
    """The names of the models: fully trained networks first, then the others by decreasing
    accuracy, or the metric of the task."""
    models = result["models"]
    metric = metric_of(result).name
    first = [name for name in NETWORKS if name in models]
    others = [name for name in models if name not in first]
    return first + sorted(others, key=lambda name: -models[name][metric])


def write_suite(
    path: str | os.PathLike[str], studies: Sequence[Results], commands: Sequence[str] = ()
) -> Path:
    """Write the page of `studies`, results of `dnadiff.supervised.study.run_study`, and the
    `commands` that produced them.

    Raises:
        ValueError: if there is no study.
    """
    if not studies:
        raise ValueError("nothing to report: give at least one study")
    names = [result["task"]["name"] for result in studies]
    are_classes = all(metric_of(result) is ACCURACY for result in studies)
    kind = "Classification" if are_classes else "Downstream tasks"
    return write_page(
        path,
        "studies",
        title=f"{kind}: {names[0] if len(names) == 1 else f'{len(names)} tasks'}",
        studies=studies,
        table_rows=suite_rows(studies),
        commands=commands,
    )


def published_for(result: Results) -> list[PublishedResult]:
    """The published accuracies of the models of a study."""
    name = result["task"]["name"]
    pretrained = result.get("counterpart")
    known = [published_counterpart(name, model, pretrained) for model in result["models"]]
    return [each for each in published_accuracies(name) if each in known]


def chosen(result: Results) -> Results:
    """What was chosen on validation for each model."""
    found: dict[str, Json] = {}
    for name, model in result["models"].items():
        said = [
            ", ".join(
                f"{key} {value:g}" if is_number(value) else f"{key} {value}"
                for key, value in one.items()
            )
            if isinstance(one, Mapping)
            else str(one)
            for one in of_rounds(model, "chosen")
        ]
        found |= {name: "; ".join(dict.fromkeys(said))} if any(said) else {}
    return found


def accuracy_differences(axes: Axes, finetune: Results) -> None:
    """Paired differences of accuracy in percentage points (or of the metric of the task), with 95 %
    intervals."""
    metric = metric_of(finetune)
    rows = []
    for d in finetune["differences"]:
        values = (metric.scaled(d.get(key)) for key in ("difference", "low", "high"))
        rows.append((f"{d['a']}\n− {d['b']}", *values))
    forest(axes, rows, metric.signed, better=1)
    unit = "percentage points" if metric.unit else metric.title
    axes.set(title="Paired differences", xlabel=f"{unit} (above 0: first is better)")


def accuracy_bars(axes: Axes, result: Results, published: Sequence[PublishedResult]) -> None:
    """Accuracy (or the metric of the task) of each model with its 95 % interval; below, in gray,
    published accuracies."""
    models = result["models"]
    names = in_order(result)
    metric = metric_of(result)
    means = [metric.factor * models[name][metric.name] for name in names]
    for row, (name, mean) in enumerate(zip(names, means)):
        color = MODEL if name in NETWORKS else OTHER
        axes.barh(row, mean, height=0.62, color=color, alpha=0.85, lw=0)
        low, high = (metric.scaled(models[name].get(end)) for end in ("low", "high"))
        interval_line(axes, row, low, high, REAL, 1.6)
    labels = list(names)
    values = [metric.form.format(mean) for mean in means]
    for row, known in enumerate(published, len(names)):
        axes.barh(row, 100 * known.accuracy, height=0.62, color=FAINT, lw=0)
        labels.append(f"{known.model}, published ({known.train:,})")
        spread = "" if known.spread is None else f" ± {100 * known.spread:.1f}"
        values.append(f"{100 * known.accuracy:.1f}{spread}")
    label_rows(axes, labels, values, width=30)
    axes.axvline(metric.factor * result["task"]["chance"], **DOTTED)
    title = f"Trained on {num_training_sequences(result):,} sequences"
    limits = (min(0.0, *means) * 1.1, metric.factor)
    axes.set(title=title, xlabel=f"{metric.axis} (dotted: chance)", xlim=limits)


def scatter(axes: Axes, result: Results, name: str, target: str) -> None:
    """Predicted against measured values of the test items, first seed, with the diagonal."""
    points = result["models"][name]["scatter"][target]
    axes.plot(points["measured"], points["predicted"], "o", color=MODEL, ms=2.5, alpha=0.35, mew=0)
    ends = [min(points["measured"]), max(points["measured"])]
    axes.plot(ends, ends, **DOTTED)
    axes.set(title=name, xlabel=f"measured {target}", ylabel="predicted")


def roc(axes: Axes, result: Results) -> None:
    """ROC curves. Two classes: one for each model. More classes: one for each class against the
    rest, of the first model."""
    names = [name for name in in_order(result) if result["models"][name].get("roc")]
    classes = result["task"]["classes"]
    of_models = [result["models"][name]["roc"] for name in names]
    if len(classes) == 2:
        curves = [(name, of_model[0]) for name, of_model in zip(names, of_models)]
        title = f"ROC: {classes[1]} vs. {classes[0]}"
    else:
        curves = list(zip(classes, of_models[0])) if names else []
        title = f"ROC: {names[0]}, each class vs. the rest" if names else "ROC"
    axes.plot([0, 100], [0, 100], color=FAINT, lw=1)
    for (color, line), (name, curve) in zip(_CURVES, curves):
        x, y = (100 * np.asarray(curve[key]) for key in ("false", "true"))
        axes.plot(x, y, ls=line, color=color, lw=1.5, label=name)
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
    counts = np.asarray(result["models"][name]["confusion"])
    classes = result["task"]["classes"]
    fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1e-9)
    axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
    centered: Json = {"ha": "center", "va": "center", "fontsize": 8.5}
    for (row, column), fraction in np.ndenumerate(fractions):
        text = f"{counts[row, column]:,.0f}\n{100 * fraction:.0f} %"
        axes.text(column, row, text, color="white" if fraction > 0.55 else "#1D2125", **centered)
    axes.set_xticks(range(len(classes)), classes)
    axes.set_yticks(range(len(classes)), classes)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.set(title=name, xlabel="predicted", ylabel="true")


ENVIRONMENT.globals |= {
    function.__name__: function
    for function in (
        *(metric_of, in_order, published_for, num_training_sequences, on_subsets, remarks, chosen),
        *(accuracy_differences, accuracy_bars, scatter, roc, confusion),
    )
}
