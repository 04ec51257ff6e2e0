"""Windows side by side: where they lie, numbered through without a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.n_runs import NRuns
from dnadiff.data.splits import Interval


class Tile(NamedTuple):
    """A window of `TiledWindows`.

    Attributes:
        record: number of the record.
        start: first position in the record, from 0.
        skip: leading positions that the tile before has already covered.
    """

    record: int
    start: int
    skip: int


class Tiling:
    """Windows side by side in intervals, numbered through; the last of an interval is shifted inwards.

    Args:
        intervals: none shorter than a window.
        length: tokens in a window.
    """

    def __init__(self, intervals: Sequence[Interval], length: int) -> None:
        self.length = length
        self._record, self._start, self._end = np.array(intervals, dtype=np.int64).reshape(-1, 3).T
        self._until = np.cumsum(-(-(self._end - self._start) // length))

    def __len__(self) -> int:
        return int(self._until[-1]) if len(self._until) else 0

    def at(self, number: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Record, start and skip of tiles `(B,)`."""
        place = np.searchsorted(self._until, number, "right")
        before = np.where(place > 0, self._until[place - 1], 0)
        regular = self._start[place] + (number - before) * self.length
        start = np.minimum(regular, self._end[place] - self.length)
        return self._record[place], start, regular - start

    def with_few_n(self, n_runs: NRuns, most: int) -> NDArray[np.integer]:
        """The numbers of the tiles with at most so many N."""
        kept = []
        for first in range(0, len(self), 1 << 20):
            number = np.arange(first, min(first + (1 << 20), len(self)))
            record, start, _ = self.at(number)
            few = n_runs.count(record, start, start + self.length) <= most
            kept.append(number[few].astype(np.uint32 if len(self) < 2**32 else np.int64))
        return np.concatenate(kept)
