"""Metrics of several models on the same items, paired differences, and both on subsets of the
items."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.diffusion.bootstrap import MIN_BLOCKS, verdict
from dnadiff.fields import Json
from dnadiff.supervised.baselines import length_alone
from dnadiff.supervised.classifier import HeadInputs
from dnadiff.supervised.intervals import summarize_metrics
from dnadiff.supervised.items import (
    Computed,
    Items,
    Job,
    Prediction,
    Report,
    TaskData,
    TaskModel,
    no_report,
)
from dnadiff.supervised.metrics import ScoredValues, metric_values, title
from dnadiff.supervised.overlap import TRAINING, training_remark
from dnadiff.supervised.protocol import FixedSplit
from dnadiff.supervised.results import ResultsFolder, timed
from dnadiff.supervised.targets.base import TaskTarget
from dnadiff.supervised.targets.classes import ClassTarget

log = logging.getLogger("dnadiff")


class Comparison:
    """Metrics of predictions on the same items, and their differences; the items of a group are
    resampled together.

    Args:
        predictions: of each run of each model.
        subsets: masks (S,) bool by name; the primary metric and its differences on each are
            reported too.
        target: None is classes.
    """

    def __init__(
        self,
        predictions: Mapping[str, Sequence[Prediction]],
        tested: Items,
        subsets: Mapping[str, np.ndarray] | None = None,
        target: TaskTarget | None = None,
    ) -> None:
        self.target = ClassTarget() if target is None else target
        self.predictions, self.labels = predictions, tested.labels.numpy()
        self.groups, self.subsets = resampled_groups(tested), subsets or {}
        self.scored = {name: self._scored(name) for name in predictions}

    def _scored(self, name: str, rows: slice | np.ndarray = slice(None)) -> list[ScoredValues]:
        """The predictions of some items, prepared for the metrics."""
        return [
            self.target.scored(
                run.predictions.numpy()[rows],
                self.labels[rows],
                None if run.folds is None else run.folds[rows],
            )
            for run in self.predictions[name]
        ]

    def model(self, name: str) -> dict[str, Json]:
        """The metrics of a model: the one that models are compared by with its interval and its
        value for each run, and all others."""
        target, scored, runs = self.target, self.scored[name], self.predictions[name]
        primary = target.primary
        interval, metric = target.interval(scored, groups=self.groups), target.metrics[primary]
        return {
            primary: interval.value,
            "low": interval.low,
            "high": interval.high,
            "per_seed": [metric_values(run, {primary: metric})[primary] for run in scored],
            "metrics": summarize_metrics(scored, target.metrics, groups=self.groups),
            **target.details(scored),
            "seconds": round(sum(run.seconds for run in runs), 1),
            "found": [run.fit_info for run in runs],
            "subsets": {subset: self._subset(mask, name) for subset, mask in self.subsets.items()},
        }

    def _subset(self, mask: np.ndarray, name: str, baseline: str | None = None) -> dict[str, Json]:
        """The primary metric on some items, or the difference from a baseline; None without
        items."""
        size, key = int(mask.sum()), self.target.primary if baseline is None else "difference"
        if not size:
            return {"items": 0, key: None, "low": None, "high": None}
        groups = None if self.groups is None else self.groups[mask]
        of_baseline = [] if baseline is None else self._scored(baseline, mask)
        found = self.target.interval(self._scored(name, mask), of_baseline, groups=groups)
        # Too few groups to resample; single items would give too narrow an interval.
        few = groups is not None and len(np.unique(groups)) < MIN_BLOCKS
        ends = (None, None) if few else (found.low, found.high)
        return {"items": size, key: found.value, "low": ends[0], "high": ends[1]}

    def difference(self, a: str, b: str) -> dict[str, Json]:
        """The primary metric of a minus that of b."""
        pair, groups = (self.scored[a], self.scored[b]), self.groups
        interval = self.target.interval(*pair, groups=groups)
        found: dict[str, Json] = {
            "a": a,
            "b": b,
            "difference": interval.value,
            "low": interval.low,
            "high": interval.high,
            "verdict": verdict(interval.low, interval.high, above="better", below="worse"),
            "p_value": self.target.p_value(*pair, groups=groups),
        }
        if self.subsets:
            found["subsets"] = {
                name: self._subset(mask, a, b) for name, mask in self.subsets.items()
            }
        return found


def compare(
    predictions: Mapping[str, Sequence[Prediction]],
    tested: Items,
    pairs: Sequence[tuple[str, str]] = (),
    subsets: Mapping[str, np.ndarray] | None = None,
    target: TaskTarget | None = None,
) -> dict[str, Json]:
    """`models`: the metrics of each; `differences` between pairs. See `Comparison`."""
    compared = Comparison(predictions, tested, subsets, target)
    return {
        "models": {name: compared.model(name) for name in predictions},
        "differences": [compared.difference(a, b) for a, b in pairs],
    }


def resampled_units(tested: Items) -> str:
    """What the intervals draw again: items, groups of items, or items of groups that are too few to
    draw."""
    if tested.groups is None:
        return "items"
    groups = tested.groups.numpy()
    count = len(np.unique(groups))
    shown = "1 group" if count == 1 else f"{count} groups"
    return f"items of {shown}" if _are_few(groups) else shown


def resampled_groups(tested: Items) -> np.ndarray | None:
    """The groups of items that a bootstrap draws together; None draws single items, also where
    there are too few groups to draw from."""
    if tested.groups is None:
        return None
    groups = tested.groups.numpy()
    if _are_few(groups):
        log.warning(
            f"the tested items are of {len(np.unique(groups))} groups, too few to resample: "
            "intervals are over items of these groups"
        )
        return None
    return groups


def _are_few(groups: np.ndarray) -> bool:
    return len(np.unique(groups)) < MIN_BLOCKS < len(groups)


WEIGHTS = tuple(np.linspace(0, 1, 21).round(2).tolist())  # of the first model, to choose from


class Combination(ABC):
    """A row of a study that is made from those of models.

    Attributes:
        name: of the row.
    """

    name: str

    @abstractmethod
    def combine(
        self,
        predictions: Mapping[str, Sequence[Prediction]],
        data: TaskData,
        protocol: FixedSplit,
        seeds: Sequence[int],
    ) -> list[Prediction]:
        """The predictions of the row, one for each run.

        Args:
            predictions: of the models, of each seed, or of the first one alone for a model whose
                seeds are the same.
        """


class SeedAverage(Combination):
    """The mean of the predictions of a model over all seeds: of probabilities, or of values."""

    def __init__(self, model: str, num_seeds: int) -> None:
        self.model, self.name = model, f"{model}, {num_seeds} seeds averaged"

    @override
    def combine(
        self,
        predictions: Mapping[str, Sequence[Prediction]],
        data: TaskData,
        protocol: FixedSplit,
        seeds: Sequence[int],
    ) -> list[Prediction]:
        runs = predictions[self.model]
        mean = data.target.averaged([run.predictions for run in runs], [1 / len(runs)] * len(runs))
        return [Prediction(mean, sum(run.seconds for run in runs), [])]


class Stack(Combination):
    """A weighted mean of the predictions of two models (of probabilities, a linear opinion pool),
    with the lowest loss on validation items.

    One weight instead of a regression: the epoch of a network is chosen on the same items, which
    makes its predictions of them look too good, and small validation parts would be overfitted.
    """

    def __init__(self, first: str, second: str, name: str) -> None:
        self.first, self.second, self.name = first, second, name

    @override
    def combine(
        self,
        predictions: Mapping[str, Sequence[Prediction]],
        data: TaskData,
        protocol: FixedSplit,
        seeds: Sequence[int],
    ) -> list[Prediction]:
        first, second = predictions[self.first], predictions[self.second]
        return [
            self._stacked(run, second[min(number, len(second) - 1)], data, protocol, seeds[number])
            for number, run in enumerate(first)
        ]

    def _stacked(
        self, first: Prediction, second: Prediction, data: TaskData, protocol: FixedSplit, seed: int
    ) -> Prediction:
        result, chosen, start = (
            torch.empty_like(first.predictions, dtype=torch.float64),
            list[dict[str, Json]](),
            0,
        )
        for one in protocol.rounds(data, seed):
            labels = one.data.valid.labels
            part = slice(start, start + len(labels))
            start = part.stop
            target = one.data.target.fit(one.data.train.labels)
            weight = best_weight(
                self._valid(first, self.first)[part],
                self._valid(second, self.second)[part],
                labels,
                target,
            )
            result[one.tested] = target.averaged(
                [run.predictions[one.tested] for run in (first, second)], [weight, 1 - weight]
            )
            chosen.append({"chosen": {f"weight of {self.first}": weight}})
        return Prediction(result, first.seconds + second.seconds, chosen, folds=first.folds)

    def _valid(self, run: Prediction, model: str) -> Tensor:
        if run.valid_predictions is None:
            raise ValueError(
                f"stack=true: {model} has no predictions of validation items; set stack=false"
            )
        return run.valid_predictions


def best_weight(first: Tensor, second: Tensor, labels: Tensor, target: TaskTarget) -> float:
    """The weight of the first model with the lowest loss of the target; in a tie, the one closest
    to 1/2."""
    losses = {
        weight: target.valid_loss(target.averaged([first, second], [weight, 1 - weight]), labels)
        for weight in WEIGHTS
    }
    return min(losses, key=lambda weight: (round(losses[weight], 9), abs(weight - 0.5)))


FREQUENT = 0.75  # the fraction of the test items in one class from which accuracy says little
_POLL_SECONDS = 2.0  # between checks on what other processes are computing


def distinct_seeds(model: TaskModel, seeds: Sequence[int], protocol: FixedSplit) -> list[int]:
    """The seeds that give different results with this model: all of them, or only the first."""
    return list(seeds if model.random or protocol.varies else seeds[:1])


def run_study(
    data: TaskData,
    models: Mapping[str, TaskModel],
    seeds: Sequence[int],
    pairs: Sequence[tuple[str, str]],
    report: Report = no_report,
    protocol: FixedSplit | None = None,
    results: ResultsFolder | None = None,
    subsets: Mapping[str, np.ndarray] | None = None,
    combinations: Sequence[Combination] = (),
) -> dict[str, Json]:
    """Fit every model with every seed and compare the predictions; plain values, ready for JSON.

    Args:
        pairs: (a, b) for the differences a minus b.
        report: called with steps and tokens, and with `now=` the model that is being fitted.
        protocol: which items are for training; None uses the task's own parts.
        subsets: see `compare`.
        combinations: further rows, made from those of the models.
    """
    start = time.monotonic()
    protocol = protocol or FixedSplit(pad_id=0)
    tested = protocol.tested(data)
    predictions = _predictions(data, models, seeds, report, protocol, results, tested.labels)
    predictions |= {
        one.name: one.combine(predictions, data, protocol, seeds) for one in combinations
    }
    task = {
        "name": data.name,
        "classes": data.classes,
        "items": protocol.example(data, seeds[0]).counts(),
        "tested": len(tested),
        "stranded": data.stranded,
        **protocol.describe(),
        "chance": data.target.chance(tested.labels.numpy()),
        "metric": data.target.primary,
        "shown": list(data.target.shown),
        "target": data.target.summary,
        "p_value_test": data.target.p_value_test,
        "resampled": resampled_units(tested),
        "length_alone": length_alone(data),
    }
    compared = compare(predictions, tested, pairs, subsets, data.target)
    return {
        "task": task,
        **compared,
        "notes": data.notes,
        "seconds": round(time.monotonic() - start, 1),
    }


def remarks(result: Mapping[str, Json]) -> list[str]:
    """Lines below the table of a task: what heads read besides features, what the length reveals,
    what intervals leave out, and a frequent class."""
    task, found = result["task"], []
    if reads := HeadInputs(**result.get("inputs", {})).describe():
        found.append(f"the heads of the networks also read {reads}")
    if length := task.get("length_alone"):
        found.append(
            f"the length alone predicts the class of {100 * length['accuracy']:.0f} % of the "
            "validation sequences (the most frequent class: "
            f"{100 * length['chance']:.0f} %): check that this is not an artifact of how they were "
            "chosen"
        )
    if (units := task.get("resampled", "items")).startswith("items of"):
        found.append(
            f"intervals are over {units}: they do not include the variation between groups, and "
            "may be too narrow for new ones"
        )
    if (
        training := next(iter(result["models"].values()))
        .get("subsets", {})
        .get(f"inside {TRAINING}")
    ):
        found.append(training_remark(training["items"], task["tested"]))
    if task.get("metric", ClassTarget.primary) == ClassTarget.primary and task["chance"] == 1:
        found.append(
            "all test sequences are of one class: accuracy is the fraction of this class that is "
            "found, and AUROC is not defined"
        )
    elif (
        task.get("metric", ClassTarget.primary) == ClassTarget.primary
        and task["chance"] >= FREQUENT
    ):
        balance = (
            ""
            if result.get("class_weights") == "balanced"
            else ", and class_weights=balanced gives each class the same weight in training"
        )
        found.append(
            f"{100 * task['chance']:.0f} % of the test sequences are of one class: MCC and AUROC "
            f"show more than accuracy{balance}"
        )
    return found


def _predictions(
    data: TaskData,
    models: Mapping[str, TaskModel],
    seeds: Sequence[int],
    report: Report,
    protocol: FixedSplit,
    results: ResultsFolder | None,
    labels: Tensor,
) -> dict[str, list[Prediction]]:
    """The predictions of every model with every seed. Those that another process is computing are
    skipped and checked again later."""
    trained = {seed: _train_items(data, protocol, seed) for seed in seeds}
    folds = {seed: folds_of(data, protocol, seed) for seed in seeds}
    pending = [
        (name, seed)
        for name, model in models.items()
        for seed in distinct_seeds(model, seeds, protocol)
    ]
    done: dict[str, dict[int, Prediction | None]] = {name: {} for name in models}
    for name, seed in pending:
        done[name][seed] = None  # in the order of the seeds, whichever is finished first
    while pending:
        for name, seed in list(pending):

            def compute(name: str = name, seed: int = seed) -> Computed:
                report(0, now=f"{name}, seed {seed}")
                computed = predict_rounds(data, models[name], seed, report, protocol, labels)
                return computed._replace(classifier=models[name].take_classifier())

            about = {**protocol.describe(), "settings": models[name].describe()}
            job = Job(data, name, seed, about, labels, trained[seed], folds[seed])
            prediction = (
                timed(compute)[0] if results is None else results.get_or_compute(job, compute)
            )
            if prediction is not None:
                done[name][seed] = prediction._replace(folds=folds[seed])
                pending.remove((name, seed))
        if pending:
            time.sleep(_POLL_SECONDS)
    return {
        name: [prediction for prediction in by_seed.values() if prediction is not None]
        for name, by_seed in done.items()
    }


def folds_of(data: TaskData, protocol: FixedSplit, seed: int) -> np.ndarray | None:
    """The fold of each tested item, (S,); None if one model predicts all."""
    if not protocol.tests_all_items:
        return None
    found = np.zeros(len(protocol.tested(data)), np.int64)
    for number, one in enumerate(protocol.rounds(data, seed)):
        found[one.tested.numpy()] = number
    return found


def _train_items(data: TaskData, protocol: FixedSplit, seed: int) -> int:
    """The training items of a seed; of several rounds, their mean."""
    sizes = [len(one.data.train) for one in protocol.rounds(data, seed)]
    return round(sum(sizes) / len(sizes))


def predict_rounds(
    data: TaskData,
    model: TaskModel,
    seed: int,
    report: Report,
    protocol: FixedSplit,
    labels: Tensor,
) -> Computed:
    """What the model computes in all rounds of one seed, without its network."""
    valid: list[Tensor | None] = []
    result, fit_info = (
        torch.full((len(labels), data.target.num_outputs), float("nan"), dtype=torch.float64),
        [],
    )
    for one in protocol.rounds(data, seed):
        result[one.tested] = model.fit_predict(one.data, seed, report).to(result.dtype)
        fit_info.append(dict(model.fit_info))
        valid.append(model.valid_predictions)
    known = [one for one in valid if one is not None]
    return Computed(
        result, fit_info, valid_predictions=torch.cat(known) if len(known) == len(valid) else None
    )


def primary_metric(result: Mapping[str, Json]) -> str:
    """The metric that a study compares models by; accuracy in the results of earlier versions."""
    return result["task"].get("metric", ClassTarget.primary)


def shown_metrics(result: Mapping[str, Json]) -> list[str]:
    """Further metrics in the tables of a study."""
    return list(result["task"].get("shown", ClassTarget.shown))


def header(result: Mapping[str, Json]) -> tuple[str, ...]:
    """The names of the columns of the first table of `table_rows`."""
    return (
        "model",
        title(primary_metric(result)),
        "95 % interval",
        "over seeds",
        *map(title, shown_metrics(result)),
        "sequences/s",
    )


def training_speed(model: Mapping[str, Json]) -> float | None:
    """Training sequences per second of a model's report, averaged over seeds and rounds; None if
    not measured."""
    each = [
        one["sequences_per_second"]
        for of_seed in model.get("found", ())
        for one in of_seed
        if "sequences_per_second" in one
    ]
    return float(np.mean(each)) if each else None


def table_rows(result: Mapping[str, Json]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The rows of the two tables of a study as text: models (under `header`), and differences."""
    models: list[tuple[str, ...]] = [
        (
            name,
            f"{m[primary_metric(result)]:.3f}",
            f"{m['low']:.3f} .. {m['high']:.3f}",
            f"{min(m['per_seed']):.3f} .. {max(m['per_seed']):.3f}"
            if len(m["per_seed"]) > 1
            else "-",
            *(f"{m['metrics'][name]['value']:.3f}" for name in shown_metrics(result)),
            f"{speed:,.0f}" if (speed := training_speed(m)) else "-",
        )
        for name, m in result["models"].items()
    ]
    differences: list[tuple[str, ...]] = [
        (
            f"{d['a']} - {d['b']}",
            f"{d['difference']:+.3f}",
            f"{d['low']:+.3f} .. {d['high']:+.3f}",
            d["verdict"],
        )
        for d in result["differences"]
    ]
    return models, differences


def subset_rows(result: Mapping[str, Json]) -> list[tuple[str, ...]]:
    """The primary metric of each model on each subset of the items, with the number of items, as
    text."""
    metric = primary_metric(result)
    return [
        (
            name,
            *(
                f"{one[metric]:.3f} ({one['items']:,})" if one["items"] else "- (0)"
                for one in m["subsets"].values()
            ),
        )
        for name, m in result["models"].items()
    ]
