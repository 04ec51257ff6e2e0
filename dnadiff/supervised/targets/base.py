"""The base classes of what a task predicts, and of its predictions for new sequences.

A target reads the columns of a table, and defines the head's outputs, the loss, the predictions,
the metrics and what reports show. Everything else of a study is the same for all targets.

Shapes: `S` items, `K` outputs of the head, `R` seeds. Predictions (S, K) are what
    `TaskTarget.predictions` returns.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.fields import Json
from dnadiff.supervised.intervals import Estimate
from dnadiff.supervised.metrics import (
    ColumnMetric,
    Metric,
    ScoredValues,
    estimate,
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


class ValidScore(NamedTuple):
    """Score on the validation items: larger is better, and the loss breaks ties in accuracy, which
    is 0 for all but classes."""

    accuracy: float
    negative_loss: float


@dataclass(frozen=True)
class Predicted(ABC):
    """Predictions of S sequences by the networks of R seeds: one number for each output.

    Attributes:
        names: of the K outputs.
        each_seed: (R, S, K) float32, as the network of each seed predicts them; NaN for a sequence
            without a known base.
        tally_header: the columns of the printed summary.
        averaged_name: what `combined` is called in tables.
    """

    names: tuple[str, ...]
    each_seed: np.ndarray
    tally_header: ClassVar[tuple[str, ...]]
    averaged_name: ClassVar[str] = "averaged probabilities"

    @property
    @abstractmethod
    def combined(self) -> np.ndarray:
        """(S, K) combined over the seeds, as `TaskTarget.scored` takes them."""

    @property
    @abstractmethod
    def values(self) -> np.ndarray:
        """(S, K) float64, combined over the seeds, on the scale that is reported."""

    @property
    @abstractmethod
    def spread(self) -> np.ndarray:
        """(S, K) largest minus smallest value over the seeds; NaN for a single seed."""

    def cells(self) -> dict[str, Sequence[str | float] | np.ndarray]:
        """What is predicted for each sequence, and its spread over the seeds, by column."""
        found: dict[str, Sequence[str | float] | np.ndarray] = {}
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

    @classmethod
    def summary_rows(cls, tally: Mapping[str, float], count: float) -> list[tuple[str, ...]]:
        """The printed summary of `count` sequences with these sums, under `tally_header`."""
        return [(name, f"{total / count:.6g}") for name, total in tally.items()]


def spread(values: np.ndarray) -> np.ndarray:
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
        value_prefix: of the columns of predictions in a table.
        takes_several: whether several columns can be given.
        can_be_missing: whether a cell may be empty.
        published: whether there are published protocols for tasks of this kind.
        text_columns: those of `columns` that are text; all others are numbers.
        column_metrics: of one column, by name.
    """

    # The description of a saved network may name it (`dnadiff.store.objects.locate`).
    buildable = True
    primary: ClassVar[str]
    predicted_kind: ClassVar[type[Predicted]]
    value_prefix: ClassVar[str] = "p"
    shown: ClassVar[tuple[str, ...]]
    takes_several: ClassVar[bool] = True
    can_be_missing: ClassVar[bool] = True
    published: ClassVar[bool] = False
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

    def settings(self) -> dict[str, Json]:
        """The configuration that `dnadiff.store.objects.build` makes this target from."""
        target = f"{type(self).__module__}.{type(self).__name__}"
        return {"_target_": target, "names": list(self.names)}

    def identity(self) -> list[Json]:
        """What the digest of stored predictions covers besides the names."""
        return [self.settings()]

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
    ) -> tuple[TaskTarget, np.ndarray]:
        """The target with its names, and the labels of all items as an array; ValueError if they do
        not fit the target.

        Args:
            labels: the cells of each row, joined by `SEPARATOR`.
            source, label_source: the path and the column, for messages.
        """
        rows = [self.parse(label.split(SEPARATOR), source, self.names) for label in labels]
        return self, self.as_array(rows)

    def as_array(self, labels: Sequence[Label]) -> np.ndarray:
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

    def is_labeled(self, labels: np.ndarray) -> np.ndarray:
        """Which items have a label: (S,) bool."""
        return np.isfinite(labels).reshape(len(labels), -1).any(1)

    def strata(self, labels: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """A number (S,) for each item, and its name: a random division keeps the fractions of each.
        One stratum of all by default."""
        return np.zeros(len(labels), np.int64), ["all"]

    def counts(self, labels: Tensor) -> dict[str, int]:
        """Disjoint groups of items, for reports."""
        return {"sequences": len(labels)}

    def chance(self, labels: np.ndarray) -> float:
        """The primary metric of a prediction that does not depend on the sequence."""
        return 0.0

    # Training.

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of `outputs (B, K)`."""

    def predictions(self, outputs: Sequence[Tensor]) -> Tensor:
        """Predictions (B, K) from the outputs (B, K) for each strand that was read."""
        return torch.stack(list(outputs)).mean(0)

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
        """The loss of predictions."""
        return float(self.loss(predictions, labels))

    def valid_score(self, predictions: Tensor, labels: Tensor) -> ValidScore:
        """The score by which epochs and settings are chosen; the worst for predictions that are not
        finite."""
        loss = self.valid_loss(predictions, labels)
        return ValidScore(0.0, -loss if math.isfinite(loss) else -math.inf)

    def record(self, score: ValidScore) -> dict[str, Json]:
        """The score as it is stored in `fit_info`."""
        return {"valid_loss": -score.negative_loss}

    # Evaluation.

    def scored(
        self, predictions: np.ndarray, labels: np.ndarray, folds: np.ndarray | None = None
    ) -> ScoredValues:
        """Predictions prepared for the metrics; `folds (S,)` if each fold of a cross-validation has
        another model."""
        return ScoredValues(predictions, labels, folds)

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics by name: functions of scored predictions and of item weights (W, S), (W,)."""
        return named_metrics(self.names, self.column_metrics)

    def estimate(
        self,
        runs: Sequence[ScoredValues],
        baseline: Sequence[ScoredValues] = (),
        groups: np.ndarray | None = None,
    ) -> Estimate:
        """The primary metric, or the difference of two models, with its interval over items and
        seeds."""
        return estimate(self.metrics[self.primary], runs, baseline, groups)

    def details(self, runs: Sequence[ScoredValues]) -> dict[str, Json]:
        """What pictures of a model show, ready for JSON."""
        return {}

    # Predictions of new sequences.

    def predicted(self, each_seed: np.ndarray) -> Predicted:
        """The predictions (R, S, K) of all seeds, combined."""
        return self.predicted_kind(self.names, each_seed)

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

    @abstractmethod
    def seed_columns(self, seed: int) -> list[str]:
        """The columns of the predictions (K,) of one seed."""

    def track_column(self, name: str) -> str:
        """The column that a track of one of the names shows."""
        return f"{self.value_prefix}_{name}"

    def contrast(self, predictions: Tensor) -> Tensor:
        """Predictions (..., K) on the scale on which the alleles of a variant are compared by a
        difference."""
        return predictions

    @abstractmethod
    def contrast_name(self, name: str) -> str:
        """What `contrast` contains for a class or column, such as "log-odds of class enhancer"."""

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.summary})"


def masked_mean(values: Tensor, known: Tensor) -> Tensor:
    """The mean of `values` where `known`; 0 if nothing is."""
    return torch.where(known, values, 0.0).sum() / known.sum().clamp(min=1)
