"""Multi-label classification: each of several labels is present or absent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from dnadiff.supervised.metrics import Metric
from dnadiff.supervised.multilabel_metrics import MULTILABEL_METRICS, ScoredLabels
from dnadiff.supervised.regression_metrics import named_metrics
from dnadiff.supervised.targets.columns import ColumnTarget
from dnadiff.supervised.targets.estimators import LabelEstimators
from dnadiff.supervised.targets.losses import masked_mean
from dnadiff.supervised.targets.predicted import LabelProbabilities

_VALUES = {
    "0": 0.0,
    "1": 1.0,
    "0.0": 0.0,
    "1.0": 1.0,
    "false": 0.0,
    "true": 1.0,
    "no": 0.0,
    "yes": 1.0,
}


class MultiLabelTarget(ColumnTarget[ScoredLabels]):
    """Presence of each of the labels `names`: binary cross-entropy; predictions are log-odds,
    averaged over the strands."""

    predicted_kind = LabelProbabilities
    value_prefix, primary, shown = "p", "auroc", ("auprc",)

    @property
    @override
    def summary(self) -> str:
        return f"labels {', '.join(self.names)}"

    @override
    def parse_cell(self, cell: str, where: str, column: str) -> float:
        if cell.lower() not in _VALUES:
            raise ValueError(
                f"{where} has {cell!r} in column {column!r}, and a label is 0 or 1 (or false, "
                "true, no, yes, or empty if not known); "
                "correct it, or set label_column to other columns"
            )
        return _VALUES[cell.lower()]

    @override
    def chance(self, labels: np.ndarray) -> float:
        return 0.5

    @override
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        known = labels.isfinite()
        filled = torch.where(known, labels, 0.0).to(outputs.dtype)
        return masked_mean(
            nn.functional.binary_cross_entropy_with_logits(outputs, filled, reduction="none"), known
        )

    @override
    def predictions(self, outputs: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(outputs)).mean(0)

    @override
    def contrast_name(self, name: str) -> str:
        return f"log-odds of label {name}"

    @override
    def averaged(self, predictions: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        # The log-odds of mean probabilities, without probabilities that are rounded to 0 or 1.
        known = [
            (one.double(), math.log(weight))
            for one, weight in zip(predictions, weights)
            if weight > 0
        ]
        present = torch.stack(
            [nn.functional.logsigmoid(one) + log_weight for one, log_weight in known]
        ).logsumexp(0)
        return present - torch.stack(
            [nn.functional.logsigmoid(-one) + log_weight for one, log_weight in known]
        ).logsumexp(0)

    @override
    def valid_loss(self, predictions: Tensor, labels: Tensor) -> float:
        return float(self.loss(predictions, labels))

    @cached_property
    @override
    def estimators(self) -> LabelEstimators:
        return LabelEstimators(self.valid_loss)

    @override
    def scored(
        self, predictions: np.ndarray, labels: np.ndarray, folds: np.ndarray | None = None
    ) -> ScoredLabels:
        return ScoredLabels(predictions, labels, folds)

    @cached_property
    @override
    def metrics(self) -> dict[str, Metric[ScoredLabels]]:
        return named_metrics(self.names, MULTILABEL_METRICS)

    @override
    def predicted(self, each_seed: np.ndarray) -> LabelProbabilities:
        return LabelProbabilities(self.names, each_seed)

    @override
    def seed_columns(self, seed: int) -> list[str]:
        return [f"log_odds_{name}_seed_{seed}" for name in self.names]
