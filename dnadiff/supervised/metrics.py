"""Metrics of classes, labels and values as functions of item weights, with their intervals over
test items, or over groups of them, and over seeds (`dnadiff.supervised.intervals`).

Weights of 1 give the value of a metric, weights of 0 its jackknife replicates.

Shapes: `S` items, `C` classes, `K` outputs, `W` weightings, `R` runs. A metric takes weights (W, S)
    and returns (W,). The values agree with those of scikit-learn and scipy, which compute one
    weighting per call and sort the items again each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray
from typing_extensions import override

from dnadiff.diffusion.bootstrap import MIN_BLOCKS
from dnadiff.fields import Json
from dnadiff.supervised.intervals import (
    MIN_ITEMS,
    Ends,
    Estimate,
    between_seeds,
    jackknife_weights,
    of_correct,
    of_replicates,
)

NUM_BINS = 15  # of the calibration error, as in Guo et al. 2017 (arXiv 1706.04599)


class Ranks:
    """The items in ascending order of their values (N,), and the ties among them."""

    def __init__(self, values: ndarray) -> None:
        _, self.tie, counts = np.unique(values, return_inverse=True, return_counts=True)
        self.order, self.starts = np.argsort(self.tie, kind="stable"), np.cumsum(counts) - counts

    def weights(self, weights: ndarray) -> ndarray:
        """The weight of each tie, ascending: (W, N) -> (W, T)."""
        return np.add.reduceat(weights[:, self.order], self.starts, axis=1)

    def of_items(self, weights: ndarray) -> ndarray:
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
        folds: (S,) the fold of each item of the task; None if all predictions are of one model.
    """

    rows: ndarray
    predicted: ndarray
    truth: ndarray
    folds: ndarray | None = None

    @cached_property
    def parts(self) -> list[Column]:
        """The items of each fold."""
        if self.folds is None:
            return [self]
        folds = self.folds[self.rows]
        chosen = [folds == number for number in np.unique(folds)]
        return [Column(self.rows[i], self.predicted[i], self.truth[i]) for i in chosen]

    @cached_property
    def predicted_ranks(self) -> Ranks:
        """The ranks of the predictions."""
        return Ranks(self.predicted)

    @cached_property
    def true_ranks(self) -> Ranks:
        """The ranks of the labels."""
        return Ranks(self.truth)

    def ranked_weights(self, weights: ndarray) -> list[ndarray]:
        """The weight of positives and of negatives at each distinct prediction, ascending: two
        arrays (W, T)."""
        return [
            self.predicted_ranks.weights(np.where(chosen, weights, 0.0))
            for chosen in (self.truth > 0, self.truth <= 0)
        ]


class ScoredValues:
    """Predictions of one run with their labels, prepared for scoring under many weightings.

    Args:
        predictions: (S, K) values, or log-odds of labels.
        labels: (S, K), NaN where one is missing.
        folds: (S,) of a cross-validation, in which each fold has another model.
    """

    def __init__(self, predictions: ndarray, labels: ndarray, folds: ndarray | None = None) -> None:
        self.predictions, self.labels = np.asarray(predictions, np.float64), np.asarray(labels)
        self.folds = folds

    @cached_property
    def columns(self) -> list[Column]:
        """The outputs, each with the items that have a label."""
        return [
            Column(rows, predicted[rows], labels[rows].astype(np.float64), self.folds)
            for predicted, labels in zip(self.predictions.T, self.labels.T)
            for rows in [np.flatnonzero(np.isfinite(labels))]
        ]


class ScoredPredictions(ScoredValues):
    """As `ScoredValues`, with normalized log-probabilities (S, C) and class numbers (S,)."""

    @cached_property
    def probs(self) -> ndarray:
        """(S, C)."""
        return np.exp(self.predictions)

    @cached_property
    def predicted(self) -> ndarray:
        """(S,) numbers of the most probable classes."""
        return self.predictions.argmax(-1)

    @property
    def correct(self) -> ndarray:
        """(S,) whether the most probable class is the true one."""
        return self.predicted == self.labels

    def confusion(self, weights: ndarray) -> ndarray:
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
            found.append(Column(rows, log_odds, self.labels == number, self.folds))
        return found


def _ratio(top: ndarray, bottom: ndarray, otherwise: float = math.nan) -> ndarray:
    """top / bottom where the latter is positive."""
    return np.divide(top, bottom, out=np.full_like(top, otherwise, np.float64), where=bottom > 0)


@dataclass(frozen=True)
class Metric:
    """A metric of all outputs together, with its least and largest possible value.

    Attributes:
        function: of scored predictions and weights (W, S), (W,).
        is_biased: whether it is too large by more than its standard error: it has no interval.
    """

    function: Callable[[Any, ndarray], ndarray]
    low: float = 0.0
    high: float = 1.0
    is_biased: bool = False

    def __call__(self, scored: ScoredValues, weights: ndarray) -> ndarray:
        """(W,) under weights (W, S)."""
        return self.function(scored, weights)

    def num_items(self, scored: ScoredValues) -> int:
        """The items that have a label for each of its outputs."""
        return len(scored.labels)

    def ends(
        self, models: Sequence[Sequence[ScoredValues]], value: float, groups: ndarray | None
    ) -> Ends | None:
        """The interval over items, or groups of them (S,), of the mean over the runs of one model
        or of the difference of two; None if there are too few."""
        scored = models[0][0]
        if self.is_biased or not math.isfinite(value) or self.num_items(scored) < MIN_ITEMS:
            return None
        replicates = [
            _difference([np.mean([self(run, weights) for run in runs], 0) for runs in models])
            for weights in jackknife_weights(len(scored.labels), groups)
        ]
        range_of = self.low, self.high
        return of_replicates(value, np.concatenate(replicates), range_of, len(models) > 1)


class Accuracy(Metric):
    """A fraction of items, which has an exact interval."""

    @override
    def ends(self, models: Sequence[Sequence[Any]], value: float, groups: ndarray | None) -> Ends:
        fractions = [np.mean([run.correct for run in runs], 0) for runs in models]
        return of_correct(_difference(fractions), groups, len(models) > 1)


def _difference(of_models: Sequence[Any]) -> Any:
    """The value of one model, or that of the first minus that of the second."""
    return of_models[0] - sum(of_models[1:])


@dataclass(frozen=True)
class ColumnMetric(Metric):
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

    ranks: bool = True
    number: int | None = None

    @override
    def num_items(self, scored: ScoredValues) -> int:
        columns = scored.columns if self.number is None else [scored.columns[self.number]]
        return min(len(column.rows) for column in columns)

    @override
    def __call__(self, scored: ScoredValues, weights: ndarray) -> ndarray:
        if self.number is not None:
            return self._of_column(scored.columns[self.number], weights)
        each = np.stack([self._of_column(column, weights) for column in scored.columns], 1)
        defined = np.isfinite(each)
        # Undefined although all items have weight: undefined for the data, and so is the mean.
        count = np.where((weights > 0).all(1) & ~defined.all(1), 0, defined.sum(1))
        return _ratio(np.where(defined, each, 0.0).sum(1), count)

    def _of_column(self, column: Column, weights: ndarray) -> ndarray:
        if not len(column.rows):
            return np.full(len(weights), np.nan)
        parts = [
            (part, weights[:, part.rows]) for part in (column.parts if self.ranks else [column])
        ]
        with np.errstate(invalid="ignore", divide="ignore"):  # a replicate without a labeled item
            values = np.stack([self.function(*part) for part in parts])  # (F, W)
        if len(parts) == 1:
            return values[0]
        sizes = np.stack([of_part.sum(1) for _, of_part in parts])
        counted = np.where(np.isfinite(values), sizes, 0.0)
        return _ratio((np.where(counted > 0, values, 0.0) * counted).sum(0), counted.sum(0))


def accuracy(scored: ScoredPredictions, weights: ndarray) -> ndarray:
    """Fraction of items whose most probable class is correct."""
    return _mean(scored.correct, weights)


def mcc(scored: ScoredPredictions, weights: ndarray) -> ndarray:
    """Matthews correlation coefficient (Gorodkin's R_K for more than two classes); 0 if a single
    class is predicted."""
    table = scored.confusion(weights)
    total, correct = table.sum((1, 2)), np.trace(table, axis1=1, axis2=2)
    true, predicted = table.sum(2), table.sum(1)
    top = correct * total - (true * predicted).sum(1)
    bottom = np.sqrt((total**2 - (predicted**2).sum(1)) * (total**2 - (true**2).sum(1)))
    return _ratio(top, bottom, 0.0)


def f1(scored: ScoredPredictions, weights: ndarray) -> ndarray:
    """Macro-averaged F1; it is 0 for a class that neither occurs nor is predicted."""
    table = scored.confusion(weights)
    both = table.sum(1) + table.sum(2)
    return _ratio(2 * np.diagonal(table, axis1=1, axis2=2), both, 0.0).mean(1)


def calibration_error(scored: ScoredPredictions, weights: ndarray) -> ndarray:
    """Expected calibration error: |accuracy - confidence| in bins of equal width, averaged over
    items."""
    confidence = scored.probs.max(-1)
    bins = np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)
    excess = scored.correct - confidence
    return np.abs((weights * excess) @ np.eye(NUM_BINS)[bins]).sum(1) / weights.sum(1)


def roc_area(column: Column, weights: ndarray) -> ndarray:
    """Area under the ROC curve; NaN if all items or none are positive."""
    positive, negative = column.ranked_weights(weights)
    area = (positive * (np.cumsum(negative, 1) - negative / 2)).sum(1)
    return _ratio(area, positive.sum(1) * negative.sum(1))


def average_precision(column: Column, weights: ndarray) -> ndarray:
    """Average precision without interpolation; NaN if no item is positive."""
    positive, negative = (each[:, ::-1] for each in column.ranked_weights(weights))
    precision = _ratio(np.cumsum(positive, 1), np.cumsum(positive + negative, 1), 0.0)
    return _ratio((positive * precision).sum(1), positive.sum(1))


def _mean(values: ndarray, weights: ndarray) -> ndarray:
    return weights @ values / weights.sum(1)


def _correlation(x: ndarray, y: ndarray, weights: ndarray) -> ndarray:
    """Weighted correlation (W,) of x and y, (N,) or (W, N): 0 if x is constant, NaN if y is."""
    total = weights.sum(1, keepdims=True)
    x, y = (each - (weights * each).sum(1, keepdims=True) / total for each in (x, y))
    xx, yy, xy = ((weights * product).sum(1) for product in (x * x, y * y, x * y))
    return np.where(yy > 0, _ratio(xy, np.sqrt(xx * yy), 0.0), np.nan)


def _centered(values: ndarray) -> ndarray:
    """Values around 0, exactly 0 if they are constant, which keeps rounding errors from looking
    like a spread."""
    return values - values[0] if np.ptp(values) == 0 else values - values.mean()


def pearson(column: Column, weights: ndarray) -> ndarray:
    """Pearson correlation; 0 for a constant prediction, NaN for constant labels."""
    return _correlation(_centered(column.predicted), _centered(column.truth), weights)


def spearman(column: Column, weights: ndarray) -> ndarray:
    """Spearman's rank correlation with mean ranks for ties; 0 for a constant prediction, NaN for
    constant labels."""
    half = weights.sum(1, keepdims=True) / 2  # the mean rank: exactly that of a single tie
    both = (column.predicted_ranks, column.true_ranks)
    predicted, measured = (ranks.of_items(weights) - half for ranks in both)
    return _correlation(predicted, measured, weights)


def mse(column: Column, weights: ndarray) -> ndarray:
    """Mean squared error."""
    return _mean((column.predicted - column.truth) ** 2, weights)


def r2(column: Column, weights: ndarray) -> ndarray:
    """Coefficient of determination; NaN for constant labels."""
    x, y = column.predicted - column.truth.mean(), _centered(column.truth)
    variance = _mean(y * y, weights) - _mean(y, weights) ** 2
    found = 1 - _mean((x - y) ** 2, weights) / variance
    return np.where(variance > 1e-12 * (y * y).mean(), found, np.nan)


LABEL_METRICS = {"auroc": ColumnMetric(roc_area), "auprc": ColumnMetric(average_precision)}
# Areas are macro-averaged one-vs-rest over the classes that have items; NaN if the data have
# others.
METRICS: dict[str, Metric] = {
    "accuracy": Accuracy(accuracy),
    "mcc": Metric(mcc, -1.0),
    "f1": Metric(f1),
    **LABEL_METRICS,
    "calibration_error": Metric(calibration_error, is_biased=True),
}
REGRESSION_METRICS = {
    "spearman": ColumnMetric(spearman, -1.0),
    "pearson": ColumnMetric(pearson, -1.0),
    "r2": ColumnMetric(r2, -math.inf, ranks=False),
    "mse": ColumnMetric(mse, high=math.inf, ranks=False),
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
        counts = np.cumsum([of_item[0, ::-1] for of_item in column.ranked_weights(ones)], 1)
        counts = np.pad(counts, ((0, 0), (1, 0)))  # (2, T + 1): positives and negatives
        if counts.shape[1] > max_points:
            steps = np.linspace(0, len(scored.labels), max_points)
            counts = counts[:, np.unique(np.searchsorted(counts.sum(0), steps))]
        true, false = (counts / np.maximum(counts[:, -1:], 1)).round(5).tolist()
        curves.append({"false": false, "true": true})
    return curves


def confusion_matrix(runs: Sequence[ScoredPredictions]) -> list[list[float]]:
    """Number of items by true class (row) and predicted class (column), averaged over runs."""
    return np.mean([run.confusion(np.ones((1, len(run.labels))))[0] for run in runs], 0).tolist()


def estimate(
    metric: Metric,
    runs: Sequence[ScoredValues],
    baseline: Sequence[ScoredValues] = (),
    groups: ndarray | None = None,
) -> Estimate:
    """A metric of a model, or the difference of two, averaged over runs on the same items (one for
    each seed).

    Args:
        baseline: runs of another model on the same items, whose metric is subtracted.
        groups: (S,) group numbers of items that resemble each other; fewer than 5 groups give no
            interval. None: single items.
    """
    models = [each for each in (runs, baseline) if each]
    ones = np.ones((1, len(runs[0].labels)))
    of_runs = [[float(metric(run, ones)[0]) for run in each] for each in models]
    value = float(_difference([np.mean(each) for each in of_runs]))
    width = metric.high - metric.low
    has_few = groups is not None and len(np.unique(groups)) < MIN_BLOCKS
    return Estimate(
        value,
        of_runs[0],
        None if has_few else metric.ends(models, value, groups),
        [seeds for each in of_runs for seeds in between_seeds(each)],
        (-width, width) if baseline else (metric.low, metric.high),
    )


def summarize_metrics(
    runs: Sequence[ScoredValues],
    metrics: Mapping[str, Metric],
    groups: ndarray | None = None,
) -> dict[str, dict[str, Json]]:
    """Metrics averaged over runs on the same items (one for each seed), with their 95 % intervals.

    By metric: `value`, `per_seed`, `low`, `high` (None if there are too few items) and `spread`
    (max - min over runs).
    """
    found = {name: estimate(metric, runs, (), groups) for name, metric in metrics.items()}
    return {
        name: {
            "value": one.value,
            "per_seed": one.per_seed,
            "spread": max(one.per_seed) - min(one.per_seed),
            **one.record(),
        }
        for name, one in found.items()
    }
