"""The study: several models on one task, several seeds each, compared on the same test items.

Models are anything with the members of `TaskModel`; nothing here knows how they learn. Who learns from what is the `protocol`'s,
what is kept between runs is `results`'.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dnadiff.bootstrap import ConfidenceInterval, verdict
from dnadiff.downstream.items import Items, TaskData
from dnadiff.downstream.metrics import Scored, confusion_matrix, roc_curves, sign_flip, summary, worlds
from dnadiff.downstream.protocol import FixedSplit
from dnadiff.downstream.results import Prediction, ResultsFolder, Unkept

_WAIT = 2.0  # seconds between two looks at what another process computes


class TaskModel(Protocol):
    """A way to classify.

    A model may leave in `found` what its last call found out about itself, plain values: settings tried on validation, speed.

    Attributes:
        random: False if every seed gives the same result on the same items; it then runs once for each division.
    """

    random: bool

    def describe(self) -> Mapping[str, Any]:
        """What the result depends on, besides task and seed: kept predictions are used again only if this is the same."""
        ...

    def num_steps(self, data: TaskData) -> int:
        """How often `report` will be called with a step, for the progress display."""
        ...

    def __call__(self, data: TaskData, seed: int, report: Callable[..., None]) -> Tensor:
        """Learn from train and valid; log-probabilities of the test items, (S, C)."""
        ...


def runs_of(model: TaskModel, seeds: Sequence[int], protocol: FixedSplit) -> list[int]:
    """The seeds that give this model different results."""
    return list(seeds if model.random or protocol.varies else seeds[:1])


def study(
    data: TaskData,
    models: Mapping[str, TaskModel],
    seeds: Sequence[int],
    pairs: Sequence[tuple[str, str]],
    report: Callable[..., None] = lambda *_, **__: None,
    protocol: FixedSplit | None = None,
    kept: ResultsFolder | Unkept | None = None,
    subsets: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Run every model with every seed and compare.

    Args:
        data: the task.
        models: name to model.
        seeds: of the models that depend on one.
        pairs: (a, b) for the differences a minus b.
        report: told steps and tokens, and under `now=` which model is learning.
        protocol: who learns from which items; None: the task's own parts.
        kept: finished predictions; those that are there are not computed again.
        subsets: see `compare`.

    Returns:
        Plain values, ready for JSON: `task`, `models`, `differences`, `notes`, `seconds`.
    """
    start = time.monotonic()
    protocol = protocol or FixedSplit(pad_id=0)
    tested = protocol.tested(data)
    predictions = _predictions(data, models, seeds, report, protocol, kept or Unkept(), tested.labels)
    task = {
        "name": data.name,
        "classes": data.classes,
        "items": data.counts(),
        "tested": len(tested),
        "stranded": data.stranded,
        "protocol": protocol.name,
        "chance": float(np.bincount(tested.labels.numpy()).max() / len(tested)),
    }
    compared = compare(predictions, tested, pairs, subsets)
    return {"task": task, **compared, "notes": data.notes, "seconds": round(time.monotonic() - start, 1)}


def compare(
    predictions: Mapping[str, Sequence[Prediction]],
    tested: Items,
    pairs: Sequence[tuple[str, str]] = (),
    subsets: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """What predictions on the same items are worth, and how they differ. Items of one group are resampled together.

    Args:
        predictions: of each model, one for each seed.
        tested: the items.
        pairs: (a, b) for the differences a minus b.
        subsets: name to (S,) bool: items whose accuracy is also given apart.

    Returns:
        `models` and `differences`, plain values.
    """
    labels, groups = tested.labels.numpy(), None if tested.groups is None else tested.groups.numpy()
    reports, correct = {}, {}
    for name, of_seeds in predictions.items():
        scored = [Scored(p.log_probs.numpy(), labels) for p in of_seeds]
        correct[name] = np.stack([run.predicted == labels for run in scored])
        reports[name] = {
            **_accuracy(correct[name], groups),
            "metrics": summary(scored, groups=groups),
            "confusion": confusion_matrix(scored),
            "roc": roc_curves(scored[0]),
            "seconds": round(sum(p.seconds for p in of_seeds), 1),
            "found": [p.found for p in of_seeds],
            "subsets": {part: _subset(correct[name], rows, groups) for part, rows in (subsets or {}).items()},
        }
    return {"models": reports, "differences": [_difference(a, b, correct, groups) for a, b in pairs]}


def _predictions(
    data: TaskData,
    models: Mapping[str, TaskModel],
    seeds: Sequence[int],
    report: Callable[..., None],
    protocol: FixedSplit,
    kept: ResultsFolder | Unkept,
    labels: Tensor,
) -> dict[str, list[Prediction]]:
    """What every model predicts with every seed.

    What another process is at is passed over, and looked for again when all else is done.
    """
    jobs = [(name, seed) for name, model in models.items() for seed in runs_of(model, seeds, protocol)]
    done: dict[tuple[str, int], Prediction] = {}
    while len(done) < len(jobs):
        for name, seed in jobs:
            if (name, seed) in done:
                continue

            def compute(name: str = name, seed: int = seed) -> tuple[Tensor, list[dict[str, Any]]]:
                report(0, now=f"{name}, seed {seed}")
                return predict(data, models[name], seed, report, protocol, labels)

            describe = getattr(models[name], "describe", dict)
            about = {"protocol": protocol.name, "settings": dict(describe())}
            found = kept.get(data, name, seed, about, labels, compute)
            if found is not None:
                done[name, seed] = found
        if len(done) < len(jobs):
            time.sleep(_WAIT)
    return {name: [done[job] for job in jobs if job[0] == name] for name in models}


def predict(
    data: TaskData, model: TaskModel, seed: int, report: Callable[..., None], protocol: FixedSplit, labels: Tensor
) -> tuple[Tensor, list[dict[str, Any]]]:
    """Log-probabilities (S, C) of the tested items, from all rounds of one seed, and what the model found out in each."""
    result, found = torch.full((len(labels), len(data.classes)), float("nan"), dtype=torch.float64), []
    for one in protocol.rounds(data, seed):
        result[one.tested] = model(one.data, seed, report).to(result.dtype)
        found.append(dict(getattr(model, "found", {})))
    return result, found


def mean_interval(
    rows: np.ndarray,
    minus: np.ndarray | None = None,
    num_resamples: int = 2000,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> ConfidenceInterval:
    """Mean accuracy, or the difference of two, with its 95 % interval over other test items and other seeds.

    Each bootstrap world draws the test items with replacement, the same for both models, and each model's seeds with
    replacement.

    Args:
        rows: (R, S) of 0 and 1: whether item s was classified correctly with seed r.
        minus: (R', S) of another model on the same items.
        num_resamples: bootstrap worlds.
        seed: of the resampling.
        groups: (S,) numbers of groups of items that are drawn as a whole; None: each item by itself.
    """
    models = [rows] if minus is None else [rows, minus]
    shares: list[list[np.ndarray]] = [[] for _ in models]
    for items in worlds(rows.shape[1], num_resamples, seed, groups):
        for share, of in zip(shares, models):
            share.append(items @ of.T.astype(float) / items.sum(1, keepdims=True))
    random = np.random.default_rng([seed, 1])

    def drawn_means(number: int) -> np.ndarray:
        count = len(models[number])
        seeds = random.multinomial(count, np.full(count, 1 / count), size=num_resamples) / count  # (W, R)
        # Drawn with replacement, R seeds vary too little by (R - 1)/R: their deviation from equal shares is stretched.
        seeds = 1 / count + (seeds - 1 / count) * (count / max(count - 1, 1)) ** 0.5
        return (np.concatenate(shares[number]) * seeds).sum(1)

    value, drawn = rows.mean(), drawn_means(0)
    if minus is not None:
        value, drawn = value - minus.mean(), drawn - drawn_means(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return ConfidenceInterval(float(value), float(drawn.std(ddof=1)), float(low), float(high))


def _accuracy(rows: np.ndarray, groups: np.ndarray | None) -> dict[str, Any]:
    interval = mean_interval(rows, groups=groups)
    # Stretched over seeds, a world may lie outside of what an accuracy can be.
    low, high = max(interval.low, 0.0), min(interval.high, 1.0)
    return {"accuracy": interval.value, "low": low, "high": high, "per_seed": rows.mean(1).tolist()}


def _subset(rows: np.ndarray, chosen: np.ndarray, groups: np.ndarray | None) -> dict[str, Any]:
    """Accuracy on some of the items; without a number where there are none."""
    size = int(chosen.sum())
    some = _accuracy(rows[:, chosen], None if groups is None else groups[chosen]) if size else {}
    return {"items": size, **{key: some.get(key) for key in ("accuracy", "low", "high")}}


def _difference(a: str, b: str, correct: Mapping[str, np.ndarray], groups: np.ndarray | None) -> dict[str, Any]:
    interval = mean_interval(correct[a], correct[b], groups=groups)
    said = verdict(interval.low, interval.high, above="better", below="worse")
    p_value = sign_flip(correct[a], correct[b], groups=groups)
    return {"a": a, "b": b, "difference": interval.value, "low": interval.low, "high": interval.high, "verdict": said, "p_value": p_value}


def speed_of(model: Mapping[str, Any]) -> float | None:
    """Training sequences per second of a model's report, the mean over seeds and rounds; None where none was measured."""
    each = [one["sequences_per_second"] for of_seed in model.get("found", ()) for one in of_seed if "sequences_per_second" in one]
    return float(np.mean(each)) if each else None


def rows_for_table(result: Mapping[str, Any]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The two closing tables of a study as text: models, and differences."""
    models = [
        (
            name,
            f"{m['accuracy']:.3f}",
            f"{m['low']:.3f} .. {m['high']:.3f}",
            f"{min(m['per_seed']):.3f} .. {max(m['per_seed']):.3f}" if len(m["per_seed"]) > 1 else "-",
            f"{m['metrics']['mcc']['value']:.3f}",
            f"{m['metrics']['auroc']['value']:.3f}",
            f"{speed:,.0f}" if (speed := speed_of(m)) else "-",
        )
        for name, m in result["models"].items()
    ]
    differences = [
        (f"{d['a']} - {d['b']}", f"{d['difference']:+.3f}", f"{d['low']:+.3f} .. {d['high']:+.3f}", d["verdict"])
        for d in result["differences"]
    ]
    return models, differences


def rows_of_subsets(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The accuracy of each model on each subset of the items, with their number, as text."""
    return [
        (name, *(f"{one['accuracy']:.3f} ({one['items']:,})" if one["items"] else "- (0)" for one in m["subsets"].values()))
        for name, m in result["models"].items()
    ]
