"""Classification metrics as functions of item weights: weights of 1 give the value, bootstrap
weights the replicates.

Shapes: `S` items, `C` classes, `W` weightings. A metric takes weights (W, S) and returns (W,). The
    values agree with those of `sklearn.metrics`, which computes one weighting per call and sorts
    the items again each time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Protocol, Self, TypeVar

import numpy as np

NUM_BINS = 15  # of the calibration error, as in Guo et al. 2017 (arXiv 1706.04599)


class ScoredRun(Protocol):
    """Predictions of one run with their labels, prepared for scoring under many weightings."""

    labels: np.ndarray


class FoldedRun(ScoredRun, Protocol):
    """A run whose predictions may be of several models, each of one fold of a cross-validation.

    Attributes:
        folds: (S,) the fold of each item; None if all predictions are of one model.
    """

    folds: np.ndarray | None

    @property
    def parts(self) -> list[tuple[np.ndarray, Self]]:
        """The items of each fold, and their predictions alone."""

    def num_labeled(self, weights: np.ndarray) -> np.ndarray:
        """The weight of the items with a label, (W, 1) or of each column (W, K)."""


AnyFolded = TypeVar("AnyFolded", bound=FoldedRun)
AnyScored = TypeVar("AnyScored", bound=ScoredRun)
Metric = Callable[
    [AnyScored, np.ndarray], np.ndarray
]  # of scored predictions and weights (W, S): (W,)


def rows_of_folds(folds: np.ndarray | None) -> list[np.ndarray]:
    """The items of each fold; none without folds."""
    return [] if folds is None else [np.flatnonzero(folds == number) for number in np.unique(folds)]


def within_folds(metric: Metric[AnyFolded]) -> Metric[AnyFolded]:
    """A metric (W, K) that ranks predictions, averaged over folds with the weight of their labeled
    items, without those where it is undefined.

    Under cross-validation each fold has another model. The mean of its predictions follows that of
    its training labels, which is high where that of the tested labels is low: a ranking of all
    items together is below chance on labels that are pure noise.
    """

    @functools.wraps(metric)
    def averaged(scored: AnyFolded, weights: np.ndarray) -> np.ndarray:
        if scored.folds is None:
            return metric(scored, weights)
        values = np.stack(
            [metric(part, weights[:, rows]) for rows, part in scored.parts]
        )  # (F, W, K)
        sizes = np.stack([part.num_labeled(weights[:, rows]) for rows, part in scored.parts])
        counted = np.where(np.isfinite(values), sizes, 0.0)
        total = counted.sum(0)
        found = (np.where(counted > 0, values, 0.0) * counted).sum(0)
        return np.divide(found, total, out=np.full_like(found, np.nan), where=total > 0)

    return averaged


class ScoredPredictions:
    """Predictions, prepared for scoring under many weightings: normalized `log_probs (S, C)`, class
    numbers `labels (S,)`, `folds (S,)`."""

    def __init__(
        self, log_probs: np.ndarray, labels: np.ndarray, folds: np.ndarray | None = None
    ) -> None:
        self.folds = folds
        self.log_probs, self.labels = np.asarray(log_probs, np.float64), np.asarray(labels)
        self.probs, self.predicted = np.exp(self.log_probs), np.asarray(log_probs).argmax(-1)

    @cached_property
    def parts(self) -> list[tuple[np.ndarray, ScoredPredictions]]:
        """The items of each fold, and their predictions alone."""
        return [
            (rows, ScoredPredictions(self.log_probs[rows], self.labels[rows]))
            for rows in rows_of_folds(self.folds)
        ]

    def num_labeled(self, weights: np.ndarray) -> np.ndarray:
        """The weight of all items, (W, 1): each has a class."""
        return weights.sum(1, keepdims=True)

    @property
    def num_classes(self) -> int:
        """C."""
        return self.probs.shape[1]

    def confusion(self, weights: np.ndarray) -> np.ndarray:
        """Weight of each (true, predicted) pair: (W, C, C)."""
        cells, count = self.labels * self.num_classes + self.predicted, self.num_classes**2
        return np.stack([np.bincount(cells, of_items, count) for of_items in weights]).reshape(
            -1, self.num_classes, self.num_classes
        )

    @cached_property
    def rankings(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """One-vs-rest rankings (with two classes, only that of the second).

        Each is the order by decreasing log-odds, the index at which each group of ties starts, and
        whether an item is positive.
        """
        result = []
        for number in range(self.num_classes) if self.num_classes > 2 else [1]:
            # Of very confident predictions, probabilities are rounded to 1, and those of the other
            # classes are not rounded to 0.
            log_odds = self.log_probs[:, number] - np.logaddexp.reduce(
                np.delete(self.log_probs, number, axis=1), axis=1
            )
            log_odds = log_odds.round(9)  # equal predictions stay ties in spite of rounding
            order = np.argsort(-log_odds, kind="stable")
            ranked = log_odds[order]
            starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
            result.append((order, starts, self.labels[order] == number))
        return result

    def ranked_weights(self, weights: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each ranking, the weight of positives and of negatives at each distinct probability:
        two arrays (W, T)."""
        for order, starts, truth in self.rankings:
            ranked = weights[:, order]
            positive, negative = (
                np.add.reduceat(np.where(chosen, ranked, 0.0), starts, axis=1)
                for chosen in (truth, ~truth)
            )
            yield positive, negative


def mean_of_defined(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The mean (W,) of values (W, K) over the columns that are defined under each of the weights
    (W, S); NaN if none is.

    A column that is undefined although all items have weight is undefined for the data: then so is
    the mean.
    """
    defined = np.isfinite(values)
    count = np.where((weights > 0).all(1) & ~defined.all(1), 0, defined.sum(1))
    return np.divide(
        np.where(defined, values, 0.0).sum(1),
        count,
        out=np.full(len(values), np.nan),
        where=count > 0,
    )


def accuracy(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    """Fraction of items whose most probable class is correct."""
    return weights @ (scored.predicted == scored.labels) / weights.sum(1)


def mcc(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    """Matthews correlation coefficient (Gorodkin's R_K for more than two classes); 0 if a single
    class is predicted."""
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
    """Area under the ROC curve, macro-averaged one-vs-rest over the classes that have items, but
    not all; NaN if the data have others."""
    return mean_of_defined(_roc_areas(scored, weights), weights)


@within_folds
def _roc_areas(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    areas = []
    for positive, negative in scored.ranked_weights(weights):
        below = negative.sum(1, keepdims=True) - np.cumsum(negative, 1)
        product = positive.sum(1) * negative.sum(1)
        area = (positive * (below + negative / 2)).sum(1)
        areas.append(np.divide(area, product, out=np.full_like(area, np.nan), where=product > 0))
    return np.stack(areas, 1)


def auprc(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    """Average precision (without interpolation), macro-averaged one-vs-rest over the classes that
    have items; NaN if the data have others."""
    return mean_of_defined(_average_precisions(scored, weights), weights)


@within_folds
def _average_precisions(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    areas = []
    for positive, negative in scored.ranked_weights(weights):
        true_positives, selected = np.cumsum(positive, 1), np.cumsum(positive + negative, 1)
        precision = np.divide(
            true_positives, selected, out=np.zeros_like(selected), where=selected > 0
        )
        area, total = (positive * precision).sum(1), positive.sum(1)
        areas.append(np.divide(area, total, out=np.full_like(area, np.nan), where=total > 0))
    return np.stack(areas, 1)


def calibration_error(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    """Expected calibration error: |accuracy - confidence| in bins of equal width, averaged over
    items."""
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


# The least and the largest possible value of each metric.
RANGES = {
    **dict.fromkeys(("accuracy", "f1", "auroc", "auprc", "calibration_error"), (0.0, 1.0)),
    **dict.fromkeys(("mcc", "spearman", "pearson"), (-1.0, 1.0)),
    "r2": (-math.inf, 1.0),
    "mse": (0.0, math.inf),
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


def roc_curves(scored: ScoredPredictions, max_points: int = 101) -> list[dict[str, list[float]]]:
    """One-vs-rest ROC curves (with two classes, only that of the second): false positive rates and
    true positive rates.

    Args:
        max_points: of a curve; with more thresholds, those at even steps of the number of selected
            items are kept.
    """
    curves = []
    for weights in scored.ranked_weights(np.ones((1, len(scored.labels)))):
        true, false = (np.concatenate([[0.0], np.cumsum(weight[0])]) for weight in weights)
        steps = np.searchsorted(true + false, np.linspace(0, len(scored.labels), max_points))
        kept = np.arange(len(true)) if len(true) <= max_points else np.unique(steps)
        rates = [
            (x[kept] / x[-1] if x[-1] else np.zeros(len(kept))).round(5).tolist()
            for x in (false, true)
        ]
        curves.append({"false": rates[0], "true": rates[1]})
    return curves


def confusion_matrix(runs: Sequence[ScoredPredictions]) -> list[list[float]]:
    """Number of items by true class (row) and predicted class (column), averaged over runs."""
    return np.mean([run.confusion(np.ones((1, len(run.labels))))[0] for run in runs], 0).tolist()


def sign_flip_test(
    first: np.ndarray,
    second: np.ndarray,
    num_flips: int = 5000,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> float:
    """Two-sided p-value of the paired permutation test that two models have the same accuracy on
    the same items.

    Under the null hypothesis the results of the two models can be swapped item by item. With one
    run each, this is McNemar's test by permutation.

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
        signs = (
            random.integers(
                0, 2, size=(min(500, num_flips - begin), len(difference)), dtype=np.int8
            )
            * 2
            - 1
        )
        extreme += int((np.abs(signs @ difference) >= observed).sum())
    return (extreme + 1) / (num_flips + 1)


class ScoredLabels:
    """Log-odds (S, K) of labels, the labels (S, K), 0 or 1 and NaN where one is missing, and
    `folds (S,)`."""

    def __init__(
        self, log_odds: np.ndarray, labels: np.ndarray, folds: np.ndarray | None = None
    ) -> None:
        self.log_odds, self.labels, self.folds = (
            np.asarray(log_odds, np.float64),
            np.asarray(labels),
            folds,
        )

    @cached_property
    def each_label(self) -> list[tuple[np.ndarray, ScoredPredictions]]:
        """For each label the items where it is known, and their predictions as two classes."""
        known = [np.flatnonzero(np.isfinite(column)) for column in self.labels.T]
        log_probs = np.stack(
            [-np.logaddexp(0, self.log_odds), -np.logaddexp(0, -self.log_odds)], -1
        )
        folds = [None if self.folds is None else self.folds[rows] for rows in known]
        labels = [self.labels[rows, k].astype(np.int64) for k, rows in enumerate(known)]
        return [
            (rows, ScoredPredictions(log_probs[rows, k], labels[k], folds[k]))
            for k, rows in enumerate(known)
        ]


def _each(
    scored: ScoredLabels,
    weights: np.ndarray,
    metric: Callable[[ScoredPredictions, np.ndarray], np.ndarray],
) -> np.ndarray:
    found = [
        metric(of_label, weights[:, rows]) if len(rows) else np.full(len(weights), np.nan)
        for rows, of_label in scored.each_label
    ]
    return np.stack(found, 1)


def label_auroc(scored: ScoredLabels, weights: np.ndarray) -> np.ndarray:
    """Area under the ROC curve of each label; NaN if all items or none have it."""
    return _each(scored, weights, auroc)


def label_auprc(scored: ScoredLabels, weights: np.ndarray) -> np.ndarray:
    """Average precision of each label; NaN if no item has it."""
    return _each(scored, weights, auprc)


MULTILABEL_METRICS: dict[str, Metric[ScoredLabels]] = {"auroc": label_auroc, "auprc": label_auprc}


class ScoredValues:
    """Predicted values (S, K) and labels (S, K), NaN where a label is missing, and `folds (S,)`."""

    def __init__(
        self, values: np.ndarray, labels: np.ndarray, folds: np.ndarray | None = None
    ) -> None:
        self.folds = folds
        self.values, self.labels = np.asarray(values, np.float64), np.asarray(labels, np.float64)

    @cached_property
    def parts(self) -> list[tuple[np.ndarray, ScoredValues]]:
        """The items of each fold, and their predictions alone."""
        return [
            (rows, ScoredValues(self.values[rows], self.labels[rows]))
            for rows in rows_of_folds(self.folds)
        ]

    def num_labeled(self, weights: np.ndarray) -> np.ndarray:
        """The weight of the items with a label of each target, (W, K)."""
        return weights @ np.isfinite(self.labels)

    @cached_property
    def known(self) -> list[np.ndarray]:
        """The items that have a label of each target."""
        return [np.flatnonzero(np.isfinite(column)) for column in self.labels.T]

    @cached_property
    def pairs(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each target its items with a label, and their predictions and labels."""
        return [
            (rows, self.values[rows, k], self.labels[rows, k]) for k, rows in enumerate(self.known)
        ]

    @cached_property
    def rankings(self) -> list[tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]]:
        """For each target its items with a label; for predictions and for labels their order, where
        ties start, and each item's tie."""
        return [
            (rows, [_ties(predicted), _ties(measured)]) for rows, predicted, measured in self.pairs
        ]


def _ties(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    new = np.concatenate([[True], ranked[1:] != ranked[:-1]])[: len(values)]
    number = np.empty(len(values), np.int64)
    number[order] = np.cumsum(new) - 1
    return order, np.flatnonzero(new), number


def _ranks(ties: tuple[np.ndarray, np.ndarray, np.ndarray], weights: np.ndarray) -> np.ndarray:
    """The rank of each item, (W, S): the weight of smaller items and half that of equal ones."""
    order, starts, number = ties
    of_tie = np.add.reduceat(weights[:, order], starts, axis=1)
    return (np.cumsum(of_tie, 1) - of_tie / 2)[:, number]


def _correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted correlation (W,) of x and y, (S,) or (W, S): 0 if x is constant, NaN if y is."""
    total = weights.sum(1, keepdims=True)
    x, y = (each - (weights * each).sum(1, keepdims=True) / total for each in (x, y))
    xx, yy, xy = ((weights * product).sum(1) for product in (x * x, y * y, x * y))
    scale = np.sqrt(xx * yy)
    found = np.divide(xy, scale, out=np.zeros_like(xy), where=scale > 0)
    return np.where(yy > 0, found, np.nan)


def _centered(values: np.ndarray) -> np.ndarray:
    """Values around 0, exactly 0 if they are constant, which keeps rounding errors from looking
    like a spread."""
    return values - values[0] if len(values) and np.ptp(values) == 0 else values - values.mean()


def _each_target(
    count: int,
    targets: Sequence[tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]],
    weights: np.ndarray,
) -> np.ndarray:
    """(W, K) of functions of the weights of each target's items, NaN for a target without any."""
    found = np.full((len(weights), count), np.nan)
    for k, (rows, function) in enumerate(targets):
        if len(rows):
            with np.errstate(
                invalid="ignore", divide="ignore"
            ):  # a replicate without a labeled item
                found[:, k] = function(weights[:, rows])
    return found


@within_folds
def pearson(scored: ScoredValues, weights: np.ndarray) -> np.ndarray:
    """Pearson correlation; 0 for a constant prediction, NaN for constant labels."""
    each = [
        (rows, partial(_correlation, _centered(x), _centered(y))) for rows, x, y in scored.pairs
    ]
    return _each_target(len(each), each, weights)


@within_folds
def spearman(scored: ScoredValues, weights: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation with mean ranks for ties; 0 for a constant prediction, NaN for
    constant labels."""

    def of_ranks(
        ties: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], of_items: np.ndarray
    ) -> np.ndarray:
        half = of_items.sum(1, keepdims=True) / 2  # the mean rank: exactly that of a single tie
        predicted, measured = (_ranks(tie, of_items) - half for tie in ties)
        return _correlation(predicted, measured, of_items)

    each = [(rows, partial(of_ranks, ties)) for rows, ties in scored.rankings]
    return _each_target(len(each), each, weights)


def mse(scored: ScoredValues, weights: np.ndarray) -> np.ndarray:
    """Mean squared error."""
    each = [(rows, partial(_mean, (x - y) ** 2)) for rows, x, y in scored.pairs]
    return _each_target(len(each), each, weights)


def _mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return weights @ values / weights.sum(1)


def r2(scored: ScoredValues, weights: np.ndarray) -> np.ndarray:
    """Coefficient of determination; NaN for constant labels."""

    def of_items(x: np.ndarray, y: np.ndarray, of_rows: np.ndarray) -> np.ndarray:
        variance = _mean(y * y, of_rows) - _mean(y, of_rows) ** 2
        return np.where(
            variance > 1e-12 * (y * y).mean(), 1 - _mean((x - y) ** 2, of_rows) / variance, np.nan
        )

    each = [(rows, partial(of_items, x - y.mean(), _centered(y))) for rows, x, y in scored.pairs]
    return _each_target(len(each), each, weights)


REGRESSION_METRICS: dict[str, Metric[ScoredValues]] = {
    "spearman": spearman,
    "pearson": pearson,
    "r2": r2,
    "mse": mse,
}


def mean_over_targets(
    scored: AnyScored, weights: np.ndarray, metric: Metric[AnyScored]
) -> np.ndarray:
    """A metric (W, K) averaged over the targets that it is defined for, (W,); see
    `mean_of_defined`."""
    return mean_of_defined(metric(scored, weights), weights)


def of_target(
    scored: AnyScored, weights: np.ndarray, metric: Metric[AnyScored], number: int
) -> np.ndarray:
    """A metric (W, K) of one target, (W,)."""
    return metric(scored, weights)[:, number]


def named_metrics(
    names: Sequence[str], metrics: Mapping[str, Metric[AnyScored]]
) -> dict[str, Metric[AnyScored]]:
    """Each metric (W, K) averaged over the targets, and with several targets of each, as
    `spearman of NAME`; all of them (W,)."""
    found: dict[str, Metric[AnyScored]] = {
        name: partial(mean_over_targets, metric=metric) for name, metric in metrics.items()
    }
    if len(names) > 1:
        for metric_name, metric in metrics.items():
            found |= {
                f"{metric_name} of {name}": partial(of_target, metric=metric, number=k)
                for k, name in enumerate(names)
            }
    return found
