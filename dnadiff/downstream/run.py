"""The study: several models on one task, several seeds each, compared on the same test items.

Models are anything with the three members of `Model`; nothing here knows how they learn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from dnadiff.bootstrap import Interval, verdict
from dnadiff.downstream.items import TaskData


class Model(Protocol):
    """A way to classify.

    Attributes:
        random: False if every seed gives the same result; it then runs once.
    """

    random: bool

    def num_steps(self, data: TaskData) -> int:
        """How often `report` will be called with a step, for the progress display."""
        ...

    def __call__(self, data: TaskData, seed: int, report: Callable[..., None]) -> Tensor:
        """Learn from train and valid; log-probabilities of the test items, (S, C)."""
        ...


def study(
    data: TaskData,
    models: Mapping[str, Model],
    seeds: Sequence[int],
    pairs: Sequence[tuple[str, str]],
    report: Callable[..., None] = lambda *_, **__: None,
) -> dict[str, Any]:
    """Run every model with every seed and compare.

    Args:
        data: the task.
        models: name to model.
        seeds: of the models that depend on one.
        pairs: (a, b) for the differences a minus b.
        report: told steps and tokens, and under `now=` which model is learning.

    Returns:
        Plain values, ready for JSON: `task`, `models`, `differences`, `seconds`.
    """
    start = time.monotonic()
    correct: dict[str, np.ndarray] = {}
    seconds: dict[str, float] = {}
    for name, model in models.items():
        began = time.monotonic()
        rows = []
        for seed in seeds if model.random else seeds[:1]:
            report(0, now=f"{name}, seed {seed}")
            rows.append((model(data, seed, report).argmax(-1) == data.test.labels).numpy())
        correct[name], seconds[name] = np.stack(rows), time.monotonic() - began
    task = {
        "name": data.name,
        "classes": data.classes,
        "items": data.counts(),
        "stranded": data.stranded,
        "chance": float(np.bincount(data.test.labels.numpy()).max() / len(data.test)),
    }
    return {
        "task": task,
        "models": {name: _accuracy(rows) | {"seconds": round(seconds[name], 1)} for name, rows in correct.items()},
        "differences": [_difference(a, b, correct) for a, b in pairs],
        "notes": data.notes,
        "seconds": round(time.monotonic() - start, 1),
    }


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
    items = random.multinomial(rows.shape[1], np.full(rows.shape[1], 1 / rows.shape[1]), size=num_resamples) / rows.shape[1]  # (W, S)

    def worlds(of: np.ndarray) -> np.ndarray:
        count = len(of)
        seeds = random.multinomial(count, np.full(count, 1 / count), size=num_resamples) / count  # (W, R)
        # Drawn with replacement, R seeds vary too little by (R - 1)/R: their deviation from equal shares is stretched.
        seeds = 1 / count + (seeds - 1 / count) * (count / max(count - 1, 1)) ** 0.5
        return (items @ of.T.astype(float) * seeds).sum(1)

    value, drawn = rows.mean(), worlds(rows)
    if minus is not None:
        value, drawn = value - minus.mean(), drawn - worlds(minus)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(value), float(drawn.std(ddof=1)), float(low), float(high))


def _accuracy(rows: np.ndarray) -> dict[str, Any]:
    interval = mean_interval(rows)
    return {"accuracy": interval.value, "low": interval.low, "high": interval.high, "per_seed": rows.mean(1).tolist()}


def _difference(a: str, b: str, correct: Mapping[str, np.ndarray]) -> dict[str, Any]:
    interval = mean_interval(correct[a], correct[b])
    said = verdict(interval.low, interval.high, above="better", below="worse")
    return {"a": a, "b": b, "difference": interval.value, "low": interval.low, "high": interval.high, "verdict": said}


def rows_for_table(result: Mapping[str, Any]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The two closing tables of a study as text: models, and differences."""
    models = [
        (
            name,
            f"{m['accuracy']:.3f}",
            f"{m['low']:.3f} .. {m['high']:.3f}",
            f"{min(m['per_seed']):.3f} .. {max(m['per_seed']):.3f}" if len(m["per_seed"]) > 1 else "-",
        )
        for name, m in result["models"].items()
    ]
    differences = [
        (f"{d['a']} - {d['b']}", f"{d['difference']:+.3f}", f"{d['low']:+.3f} .. {d['high']:+.3f}", d["verdict"])
        for d in result["differences"]
    ]
    return models, differences
