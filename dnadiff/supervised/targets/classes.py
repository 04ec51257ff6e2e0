"""Classification: one of two or more classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from dnadiff.bootstrap import ConfidenceInterval
from dnadiff.config import Json
from dnadiff.supervised.intervals import accuracy_interval
from dnadiff.supervised.metrics import (
    METRICS,
    MULTILABEL_METRICS,
    Metric,
    ScoredLabels,
    ScoredPredictions,
    confusion_matrix,
    named_metrics,
    roc_curves,
    sign_flip_test,
)
from dnadiff.supervised.targets.base import (
    MISSING,
    ClassProbabilities,
    ColumnTarget,
    Label,
    LabelProbabilities,
    TaskTarget,
    ValidScore,
)
from dnadiff.supervised.targets.estimators import ClassEstimators, LabelEstimators
from dnadiff.supervised.targets.regression import masked_mean

MAX_NUMBERS = 50  # classes that may all be numbers, some of them with decimals
_WORST = ValidScore(-1.0, -math.inf)


class ClassTarget(TaskTarget[ScoredPredictions]):
    """One of several classes: cross-entropy, and log-probabilities that are averaged over the
    strands.

    Args:
        names: of the classes, sorted. Training needs none.
        class_weights: of each class in the loss and in the accuracy that chooses the epoch; None
            weights all items the same. Predictions and metrics do not depend on them.
    """

    predicted_kind = ClassProbabilities
    primary, shown, p_value_test = "accuracy", ("mcc", "auroc"), "sign-flip test"
    takes_several, can_be_missing, published = False, False, True

    def __init__(
        self, names: Sequence[str] = (), class_weights: Sequence[float] | None = None
    ) -> None:
        super().__init__(names)
        self.class_weights = None if class_weights is None else torch.tensor(class_weights)

    @property
    @override
    def summary(self) -> str:
        return " vs. ".join(self.names)

    @override
    def identity(self) -> list[Json]:
        return []  # as in earlier versions

    @override
    def parse(self, cells: Sequence[str], where: str, columns: Sequence[str]) -> int:
        if cells[0] not in self._numbers:
            known = ", ".join(map(repr, self.names))
            raise ValueError(
                f"{where} has {cells[0]!r} in column {columns[0]!r}, and the classes of this model "
                f"are {known}; "
                "correct it, set label_column to another column, or leave label_column out"
            )
        return self._numbers[cells[0]]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @override
    def check(self, cells: Sequence[str], where: str) -> None:
        if cells[0].lower() in MISSING - {
            "none"
        }:  # a usual name for the class of sequences without the feature
            raise ValueError(
                f"{where} has {cells[0]!r} in column {self.names[0]!r}, which stands for a missing "
                "value, and a class is expected; complete the "
                "row, remove it, or give the class another name"
            )

    @override
    def read(
        self, labels: Sequence[str], source: str, label_source: str
    ) -> tuple[ClassTarget, np.ndarray]:
        names = sorted(set(labels))
        if len(names) < 2:
            raise ValueError(
                f"{source} has one class, {names[0]!r}, in {label_source}; classification needs "
                "two or more"
            )
        if (
            len(names) > MAX_NUMBERS
            and all(map(_is_float, names))
            and any("." in name for name in names)
        ):
            raise ValueError(
                f"{source} has {len(names):,} different numbers such as {names[0]} in "
                f"{label_source}, and classification expects names of "
                "classes; set task.kind=regression, or task.label_column to another column"
            )
        target = ClassTarget(names)
        return target, target.as_array([target._numbers[label] for label in labels])

    @override
    def as_array(self, labels: Sequence[Label]) -> np.ndarray:
        return np.array(labels)

    @override
    def strata(self, labels: np.ndarray) -> tuple[np.ndarray, list[str]]:
        return labels, list(self.names)

    @override
    def counts(self, labels: Tensor) -> dict[str, int]:
        return {name: int((labels == number).sum()) for number, name in enumerate(self.names)}

    @override
    def chance(self, labels: np.ndarray) -> float:
        return float(np.bincount(labels).max() / len(labels))

    @override
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        # Divided by the items, not by their weights: else a batch without the rare class trains on
        # the frequent one at full weight.
        return nn.functional.cross_entropy(
            outputs, labels, self._class_weights(outputs), reduction="sum"
        ) / len(labels)

    def _class_weights(self, like: Tensor) -> Tensor | None:
        return None if self.class_weights is None else self.class_weights.to(like)

    @override
    def balanced(self, labels: Tensor) -> ClassTarget:
        return ClassTarget(self.names, balanced_weights(labels, self.num_outputs).tolist())

    @override
    def predictions(self, outputs: Sequence[Tensor]) -> Tensor:
        total = torch.stack([logits.log_softmax(-1) for logits in outputs]).sum(0)
        return (total / len(outputs)).log_softmax(-1)

    @override
    def averaged(self, predictions: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        terms = [
            one.double() + math.log(weight)
            for one, weight in zip(predictions, weights)
            if weight > 0
        ]
        return torch.stack(terms).logsumexp(0)

    @override
    def valid_loss(self, predictions: Tensor, labels: Tensor) -> float:
        return float(nn.functional.nll_loss(predictions, labels, self._class_weights(predictions)))

    @override
    def valid_score(self, predictions: Tensor, labels: Tensor) -> ValidScore:
        correct = (predictions.argmax(-1) == labels).float()
        weights = (
            torch.ones_like(correct)
            if self.class_weights is None
            else self.class_weights.to(correct)[labels]
        )
        score = ValidScore(
            float((weights * correct).sum() / weights.sum()), -self.valid_loss(predictions, labels)
        )
        # Diverged: NaN predictions may still match many labels by chance.
        return score if math.isfinite(score.negative_loss) else _WORST

    @override
    def record(self, score: ValidScore) -> dict[str, Json]:
        name = "valid_accuracy" if self.class_weights is None else "valid_weighted_accuracy"
        return {name: score.accuracy, **super().record(score)}

    @cached_property
    @override
    def estimators(self) -> ClassEstimators:
        return ClassEstimators(self.num_outputs)

    @override
    def scored(
        self, predictions: np.ndarray, labels: np.ndarray, folds: np.ndarray | None = None
    ) -> ScoredPredictions:
        return ScoredPredictions(predictions, labels, folds)

    @property
    @override
    def metrics(self) -> dict[str, Metric[ScoredPredictions]]:
        return METRICS

    @override
    def interval(
        self,
        runs: Sequence[ScoredPredictions],
        baseline: Sequence[ScoredPredictions] | None = None,
        groups: np.ndarray | None = None,
    ) -> ConfidenceInterval:
        found = accuracy_interval(
            _correct(runs), None if baseline is None else _correct(baseline), groups=groups
        )
        return found if baseline is not None else self._in_range(found)

    @override
    def p_value(
        self,
        first: Sequence[ScoredPredictions],
        second: Sequence[ScoredPredictions],
        groups: np.ndarray | None = None,
    ) -> float:
        return sign_flip_test(_correct(first), _correct(second), groups=groups)

    @override
    def details(self, runs: Sequence[ScoredPredictions]) -> dict[str, Json]:
        return {"confusion": confusion_matrix(runs), "roc": roc_curves(runs[0])}

    @override
    def predicted(self, each_seed: np.ndarray) -> ClassProbabilities:
        return ClassProbabilities(self.names, each_seed)

    @property
    @override
    def columns(self) -> list[str]:
        return ["predicted", *(f"p_{name}" for name in self.names), "spread"]

    @property
    @override
    def text_columns(self) -> frozenset[str]:
        return frozenset({"predicted", "label"})

    @property
    @override
    def label_columns(self) -> list[str]:
        return ["label"]

    @override
    def label_cells(self, label: Label) -> list[str]:
        assert isinstance(label, int)
        return [self.names[label]]

    @override
    def seed_columns(self, seed: int) -> list[str]:
        return [f"log_p_{name}_seed_{seed}" for name in self.names]

    @override
    def track_column(self, name: str) -> str:
        return f"p_{name}"

    @override
    def contrast(self, predictions: Tensor) -> Tensor:
        # The log-odds of each class: log p - log(1 - p), stable also where p is close to 1.
        count = predictions.shape[-1]
        others = [
            predictions[..., [other for other in range(count) if other != number]].logsumexp(-1)
            for number in range(count)
        ]
        return predictions - torch.stack(others, -1)

    @override
    def contrast_name(self, name: str) -> str:
        return f"log-odds of class {name}"


def balanced_weights(labels: Tensor, num_classes: int) -> Tensor:
    """Weights (C,) of the classes, S / (C count), as `class_weight="balanced"` of scikit-learn; 0
    for a class without items."""
    counts = torch.bincount(labels, minlength=num_classes).float()
    return torch.where(counts > 0, len(labels) / (num_classes * counts.clamp(min=1)), 0.0)


def _correct(runs: Sequence[ScoredPredictions]) -> np.ndarray:
    """Whether each item was classified correctly in each run, (R, S)."""
    return np.stack([run.predicted == run.labels for run in runs])


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
