"""Labels of sequences (species, class) as multi-hot rows for conditioning, dropped at random in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.shuffle import uniform


class Labels(NamedTuple):
    """The labels of records. With `dropout`, the model also learns the unconditional distribution."""

    names: list[str]  # of the columns, sorted
    rows: NDArray[np.uint8]  # (number of records, C): 1 where a label applies
    dropout: float = 0.0  # fraction of training windows without labels (a row of zeros)

    @classmethod
    def from_names(cls, labels: Sequence[Sequence[str]], dropout: float = 0.0) -> Labels | None:
        """From the labels of each record; None if no record has a label."""
        names = sorted({label for many in labels for label in many})
        column = {label: number for number, label in enumerate(names)}
        rows = np.zeros((len(labels), len(names)), dtype=np.uint8)
        for row, many in enumerate(labels):
            rows[row, [column[label] for label in many]] = 1
        return cls(names, rows, dropout) if names else None

    def with_dropout(self, key: int, record: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The labels `(B, C)` of training windows `index` of `record`, dropped at random."""
        return self.rows[record] * (uniform(key, index) >= self.dropout)[:, None]
