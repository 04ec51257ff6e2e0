"""Metrics of classes, labels and values as functions of item weights: weights of 1 give the value,
bootstrap weights the replicates.

Shapes: `S` items, `C` classes, `K` outputs, `W` weightings. A metric takes weights (W, S) and
    returns (W,). The values agree with those of scikit-learn and scipy, which compute one weighting
    per call and sort the items again each time: 500 times slower for the bootstrap of a study.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

NUM_BINS = 15  # of the calibration error, as in Guo et al. 2017 (arXiv 1706.04599)
Metric = Callable[[Any, np.ndarray], np.ndarray]  # of a `Scored` and weights (W, S): (W,)


class Ranks:
    """The items in ascending order of their values (N,), and the ties among them."""

    def __init__(self, values: np.ndarray) -> None:
        _, self.tie, counts = np.unique(values, return_inverse=True, return_counts=True)
        self.order, self.starts = np.argsort(self.tie, kind="stable"), np.cumsum(counts) - counts

    def weights(self, weights: np.ndarray) -> np.ndarray:
        """The weight of each tie, ascending: (W, N) -> (W, T)."""
        return np.add.reduceat(weights[:, self.order], self.starts, axis=1)

    def of_items(self, weights: np.ndarray) -> np.ndarray:
        """The rank of each item, (W, N): the weight of smaller items and half that of equal
        ones."""
        of_tie = self.weights(weights)
        return (np.cumsum(of_tie, 1) - of_tie / 2)[:, self.tie]


@dataclass(frozen=True, eq=False)
class Column:
    """One output of the items that have a label for it.

    Attributes:
        rows: (N,) numbers of these items.
        predicted: (N,) values, or for a class or label its log-odds.
        truth: (N,) measured values, or whether an item is of the class.
        folds: (N,) the fold of each item; None if all predictions are of one model.
    """

    rows: np.ndarray
    predicted: np.ndarray
    truth: np.ndarray
    folds: np.ndarray | None = None

    @cached_property
    def parts(self) -> list[Column]:
        """The items of each fold."""
        numbers = np.unique(self.folds)  # type: ignore[arg-type]
        chosen = [self.folds == number for number in numbers]
        return [Column(self.rows[i], self.predicted[i], self.truth[i]) for i in chosen]

    @cached_property
    def predicted_ranks(self) -> Ranks:
        """The ranks of the predictions."""
        return Ranks(self.predicted)

    @cached_property
    def true_ranks(self) -> Ranks:
        """The ranks of the labels."""
        return Ranks(self.truth)

    def ranked_weights(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The weight of positives and of negatives at each distinct prediction, ascending: two
        arrays (W, T)."""
        of_truth = (np.where(chosen, weights, 0.0) for chosen in (self.truth > 0, self.truth <= 0))
        positive, negative = map(self.predicted_ranks.weights, of_truth)
        return positive, negative


class ScoredValues:
    """Predictions of one run with their labels, prepared for scoring under many weightings.

    Args:
        predictions: (S, K) values, or log-odds of labels.
        labels: (S, K), NaN where one is missing.
        folds: (S,) of a cross-validation, in which each fold has another model.
    """

    def __init__(
        self, predictions: np.ndarray, labels: np.ndarray, folds: np.ndarray | None = None
    ) -> None:
        self.predictions, self.labels = np.asarray(predictions, np.float64), np.asarray(labels)
        self.folds = folds

    @cached_property
    def columns(self) -> list[Column]:
        """The outputs, each with the items that have a label."""
        known = [np.flatnonzero(np.isfinite(column)) for column in self.labels.T]
        return [
            self._column(rows, self.predictions[rows, k], self.labels[rows, k].astype(np.float64))
            for k, rows in enumerate(known)
        ]

    def _column(self, rows: np.ndarray, predicted: np.ndarray, truth: np.ndarray) -> Column:
        return Column(rows, predicted, truth, None if self.folds is None else self.folds[rows])


class ScoredPredictions(ScoredValues):
    """As `ScoredValues`, with normalized log-probabilities (S, C) and class numbers (S,)."""

    @cached_property
    def probs(self) -> np.ndarray:
        """(S, C)."""
        return np.exp(self.predictions)

    @cached_property
    def predicted(self) -> np.ndarray:
        """(S,) numbers of the most probable classes."""
        return self.predictions.argmax(-1)

    @property
    def correct(self) -> np.ndarray:
        """(S,) whether the most probable class is the true one."""
        return self.predicted == self.labels

    def confusion(self, weights: np.ndarray) -> np.ndarray:
        """Weight of each (true, predicted) pair: (W, C, C)."""
        count = self.predictions.shape[1]
        cells = self.labels * count + self.predicted
        tables = [np.bincount(cells, of_items, count**2) for of_items in weights]
        return np.stack(tables).reshape(-1, count, count)

    @cached_property
    def columns(self) -> list[Column]:
        """Each class against the rest; of two classes only the second."""
        count, rows = self.predictions.shape[1], np.arange(len(self.labels))
        found = []
        for number in range(count) if count > 2 else [1]:
            # Of very confident predictions, probabilities are rounded to 1, and those of the other
            # classes are not rounded to 0. Equal predictions stay ties in spite of rounding.
            others = np.logaddexp.reduce(np.delete(self.predictions, number, axis=1), axis=1)
            log_odds = (self.predictions[:, number] - others).round(9)
            found.append(self._column(rows, log_odds, self.labels == number))
        return found


def _ratio(top: np.ndarray, bottom: np.ndarray, otherwise: float = math.nan) -> np.ndarray:
    """top / bottom where the latter is positive."""
    return np.divide(top, bottom, out=np.full_like(top, otherwise, np.float64), where=bottom > 0)


@dataclass(frozen=True)
class ColumnMetric:
    """A metric of single outputs as a metric of them all.

    Under cross-validation each fold has another model. The mean of its predictions follows that of
    its training labels, which is high where that of the tested labels is low: a ranking of all
    items together is below chance on labels that are pure noise. A metric that ranks is therefore
    averaged over folds with the weight of their labeled items, without those where it is undefined.

    Attributes:
        function: of a column and the weights (W, N) of its items.
        ranks: whether it depends on the order or on differences of predictions.
        number: of the output that it is of; None is the mean over those that it is defined for.
    """

    function: Callable[[Column, np.ndarray], np.ndarray]
    ranks: bool = True
    number: int | None = None

    def __call__(self, scored: ScoredValues, weights: np.ndarray) -> np.ndarray:
        """(W,) under weights (W, S)."""
        if self.number is not None:
            return self._of_column(scored.columns[self.number], weights)
        each = np.stack([self._of_column(column, weights) for column in scored.columns], 1)
        defined = np.isfinite(each)
        # Undefined although all items have weight: undefined for the data, and so is the mean.
        count = np.where((weights > 0).all(1) & ~defined.all(1), 0, defined.sum(1))
        return _ratio(np.where(defined, each, 0.0).sum(1), count)

    def _of_column(self, column: Column, weights: np.ndarray) -> np.ndarray:
        if not len(column.rows):
            return np.full(len(weights), np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):  # a replicate without a labeled item
            if column.folds is None or not self.ranks:
                return self.function(column, weights[:, column.rows])
            parts = [(part, weights[:, part.rows]) for part in column.parts]
            values = np.stack([self.function(part, of_part) for part, of_part in parts])  # (F, W)
            sizes = np.stack([of_part.sum(1) for _, of_part in parts])
        counted = np.where(np.isfinite(values), sizes, 0.0)
        return _ratio((np.where(counted > 0, values, 0.0) * counted).sum(0), counted.sum(0))


def accuracy(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    """Fraction of items whose most probable class is correct."""
    return weights @ scored.correct / weights.sum(1)


def mcc(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    """Matthews correlation coefficient (Gorodkin's R_K for more than two classes); 0 if a single
    class is predicted."""
    table = scored.confusion(weights)
    total, correct = table.sum((1, 2)), np.trace(table, axis1=1, axis2=2)
    true, predicted = table.sum(2), table.sum(1)
    top = correct * total - (true * predicted).sum(1)
    bottom = np.sqrt((total**2 - (predicted**2).sum(1)) * (total**2 - (true**2).sum(1)))
    return _ratio(top, bottom, 0.0)


def f1(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    """Macro-averaged F1; it is 0 for a class that neither occurs nor is predicted."""
    table = scored.confusion(weights)
    both = table.sum(1) + table.sum(2)
    return _ratio(2 * np.diagonal(table, axis1=1, axis2=2), both, 0.0).mean(1)


def calibration_error(scored: ScoredPredictions, weights: np.ndarray) -> np.ndarray:
    """Expected calibration error: |accuracy - confidence| in bins of equal width, averaged over
    items."""
    confidence = scored.probs.max(-1)
    bins = np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)
    excess = scored.correct - confidence
    return np.abs((weights * excess) @ np.eye(NUM_BINS)[bins]).sum(1) / weights.sum(1)


def roc_area(column: Column, weights: np.ndarray) -> np.ndarray:
    """Area under the ROC curve; NaN if all items or none are positive."""
    positive, negative = column.ranked_weights(weights)
    area = (positive * (np.cumsum(negative, 1) - negative / 2)).sum(1)
    return _ratio(area, positive.sum(1) * negative.sum(1))


def average_precision(column: Column, weights: np.ndarray) -> np.ndarray:
    """Average precision without interpolation; NaN if no item is positive."""
    positive, negative = (each[:, ::-1] for each in column.ranked_weights(weights))
    precision = _ratio(np.cumsum(positive, 1), np.cumsum(positive + negative, 1), 0.0)
    return _ratio((positive * precision).sum(1), positive.sum(1))


def _correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted correlation (W,) of x and y, (N,) or (W, N): 0 if x is constant, NaN if y is."""
    total = weights.sum(1, keepdims=True)
    x, y = (each - (weights * each).sum(1, keepdims=True) / total for each in (x, y))
    xx, yy, xy = ((weights * product).sum(1) for product in (x * x, y * y, x * y))
    return np.where(yy > 0, _ratio(xy, np.sqrt(xx * yy), 0.0), np.nan)


def _centered(values: np.ndarray) -> np.ndarray:
    """Values around 0, exactly 0 if they are constant, which keeps rounding errors from looking
    like a spread."""
    return values - values[0] if np.ptp(values) == 0 else values - values.mean()


def pearson(column: Column, weights: np.ndarray) -> np.ndarray:
    """Pearson correlation; 0 for a constant prediction, NaN for constant labels."""
    return _correlation(_centered(column.predicted), _centered(column.truth), weights)


def spearman(column: Column, weights: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation with mean ranks for ties; 0 for a constant prediction, NaN for
    constant labels."""
    half = weights.sum(1, keepdims=True) / 2  # the mean rank: exactly that of a single tie
    both = (column.predicted_ranks, column.true_ranks)
    predicted, measured = (ranks.of_items(weights) - half for ranks in both)
    return _correlation(predicted, measured, weights)


def mse(column: Column, weights: np.ndarray) -> np.ndarray:
    """Mean squared error."""
    return _mean((column.predicted - column.truth) ** 2, weights)


def _mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return weights @ values / weights.sum(1)


def r2(column: Column, weights: np.ndarray) -> np.ndarray:
    """Coefficient of determination; NaN for constant labels."""
    x, y = column.predicted - column.truth.mean(), _centered(column.truth)
    variance = _mean(y * y, weights) - _mean(y, weights) ** 2
    found = 1 - _mean((x - y) ** 2, weights) / variance
    return np.where(variance > 1e-12 * (y * y).mean(), found, np.nan)


LABEL_METRICS: dict[str, ColumnMetric] = {
    "auroc": ColumnMetric(roc_area),
    "auprc": ColumnMetric(average_precision),
}
# Areas are macro-averaged one-vs-rest over the classes that have items; NaN if the data have
# others.
METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "mcc": mcc,
    "f1": f1,
    **LABEL_METRICS,
    "calibration_error": calibration_error,
}
REGRESSION_METRICS: dict[str, ColumnMetric] = {
    "spearman": ColumnMetric(spearman),
    "pearson": ColumnMetric(pearson),
    "r2": ColumnMetric(r2, ranks=False),
    "mse": ColumnMetric(mse, ranks=False),
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


def named_metrics(names: Sequence[str], metrics: Mapping[str, ColumnMetric]) -> dict[str, Metric]:
    """Each metric averaged over the outputs, and with several outputs of each, as
    `spearman of NAME`."""
    of_each = {
        f"{metric} of {name}": replace(function, number=number)
        for metric, function in metrics.items()
        for number, name in enumerate(names)
    }
    return {**metrics, **(of_each if len(names) > 1 else {})}


def metric_values(scored: ScoredValues, metrics: Mapping[str, Metric]) -> dict[str, float]:
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
    curves, ones = [], np.ones((1, len(scored.labels)))
    for column in scored.columns:
        true, false = (
            np.concatenate([[0.0], np.cumsum(weight[0][::-1])])
            for weight in column.ranked_weights(ones)
        )
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
