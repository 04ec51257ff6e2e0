"""Metrics of classes, labels and values, with their intervals over test items, or over groups of
them, and over seeds (`dnadiff.supervised.intervals`).

Shapes: `S` items, `C` classes, `K` outputs, `R` runs. A metric takes a mask (S,) of the items that
    count, which leaves out some of them for the replicates of the jackknife. The values agree with
    those of scikit-learn and scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from dnadiff.diffusion.bootstrap import MIN_BLOCKS
from dnadiff.fields import Json
from dnadiff.supervised.intervals import (
    MIN_ITEMS,
    Ends,
    Estimate,
    jackknife,
    of_correct,
    of_folds,
    of_replicates,
)

NUM_BINS = 15  # of the calibration error, as in Guo et al. 2017 (arXiv 1706.04599)


@dataclass(frozen=True, eq=False)
class Column:
    """One output of the items that have a label for it.

    Attributes:
        rows: (N,) numbers of these items.
        predicted: (N,) values, or for a class or label its log-odds.
        truth: (N,) measured values, or whether an item is of the class.
        folds: (N,) the fold of each item; None if all predictions are of one model.
    """

    rows: ndarray
    predicted: ndarray
    truth: ndarray
    folds: ndarray | None = None

    def select(self, chosen: ndarray) -> Column:
        """The items of a mask (N,)."""
        folds = None if self.folds is None else self.folds[chosen]
        return Column(self.rows[chosen], self.predicted[chosen], self.truth[chosen], folds)

    def parts(self) -> list[Column]:
        """The items of each fold."""
        if self.folds is None:
            return [self]
        return [self.select(self.folds == number) for number in np.unique(self.folds)]

    def counts(self) -> ndarray:
        """The number of positives and of negatives at each distinct prediction, ascending: (2,
        T)."""
        tie = np.unique(self.predicted, return_inverse=True)[1]
        return np.stack([np.bincount(tie, chosen) for chosen in (self.truth > 0, self.truth <= 0)])


class ScoredValues:
    """Predictions of one run with their labels, prepared for scoring many subsets.

    Args:
        predictions: (S, K) values, or log-odds of labels.
        labels: (S, K), NaN where one is missing.
        folds: (S,) of a cross-validation, in which each fold has another model.
    """

    def __init__(self, predictions: ndarray, labels: ndarray, folds: ndarray | None = None) -> None:
        self.predictions = np.asarray(predictions, np.float64)
        self.labels = np.asarray(labels)
        self.folds = folds

    @cached_property
    def columns(self) -> list[Column]:
        """The outputs, each with the items that have a label."""
        rows = np.arange(len(self.labels))
        return [
            Column(rows, predicted, truth, self.folds).select(np.isfinite(truth))
            for predicted, truth in zip(self.predictions.T, self.labels.T.astype(np.float64))
        ]


class ScoredPredictions(ScoredValues):
    """As `ScoredValues`, with normalized log-probabilities (S, C) and class numbers (S,)."""

    @cached_property
    def predicted(self) -> ndarray:
        """(S,) numbers of the most probable classes."""
        return self.predictions.argmax(-1)

    @property
    def correct(self) -> ndarray:
        """(S,) whether the most probable class is the true one."""
        return self.predicted == self.labels

    def confusion(self, chosen: ndarray | slice = slice(None)) -> ndarray:
        """Number of items of a mask (S,) of each (true, predicted) pair: (C, C)."""
        count = self.predictions.shape[1]
        cells = (self.labels * count + self.predicted)[chosen]
        return np.bincount(cells, minlength=count**2).reshape(count, count)

    @cached_property
    def columns(self) -> list[Column]:
        """Each class against the rest; of two classes only the second."""
        # Equal predictions stay ties in spite of rounding.
        of_classes = log_odds(torch.from_numpy(self.predictions)).numpy().round(9)
        truth = self.labels[:, None] == np.arange(of_classes.shape[1])
        found = ScoredValues(of_classes, truth, self.folds).columns
        return found if len(found) > 2 else found[1:]


def log_odds(log_probs: Tensor) -> Tensor:
    """log p - log(1 - p) of each class, of log-probabilities (..., C); exact also where p is
    rounded to 1, because the probabilities of the other classes are not rounded to 0."""
    number = torch.arange(log_probs.shape[-1])
    # one by one: all together would take C times the memory
    others = [log_probs[..., number != each].logsumexp(-1) for each in number]
    return log_probs - torch.stack(others, -1)


@dataclass(frozen=True)
class Metric:
    """A metric of all outputs together, with its least and largest possible value.

    Attributes:
        function: of scored predictions and a mask (S,) of the items that count.
        is_biased: whether it is too large by more than its standard error: it has no interval.
    """

    function: Callable[..., float]
    low: float = 0.0
    high: float = 1.0
    is_biased: bool = False

    def __call__(self, scored: ScoredValues, chosen: ndarray) -> float:
        """The value for the items of a mask (S,)."""
        return float(self.function(scored, chosen))

    def columns(self, scored: ScoredValues) -> list[Column]:
        """The outputs that it is of."""
        return scored.columns

    def ends(
        self, models: Sequence[Sequence[ScoredValues]], value: float, groups: ndarray | None
    ) -> Ends | None:
        """The interval over items, or groups of them (S,), of the mean over the runs of one model
        or of the difference of two; None if there are too few."""
        scored = models[0][0]
        size = min(len(column.rows) for column in self.columns(scored))
        if self.is_biased or not math.isfinite(value) or size < MIN_ITEMS:
            return None
        replicates = [
            _difference([np.mean([self(run, kept) for run in runs]) for runs in models])
            for kept in jackknife(len(scored.labels), groups)
        ]
        limits = None if len(models) > 1 else (self.low, self.high)
        return of_replicates(value, np.array(replicates), limits)


class Accuracy(Metric):
    """A fraction of items, which has an exact interval."""

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
        function: of a column.
        ranks: whether it depends on the order or on differences of predictions.
        number: of the output that it is of; None is the mean over all.
    """

    ranks: bool = True
    number: int | None = None

    def columns(self, scored: ScoredValues) -> list[Column]:
        return scored.columns if self.number is None else [scored.columns[self.number]]

    def __call__(self, scored: ScoredValues, chosen: ndarray) -> float:
        columns = (column.select(chosen[column.rows]) for column in self.columns(scored))
        return float(np.mean([self._of_column(column) for column in columns]))

    def _of_column(self, column: Column) -> float:
        parts = [part for part in (column.parts() if self.ranks else [column]) if len(part.rows)]
        values = np.array([self.function(part) for part in parts])
        sizes = np.array([len(part.rows) for part in parts])
        known = np.isfinite(values)
        return float(np.average(values[known], weights=sizes[known])) if known.any() else math.nan


def accuracy(scored: ScoredPredictions, chosen: ndarray) -> float:
    """Fraction of items whose most probable class is correct."""
    return scored.correct[chosen].mean()


def mcc(scored: ScoredPredictions, chosen: ndarray) -> float:
    """Matthews correlation coefficient (Gorodkin's R_K for more than two classes); 0 if a single
    class is predicted."""
    table = scored.confusion(chosen).astype(np.float64)
    total = table.sum()
    true = table.sum(1)
    predicted = table.sum(0)
    bottom = math.sqrt((total**2 - predicted @ predicted) * (total**2 - true @ true))
    return (np.trace(table) * total - true @ predicted) / bottom if bottom > 0 else 0.0


def f1(scored: ScoredPredictions, chosen: ndarray) -> float:
    """Macro-averaged F1; it is 0 for a class that neither occurs nor is predicted."""
    table = scored.confusion(chosen)
    return (2 * np.diagonal(table) / np.maximum(table.sum(0) + table.sum(1), 1)).mean()


def calibration_error(scored: ScoredPredictions, chosen: ndarray) -> float:
    """Expected calibration error: |accuracy - confidence| in bins of equal width, averaged over
    items."""
    confidence = np.exp(scored.predictions.max(-1)[chosen])
    bins = np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)
    excess = np.bincount(bins, scored.correct[chosen] - confidence)
    return np.abs(excess).sum() / len(bins)


def roc_area(column: Column) -> float:
    """Area under the ROC curve; NaN if all items or none are positive."""
    positive, negative = column.counts()
    pairs = positive.sum() * negative.sum()
    return positive @ (np.cumsum(negative) - negative / 2) / pairs if pairs else math.nan


def average_precision(column: Column) -> float:
    """Average precision without interpolation; NaN if no item is positive."""
    counts = column.counts()[:, ::-1]
    positive, _ = counts
    precision = np.cumsum(positive) / np.cumsum(counts.sum(0))
    return positive @ precision / positive.sum() if positive.any() else math.nan


def _correlation(x: ndarray, y: ndarray) -> float:
    """The correlation of x and y: 0 if x is constant, NaN if y is."""
    if np.ptp(y) == 0:
        return math.nan
    return 0.0 if np.ptp(x) == 0 else np.corrcoef(x, y)[0, 1]


def pearson(column: Column) -> float:
    """Pearson correlation; 0 for a constant prediction, NaN for constant labels."""
    return _correlation(column.predicted, column.truth)


def spearman(column: Column) -> float:
    """Spearman's rank correlation with mean ranks for ties; 0 for a constant prediction, NaN for
    constant labels."""
    from scipy.stats import rankdata  # imported late: it takes half a second

    return _correlation(rankdata(column.predicted), rankdata(column.truth))


def mse(column: Column) -> float:
    """Mean squared error."""
    return ((column.predicted - column.truth) ** 2).mean()


def r2(column: Column) -> float:
    """Coefficient of determination; NaN for constant labels."""
    return 1 - mse(column) / column.truth.var() if np.ptp(column.truth) else math.nan


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
    every = np.ones(len(scored.labels), bool)
    return {name: metric(scored, every) for name, metric in metrics.items()}


def roc_curves(scored: ScoredPredictions, max_points: int = 101) -> list[dict[str, list[float]]]:
    """One-vs-rest ROC curves (with two classes, only that of the second): false positive rates and
    true positive rates.

    Args:
        max_points: of a curve; with more thresholds, those at even steps of the number of selected
            items are kept.
    """
    curves = []
    for column in scored.columns:
        # (2, T + 1): positives and negatives
        counts = np.pad(np.cumsum(column.counts()[:, ::-1], 1), ((0, 0), (1, 0)))
        if counts.shape[1] > max_points:
            steps = np.linspace(0, len(scored.labels), max_points)
            counts = counts[:, np.unique(np.searchsorted(counts.sum(0), steps))]
        true, false = (counts / np.maximum(counts[:, -1:], 1)).round(5).tolist()
        curves.append({"false": false, "true": true})
    return curves


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
    every = np.ones(len(runs[0].labels), bool)
    of_runs = [[metric(run, every) for run in each] for each in models]
    value = float(_difference([np.mean(each) for each in of_runs]))
    width = metric.high - metric.low
    has_few = groups is not None and len(np.unique(groups)) < MIN_BLOCKS
    return Estimate(
        value,
        of_runs[0],
        None if has_few else metric.ends(models, value, groups),
        [(float(np.var(x, ddof=1)) / len(x), len(x) - 1) for x in of_runs if len(x) > 1],
        (-width, width) if baseline else (metric.low, metric.high),
        of_folds(runs[0].folds),
    )


def summarize_metrics(
    runs: Sequence[ScoredValues], metrics: Mapping[str, Metric], groups: ndarray | None = None
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
