"""Regression metrics as functions of item weights, as in `dnadiff.supervised.metrics`; missing
labels are left out.

Shapes: `S` items, `K` targets, `W` weightings. Weights are (W, S), results (W, K). The values for
    weights of 1 agree with `scipy.stats` and `sklearn.metrics`; those for counts agree with the
    values of the items repeated as often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

import numpy as np

from dnadiff.supervised.metrics import (
    AnyScored,
    Metric,
    mean_of_defined,
    rows_of_folds,
    within_folds,
)


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
