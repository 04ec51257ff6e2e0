"""What a report is made of: the columns of `metrics.csv`, and the contents of `evaluate.json` and
`finetune.json`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dnadiff.diffusion.bootstrap import verdict
from dnadiff.fields import Json, is_number
from dnadiff.formats.table import number_in, read_csv
from dnadiff.genomics.metrics.composition import Composition, compare
from dnadiff.supervised.metrics import title

BIT = math.log(2)  # nats
GROUPS = {"all": "All held-out", "novel": "Novel", "repeated": "Repeated"}
LOSSES = ("train_nll", "valid_nll", "valid_nll_live")
Columns = Mapping[str, np.ndarray]
Results = Mapping[str, Json]  # the content of a JSON file
Sequences = Sequence[str | bytes | np.ndarray]


@dataclass(frozen=True)
class RunResults:
    """The results of a run; a report leaves out what is None.

    Attributes:
        metrics: columns of the training log, from `read_metrics`.
        evaluation: the content of `evaluate.json`.
        samples: generated sequences, as strings or uint8 arrays of bases; they need `real`.
        real: windows of the genome, of the samples' length.
        finetune: the content of `finetune.json`.
        unit: the name of a token: base, character.
        uniform_bits: bits of uniform guessing; None if it is not shown.
        both_strands: count k-mers on both strands.

    Raises:
        ValueError: if samples come without real windows or the other way around.
    """

    metrics: Columns | None = None
    evaluation: Results | None = None
    samples: Sequences | None = None
    real: Sequences | None = None
    finetune: Results | None = None
    unit: str = "base"
    uniform_bits: float | None = 2.0
    both_strands: bool = True

    def __post_init__(self) -> None:
        if (self.samples is None) != (self.real is None):
            given, missing = ("samples", "real") if self.real is None else ("real", "samples")
            why = (
                "samples are compared with real windows of the same length, so give both or neither"
            )
            raise ValueError(f"{given} came without {missing}; {why}")

    @cached_property
    def composition(self) -> Composition | None:
        """The samples compared with real windows."""
        return (
            None
            if self.samples is None or self.real is None
            else compare(self.samples, self.real, both_strands=self.both_strands)
        )


def read_metrics(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The columns of `metrics.csv` as float arrays; empty cells are NaN.

    Raises:
        ValueError: if a cell is not a number, a row is incomplete, or there is no row.
    """
    header, rows = read_csv(path)
    if not rows:
        raise ValueError(f"{path} has no rows; has the training logged anything?")
    return {
        name: np.array(
            [
                number_in(row, name, f"{path}, line {number}")
                for number, row in enumerate(rows, start=2)
            ]
        )
        for name in header
    }


def has_loss(metrics: Columns) -> bool:
    """Whether any loss was logged."""
    return any(np.isfinite(metrics[name]).any() for name in LOSSES if name in metrics)


def shown_groups(evaluation: Results) -> list[str]:
    """The groups of bases that have a number, `all` first; groups without bases are left out."""
    groups = evaluation["groups"]
    order = [g for g in GROUPS if g in groups] + [g for g in groups if g not in GROUPS]
    return [g for g in order if is_number(groups[g].get("bits"))]


def markov_models(evaluation: Results, group: str = "all") -> list[Results]:
    """The Markov models that have a number for a group, by order."""
    models = sorted(evaluation.get("markov") or (), key=lambda m: m["order"])
    return [m for m in models if is_number(m["groups"].get(group, {}).get("bits"))]


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
    return ACCURACY if name == ACCURACY.name else ReportedMetric(name, title(name))


def chance_level(finetune: Results) -> float | None:
    """One over the number of classes, if the task has it (`classes`: a number or their names); of
    other tasks than classification, none."""
    if metric_of(finetune) is not ACCURACY:
        return None
    classes = (finetune.get("task") or {}).get("classes")
    number = classes if is_number(classes) else len(classes or ())
    return 1 / number if number else None


def progress(metrics: Columns) -> tuple[np.ndarray, str]:
    """The x axis of the loss, with its label: tokens if every row has them, otherwise steps."""
    tokens = metrics.get("tokens")
    if tokens is not None and len(tokens) and np.isfinite(tokens).all():
        return tokens, "tokens seen in training"
    return metrics["step"], "training steps"


def smoothed(values: np.ndarray) -> np.ndarray:
    """Centered moving average over a fifteenth of the points; at the ends the window is cut off."""
    half, index = max(len(values) // 30, 1), np.arange(len(values))
    total = np.concatenate([[0], np.cumsum(values)])
    first, last = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (total[last] - total[first]) / (last - first)


def short_count(value: float) -> str:
    """1,500,000 as 1.5 M."""
    size, letter = next(
        ((s, x) for s, x in ((1e9, " G"), (1e6, " M"), (1e3, " k")) if abs(value) >= s), (1, "")
    )
    return f"{value / size:.3g}{letter}"


def number(value: Json, form: str = "{:.4f}") -> str:
    """A number in a table, with a true minus sign; a dash if there is none."""
    return form.format(value).replace("-", "−") if is_number(value) else "—"


def interval(low: Json, high: Json, form: str = "{:.4f}") -> str:
    """An interval in a table."""
    return (
        f"{number(low, form)} to {number(high, form)}"
        if is_number(low) and is_number(high)
        else "—"
    )


def listed(items: Sequence[Json]) -> str:
    """1, 2 and 3."""
    words = [str(item) for item in items]
    return (
        words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""
    )


def loss_rows(metrics: Columns) -> list[tuple[str, ...]]:
    """First, last and lowest value of each loss, in bits."""
    x, _ = progress(metrics)
    names = "Training, smoothed", "Validation, averaged weights", "Validation, raw weights"
    rows: list[tuple[str, ...]] = []
    for key, name in zip(LOSSES, names):
        known = np.flatnonzero(np.isfinite(metrics.get(key, np.empty(0))))
        if len(known):
            bits = metrics[key][known] / BIT
            bits = smoothed(bits) if key == LOSSES[0] else bits
            best = int(np.argmin(bits))
            lowest = f"{number(bits[best])} at {short_count(x[known][best])}"
            rows.append((name, number(bits[0]), number(bits[-1]), lowest))
    return rows


def bits_rows(evaluation: Results) -> list[tuple[str, ...]]:
    """The model and the Markov models on each group of bases."""
    rows: list[tuple[str, ...]] = []
    for group in shown_groups(evaluation):
        name, ours = GROUPS.get(group, group), evaluation["groups"][group]
        ppl = number(ours.get("perplexity"), "{:.3f}")
        rows.append((name, "this model", number(ours["bits"]), ppl, "", "", ""))
        for markov in markov_models(evaluation, group):
            theirs = markov["groups"][group]
            low, high = theirs.get("low"), theirs.get("high")
            rows.append(
                (
                    name,
                    f"order {markov['order']}",
                    number(theirs["bits"]),
                    number(theirs.get("perplexity"), "{:.3f}"),
                    number(theirs.get("difference_bits"), "{:+.4f}"),
                    interval(low, high, "{:+.4f}"),
                    verdict(low, high, "model worse", "model better", "not distinguishable"),
                )
            )
    return rows


def curve_rows(curve: Results) -> list[tuple[str, ...]]:
    """The points of h(n)."""
    return [
        (number(n, "{:.0f}"), number(bits), number(None if se is None else 1.96 * se))
        for n, bits, se in zip(curve["visible"], curve["bits"], curve["se"])
    ]


def kmer_rows(c: Composition, num_rows: int = 6) -> list[tuple[str, ...]]:
    """The k-mers whose frequencies differ most, in %."""
    order = np.argsort(-np.abs(c.sample_frequency - c.real_frequency), kind="stable")[:num_rows]
    every = np.stack([c.sample_frequency, c.real_frequency, c.kmer_low, c.kmer_high], 1)
    form = "{:.3f}"
    return [
        (c.kmers[i], number(ours, form), number(real, form), interval(low, high, form))
        for i, (ours, real, low, high) in zip(order, 100 * every[order])
    ]


def gc_rows(c: Composition) -> list[tuple[str, ...]]:
    """Mean and standard deviation of the GC content, in %."""
    named, form = (("Samples", c.sample_gc), ("Real windows", c.real_gc)), "{:.2f}"
    return [
        (name, f"{len(gc):,}", number(100 * gc.mean(), form), number(100 * gc.std(ddof=1), form))
        for name, gc in named
    ]
