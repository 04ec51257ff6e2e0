"""Classification: one of two or more classes, or each of several labels present or absent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn

from dnadiff.fields import JsonDict
from dnadiff.supervised.metrics import (
    LABEL_METRICS,
    METRICS,
    Metric,
    ScoredPredictions,
    ScoredValues,
    log_odds,
    roc_curves,
)
from dnadiff.supervised.targets import (
    MISSING,
    Label,
    Predicted,
    TaskTarget,
    ValidScore,
    masked_mean,
    spread,
)

MAX_NUMBERS = 50  # classes that may all be numbers, some of them with decimals
_WORST = ValidScore(-1.0, -math.inf)
_LABEL_VALUES = {
    **dict.fromkeys(("0", "0.0", "false", "no"), 0.0),
    **dict.fromkeys(("1", "1.0", "true", "yes"), 1.0),
}


class ClassProbabilities(Predicted):
    """Predictions of S sequences by the classifiers of R seeds: `each_seed` are
    log-probabilities."""

    @property
    def log_probs(self) -> ndarray:
        """(R, S, C) float32, of each seed."""
        return self.each_seed

    @property
    def probs(self) -> ndarray:
        """(S, C) float64 probabilities, averaged over the seeds."""
        return self.values

    @property
    def labels(self) -> ndarray:
        """(S,) numbers of the most probable classes; -1 without a prediction."""
        return np.where(np.isnan(self.probs).any(-1), -1, self.probs.argmax(-1))

    @property
    def predicted(self) -> list[str | float]:
        """Names of the most probable classes; NaN without a prediction."""
        names = (*self.names, math.nan)
        return [names[number] for number in self.labels]

    @property
    def spread(self) -> ndarray:
        """(S,) of the predicted class."""
        index = self.labels[None, :, None]
        return spread(np.take_along_axis(self.values_of_seeds, index, axis=2)[..., 0])

    def cells(self) -> dict[str, Sequence[str | float] | ndarray]:
        probs = {f"p_{name}": column for name, column in zip(self.names, self.probs.T)}
        return {"predicted": self.predicted, **probs, "spread": self.spread}

    def tally(self) -> dict[str, float]:
        return dict(Counter(self.names[number] for number in self.labels if number >= 0))


class ClassTarget(TaskTarget):
    """One of several classes: cross-entropy, and log-probabilities that are averaged over the
    strands.

    Args:
        names: of the classes, sorted. Training needs none.
        class_weights: of each class in the loss and in the accuracy that chooses the epoch; None
            weights all items the same. Predictions and metrics do not depend on them.
    """

    predicted_kind = ClassProbabilities
    tally_header = ("predicted", "number", "of all")
    output_form = "log_p_{}"
    contrast_form = "log-odds of class {}"
    primary = "accuracy"
    shown = ("mcc", "auroc")
    takes_several = False
    can_be_missing = False
    published = True
    text_columns = frozenset({"predicted", "label"})

    def __init__(
        self, names: Sequence[str] = (), class_weights: Sequence[float] | None = None
    ) -> None:
        super().__init__(names)
        self.class_weights = None if class_weights is None else torch.tensor(class_weights)

    @property
    def summary(self) -> str:
        return " vs. ".join(self.names)

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

    def check(self, cells: Sequence[str], where: str) -> None:
        # "none" is a usual name for the class of sequences without the feature.
        if cells[0].lower() in MISSING - {"none"}:
            raise ValueError(
                f"{where} has {cells[0]!r} in column {self.names[0]!r}, which stands for a missing "
                "value, and a class is expected; complete the "
                "row, remove it, or give the class another name"
            )

    def read(
        self, labels: Sequence[str], source: str, label_source: str
    ) -> tuple[ClassTarget, ndarray]:
        names = sorted(set(labels))
        if len(names) < 2:
            raise ValueError(
                f"{source} has one class, {names[0]!r}, in {label_source}; classification needs "
                "two or more"
            )
        read = dict[float | str, str]()
        for name in names:
            meaning = _read_name(name)
            if (other := read.setdefault(meaning, name)) != name:
                how = "differ in case or spaces" if isinstance(meaning, str) else "are one number"
                raise ValueError(
                    f"{source} has the classes {other!r} and {name!r} in {label_source}, which "
                    f"{how}; write them in one way, or give them different names"
                )
        if (
            len(names) > MAX_NUMBERS
            and all(isinstance(meaning, float) for meaning in read)
            and "." in "".join(names)
        ):
            raise ValueError(
                f"{source} has {len(names):,} different numbers such as {names[0]} in "
                f"{label_source}, and classification expects names of "
                "classes; set task.kind=regression, or task.label_column to another column"
            )
        target = ClassTarget(names)
        return target, target.as_array([target._numbers[label] for label in labels])

    def as_array(self, labels: Sequence[Label]) -> ndarray:
        return np.array(labels)

    def fit(self, labels: Tensor, source: str = "the task") -> Self:
        return self

    def check_valid(self, labels: Tensor, source: str) -> None:
        pass

    check_test = check_valid

    def strata(self, labels: ndarray) -> tuple[ndarray, list[str]]:
        return labels, list(self.names)

    def counts(self, labels: Tensor) -> dict[str, int]:
        return {name: int((labels == number).sum()) for number, name in enumerate(self.names)}

    def balance(self, train: Tensor, tested: Tensor) -> str:
        counts = self.counts(train)
        shares = ", ".join(f"{n / len(train):.1%} {name}" for name, n in counts.items())
        most = max(counts, key=lambda name: counts[name])
        accuracy = (tested == self.names.index(most)).double().mean()
        return f"{shares} in training; always {most} has the accuracy {accuracy:.3f}"

    def chance(self, labels: ndarray) -> float:
        return float(np.bincount(labels).max() / len(labels))

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        # Divided by the items, not by their weights: else a batch without the rare class trains on
        # the frequent one at full weight.
        weights = self._class_weights(outputs)
        return nn.functional.cross_entropy(outputs, labels, weights, reduction="sum") / len(labels)

    def _class_weights(self, like: Tensor) -> Tensor | None:
        return None if self.class_weights is None else self.class_weights.to(like)

    def balanced(self, labels: Tensor) -> ClassTarget:
        from sklearn.utils.class_weight import compute_class_weight  # takes a second

        classes = np.arange(self.num_outputs)
        return ClassTarget(
            self.names, compute_class_weight("balanced", classes=classes, y=labels.numpy()).tolist()
        )

    def predictions(self, outputs: Sequence[Tensor]) -> Tensor:
        total = torch.stack([logits.log_softmax(-1) for logits in outputs]).sum(0)
        return (total / len(outputs)).log_softmax(-1)

    def averaged(self, predictions: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        return _log_mean(predictions, weights)

    def valid_loss(self, predictions: Tensor, labels: Tensor) -> float:
        return float(nn.functional.nll_loss(predictions, labels, self._class_weights(predictions)))

    def valid_score(self, predictions: Tensor, labels: Tensor) -> ValidScore:
        correct = (predictions.argmax(-1) == labels).float()
        of_classes = self._class_weights(correct)
        weights = torch.ones_like(correct) if of_classes is None else of_classes[labels]
        accuracy = float((weights * correct).sum() / weights.sum())
        loss = self.valid_loss(predictions, labels)
        # Diverged: NaN predictions may still match many labels by chance.
        return ValidScore(accuracy, -loss) if math.isfinite(loss) else _WORST

    def record(self, score: ValidScore) -> JsonDict:
        name = "valid_accuracy" if self.class_weights is None else "valid_weighted_accuracy"
        return {name: score.accuracy, **super().record(score)}

    def scored(
        self, predictions: ndarray, labels: ndarray, folds: ndarray | None = None
    ) -> ScoredPredictions:
        return ScoredPredictions(predictions, labels, folds)

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        return METRICS

    def details(self, runs: Sequence[Any]) -> JsonDict:
        counts = np.mean([run.confusion() for run in runs], 0)  # by true and predicted class
        return {"confusion": counts.tolist(), "roc": roc_curves(runs[0])}

    @property
    def columns(self) -> list[str]:
        return ["predicted", *map(self.track_column, self.names), "spread"]

    @property
    def label_columns(self) -> list[str]:
        return ["label"]

    def label_cells(self, label: Label) -> list[str]:
        assert isinstance(label, int)
        return [self.names[label]]

    def reported(self, predictions: ndarray) -> ndarray:
        return np.exp(predictions)

    @classmethod
    def summary_rows(cls, tally: Mapping[str, float], count: float) -> list[tuple[str, ...]]:
        return [(name, f"{n:,}", f"{100 * n / count:.1f} %") for name, n in tally.items()]

    def contrast(self, predictions: Tensor) -> Tensor:
        return log_odds(predictions)


class MultiLabelTarget(TaskTarget):
    """Presence of each of the labels `names`: binary cross-entropy; predictions are log-odds,
    averaged over the strands."""

    tally_header = ("label", "mean probability")
    output_form = "log_odds_{}"
    contrast_form = "log-odds of label {}"
    primary = "auroc"
    shown = ("auprc",)
    column_metrics = LABEL_METRICS

    @property
    def summary(self) -> str:
        return f"labels {', '.join(self.names)}"

    def parse_cell(self, cell: str, where: str, column: str) -> float:
        if cell.lower() not in _LABEL_VALUES:
            raise ValueError(
                f"{where} has {cell!r} in column {column!r}, and a label is 0 or 1 (or false, "
                "true, no, yes, or empty if not known); "
                "correct it, or set label_column to other columns"
            )
        return _LABEL_VALUES[cell.lower()]

    def chance(self, labels: ndarray) -> float:
        return 0.5

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        known = labels.isfinite()
        filled = torch.where(known, labels, 0.0).to(outputs.dtype)
        each = nn.functional.binary_cross_entropy_with_logits(outputs, filled, reduction="none")
        return masked_mean(each, known)

    def reported(self, predictions: ndarray) -> ndarray:
        return 1 / (1 + np.exp(-predictions))

    def averaged(self, predictions: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        # The log-odds of mean probabilities, without probabilities that are rounded to 0 or 1.
        log_odds = [one.double() for one in predictions]
        present = _log_mean([nn.functional.logsigmoid(one) for one in log_odds], weights)
        return present - _log_mean([nn.functional.logsigmoid(-one) for one in log_odds], weights)

    def scored(
        self, predictions: ndarray, labels: ndarray, folds: ndarray | None = None
    ) -> ScoredValues:
        # Equal predictions stay ties in spite of rounding.
        return super().scored(np.asarray(predictions, np.float64).round(9), labels, folds)


def _log_mean(log_probs: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The logarithm of the weighted mean of probabilities; a weight of 0 leaves its own out."""
    pairs = zip(log_probs, weights)
    return torch.stack([one.double() + math.log(w) for one, w in pairs if w > 0]).logsumexp(0)


def _read_name(name: str) -> float | str:
    """The number that a name is, or the name without differences of case and white space."""
    try:
        return float(name.replace("_", " "))  # which Python leaves out
    except ValueError:
        return " ".join(name.split()).casefold()
