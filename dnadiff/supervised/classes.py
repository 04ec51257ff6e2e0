"""Classification: one of two or more classes, one of several ordered levels, or each of several
labels present or absent; and several columns of different kinds."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn

from dnadiff.fields import JsonDict
from dnadiff.supervised.intervals import Ends
from dnadiff.supervised.metrics import (
    LABEL_METRICS,
    METRICS,
    REGRESSION_METRICS,
    Column,
    Metric,
    ScoredPredictions,
    ScoredValues,
    log_odds,
    roc_curves,
)
from dnadiff.supervised.targets import (
    MISSING,
    SEPARATOR,
    Label,
    Predicted,
    TaskTarget,
    ValidScore,
    masked_mean,
    spread,
)

MAX_NUMBERS = 50  # classes that may all be numbers, some of them with decimals
# "none" is a usual name for the class of sequences without the feature.
NO_CLASS = MISSING - {"none"}
_FAR = 1e4  # thresholds beyond the first and the last level
_WORST = ValidScore(-1.0, -math.inf)
Loss = Callable[[TaskTarget, Tensor, Tensor], Tensor]
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
        if cells[0].lower() in NO_CLASS:
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
        words = sorted(meaning for meaning in read if isinstance(meaning, str))
        decimals = sorted(x for x in read if isinstance(x, float) and not x.is_integer())
        if words and decimals:
            raise ValueError(
                f"{source} mixes names such as {read[words[0]]!r} and numbers such as "
                f"{read[decimals[0]]} in {label_source}, and one kind is expected; correct the "
                "column, or leave cells without a number empty and set task.kind=regression"
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
        target = type(self)(self.ordered(names))
        return target, target.as_array([target._numbers[label] for label in labels])

    def ordered(self, names: Sequence[str]) -> Sequence[str]:
        """The sorted names of the classes in the order of the outputs."""
        return names

    def as_array(self, labels: Sequence[Label]) -> ndarray:
        return np.array(labels)

    def of_column(self, values: Tensor) -> Tensor:
        return values.long()

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
        weights, log_probs = self._class_weights(outputs), self.log_probs(outputs)
        return nn.functional.nll_loss(log_probs, labels, weights, reduction="sum") / len(labels)

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log-probabilities of the classes from outputs (B, C)."""
        return outputs.log_softmax(-1)

    def _class_weights(self, like: Tensor) -> Tensor | None:
        return None if self.class_weights is None else self.class_weights.to(like)

    def balanced(self, labels: Tensor) -> Self:
        from sklearn.utils.class_weight import compute_class_weight  # takes a second

        classes = np.arange(self.num_outputs)
        weights = compute_class_weight("balanced", classes=classes, y=labels.numpy())
        weighted = copy.copy(self)
        weighted.class_weights = torch.tensor(weights.tolist())
        return weighted

    def predictions(self, outputs: Sequence[Tensor]) -> Tensor:
        total = torch.stack([self.log_probs(logits) for logits in outputs]).sum(0)
        return (total / len(outputs)).log_softmax(-1)

    def normalized(self, scores: Tensor) -> Tensor:
        return scores.log_softmax(-1)

    def averaged(self, predictions: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        return _log_mean(predictions, weights)

    def predicted_loss(self, predictions: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.nll_loss(predictions, labels, self._class_weights(predictions))

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
        return [self.names[int(label)]]  # type: ignore[arg-type]

    def reported(self, predictions: ndarray) -> ndarray:
        return np.exp(predictions)

    def summary_rows(self, tally: Mapping[str, float], count: float) -> list[tuple[str, ...]]:
        return [(name, f"{n:,}", f"{100 * n / count:.1f} %") for name, n in tally.items()]

    def contrast(self, predictions: Tensor) -> Tensor:
        return log_odds(predictions)


class LevelProbabilities(ClassProbabilities):
    """Predictions of ordered levels, with the `expected` one."""

    def cells(self) -> dict[str, Sequence[str | float] | ndarray]:
        return {**super().cells(), "expected": self.probs @ np.array(self.names, float)}


class OrdinalTarget(ClassTarget):
    """One of several ordered levels, which are numbers: cumulative logits (McCullagh 1980, J. R.
    Stat. Soc. B 42, 109).

    P(level <= k) is the sigmoid of (threshold k - location) * exp(scale), with the location and the
    scale of each sequence as the first two outputs: proportional odds, where the scale is the same
    for all. Thresholds are ordered: at outputs of 0 the levels have the frequencies of the training
    items.

    Args:
        names: of the levels, ascending.
        thresholds: (C - 1,) found by `fit`; None before.
    """

    predicted_kind = LevelProbabilities
    primary = "spearman"
    shown = ("accuracy", "calibration_error")
    published = False
    # As of values: the epoch and the settings are chosen by the loss.
    valid_score = TaskTarget.valid_score
    record = TaskTarget.record
    chance = TaskTarget.chance

    def __init__(
        self, names: Sequence[str] = (), thresholds: Sequence[float] | None = None
    ) -> None:
        super().__init__(names)
        self.thresholds = thresholds

    def settings(self) -> JsonDict:
        return {**super().settings(), "thresholds": self.thresholds}

    def ordered(self, names: Sequence[str]) -> Sequence[str]:
        for name in names:
            if not isinstance(number := _read_name(name), float) or not math.isfinite(number):
                raise ValueError(
                    f"task.kind=ordinal expects levels that are numbers, such as 1, 2 and 3, got "
                    f"{name!r}; number the levels in their order, or set task.kind=classification"
                )
        return sorted(names, key=float)

    def fit(self, labels: Tensor, source: str = "the task") -> Self:
        counts = labels.bincount(minlength=self.num_outputs).double() + 0.5
        below = (counts.cumsum(0) / counts.sum())[:-1]
        fitted = copy.copy(self)
        fitted.thresholds = below.logit().tolist()
        return fitted

    def log_probs(self, outputs: Tensor) -> Tensor:
        thresholds = outputs.new_tensor([-_FAR, *(self.thresholds or ()), _FAR])
        logits = (thresholds - outputs[..., :1]) * outputs[..., 1:2].clamp(-5, 5).exp()
        lower, upper = logits[..., :-1], logits[..., 1:]
        inside = (-torch.expm1(lower - upper)).log()
        return nn.functional.logsigmoid(upper) + nn.functional.logsigmoid(-lower) + inside

    def scored(
        self, predictions: ndarray, labels: ndarray, folds: ndarray | None = None
    ) -> ScoredPredictions:
        found, levels = super().scored(predictions, labels, folds), np.array(self.names, float)
        expected, rows = np.exp(found.predictions) @ levels, np.arange(len(labels))
        found.columns = [Column(rows, expected, levels[labels], folds)]  # which is ranked
        return found

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        of_classes = {name: METRICS[name] for name in ("accuracy", "calibration_error")}
        return {**REGRESSION_METRICS, **of_classes}

    def details(self, runs: Sequence[Any]) -> JsonDict:
        return {"confusion": np.mean([run.confusion() for run in runs], 0).tolist()}

    @property
    def columns(self) -> list[str]:
        return [*super().columns, "expected"]


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


class ScoredColumns(ScoredValues):
    """Predictions (S, K) and labels of several columns, prepared for the metrics of each.

    Attributes:
        parts: of each column the mask (S,) of the items that have a label, and these items.
    """

    parts: list[tuple[ndarray, ScoredValues]]

    @cached_property
    def columns(self) -> list[Any]:
        return [column for _, part in self.parts for column in part.columns]


@dataclass(frozen=True)
class PartMetric(Metric):
    """A metric `of` the column of a number, over the items that have a label."""

    number: int = 0
    of: Metric = None  # type: ignore[assignment]

    def __call__(self, scored: Any, chosen: ndarray) -> float:
        known, part = scored.parts[self.number]
        return self.of(part, chosen[known])

    def ends(
        self, models: Sequence[Sequence[Any]], value: float, groups: ndarray | None
    ) -> Ends | None:
        known = models[0][0].parts[self.number][0]
        own = [[run.parts[self.number][1] for run in runs] for runs in models]
        return self.of.ends(own, value, None if groups is None else groups[known])


class SeveralTargets(TaskTarget):
    """A target for each of several columns: their outputs are concatenated, and their losses
    averaged. Each has the numbers that it would have alone, over the items with a label.

    Labels (S, P) float32 have a number for each column, of a class its number, NaN where it is
    missing.

    Args:
        columns: of the labels.
        targets: of each column.
        weights: of the losses; None: equal.
    """

    tally_header = ("output", "mean prediction")
    averaged_name = "averaged predictions"
    value_prefix = "predicted"
    output_form = contrast_form = "{}"
    primary = "mean of the columns"

    def __init__(
        self,
        columns: Sequence[str],
        targets: Sequence[TaskTarget],
        weights: Sequence[float] | None = None,
    ) -> None:
        self.label_names, self.targets = columns, targets
        self.weights = weights or [1.0] * len(targets)
        pairs = [(column, name) for column, of in zip(columns, targets) for name in of.names]
        super().__init__([x if x == column else f"{column}_{x}" for column, x in pairs])
        ends = np.cumsum([0, *(target.num_outputs for target in targets)]).tolist()
        self.pairs = list(zip(targets, map(slice, ends, ends[1:])))

    @property
    def summary(self) -> str:
        return "; ".join(target.summary for target in self.targets)

    def settings(self) -> JsonDict:
        return {
            "_target_": f"{__name__}.{type(self).__name__}",
            "columns": list(self.label_names),
            "targets": [target.settings() for target in self.targets],
            "weights": list(self.weights),
        }

    def parse(self, cells: Sequence[str], where: str, columns: Sequence[str]) -> Label:
        return tuple(
            math.nan
            if cell.lower() in NO_CLASS
            else float(np.ravel(target.parse([cell], where, [column]))[0])
            for target, cell, column in zip(self.targets, cells, columns, strict=True)
        )

    def check(self, cells: Sequence[str], where: str) -> None:
        for target, cell in zip(self.targets, cells):
            if cell.lower() not in NO_CLASS:
                target.check([cell], where)

    def read(
        self, labels: Sequence[str], source: str, label_source: str
    ) -> tuple[TaskTarget, ndarray]:
        rows = [label.split(SEPARATOR) for label in labels]
        targets = []
        for name, target, cells in zip(self.label_names, self.targets, zip(*rows)):
            if not (known := [cell for cell in cells if cell.lower() not in NO_CLASS]):
                raise ValueError(
                    f"{source} has no label in column {name!r}; leave it out of task.label_column"
                )
            targets.append(target.read(known, source, f"column {name!r}")[0])
        found = SeveralTargets(self.label_names, targets, self.weights)
        return found, found.as_array([found.parse(row, source, self.label_names) for row in rows])

    def as_array(self, labels: Sequence[Label]) -> ndarray:
        values = np.array(labels, np.float64).reshape(len(labels), len(self.targets))
        for target, column in zip(self.targets, values.T):
            known = np.isfinite(column)
            column[known] = target.as_array(column[known].tolist()).ravel()
        return values.astype(np.float32)

    def of_columns(self, labels: Tensor) -> Iterator[tuple[TaskTarget, slice, Tensor, Tensor]]:
        for (target, place), column in zip(self.pairs, labels.T):
            known = column.isfinite()
            yield target, place, known, target.of_column(column[known])

    def fit(self, labels: Tensor, source: str = "the task") -> Self:
        targets = [target.fit(own, source) for target, _, _, own in self.of_columns(labels)]
        return type(self)(self.label_names, targets, self.weights)

    def check_test(self, labels: Tensor, source: str) -> None:
        for target, _, _, own in self.of_columns(labels):
            target.check_test(own, source)

    def balance(self, train: Tensor, tested: Tensor) -> str:
        both = zip(self.of_columns(train), self.of_columns(tested))
        return "; ".join(target.balance(own, of) for (target, *_, own), (*_, of) in both)

    def chance(self, labels: ndarray) -> float:
        of_columns = self.of_columns(torch.from_numpy(labels))
        return float(np.mean([target.chance(own.numpy()) for target, *_, own in of_columns]))

    def _mean(self, values: Tensor, labels: Tensor, loss: Loss) -> Tensor:
        total = 0.0 * values.sum()  # with a gradient also without labels
        for weight, (target, place, known, own) in zip(self.weights, self.of_columns(labels)):
            if len(own):
                total = total + weight * loss(target, values[known, place], own)
        return total / sum(self.weights)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self._mean(outputs, labels, lambda target, *own: target.loss(*own))

    def predicted_loss(self, predictions: Tensor, labels: Tensor) -> Tensor:
        return self._mean(predictions, labels, lambda target, *own: target.predicted_loss(*own))

    def _joined(self, of_each: Callable[[TaskTarget, slice], Tensor]) -> Tensor:
        return torch.cat([of_each(*pair) for pair in self.pairs], -1)

    def predictions(self, outputs: Sequence[Tensor]) -> Tensor:
        return self._joined(lambda target, p: target.predictions([one[:, p] for one in outputs]))

    def averaged(self, predictions: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        return self._joined(lambda t, p: t.averaged([one[:, p] for one in predictions], weights))

    def normalized(self, scores: Tensor) -> Tensor:
        return self._joined(lambda target, place: target.normalized(scores[..., place]))

    def contrast(self, predictions: Tensor) -> Tensor:
        return self._joined(lambda target, place: target.contrast(predictions[..., place]))

    def reported(self, predictions: ndarray) -> ndarray:
        return np.concatenate([t.reported(predictions[..., p]) for t, p in self.pairs], -1)

    def scored(
        self, predictions: ndarray, labels: ndarray, folds: ndarray | None = None
    ) -> ScoredColumns:
        found = ScoredColumns(predictions, labels, folds)
        found.parts = []
        for target, place, mask, own in self.of_columns(torch.from_numpy(labels)):
            known = mask.numpy()
            part = predictions[known, place], own.numpy(), None if folds is None else folds[known]
            found.parts.append((known, target.scored(*part)))
        return found

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        of_each = {
            f"{name} of {column}": PartMetric(of.function, of.low, of.high, of.is_biased, i, of)
            for i, (column, target) in enumerate(zip(self.label_names, self.targets))
            for name, of in target.metrics.items()
        }

        def mean(scored: ScoredValues, chosen: ndarray) -> float:
            return float(np.mean([of_each[name](scored, chosen) for name in self.shown]))

        return {self.primary: Metric(mean, -1.0), **of_each}

    @property
    def shown(self) -> tuple[str, ...]:  # type: ignore[override]
        """The metric of each column that it is compared by alone."""
        pairs = zip(self.label_names, self.targets)
        return tuple(f"{target.primary} of {column}" for column, target in pairs)

    @property
    def label_columns(self) -> list[str]:
        return [f"label_{column}" for column in self.label_names]

    def label_cells(self, label: Any) -> list[str]:
        pairs = zip(self.targets, label)
        return ["nan" if math.isnan(x) else target.label_cells(x)[0] for target, x in pairs]


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
