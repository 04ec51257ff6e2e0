"""What a task predicts, and its predictions for new sequences: the base classes, and one or more
measured values. `classes` has classes and labels.

A target reads the columns of a table, and defines the head's outputs, the loss, the predictions,
the metrics and what reports show. Everything else of a study is the same for all targets.

Shapes: `S` items, `K` outputs of the head, `R` seeds. Predictions (S, K) are what
    `TaskTarget.predictions` returns.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn

from dnadiff.fields import JsonDict
from dnadiff.progress import log
from dnadiff.supervised.metrics import (
    REGRESSION_METRICS,
    ColumnMetric,
    Metric,
    ScoredValues,
    named_metrics,
    title,
)

if TYPE_CHECKING:
    import pandas

SEPARATOR = "\x1f"  # between the cells of several target columns in one label
# Cells of a table without a value, in lower case.
MISSING = frozenset(("", "nan", "na", "n/a", "null", "none"))
# Of one item: the number of its class, or its values, NaN for a missing one.
Label = int | tuple[float, ...]

MAX_POINTS = 2000  # of the picture of a model
_RESOLUTION = 1e-3  # the largest step of 32 bits, in standard deviations of the values
FEW = 2  # different values look like classes
# Labels are float32, where larger ones would become infinite and count as missing.
LARGEST = float(np.finfo(np.float32).max)


class ValidScore(NamedTuple):
    """Score on the validation items: larger is better, and the loss breaks ties in accuracy, which
    is 0 for all but classes."""

    accuracy: float
    negative_loss: float


@dataclass(frozen=True)
class Predicted:
    """Predictions of S sequences by the networks of R seeds: one number for each output.

    Attributes:
        target: what is predicted.
        each_seed: (R, S, K) float32, as the network of each seed predicts them
            (`TaskTarget.predictions`); NaN for a sequence without a known base.
    """

    target: TaskTarget
    each_seed: ndarray

    @property
    def names(self) -> tuple[str, ...]:
        """Of the K outputs."""
        return self.target.names

    @property
    def combined(self) -> ndarray:
        """(S, K) float64 combined over the seeds, as `TaskTarget.scored` takes them."""
        runs = torch.from_numpy(self.each_seed).unbind()
        return self.target.averaged(runs, [1 / len(runs)] * len(runs)).numpy()

    @property
    def values_of_seeds(self) -> ndarray:
        """(R, S, K) float64, of each seed, on the scale that is reported."""
        return self.target.reported(self.each_seed.astype(np.float64))

    @property
    def values(self) -> ndarray:
        """(S, K) float64, combined over the seeds, on the scale that is reported."""
        return self.target.reported(self.combined)

    @property
    def spread(self) -> ndarray:
        """(S, K) largest minus smallest value over the seeds; NaN for a single seed."""
        return spread(self.values_of_seeds)

    def cells(self) -> dict[str, Sequence[str | float] | ndarray]:
        """What is predicted for each sequence, and its spread over the seeds, by column."""
        found: dict[str, Sequence[str | float] | ndarray] = {}
        for name, value, spread in zip(self.names, self.values.T, self.spread.T):
            found |= {name: value, f"spread_{name}": spread}
        return found

    def to_frame(self) -> pandas.DataFrame:
        """A row for each sequence: what is predicted, and its spread over the seeds."""
        import pandas

        return pandas.DataFrame(self.cells())

    def rows(self) -> list[list[str]]:
        """The cells of each sequence under `TaskTarget.columns`."""
        return [
            [cell if isinstance(cell, str) else f"{cell:.6g}" for cell in row]
            for row in zip(*self.cells().values())
        ]

    def tally(self) -> dict[str, float]:
        """Sums over the sequences with a prediction, for the summary."""
        return dict(zip(self.names, np.nansum(self.values, 0).tolist()))


def spread(values: ndarray) -> ndarray:
    """Largest minus smallest of values (R, ...) over the seeds; NaN for a single one."""
    return np.ptp(values, axis=0) if len(values) > 1 else np.full(values.shape[1:], np.nan)


class TaskTarget(ABC):
    """What a task predicts: by default a number for each of the columns `names` of a table, in
    which values may be missing.

    Attributes:
        names: of the outputs: classes, or columns.
        primary: the metric that models are compared by.
        shown: further metrics in printed tables.
        predicted_kind: what `predicted` returns.
        tally_header: the columns of the printed summary of predictions.
        averaged_name: what predictions averaged over the seeds are called in tables.
        value_prefix: of the columns of predictions in a table.
        output_form, contrast_form: what predictions, and their `contrast`, are called for a name.
        takes_several: whether several columns can be given.
        can_be_missing: whether a cell may be empty.
        published: whether there are published protocols for tasks of this kind.
        text_columns: those of `columns` that are text; all others are numbers.
        column_metrics: of one column, by name.
    """

    # The description of a saved network may name it (`dnadiff.store.objects.locate`).
    buildable = True
    primary: ClassVar[str]
    predicted_kind: ClassVar[type[Predicted]] = Predicted
    tally_header: ClassVar[tuple[str, ...]]
    averaged_name = "averaged probabilities"
    value_prefix = "p"
    output_form: str
    contrast_form: str
    shown: ClassVar[tuple[str, ...]]
    takes_several = True
    can_be_missing = True
    published = False
    text_columns: ClassVar[frozenset[str]] = frozenset()
    column_metrics: ClassVar[Mapping[str, ColumnMetric]]

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(names)

    @property
    def num_outputs(self) -> int:
        """Outputs of the head."""
        return len(self.names)

    @property
    @abstractmethod
    def summary(self) -> str:
        """What is predicted, for messages."""

    def settings(self) -> JsonDict:
        """The configuration that `dnadiff.store.objects.build` makes this target from."""
        target = f"{type(self).__module__}.{type(self).__name__}"
        return {"_target_": target, "names": list(self.names)}

    # Reading.

    def parse(self, cells: Sequence[str], where: str, columns: Sequence[str]) -> Label:
        """The label in the cells of one row; a ValueError that begins with `where` for cells that
        cannot be read."""
        return tuple(
            math.nan if cell.lower() in MISSING else self.parse_cell(cell, where, column)
            for cell, column in zip(cells, columns, strict=True)
        )

    def parse_cell(self, cell: str, where: str, column: str) -> float:
        """The value in a cell that is not missing."""
        raise NotImplementedError

    def check(self, cells: Sequence[str], where: str) -> None:
        """ValueError that begins with `where` for cells of a row that cannot be read."""
        self.parse(cells, where, self.names)

    def read(
        self, labels: Sequence[str], source: str, label_source: str
    ) -> tuple[TaskTarget, ndarray]:
        """The target with its names, and the labels of all items as an array; ValueError if they do
        not fit the target.

        Args:
            labels: the cells of each row, joined by `SEPARATOR`.
            source, label_source: the path and the column, for messages.
        """
        rows = [self.parse(label.split(SEPARATOR), source, self.names) for label in labels]
        return self, self.as_array(rows)

    def as_array(self, labels: Sequence[Label]) -> ndarray:
        """Parsed labels as the array that items hold."""
        return np.array(labels, np.float32).reshape(len(labels), self.num_outputs)

    def fit(self, labels: Tensor, source: str = "the task") -> Self:
        """The target with what it learns from the labels of the training items; ValueError if these
        cannot be learned from."""
        for name, column in zip(self.names, labels.T):
            known = column[column.isfinite()]
            if not len(known):
                raise ValueError(
                    f"{source} has no value in column {name!r} of its training items; add some, or "
                    "set task.label_column"
                )
            if bool((known == known[0]).all()):
                raise ValueError(
                    f"{source} has the same value, {known[0]:g}, in column {name!r} of all "
                    f"{len(known):,} training items that have one, and training needs different "
                    "ones; set task.label_column to another column"
                )
        return self

    def check_valid(self, labels: Tensor, source: str) -> None:
        """ValueError if the labels of the validation items cannot tell models apart."""
        if not bool(labels.isfinite().any()):
            raise ValueError(
                f"{source} has no value of {', '.join(map(repr, self.names))} in its "
                f"{len(labels):,} validation items, which choose the epoch and the settings; add "
                "some, or divide at random: task.redivide=true"
            )

    def check_test(self, labels: Tensor, source: str) -> None:
        """ValueError if the primary metric is not defined for the labels of the test items."""
        for name, column in zip(self.names, labels.T):
            if len(column[column.isfinite()].unique()) < 2:
                raise ValueError(
                    f"{source} has fewer than two different values in column {name!r} of its "
                    f"{len(labels):,} test items, for which {title(self.primary)} is not defined; "
                    "add some, divide in another way (task.redivide=true, another task.seed), or "
                    "leave the column out"
                )

    def strata(self, labels: ndarray) -> tuple[ndarray, list[str]]:
        """A number (S,) for each item, and its name: a random division keeps the fractions of each.
        One stratum of all by default."""
        return np.zeros(len(labels), np.int64), ["all"]

    def counts(self, labels: Tensor) -> dict[str, int]:
        """Disjoint groups of items, for reports."""
        return {"sequences": len(labels)}

    def balance(self, train: Tensor, tested: Tensor) -> str:
        """The labels of the training items in words, and how well always predicting the most usual
        one fits the tested items."""
        found = []
        for name, known, truth in zip(self.names, train.T, tested.T):
            mean = known.nanmean()
            error = (truth - mean).square().nanmean()
            found.append(f"{name} is {mean:.4g} in the mean, whose squared error is {error:.4g}")
        return "; ".join(found)

    def chance(self, labels: ndarray) -> float:
        """The primary metric of a prediction that does not depend on the sequence."""
        return 0.0

    # Training.

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of `outputs (B, K)`."""

    def predictions(self, outputs: Sequence[Tensor]) -> Tensor:
        """Predictions (B, K) from the outputs (B, K) for each strand that was read."""
        return torch.stack(list(outputs)).mean(0)

    def normalized(self, scores: Tensor) -> Tensor:
        """Predictions (..., K) from a weighted sum of predictions."""
        return scores

    def averaged(self, predictions: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """The weighted mean (S, K) of the predictions of several models; the weights add up to 1,
        and one of 0 leaves a model out."""
        pairs = zip(predictions, weights)
        return torch.stack([weight * one.double() for one, weight in pairs if weight > 0]).sum(0)

    def balanced(self, labels: Tensor) -> Self:
        """The target with a loss in which each class has the same total weight; ValueError if it
        has no classes."""
        raise ValueError(
            f"class_weights=balanced expects a task of classes, got {self.summary}; set "
            "class_weights=none"
        )

    def valid_loss(self, predictions: Tensor, labels: Tensor) -> float:
        """The loss of predictions, as a number."""
        return float(self.predicted_loss(predictions, labels))

    def predicted_loss(self, predictions: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of `predictions (S, K)`."""
        return self.loss(predictions, labels)

    def valid_score(self, predictions: Tensor, labels: Tensor) -> ValidScore:
        """The score by which epochs and settings are chosen; the worst for predictions that are not
        finite."""
        loss = self.valid_loss(predictions, labels)
        return ValidScore(0.0, -loss if math.isfinite(loss) else -math.inf)

    def record(self, score: ValidScore) -> JsonDict:
        """The score as it is stored in `fit_info`."""
        return {"valid_loss": -score.negative_loss}

    def of_columns(self, labels: Tensor) -> Iterator[tuple[TaskTarget, slice, Tensor, Tensor]]:
        """Each target that has its own models, with its outputs, the items (S,) that have a label
        for it, and these labels."""
        yield self, slice(self.num_outputs), torch.ones(len(labels), dtype=torch.bool), labels

    def of_column(self, values: Tensor) -> Tensor:
        """Labels as in `Items` from a column of values (N,)."""
        return values[:, None]

    # Evaluation.

    def scored(
        self, predictions: ndarray, labels: ndarray, folds: ndarray | None = None
    ) -> ScoredValues:
        """Predictions prepared for the metrics; `folds (S,)` if each fold of a cross-validation has
        another model."""
        return ScoredValues(predictions, labels, folds)

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics by name: functions of scored predictions and of item weights (W, S), (W,)."""
        return named_metrics(self.names, self.column_metrics)

    def details(self, runs: Sequence[ScoredValues]) -> JsonDict:
        """What pictures of a model show, ready for JSON."""
        return {}

    # Predictions of new sequences.

    def predicted(self, each_seed: ndarray) -> Predicted:
        """The predictions (R, S, K) of all seeds, combined."""
        return self.predicted_kind(self, each_seed)

    @abstractmethod
    def reported(self, predictions: ndarray) -> ndarray:
        """Predictions (..., K) on the scale that is reported: probabilities, or values."""

    def summary_rows(self, tally: Mapping[str, float], count: float) -> list[tuple[str, ...]]:
        """The printed summary of `count` sequences with these sums, under `tally_header`."""
        return [(name, f"{total / count:.6g}") for name, total in tally.items()]

    @property
    def columns(self) -> list[str]:
        """The columns of a table of predictions, as in `Predicted.cells`."""
        pairs = ((self.track_column(name), f"spread_{name}") for name in self.names)
        return [column for pair in pairs for column in pair]

    @property
    def label_columns(self) -> list[str]:
        """The columns of the labels."""
        return [f"label_{name}" for name in self.names]

    def label_cells(self, label: Label) -> list[str]:
        """The label of an item as it is written to a table."""
        values = label if isinstance(label, tuple) else (label,)
        return [f"{value!r}" for value in values]

    def seed_columns(self, seed: int) -> list[str]:
        """The columns of the predictions (K,) of one seed."""
        return [f"{self.output_form.format(name)}_seed_{seed}" for name in self.names]

    def track_column(self, name: str) -> str:
        """The column that a track of one of the names shows."""
        return f"{self.value_prefix}_{name}"

    def contrast(self, predictions: Tensor) -> Tensor:
        """Predictions (..., K) on the scale on which the alleles of a variant are compared by a
        difference."""
        return predictions

    def contrast_name(self, name: str) -> str:
        """What `contrast` contains for a class or column, such as "log-odds of class enhancer"."""
        return self.contrast_form.format(name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.summary})"


def masked_mean(values: Tensor, known: Tensor) -> Tensor:
    """The mean of `values` where `known`; 0 if nothing is."""
    return torch.where(known, values, 0.0).sum() / known.sum().clamp(min=1)


class RegressionLoss(NamedTuple):
    """A loss of each output.

    Attributes:
        each: of outputs and labels (B, K).
        standardizes: whether the network predicts labels with mean 0 and standard deviation 1.
        boosting_loss: the nearest one of scikit-learn's gradient boosting.
        lowest: the smallest label that it is defined for.
        link: predictions from outputs.
        unlink: outputs from predictions.
    """

    each: Callable[..., Tensor]
    standardizes: bool = True
    boosting_loss: str = "squared_error"
    lowest: float = -math.inf
    link: Callable[[Tensor], Tensor] = lambda outputs: outputs
    unlink: Callable[[Tensor], Tensor] = lambda predictions: predictions


# Huber's loss is squared up to one standard deviation, then linear. That of counts is their
# negative log-likelihood without the term that depends on the labels alone; the outputs are
# logarithms of rates.
LOSSES = {
    "mse": RegressionLoss(nn.functional.mse_loss),
    "poisson": RegressionLoss(
        partial(nn.functional.poisson_nll_loss, log_input=True),
        standardizes=False,
        boosting_loss="poisson",
        lowest=0.0,
        link=torch.exp,
        unlink=lambda predictions: predictions.clamp(min=1e-12).log(),
    ),
    "huber": RegressionLoss(nn.functional.huber_loss),
}


class LabelTransform(NamedTuple):
    """A monotone function of labels with its inverse: metrics, differences and the loss are on the
    transformed scale.

    Attributes:
        lower: labels must be larger.
        form: how a transformed column is called.
    """

    apply: Callable[[ndarray], ndarray]
    invert: Callable[[ndarray], ndarray]
    lower: float
    form: str

    def name(self, column: str) -> str:
        """The transformed column, for messages and tables."""
        return self.form.format(column)


TRANSFORMS = {
    "none": LabelTransform(np.asarray, np.asarray, -np.inf, "{}"),
    "log1p": LabelTransform(np.log1p, np.expm1, -1.0, "log1p({})"),
    "log2": LabelTransform(np.log2, np.exp2, 0.0, "log2({})"),
}


class RegressionTarget(TaskTarget):
    """Values of one or more columns, predicted on the scale of `transform`.

    Args:
        names: the columns.
        loss: mse, huber (both on values with mean 0 and standard deviation 1 in the training part)
            or poisson.
        transform: of the values before training: none, log1p or log2.
        mean, std: of the training items on that scale, found by `fit`; None before, and for a loss
            that does not standardize.
    """

    tally_header = ("target", "mean prediction")
    averaged_name = "averaged predictions"
    value_prefix = "predicted"
    primary = "spearman"
    shown = ("pearson", "r2")
    column_metrics = REGRESSION_METRICS

    def __init__(
        self,
        names: Sequence[str] = (),
        loss: str = "mse",
        transform: str = "none",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__(names)
        for key, value, known in (("loss", loss, LOSSES), ("transform", transform, TRANSFORMS)):
            if value not in known:
                raise ValueError(f"task.{key} {value!r} is not known; set it to {', '.join(known)}")
        self.loss_name = loss
        self.transform_name = transform
        self.loss_function = LOSSES[loss]
        self.transform = TRANSFORMS[transform]
        self.output_form = self.contrast_form = self.transform.form
        if min(self.loss_function.lowest, self.transform.lower) > -math.inf:
            raise ValueError(
                f"task.loss={loss} is for counts, and task.transform={transform} changes them; set "
                "task.transform=none"
            )
        self.mean, self.std = (tuple(each) if each is not None else None for each in (mean, std))

    @property
    def summary(self) -> str:
        columns = ", ".join(map(self.transform.name, self.names))
        return f"regression of {columns}, loss {self.loss_name}"

    def settings(self) -> JsonDict:
        return {
            **super().settings(),
            "loss": self.loss_name,
            "transform": self.transform_name,
            "mean": self.mean and list(self.mean),
            "std": self.std and list(self.std),
        }

    def read(
        self, labels: Sequence[str], source: str, label_source: str
    ) -> tuple[TaskTarget, ndarray]:
        target, values = super().read(labels, source, label_source)
        for name, column in zip(self.names, values.T):
            if len(distinct := np.unique(column[np.isfinite(column)])) == FEW:
                shown = " and ".join(f"{value:g}" for value in self.transform.invert(distinct))
                log.warning(
                    f"{source}: column {name!r} holds {shown} alone; for two classes set "
                    "task.kind=classification"
                )
        return target, values

    def parse_cell(self, cell: str, where: str, column: str) -> float:
        try:
            value = float(cell)
        except ValueError:
            raise ValueError(
                f"{where} has {cell!r} in column {column!r}, and a regression expects a number; "
                "correct it, set label_column to a column "
                "of numbers, or task.kind to classification"
            ) from None
        lowest = max(self.transform.lower, self.loss_function.lowest)
        in_range = abs(value) <= LARGEST  # False for NaN
        if not in_range or value < lowest or value == self.transform.lower:
            limit = (
                f"above {self.transform.lower:g}"
                if self.transform.lower >= lowest
                else f"of at least {lowest:g}"
            )
            reason = f"a number {limit}" if in_range else f"a finite number up to {LARGEST:.2g}"
            raise ValueError(
                f"{where} has {cell} in column {column!r}, and "
                f"task.transform={self.transform_name} with task.loss={self.loss_name} takes "
                f"{reason}; correct it, leave it empty, or set another transform or loss"
            )
        return value

    def as_array(self, labels: Sequence[Label]) -> ndarray:
        values = np.array(labels, np.float64).reshape(len(labels), self.num_outputs)
        values = self.transform.apply(values)
        for name, column in zip(self.names, values.T):
            known = column[np.isfinite(column)]
            step = float(np.spacing(np.abs(known).max(initial=0).astype(np.float32)))
            if len(known) and step > _RESOLUTION * known.std() > 0:
                log.warning(
                    f"column {name!r}: 32 bits round values as large as {np.abs(known).max():g} to "
                    f"multiples of {step:g}, and their standard "
                    f"deviation is {known.std():g}; subtract a constant from the column"
                )
        return values.astype(np.float32)

    def fit(self, labels: Tensor, source: str = "the task") -> Self:
        super().fit(labels, source)
        if not self.loss_function.standardizes:
            return self
        values = labels.double().numpy()
        scale = np.nanmean(values, 0).tolist(), np.nanstd(values, 0).tolist()
        return type(self)(self.names, self.loss_name, self.transform_name, *scale)

    def _scale(self, like: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """Mean and standard deviation of the labels; 0 and 1 if they are not standardized."""
        if self.mean is None or self.std is None:
            return 0.0, 1.0
        return like.new_tensor(self.mean), like.new_tensor(self.std)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        known = labels.isfinite()
        # The gradient of a loss of NaN would be NaN, masked or not.
        filled = torch.where(known, labels, 1.0).to(outputs.dtype)
        mean, std = self._scale(filled)
        each = self.loss_function.each(outputs, (filled - mean) / std, reduction="none")
        return masked_mean(each, known)

    def predictions(self, outputs: Sequence[Tensor]) -> Tensor:
        found = super().predictions(outputs)
        mean, std = self._scale(found)
        return self.loss_function.link(found * std + mean)

    def predicted_loss(self, predictions: Tensor, labels: Tensor) -> Tensor:
        mean, std = self._scale(predictions)
        return self.loss(self.loss_function.unlink((predictions - mean) / std), labels)

    def details(self, runs: Sequence[ScoredValues]) -> JsonDict:
        scatter = {}
        for name, column in zip(self.names, runs[0].columns):
            count = len(column.rows)
            shown = np.linspace(0, count - 1, min(count, MAX_POINTS)).astype(int)
            points = {"measured": column.truth[shown], "predicted": column.predicted[shown]}
            scatter[self.transform.name(name)] = {
                key: [float(f"{x:.5g}") for x in values] for key, values in points.items()
            }
        return {"scatter": scatter}

    def reported(self, predictions: ndarray) -> ndarray:
        return self.transform.invert(predictions)
