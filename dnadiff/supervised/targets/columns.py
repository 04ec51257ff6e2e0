"""Targets of one or more columns of a table, in which values may be missing."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.supervised.metrics import title
from dnadiff.supervised.targets.base import MISSING, SEPARATOR, Label, S, TaskTarget, ValidScore


class ColumnTarget(TaskTarget[S], Generic[S]):
    """A number for each of the columns `names`.

    Attributes:
        value_prefix: of the columns of predictions in a table.
    """

    value_prefix: ClassVar[str]

    @override
    def parse(self, cells: Sequence[str], where: str, columns: Sequence[str]) -> tuple[float, ...]:
        return tuple(
            math.nan if cell.lower() in MISSING else self.parse_cell(cell, where, column)
            for cell, column in zip(cells, columns, strict=True)
        )

    @abstractmethod
    def parse_cell(self, cell: str, where: str, column: str) -> float:
        """The value in a cell that is not missing."""

    @override
    def check(self, cells: Sequence[str], where: str) -> None:
        self.parse(cells, where, self.names)

    @override
    def read(
        self, labels: Sequence[str], source: str, label_source: str
    ) -> tuple[Self, np.ndarray]:
        return self, self.as_array(
            [self.parse(label.split(SEPARATOR), source, self.names) for label in labels]
        )

    @override
    def as_array(self, labels: Sequence[Label]) -> np.ndarray:
        return np.array(labels, np.float32).reshape(len(labels), self.num_outputs)

    @override
    def is_labeled(self, labels: np.ndarray) -> np.ndarray:
        return np.isfinite(labels).any(1)

    @override
    def fit(self, labels: Tensor, source: str = "the task") -> Self:
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
                    f"{len(known):,} training items that have one, "
                    "and training needs different ones; set task.label_column to another column"
                )
        return self

    @override
    def check_valid(self, labels: Tensor, source: str) -> None:
        if not bool(labels.isfinite().any()):
            raise ValueError(
                f"{source} has no value of {', '.join(map(repr, self.names))} in its "
                f"{len(labels):,} validation items, which choose the epoch "
                "and the settings; add some, or divide at random: task.redivide=true"
            )

    @override
    def check_test(self, labels: Tensor, source: str) -> None:
        for name, column in zip(self.names, labels.T):
            if len(column[column.isfinite()].unique()) < 2:
                raise ValueError(
                    f"{source} has fewer than two different values in column {name!r} of its "
                    f"{len(labels):,} test items, for which "
                    f"{title(self.primary)} is not defined; add some, divide in another way "
                    "(task.redivide=true, another task.seed), or leave the column out"
                )

    @override
    def averaged(self, predictions: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        return torch.stack(
            [weight * one.double() for one, weight in zip(predictions, weights) if weight > 0]
        ).sum(0)

    @override
    def valid_score(self, predictions: Tensor, labels: Tensor) -> ValidScore:
        loss = self.valid_loss(predictions, labels)
        return ValidScore(0.0, -loss if math.isfinite(loss) else -math.inf)

    @property
    @override
    def columns(self) -> list[str]:
        return [
            column
            for name in self.names
            for column in (f"{self.value_prefix}_{name}", f"spread_{name}")
        ]

    @override
    def track_column(self, name: str) -> str:
        return f"{self.value_prefix}_{name}"

    @override
    def contrast(self, predictions: Tensor) -> Tensor:
        return predictions
