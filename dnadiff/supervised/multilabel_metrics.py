"""Metrics of single labels as functions of item weights, (W, K): those of
`dnadiff.supervised.metrics` for two classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from dnadiff.supervised.metrics import Metric, ScoredPredictions, auprc, auroc


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
