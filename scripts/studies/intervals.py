"""Coverage of intervals, and false claims of differences, by simulation: docs/results/intervals.md.

    python scripts/studies/intervals.py

One core takes about ten minutes. Two classes are normal scores with means of opposite sign, so that
a fraction p of the items is right; values have the correlation 2 p - 1 with the measured ones. Each
piece is one number of items, or one set of seeds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import study
from scipy.special import ndtri
from scipy.stats import binom

from dnadiff.supervised.intervals import Estimate, clopper_pearson
from dnadiff.supervised.metrics import (
    METRICS,
    REGRESSION_METRICS,
    ScoredPredictions,
    ScoredValues,
    estimate,
    metric_values,
)

ITEMS = (16, 32, 100, 300, 1000)
FRACTIONS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
SEEDS = (2, 3, 5, 10)
FOLDS = (2, 5, 10)
FOLDED = ("nearest mean", "least squares")  # models
POPULATION = 300_000
# The standard deviation between seeds, the fraction of the items that the two models answer
# independently, and the fraction that is flipped at random in each run.
DOMINATING = {"seeds": (0.02, 0.0, 0.0), "items": (0.0, 0.2, 0.01), "neither": (0.008, 0.1, 0.04)}
CLAIMS = ("false, as many runs", "power, as many runs", "false, one fixed", "power, one fixed")
KINDS = {
    "classes": {name: METRICS[name] for name in METRICS if name != "calibration_error"},
    "values": REGRESSION_METRICS,
}


def scored(kind: str, p: float, size: int, random: np.random.Generator) -> list[ScoredValues]:
    """Two models of the same quality whose errors are correlated."""
    shared, *own = random.standard_normal((3, size))
    noises = [0.8 * shared + 0.6 * each for each in own]
    if kind == "classes":
        labels = random.integers(0, 2, size)
        logits = [2 * ndtri(p) * labels - ndtri(p) + noise for noise in noises]
        return [ScoredPredictions(-np.logaddexp(0, np.stack([x, -x], 1)), labels) for x in logits]
    labels = random.standard_normal(size)
    r = 2 * p - 1
    values = [r * labels + math.sqrt(1 - r * r) * noise for noise in noises]
    return [ScoredValues(x[:, None], labels[:, None]) for x in values]


def coverage(size: int, repeats: int) -> dict[str, Any]:
    """By metric and p: the fraction of the intervals that contain the true value (of a difference:
    0), and the fraction of the samples that have one. That of accuracy is exact."""
    found: dict[str, Any] = defaultdict(dict)
    for kind, metrics in KINDS.items():
        for p in FRACTIONS:
            random = np.random.default_rng([size, round(100 * p)])
            [whole, _] = scored(kind, p, POPULATION, random)
            samples = [scored(kind, p, size, random) for _ in range(repeats)]
            for name, metric in metrics.items():
                true = metric_values(whole, {name: metric})[name]
                for of, models, value in (("", 1, true), ("difference of ", 2, 0.0)):
                    every = [estimate(metric, *([a], [b])[:models]) for a, b in samples]
                    given = [contains(one, value) for one in every if one.ends is not None]
                    share = sum(given) / len(given) if given else None
                    found[of + name][str(p)] = [share, len(given) / repeats]
    right = np.arange(size + 1)
    ends = np.array([clopper_pearson(k, size) for k in right]).T
    for p in FRACTIONS:
        covers = (ends[0] <= p) & (p <= ends[1])
        found["accuracy"][str(p)] = [float(binom.pmf(right, size, p)[covers].sum()), 1.0]
    return found


def contains(found: Estimate, value: float) -> bool:
    """Whether an interval has a value."""
    low, high = found.interval()
    return low is not None and high is not None and bool(low <= value <= high)


def claims(dominating: str, count: int, repeats: int, size: int = 2000) -> dict[str, float]:
    """How often the interval of a difference in accuracy excludes 0, for two models of `count` runs
    that are equally good, and if one is better by four standard errors; also against a model that
    is the same in each run."""
    between, own, flipped = DOMINATING[dominating]
    random = np.random.default_rng([count, len(dominating)])
    found = {}

    def runs(hard: np.ndarray, count: int, mean: float, between: float) -> list[ScoredPredictions]:
        correct = hard < random.normal(mean, between, (count, 1))
        correct ^= random.random(correct.shape) < flipped
        return [ScoredPredictions(np.log([[0.9, 0.1]] * size), 1 - row) for row in correct]

    for against, others in (("as many runs", count), ("one fixed", 1)):
        several = others > 1
        single = flipped * (1 - flipped) / size
        noise = own * 0.32 / size + (between**2 + single) / count
        noise += (between**2 * several + single) / others
        for name, excess in (("false", 0.0), ("power", 4 * math.sqrt(noise))):
            hits = 0
            for _ in range(repeats):
                hard = random.random(size)
                other = np.where(random.random(size) < own, random.random(size), hard)
                a = runs(hard, count, 0.8 + excess, between)
                b = runs(other, others, 0.8, between * several)
                hits += not contains(estimate(METRICS["accuracy"], a, b), 0)
            found[f"{name}, {against}"] = hits / repeats
    return found


def folds_of(count: int, runs: int, repeats: int, size: int = 100) -> dict[str, Any]:
    """Coverage of the accuracy of two models, and of their difference, by repeated cross-validation
    of `size` items; and that of intervals over items and seeds alone. The models are trained on few
    items in 20 dimensions: the truth is the mean over training sets."""
    random = np.random.default_rng([count, runs])

    def draw(number: int) -> tuple[np.ndarray, np.ndarray]:
        labels = random.permutation(np.arange(number) % 2)
        return random.standard_normal((number, 20)) + np.eye(20)[0] * labels[:, None], labels

    def correct(points: np.ndarray, labels: np.ndarray, others: np.ndarray) -> list[np.ndarray]:
        low, high = (points[labels == number].mean(0) for number in (0, 1))
        design = np.c_[points, np.ones(len(points))]
        weights = np.linalg.solve(design.T @ design + np.eye(21), design.T @ (2 * labels - 1))
        return [
            (others - (low + high) / 2) @ (high - low) > 0,
            others @ weights[:20] > -weights[20],
        ]

    train = size - size // count
    whole = [(draw(train), draw(2000)) for _ in range(repeats)]
    scores = [[(found == y).mean() for found in correct(*t, x)] for t, (x, y) in whole]
    true = np.mean(scores, 0)
    right = {key: np.zeros(3) for key in ("with folds", "items and seeds alone")}
    for _ in range(repeats):
        points, labels = draw(size)
        scored: dict[str, list[list[ScoredPredictions]]] = {key: [[], []] for key in right}
        for _ in range(runs):
            fold = np.argsort(random.permutation(size)) % count
            predicted = np.zeros((2, size), bool)
            for number in range(count):
                own = fold == number
                predicted[:, own] = correct(points[~own], labels[~own], points[own])
            for model, row in enumerate(predicted):
                wrong = (row != labels).astype(int)
                for key, folds in zip(scored, (fold, None)):
                    one = ScoredPredictions(np.log([[0.9, 0.1]] * size), wrong, folds)
                    scored[key][model].append(one)
        for key, (a, b) in scored.items():
            of = ((a, (), true[0]), (b, (), true[1]), (a, b, true[0] - true[1]))
            right[key] += [contains(estimate(METRICS["accuracy"], x, y), v) for x, y, v in of]
    rows = {key: (found / repeats).tolist() for key, found in right.items()}
    return {key: dict(zip((*FOLDED, "difference"), row)) for key, row in rows.items()}


class Study:
    """The pieces of the study, and its tables."""

    def __init__(self, folder: Path, settings: Mapping[str, int]) -> None:
        self.kept = study.Kept(folder, settings)
        self.pieces = {f"coverage-{n}": partial(coverage, n, settings["samples"]) for n in ITEMS}
        for name in DOMINATING:
            for count in SEEDS:
                self.pieces[f"{name}-{count}"] = partial(claims, name, count, settings["studies"])
        for count in FOLDS:
            for runs in (1, 3):
                work = partial(folds_of, count, runs, settings["samples"])
                self.pieces[f"folds-{count}-{runs}"] = work

    def table(self) -> str:
        """Coverage by metric and number of items, and false claims by number of runs."""
        rows: list[tuple[str, ...]] = []
        counts: list[tuple[str, ...]] = []
        folds: list[tuple[str, ...]] = []
        for piece in filter(self.kept.__contains__, self.pieces):
            name, _, number = piece.partition("-")
            for key, of in (found := self.kept[piece]).items():
                if name == "folds" and isinstance(of, dict):
                    folds.append((*number.split("-"), key, *map("{:.3f}".format, of.values())))
                elif isinstance(of, dict):
                    rows.append((key, number, *map(shown, of.values())))
            if name in DOMINATING:
                counts.append((name, number, *(f"{100 * found[key]:.1f} %" for key in CLAIMS)))
        head = ("metric", "items", *(f"p = {p:g}" for p in FRACTIONS))
        tables = (
            (head, sorted(rows, key=lambda row: row[0])),
            (("largest", "runs", *CLAIMS), counts),
            (
                ("folds", "repeats", "intervals", "nearest mean", "least squares", "difference"),
                folds,
            ),
        )
        return "\n\n".join(study.markdown(*each) for each in tables)


def shown(cell: Sequence[float | None]) -> str:
    """A coverage, with the fraction of the samples that have an interval if it is not all."""
    covered, given = cell
    some = "" if given == 1 else f" ({given:.0%})"
    return "-" if covered is None else f"{covered:.3f}{some}"


if __name__ == "__main__":
    full = {"samples": 400, "studies": 2000}
    quick = {"samples": 4, "studies": 4}
    study.run_study(Study, __doc__ or "", "runs/intervals", full, quick)
