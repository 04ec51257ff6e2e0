"""The sections of the demo's page about a run: its main numbers, each with its interval and how to
read it, the verdicts that follow from the intervals, tables and panels.

Nothing is computed here: the numbers come from `dnadiff.genomics.metrics` and from the JSON files
of the commands. A verdict is "better" or "worse" only if a 95 % interval excludes 0.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jinja2 import ChoiceLoader, FileSystemLoader
from numpy import ndarray

from dnadiff.diffusion.bootstrap import NEITHER, UNDECIDED, verdict
from dnadiff.fields import Json, is_number
from dnadiff.formats.table import number_in, read_csv
from dnadiff.report.page import (
    DOTTED,
    ENVIRONMENT,
    FAINT,
    MODEL,
    OTHER,
    REAL,
    WIDTH,
    Results,
    figure,
    forest,
    interval,
    interval_line,
    label_rows,
    legend_below,
    number,
)
from dnadiff.report.suite import ACCURACY
from dnadiff.supervised.intervals import TOO_FEW

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BIT = math.log(2)  # nats
GROUPS = {"all": "All held-out", "novel": "Novel", "repeated": "Repeated"}
LOSSES = {
    "train_nll": "Training, smoothed",
    "valid_nll": "Validation, averaged weights",
    "valid_nll_live": "Validation, raw weights",
}
Columns = Mapping[str, ndarray]


@dataclass(frozen=True)
class RunResults:
    """The results of a run on DNA; a report leaves out what is None.

    Attributes:
        metrics: columns of the training log, from `read_metrics`.
        evaluation: the content of `evaluate.json`.
        finetune: the content of `finetune.json`.
    """

    metrics: Columns | None = None
    evaluation: Results | None = None
    finetune: Results | None = None


def read_metrics(path: str | os.PathLike[str]) -> dict[str, ndarray]:
    """The columns of `metrics.csv` as float arrays; empty cells are NaN.

    Raises:
        ValueError: if a cell is not a number, or a row is incomplete.
    """
    header, rows = read_csv(path)
    lines = [(f"{path}, line {number}", row) for number, row in enumerate(rows, start=2)]
    return {name: np.array([number_in(row, name, at) for at, row in lines]) for name in header}


def listed(items: Sequence[Json]) -> str:
    """1, 2 and 3."""
    *words, last = map(str, items)
    return f"{', '.join(words)} and {last}" if words else last


def shown_groups(evaluation: Results) -> list[str]:
    """The groups of bases that have a number, `all` first; groups without bases are left out."""
    return [g for g in GROUPS if is_number(evaluation["groups"].get(g, {}).get("bits"))]


def markov_models(evaluation: Results, group: str = "all") -> list[Results]:
    """The Markov models that have a number for a group, by order."""
    models = sorted(evaluation.get("markov") or (), key=lambda m: m["order"])
    return [m for m in models if is_number(m["groups"].get(group, {}).get("bits"))]


def losses(metrics: Columns) -> dict[str, tuple[ndarray, ndarray]]:
    """The rows (N,) in which each loss was logged, and its values in bits."""
    return {
        name: (rows, metrics[name][rows] / BIT)
        for name in LOSSES
        if len(rows := np.flatnonzero(np.isfinite(metrics.get(name, np.empty(0)))))
    }


def smoothed(values: ndarray) -> ndarray:
    """Centered moving average over a fifteenth of the points; at the ends the window is cut off."""
    half = max(len(values) // 30, 1)
    index = np.arange(len(values))
    total = np.concatenate([[0], np.cumsum(values)])
    first = np.maximum(index - half, 0)
    last = np.minimum(index + half + 1, len(values))
    return (total[last] - total[first]) / (last - first)


def short_count(value: float) -> str:
    """1,500,000 as 1.5 M."""
    scales = ((1e9, " G"), (1e6, " M"), (1e3, " k"))
    size, letter = next((scale for scale in scales if abs(value) >= scale[0]), (1, ""))
    return f"{value / size:.3g}{letter}"


class Headline(NamedTuple):
    """One row: a number, its 95 % interval, and what it means."""

    name: str
    value: str
    interval: str
    reading: str


def headlines(results: RunResults) -> list[Headline]:
    """A row for each result: held-out bits, differences to Markov models, downstream accuracies."""
    rows: list[Headline] = []

    def add(
        name: str, value: Json, low: Json, high: Json, form: str, reading: str, missing: str = "—"
    ) -> None:
        ends = interval(low, high, form.split()[0], missing)
        rows.append(Headline(name, number(value, form), ends, reading))

    evaluation = results.evaluation or {"groups": {}}
    meanings = {
        "all": "Mean bits per held-out base; uniform guessing gives 2. Lower is better.",
        "novel": (
            "Only bases that are in no 24-mer of the training part, on either strand: they "
            "cannot be copied."
        ),
        "repeated": "Only bases in 24-mers that also occur in the training part: copying helps.",
    }
    for group in shown_groups(evaluation):
        values = evaluation["groups"][group]
        said = (
            f"{meanings[group]} Perplexity {values['perplexity']:.3f}. Standard error: Monte Carlo "
            f"{values['se_mc'] / BIT:.4f}, total {values['se_total'] / BIT:.4f}."
        )
        ends = values["bits_low"], values["bits_high"]
        add(f"Bits per base, {GROUPS[group].lower()}", values["bits"], *ends, "{:.4f}", said)
    for markov in markov_models(evaluation):
        values = markov["groups"]["all"]
        order = markov["order"]
        ends = (values.get("low"), values.get("high"))
        words = ("The model is worse than", "The model is better than", "Not distinguishable from")
        said = verdict(*ends, *words)
        said = f"{said} order {order}" if said != UNDECIDED else f"{said[0].upper()}{said[1:]}"
        add(
            f"Model minus Markov order {order}, bits per base",
            values.get("difference_bits"),
            *ends,
            "{:+.4f}",
            f"{said}. Order {order} itself: {number(values.get('bits'))}.",
        )
    if finetune := results.finetune:
        metric = ACCURACY
        chance = 1 / len(finetune["task"]["classes"])
        for name, result in finetune["models"].items():
            low = result["low"]
            high = result["high"]
            seeds = len(result["per_seed"])
            said = "Test windows classified correctly, in %"
            said += f", over {seeds} seeds." if seeds > 1 else "."
            if is_number(low) and is_number(high):
                words = ("Above chance", "Below chance", "Not distinguishable from chance")
                above = verdict(low - chance, high - chance, *words)
                said += f" {above} ({100 * chance:.3g})."
            value, low, high = map(metric.scaled, (result[metric.name], low, high))
            add(f"{metric.title}, {name}", value, low, high, metric.form, said, TOO_FEW)
        for d in finetune["differences"]:
            said = {
                "better": "Better: the interval is above 0.",
                "worse": "Worse: the interval is below 0.",
                NEITHER: "Not distinguishable: the interval contains 0.",
            }.get(d["verdict"], d["verdict"])
            name = f"{d['a']} minus {d['b']}, points"
            value, low, high = (metric.scaled(d[key]) for key in ("difference", "low", "high"))
            add(name, value, low, high, metric.signed, said, TOO_FEW)
    return rows


def sentences(results: RunResults) -> list[str]:
    """The verdicts in words, one sentence for each part."""
    said = []
    words_of = "worse than", "better than", f"{NEITHER} from"
    orders: dict[str, list[int]] = {words: [] for words in sorted(words_of)}
    for markov in markov_models(results.evaluation or {}):
        values = markov["groups"]["all"]
        ends = (values.get("low"), values.get("high"))
        words = verdict(*ends, *words_of)
        if words != UNDECIDED:
            orders[words].append(markov["order"])
    if parts := [f"{words} order {listed(found)}" for words, found in orders.items() if found]:
        said.append(
            f"Compared with Markov models, on all held-out bases, the model is {'; '.join(parts)}."
        )
    finetune = results.finetune or {"differences": ()}
    parts = []
    for d in finetune["differences"]:
        if d["verdict"] in ("better", "worse", NEITHER):
            word = "than" if d["verdict"] != NEITHER else "from"
            parts.append(f"{d['a']} is {d['verdict']} {word} {d['b']}")
    if parts:
        said.append(f"On {finetune['task']['name']}, {'; '.join(parts)}.")
    return said


def loss_rows(metrics: Columns) -> list[tuple[str, ...]]:
    """First, last and lowest value of each loss, in bits."""
    x = metrics["tokens"]
    rows = list[tuple[str, ...]]()
    for key, (known, bits) in losses(metrics).items():
        bits = smoothed(bits) if key == "train_nll" else bits
        best = int(np.argmin(bits))
        lowest = f"{number(bits[best])} at {short_count(x[known][best])}"
        rows.append((LOSSES[key], number(bits[0]), number(bits[-1]), lowest))
    return rows


def loss_curve(axes: Axes, metrics: Columns) -> None:
    """Bits per base against tokens: training raw and smoothed, validation with averaged and with
    raw weights."""
    x = metrics["tokens"]
    logged = losses(metrics)
    ends = []
    if "train_nll" in logged:
        rows, bits = logged["train_nll"]
        axes.plot(x[rows], bits, "-", color=FAINT, lw=0.6, alpha=0.55, label="training")
        smooth = smoothed(bits)
        axes.plot(x[rows], smooth, color=REAL, lw=1.4, label="training, smoothed")
        ends += [smooth[len(smooth) // 50 :], np.percentile(bits, [10, 90])]
    for name, color, marker, text in (
        ("valid_nll_live", OTHER, "s--", "validation, raw"),
        ("valid_nll", MODEL, "o-", "validation, averaged"),
    ):
        if name in logged:
            rows, bits = logged[name]
            axes.plot(x[rows], bits, marker, color=color, ms=3.5, lw=1.4, label=text)
            ends.append(bits)
    if ends:
        low = min(map(np.min, ends))
        high = max(map(np.max, ends))
        axes.set_ylim(low - 0.06 * (high - low) - 1e-3, high + 0.12 * (high - low) + 1e-3)
    axes.set(title="Loss", xlabel="tokens seen in training", ylabel="bits per base", xlim=(0, None))
    axes.xaxis.set_major_formatter(lambda value, _: short_count(value))
    legend_below(axes)


def group_panels(draw: Callable[[Axes, Results, str], None], evaluation: Results) -> Figure:
    """A figure with one panel for each group of bases, from top to bottom:
    `draw(axes, evaluation, group)`, each with its own scale."""
    groups = shown_groups(evaluation)
    rows = 1 + len(evaluation.get("markov") or ())
    with figure(WIDTH, len(groups) * (0.75 + 0.19 * rows), len(groups)) as (made, every):
        for axes, group in zip(every, groups):
            draw(axes, evaluation, group)
            axes.set_title(f"{GROUPS[group]} bases, {evaluation['groups'][group]['tokens']:,}")
            axes.set_xlabel(axes.get_xlabel() if group == groups[-1] else "")
    return made


def held_out_bits(axes: Axes, evaluation: Results, group: str = "all") -> None:
    """Bits per base of the model, with its 95 % interval, and of the Markov models on the same
    bases."""
    ours = evaluation["groups"][group]
    markov = markov_models(evaluation, group)
    bits = [ours["bits"], *(m["groups"][group]["bits"] for m in markov)]
    low = ours.get("bits_low")
    high = ours.get("bits_high")
    if is_number(low) and is_number(high):
        axes.axvspan(low, high, color=MODEL, alpha=0.12, lw=0)
    interval_line(axes, 0, low, high, MODEL)
    axes.plot(bits[0], 0, "o", color=MODEL, ms=6)
    axes.plot(bits[1:], range(1, len(bits)), "s", color=REAL, mfc="white", ms=5)
    names = ["this model", *(f"order {m['order']}" for m in markov)]
    label_rows(axes, names, [f"{value:.4f}" for value in bits])
    axes.set_xlabel("bits per base (lower is better)")


def paired_differences(axes: Axes, evaluation: Results, group: str) -> None:
    """The model's bits minus those of each Markov model, with 95 % intervals; below 0 the model is
    better."""
    rows = [
        (
            f"minus order {m['order']}",
            *map(m["groups"][group].get, ("difference_bits", "low", "high")),
        )
        for m in markov_models(evaluation, group)
    ]
    forest(axes, rows, "{:+.4f}", better=-1)
    axes.set_xlabel("difference in bits per base (below 0: model better)")


def visibility_curve(axes: Axes, evaluation: Results) -> None:
    """h(n): bits per masked base when n others of its window are visible, with 95 % intervals over
    blocks of windows; its mean is the NELBO."""
    visible, bits, se = (
        np.asarray(evaluation["curve"][key], float) for key in ("visible", "bits", "se")
    )
    mean = evaluation["groups"]["all"]["bits"]
    axes.axhline(2, label="uniform guessing, 2", **DOTTED)
    axes.axhline(mean, color=OTHER, lw=1.2, ls="--", label=f"mean = NELBO, {mean:.4f}")
    points: Json = {"fmt": "o-", "ms": 4, "lw": 1.3, "elinewidth": 1, "capsize": 2}
    axes.errorbar(visible, bits, 1.96 * se, color=MODEL, label="h(n)", **points)
    axes.set(
        title="Bits against context",
        xlabel="visible bases n",
        ylabel="bits per masked base",
        xlim=(0, None),
    )
    axes.margins(y=0.12)
    legend_below(axes)


# The templates of the package, with `sections.html.j2` and whatever else is in this folder.
TEMPLATES = ENVIRONMENT.overlay(
    loader=ChoiceLoader([ENVIRONMENT.loader, FileSystemLoader(Path(__file__).parent)])
)
TEMPLATES.globals |= {"groups": GROUPS, "verdict": verdict} | {
    function.__name__: function
    for function in (
        *(headlines, sentences, losses, loss_rows, loss_curve),
        *(shown_groups, markov_models, group_panels),
        *(held_out_bits, paired_differences, visibility_curve),
    )
}
