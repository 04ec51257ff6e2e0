"""How good predicted probabilities are, as functions of item weights: weights of 1 give the value, bootstrap weights its worlds.

Shapes: `S` items, `C` classes, `W` worlds. A metric takes weights (W, S) and gives (W,).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

NUM_BINS = 15  # of the calibration error, as in Guo et al. 2017 (arXiv 1706.04599)
_TOGETHER = 50  # worlds at once: bounds the memory


def worlds(size: int, num_resamples: int, seed: int, groups: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Item weights of bootstrap worlds, (W, S) a few at a time; the same arguments give the same worlds to every model.

    Args:
        size: S.
        num_resamples: worlds in all.
        seed: of the draws.
        groups: (S,) numbers of groups that are drawn as a whole, such as overlapping sequences; None: each item is drawn by itself.
    """
    random = np.random.default_rng(seed)
    place = np.arange(size) if groups is None else np.unique(groups, return_inverse=True)[1]
    number = int(place.max()) + 1
    for first in range(0, num_resamples, _TOGETHER):
        drawn = random.multinomial(number, np.full(number, 1 / number), size=min(_TOGETHER, num_resamples - first))
        yield drawn[:, place].astype(np.float64)


class Scored:
    """Predictions with what is needed to score them under many weightings.

    Args:
        log_probs: (S, C) normalised.
        labels: (S,) class numbers.
    """

    def __init__(self, log_probs: np.ndarray, labels: np.ndarray) -> None:
        self.probs, self.labels = np.exp(np.asarray(log_probs, np.float64)), np.asarray(labels)
        self.predicted = np.asarray(log_probs).argmax(-1)

    @property
    def num_classes(self) -> int:
        """C."""
        return self.probs.shape[1]

    @cached_property
    def _cells(self) -> np.ndarray:
        return np.eye(self.num_classes**2)[self.labels * self.num_classes + self.predicted]  # (S, C*C)

    def confusion(self, weights: np.ndarray) -> np.ndarray:
        """Weight of each (true, predicted) pair: (W, C, C)."""
        return (weights @ self._cells).reshape(-1, self.num_classes, self.num_classes)

    @cached_property
    def rankings(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each class to be told from the rest (two classes: the second alone): order by falling probability, starts of ties, truth in order."""
        result = []
        for number in range(self.num_classes) if self.num_classes > 2 else [1]:
            order = np.argsort(-self.probs[:, number], kind="stable")
            ranked = self.probs[order, number]
            starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
            result.append((order, starts, self.labels[order] == number))
        return result

    def ranked_weights(self, weights: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each ranking the weight of positives and of negatives at each distinct probability: two arrays (W, T)."""
        return [
            (np.add.reduceat(np.where(truth, w, 0.0), starts, axis=1), np.add.reduceat(np.where(truth, 0.0, w), starts, axis=1))
            for order, starts, truth in self.rankings
            for w in [weights[:, order]]
        ]


def accuracy(scored: Scored, weights: np.ndarray) -> np.ndarray:
    """Share of items whose most probable class is right."""
    return weights @ (scored.predicted == scored.labels) / weights.sum(1)


def mcc(scored: Scored, weights: np.ndarray) -> np.ndarray:
    """Matthews correlation, for more than two classes Gorodkin's R_K; 0 where one class is predicted throughout."""
    table = scored.confusion(weights)
    total, right = table.sum((1, 2)), np.trace(table, axis1=1, axis2=2)
    true, predicted = table.sum(2), table.sum(1)
    top = right * total - (true * predicted).sum(1)
    bottom = np.sqrt((total**2 - (predicted**2).sum(1)) * (total**2 - (true**2).sum(1)))
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


def f1(scored: Scored, weights: np.ndarray) -> np.ndarray:
    """F1 averaged over classes; a class that neither occurs nor is predicted counts 0."""
    table = scored.confusion(weights)
    right, both = np.diagonal(table, axis1=1, axis2=2), table.sum(1) + table.sum(2)
    return np.divide(2 * right, both, out=np.zeros_like(right), where=both > 0).mean(1)


def auroc(scored: Scored, weights: np.ndarray) -> np.ndarray:
    """Area under the ROC curve, averaged over classes against the rest; NaN where a class is all or nothing."""
    areas = []
    for positive, negative in scored.ranked_weights(weights):
        below = negative.sum(1, keepdims=True) - np.cumsum(negative, 1)
        product = positive.sum(1) * negative.sum(1)
        area = (positive * (below + negative / 2)).sum(1)
        areas.append(np.divide(area, product, out=np.full_like(area, np.nan), where=product > 0))
    return np.mean(areas, 0)


def auprc(scored: Scored, weights: np.ndarray) -> np.ndarray:
    """Average precision (no interpolation), averaged over classes against the rest; NaN where a class does not occur."""
    areas = []
    for positive, negative in scored.ranked_weights(weights):
        found, seen = np.cumsum(positive, 1), np.cumsum(positive + negative, 1)
        precision = np.divide(found, seen, out=np.zeros_like(found), where=seen > 0)
        area, total = (positive * precision).sum(1), positive.sum(1)
        areas.append(np.divide(area, total, out=np.full_like(area, np.nan), where=total > 0))
    return np.mean(areas, 0)


def calibration_error(scored: Scored, weights: np.ndarray) -> np.ndarray:
    """Expected calibration error: |accuracy - confidence| in bins of equal width, weighted by their items."""
    confidence = scored.probs.max(-1)
    bins = np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)
    excess = (scored.predicted == scored.labels) - confidence
    return np.abs((weights * excess) @ np.eye(NUM_BINS)[bins]).sum(1) / weights.sum(1)


METRICS: dict[str, Callable[[Scored, np.ndarray], np.ndarray]] = {
    "accuracy": accuracy,
    "mcc": mcc,
    "f1": f1,
    "auroc": auroc,
    "auprc": auprc,
    "calibration_error": calibration_error,
}


def values(scored: Scored) -> dict[str, float]:
    """Every metric of one set of predictions."""
    ones = np.ones((1, len(scored.labels)))
    return {name: float(metric(scored, ones)[0]) for name, metric in METRICS.items()}


def summary(runs: Sequence[Scored], num_resamples: int = 500, seed: int = 0, groups: np.ndarray | None = None) -> dict[str, dict[str, Any]]:
    """Mean of each metric over runs on the same items, `per_seed`, `spread` (max - min), and its 95 % interval over other test items.

    Args:
        runs: one for each seed.
        num_resamples: bootstrap worlds, the same for every model.
        seed: of the worlds.
        groups: see `worlds`.
    """
    drawn: dict[str, list[np.ndarray]] = {name: [] for name in METRICS}
    for weights in worlds(len(runs[0].labels), num_resamples, seed, groups):
        for name, metric in METRICS.items():
            drawn[name].append(np.mean([metric(run, weights) for run in runs], 0))
    result = {}
    per_seed = [values(run) for run in runs]
    for name, of_worlds in drawn.items():
        here = [one[name] for one in per_seed]
        low, high = np.nanquantile(np.concatenate(of_worlds), [0.025, 0.975]) if np.isfinite(here).all() else (np.nan, np.nan)
        result[name] = {
            "value": float(np.mean(here)),
            "low": float(low),
            "high": float(high),
            "per_seed": here,
            "spread": max(here) - min(here),
        }
    return result


def roc_curves(scored: Scored, most: int = 101) -> list[dict[str, list[float]]]:
    """Share of true positives against that of false ones: for each class against the rest, for two classes only the second.

    Args:
        scored: the predictions.
        most: points of a curve; with more thresholds, those at even steps of the number of items passed.
    """
    curves = []
    for positive, negative in scored.ranked_weights(np.ones((1, len(scored.labels)))):
        found, wrong = (np.concatenate([[0.0], np.cumsum(weight[0])]) for weight in (positive, negative))
        steps = np.searchsorted(found + wrong, np.linspace(0, len(scored.labels), most))
        kept = np.arange(len(found)) if len(found) <= most else np.unique(steps)
        share = [(x[kept] / x[-1] if x[-1] else np.zeros(len(kept))).round(5).tolist() for x in (wrong, found)]
        curves.append({"false": share[0], "true": share[1]})
    return curves


def confusion_matrix(runs: Sequence[Scored]) -> list[list[float]]:
    """Items of each true class (row) by predicted class (column), averaged over runs."""
    return np.mean([run.confusion(np.ones((1, len(run.labels))))[0] for run in runs], 0).tolist()


def sign_flip(first: np.ndarray, second: np.ndarray, num_flips: int = 5000, seed: int = 0, groups: np.ndarray | None = None) -> float:
    """Two-sided p-value of the paired test that two models are right equally often on the same items.

    Under the null either model could have given either result, item by item; with one run each it is McNemar's test by permutation.

    Args:
        first: (R, S) whether each item was right with each seed.
        second: (R', S) of the other model.
        num_flips: random signs drawn.
        seed: of the draws.
        groups: (S,) numbers of groups whose signs are drawn together; None: each item has its own.
    """
    difference = first.mean(0) - second.mean(0)
    if groups is not None:
        difference = np.bincount(np.unique(groups, return_inverse=True)[1], difference)
    difference = difference[difference != 0]
    if not len(difference):
        return 1.0
    random, seen, extreme = np.random.default_rng(seed), abs(difference.sum()) - 1e-9, 0
    for begin in range(0, num_flips, 500):
        signs = random.integers(0, 2, size=(min(500, num_flips - begin), len(difference)), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ difference) >= seen).sum())
    return (extreme + 1) / (num_flips + 1)
