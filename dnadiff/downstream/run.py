"""The study: several models on one task, several seeds each, compared on the same test items.

Models are anything with the members of `Model`; nothing here knows how they learn. Who learns from what is the `protocol`'s,
what is kept between runs is `results`'.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dnadiff.bootstrap import Interval, verdict
from dnadiff.downstream.items import TaskData
from dnadiff.downstream.metrics import Scored, confusion_matrix, sign_flip, summary
from dnadiff.downstream.protocol import FixedSplit
from dnadiff.downstream.results import ResultsFolder, Unkept

_WAIT = 2.0  # seconds between two looks at what another process computes
_TOGETHER = 200  # bootstrap worlds at once: bounds the memory


class Model(Protocol):
    """A way to classify.

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


def runs_of(model: Model, seeds: Sequence[int], protocol: FixedSplit) -> list[int]:
    """The seeds that give this model different results."""
    return list(seeds if model.random or protocol.varies else seeds[:1])


def study(
    data: TaskData,
    models: Mapping[str, Model],
    seeds: Sequence[int],
    pairs: Sequence[tuple[str, str]],
    report: Callable[..., None] = lambda *_, **__: None,
    protocol: FixedSplit | None = None,
    kept: ResultsFolder | Unkept | None = None,
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

    Returns:
        Plain values, ready for JSON: `task`, `models`, `differences`, `seconds`.
    """
    start = time.monotonic()
    protocol = protocol or FixedSplit(pad_id=0)
    tested = protocol.tested(data)
    log_probs, seconds = _predictions(data, models, seeds, report, protocol, kept or Unkept(), tested.labels)
    labels = tested.labels.numpy()
    correct = {name: np.stack([(p.argmax(-1) == tested.labels).numpy() for p in of_seeds]) for name, of_seeds in log_probs.items()}
    task = {
        "name": data.name,
        "classes": data.classes,
        "items": data.counts(),
        "tested": len(tested),
        "stranded": data.stranded,
        "protocol": protocol.name,
        "chance": float(np.bincount(labels).max() / len(tested)),
    }
    reports = {}
    for name, of_seeds in log_probs.items():
        scored = [Scored(p.numpy(), labels) for p in of_seeds]
        more = {"metrics": summary(scored), "confusion": confusion_matrix(scored), "seconds": round(seconds[name], 1)}
        reports[name] = _accuracy(correct[name]) | more
    return {
        "task": task,
        "models": reports,
        "differences": [_difference(a, b, correct) for a, b in pairs],
        "notes": data.notes,
        "seconds": round(time.monotonic() - start, 1),
    }


def _predictions(
    data: TaskData,
    models: Mapping[str, Model],
    seeds: Sequence[int],
    report: Callable[..., None],
    protocol: FixedSplit,
    kept: ResultsFolder | Unkept,
    labels: Tensor,
) -> tuple[dict[str, list[Tensor]], dict[str, float]]:
    """Log-probabilities of the tested items for every model and seed, and the seconds of each model.

    What another process is at is passed over, and looked for again when all else is done.
    """
    jobs = [(name, seed) for name, model in models.items() for seed in runs_of(model, seeds, protocol)]
    done: dict[tuple[str, int], tuple[Tensor, float]] = {}
    while len(done) < len(jobs):
        for name, seed in jobs:
            if (name, seed) in done:
                continue

            def compute(name: str = name, seed: int = seed) -> Tensor:
                report(0, now=f"{name}, seed {seed}")
                return _run(data, models[name], seed, report, protocol, labels)

            describe = getattr(models[name], "describe", dict)
            about = {"protocol": protocol.name, "settings": dict(describe())}
            found = kept.get(data, name, seed, about, labels, compute)
            if found is not None:
                done[name, seed] = found
        if len(done) < len(jobs):
            time.sleep(_WAIT)
    log_probs = {name: [done[job][0] for job in jobs if job[0] == name] for name in models}
    return log_probs, {name: sum(done[job][1] for job in jobs if job[0] == name) for name in models}


def _run(data: TaskData, model: Model, seed: int, report: Callable[..., None], protocol: FixedSplit, labels: Tensor) -> Tensor:
    """Log-probabilities of the tested items from all rounds of one seed."""
    result = torch.full((len(labels), len(data.classes)), float("nan"), dtype=torch.float64)
    for one in protocol.rounds(data, seed):
        result[one.tested] = model(one.data, seed, report).to(result.dtype)
    return result


def mean_interval(rows: np.ndarray, minus: np.ndarray | None = None, num_resamples: int = 2000, seed: int = 0) -> Interval:
    """Mean accuracy, or the difference of two, with its 95 % interval over other test items and other seeds.

    Each bootstrap world draws the test items with replacement, the same for both models, and each model's seeds with
    replacement.

    Args:
        rows: (R, S) of 0 and 1: whether item s was classified correctly with seed r.
        minus: (R', S) of another model on the same items.
        num_resamples: bootstrap worlds.
        seed: of the resampling.
    """
    random = np.random.default_rng(seed)
    models = [rows] if minus is None else [rows, minus]
    shares: list[list[np.ndarray]] = [[] for _ in models]
    for first in range(0, num_resamples, _TOGETHER):
        size = min(_TOGETHER, num_resamples - first)
        items = random.multinomial(rows.shape[1], np.full(rows.shape[1], 1 / rows.shape[1]), size=size) / rows.shape[1]
        for share, of in zip(shares, models):
            share.append(items @ of.T.astype(float))

    def worlds(number: int) -> np.ndarray:
        count = len(models[number])
        seeds = random.multinomial(count, np.full(count, 1 / count), size=num_resamples) / count  # (W, R)
        # Drawn with replacement, R seeds vary too little by (R - 1)/R: their deviation from equal shares is stretched.
        seeds = 1 / count + (seeds - 1 / count) * (count / max(count - 1, 1)) ** 0.5
        return (np.concatenate(shares[number]) * seeds).sum(1)

    value, drawn = rows.mean(), worlds(0)
    if minus is not None:
        value, drawn = value - minus.mean(), drawn - worlds(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(value), float(drawn.std(ddof=1)), float(low), float(high))


def _accuracy(rows: np.ndarray) -> dict[str, Any]:
    interval = mean_interval(rows)
    return {"accuracy": interval.value, "low": interval.low, "high": interval.high, "per_seed": rows.mean(1).tolist()}


def _difference(a: str, b: str, correct: Mapping[str, np.ndarray]) -> dict[str, Any]:
    interval = mean_interval(correct[a], correct[b])
    said = verdict(interval.low, interval.high, above="better", below="worse")
    p_value = sign_flip(correct[a], correct[b])
    return {"a": a, "b": b, "difference": interval.value, "low": interval.low, "high": interval.high, "verdict": said, "p_value": p_value}


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
        )
        for name, m in result["models"].items()
    ]
    differences = [
        (f"{d['a']} - {d['b']}", f"{d['difference']:+.3f}", f"{d['low']:+.3f} .. {d['high']:+.3f}", d["verdict"])
        for d in result["differences"]
    ]
    return models, differences
