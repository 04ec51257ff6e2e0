"""Classification metrics as functions of item weights: weights of 1 give the value, bootstrap weights the replicates.

Shapes: `S` items, `C` classes, `W` weightings. A metric takes weights (W, S) and returns (W,). The values agree with those of
`sklearn.metrics`, which computes one weighting per call and sorts the items again each time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np

from dnadiff.config import Json

NUM_BINS = 15  # of the calibration error, as in Guo et al. 2017 (arXiv 1706.04599)
MIN_DEFINED = 0.9  # of the replicates: an interval from fewer would be that of other data
log = logging.getLogger("dnadiff")
_BATCH = 50  # replicates at once: limits the memory


class ScoredRun(Protocol):
    """Predictions of one run with their labels, prepared for scoring under many weightings."""

    labels: np.ndarray


AnyScored = TypeVar("AnyScored", bound=ScoredRun)
Metric = Callable[[AnyScored, np.ndarray], np.ndarray]  # of scored predictions and weights (W, S): (W,)


def bootstrap_weights(size: int, num_resamples: int, seed: int, groups: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Item weights of bootstrap replicates, (W, S) a few at a time; the same arguments give the same replicates for every model.

    The items of a group, such as overlapping sequences, are drawn together: `groups (S,)` are their numbers. None: single items.
    """
    random = np.random.default_rng(seed)
    index = np.arange(size) if groups is None else np.unique(groups, return_inverse=True)[1]
    num_groups = int(index.max()) + 1
    for first in range(0, num_resamples, _BATCH):
        drawn = random.multinomial(num_groups, np.full(num_groups, 1 / num_groups), size=min(_BATCH, num_resamples - first))
        yield drawn[:, index].astype(np.float64)


class ScoredPredictions:
    """Predictions, prepared for scoring under many weightings: normalized `log_probs (S, C)`, class numbers `labels (S,)`."""

    def __init__(self, log_probs: np.ndarray, labels: np.ndarray) -> None:
        self.log_probs, self.labels = np.asarray(log_probs, np.float64), np.asarray(labels)
        self.probs, self.predicted = np.exp(self.log_probs), np.asarray(log_probs).argmax(-1)

    @property
    def num_classes(self) -> int:
        """C."""
        return self.probs.shape[1]

    def confusion(self, weights: np.ndarray) -> np.ndarray:
        """Weight of each (true, predicted) pair: (W, C, C)."""
        cells, count = self.labels * self.num_classes + self.predicted, self.num_classes**2
        return np.stack([np.bincount(cells, of_items, count) for of_items in weights]).reshape(-1, self.num_classes, self.num_classes)

    @cached_property
    def rankings(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """One-vs-rest rankings (with two classes, only that of the second).

        Each is the order by decreasing log-odds, the index at which each group of ties starts, and whether an item is positive.
        """
        result = []
        for number in range(self.num_classes) if self.num_classes > 2 else [1]:
            # Of very confident predictions, probabilities are rounded to 1, and those of the other classes are not rounded to 0.
            log_odds = self.log_probs[:, number] - np.logaddexp.reduce(np.delete(self.log_probs, number, axis=1), axis=1)
            log_odds = log_odds.round(9)  # equal predictions stay ties in spite of rounding
            order = np.argsort(-log_odds, kind="stable")
            ranked = log_odds[order]
            starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
            result.append((order, starts, self.labels[order] == number))
        return result

    def ranked_weights(self, weights: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each ranking, the weight of positives and of negatives at each distinct probability: two arrays (W, T)."""
        for order, starts, truth in self.rankings:
            ranked = weights[:, order]
            positive, negative = (np.add.reduceat(np.where(chosen, ranked, 0.0), starts, axis=1) for chosen in (truth, ~truth))
            yield positive, negative


def mean_of_defined(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The mean (W,) of values (W, K) over the columns that are defined under each of the weights (W, S); NaN if none is.

    A column that is undefined although all items have weight is undefined for the data: then so is the mean.
    """
    defined = np.isfinite(values)
    count = np.where((weights > 0).all(1) & ~defined.all(1), 0, defined.sum(1))
    return np.divide(np.where(defined, values, 0.0).sum(1), count, out=np.full(len(values), np.nan), where=count > 0)


def accuracy(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    """Fraction of items whose most probable class is correct."""
    return weights @ (scored.predicted == scored.labels) / weights.sum(1)


def mcc(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    """Matthews correlation coefficient (Gorodkin's R_K for more than two classes); 0 if a single class is predicted."""
    table = scored.confusion(weights)
    total, correct = table.sum((1, 2)), np.trace(table, axis1=1, axis2=2)
    true, predicted = table.sum(2), table.sum(1)
    top = correct * total - (true * predicted).sum(1)
    bottom = np.sqrt((total**2 - (predicted**2).sum(1)) * (total**2 - (true**2).sum(1)))
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


def f1(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    """Macro-averaged F1; it is 0 for a class that neither occurs nor is predicted."""
    table = scored.confusion(weights)
    correct, both = np.diagonal(table, axis1=1, axis2=2), table.sum(1) + table.sum(2)
    return np.divide(2 * correct, both, out=np.zeros_like(correct), where=both > 0).mean(1)


def auroc(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    """Area under the ROC curve, macro-averaged one-vs-rest over the classes that have items, but not all; NaN if the data have others."""
    areas = []
    for positive, negative in scored.ranked_weights(weights):
        below = negative.sum(1, keepdims=True) - np.cumsum(negative, 1)
        product = positive.sum(1) * negative.sum(1)
        area = (positive * (below + negative / 2)).sum(1)
        areas.append(np.divide(area, product, out=np.full_like(area, np.nan), where=product > 0))
    return mean_of_defined(np.stack(areas, 1), weights)


def auprc(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    """Average precision (without interpolation), macro-averaged one-vs-rest over the classes that have items; NaN if the data have others."""
    areas = []
    for positive, negative in scored.ranked_weights(weights):
        true_positives, selected = np.cumsum(positive, 1), np.cumsum(positive + negative, 1)
        precision = np.divide(true_positives, selected, out=np.zeros_like(selected), where=selected > 0)
        area, total = (positive * precision).sum(1), positive.sum(1)
        areas.append(np.divide(area, total, out=np.full_like(area, np.nan), where=total > 0))
    return mean_of_defined(np.stack(areas, 1), weights)


def calibration_error(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    """Expected calibration error: |accuracy - confidence| in bins of equal width, averaged over items."""
    confidence = scored.probs.max(-1)
    bins = np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)
    excess = (scored.predicted == scored.labels) - confidence
    return np.abs((weights * excess) @ np.eye(NUM_BINS)[bins]).sum(1) / weights.sum(1)


METRICS: dict[str, Metric[ScoredPredictions]] = {
    "accuracy": accuracy,
    "mcc": mcc,
    "f1": f1,
    "auroc": auroc,
    "auprc": auprc,
    "calibration_error": calibration_error,
}


TITLES = {
    "mcc": "MCC",
    "auroc": "AUROC",
    "auprc": "average precision",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "r2": "R2",
    "mse": "MSE",
}


def title(metric: str) -> str:
    """The name of a metric in tables; others than those in `TITLES` as they are."""
    return TITLES.get(metric, metric)


def metric_values(scored: AnyScored, metrics: Mapping[str, Metric[AnyScored]]) -> dict[str, float]:
    """The metrics of one set of predictions."""
    ones = np.ones((1, len(scored.labels)))
    return {name: float(metric(scored, ones)[0]) for name, metric in metrics.items()}


def defined_replicates(replicates: np.ndarray, name: str) -> np.ndarray:
    """The bootstrap replicates (W,) that are defined; none, with a line in the log, if they are fewer than 90 % of all."""
    known = replicates[np.isfinite(replicates)]
    if len(known) >= MIN_DEFINED * len(replicates):
        return known
    log.warning(f"{name} is defined in {100 * len(known) / len(replicates):.0f} % of the bootstrap replicates, too few for an interval")
    return known[:0]


def summarize_metrics(
    runs: Sequence[AnyScored],
    metrics: Mapping[str, Metric[AnyScored]],
    num_resamples: int = 500,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> dict[str, dict[str, Json]]:
    """Metrics averaged over runs on the same items (one for each seed), with their 95 % bootstrap intervals over test items.

    By metric: `value`, `low`, `high`, `per_seed`, and `spread` (max - min over runs).
    """
    replicates: dict[str, list[np.ndarray]] = {name: [] for name in metrics}
    for weights in bootstrap_weights(len(runs[0].labels), num_resamples, seed, groups):
        for name, metric in metrics.items():
            replicates[name].append(np.mean([metric(run, weights) for run in runs], 0))
    result = {}
    metrics_of_runs = [metric_values(run, metrics) for run in runs]
    for name, values in replicates.items():
        per_seed = [of_run[name] for of_run in metrics_of_runs]
        known = defined_replicates(np.concatenate(values), title(name)) if np.isfinite(per_seed).all() else np.empty(0)
        low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (np.nan, np.nan)
        result[name] = {
            "value": float(np.mean(per_seed)),
            "low": float(low),
            "high": float(high),
            "per_seed": per_seed,
            "spread": max(per_seed) - min(per_seed),
        }
    return result


def roc_curves(scored: ScoredPredictions, max_points: int = 101) -> list[dict[str, list[float]]]:
    """One-vs-rest ROC curves (with two classes, only that of the second): false positive rates and true positive rates.

    Args:
        max_points: of a curve; with more thresholds, those at even steps of the number of selected items are kept.
    """
    curves = []
    for weights in scored.ranked_weights(np.ones((1, len(scored.labels)))):
        true, false = (np.concatenate([[0.0], np.cumsum(weight[0])]) for weight in weights)
        steps = np.searchsorted(true + false, np.linspace(0, len(scored.labels), max_points))
        kept = np.arange(len(true)) if len(true) <= max_points else np.unique(steps)
        rates = [(x[kept] / x[-1] if x[-1] else np.zeros(len(kept))).round(5).tolist() for x in (false, true)]
        curves.append({"false": rates[0], "true": rates[1]})
    return curves


def confusion_matrix(runs: Sequence[ScoredPredictions]) -> list[list[float]]:
    """Number of items by true class (row) and predicted class (column), averaged over runs."""
    return np.mean([run.confusion(np.ones((1, len(run.labels))))[0] for run in runs], 0).tolist()


def sign_flip_test(first: np.ndarray, second: np.ndarray, num_flips: int = 5000, seed: int = 0, groups: np.ndarray | None = None) -> float:
    """Two-sided p-value of the paired permutation test that two models have the same accuracy on the same items.

    Under the null hypothesis the results of the two models can be swapped item by item. With one run each, this is McNemar's test
    by permutation.

    Args:
        first: (R, S) whether each item was classified correctly with each seed.
        second: (R', S) of the other model.
        groups: (S,) the items of a group get the same sign. None: each item has its own.
    """
    difference = first.mean(0) - second.mean(0)
    if groups is not None:
        difference = np.bincount(np.unique(groups, return_inverse=True)[1], difference)
    difference = difference[difference != 0]
    if not len(difference):
        return 1.0
    random, observed, extreme = np.random.default_rng(seed), abs(difference.sum()) - 1e-9, 0
    for begin in range(0, num_flips, 500):
        signs = random.integers(0, 2, size=(min(500, num_flips - begin), len(difference)), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ difference) >= observed).sum())
    return (extreme + 1) / (num_flips + 1)
