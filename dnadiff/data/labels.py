"""Labels of sequences (species, class) as multi-hot rows for conditioning, dropped at random in
training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.shuffle import uniform


class Labels(NamedTuple):
    """The labels of records. With `dropout`, the model also learns the unconditional
    distribution."""

    names: list[str]  # of the columns, sorted
    columns: NDArray[
        np.int64
    ]  # (number of different sets, K): the labels of each set, -1 where there are fewer than K
    code: NDArray[np.int64]  # (number of records,): the set of each record
    dropout: float = 0.0  # fraction of training windows without labels (a row of zeros)

    @classmethod
    def from_names(cls, labels: Sequence[Sequence[str]], dropout: float = 0.0) -> Labels | None:
        """From the labels of each record; None if no record has a label."""
        names = sorted({label for many in labels for label in many})
        column = {label: number for number, label in enumerate(names)}
        sets: dict[tuple[str, ...], int] = {}
        code = np.array(
            [sets.setdefault(tuple(many), len(sets)) for many in labels], dtype=np.int64
        )
        columns = np.full((len(sets), max(map(len, sets), default=0)), -1)
        for row, many in enumerate(sets):
            columns[row, : len(many)] = [column[label] for label in many]
        return cls(names, columns, code, dropout) if names else None

    def rows(self, record: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The labels of records `(B, C)`: 1 where a label applies."""
        rows = np.zeros(
            (len(record), len(self.names) + 1), dtype=np.uint8
        )  # the last column takes the entries of -1
        rows[np.arange(len(record))[:, None], self.columns[self.code[record]]] = 1
        return rows[:, :-1]

    def with_dropout(
        self, key: int, record: NDArray[np.int64], index: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """The labels `(B, C)` of training windows `index` of `record`, dropped at random."""
        return self.rows(record) * (uniform(key, index) >= self.dropout)[:, None]
