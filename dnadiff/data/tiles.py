"""Adjacent windows (tiles) that cover intervals: their positions are computed from their numbers,
without a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.intervals import Interval, Intervals
from dnadiff.data.n_runs import NRuns

_BLOCK = 1 << 20  # tiles that are checked together


class Tile(NamedTuple):
    """A window of `TiledWindows`."""

    record: int  # number of the record
    start: int  # first position in the record, from 0
    skip: int  # number of leading positions that the previous tile has already covered


class Tiling:
    """Adjacent windows in intervals, numbered consecutively; the last window of an interval is
    shifted inwards to fit.

    Args:
        intervals: intervals to cover, none shorter than a window.
        length: tokens in a window.
    """

    def __init__(self, intervals: Sequence[Interval], length: int) -> None:
        self.length = length
        where = Intervals.of(intervals)
        self._record, self._start, self._end = where.record, where.start, where.end
        self._last = np.cumsum(
            -(-(self._end - self._start) // length)
        )  # one past the last tile of each interval

    def __len__(self) -> int:
        return int(self._last[-1]) if len(self._last) else 0

    def at(
        self, number: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Record, start and skip of tiles `number (B,)`."""
        interval = np.searchsorted(self._last, number, "right")
        before = np.where(interval > 0, self._last[interval - 1], 0)
        regular = self._start[interval] + (number - before) * self.length
        start = np.minimum(regular, self._end[interval] - self.length)
        return self._record[interval], start, regular - start

    def with_few_n(self, n_runs: NRuns, maximum: int) -> NDArray[np.integer]:
        """The numbers of the tiles that contain at most `maximum` N."""
        kept = []
        for first in range(0, len(self), _BLOCK):
            number = np.arange(first, min(first + _BLOCK, len(self)))
            record, start, _ = self.at(number)
            few = n_runs.count(record, start, start + self.length) <= maximum
            kept.append(number[few].astype(np.uint32 if len(self) < 2**32 else np.int64))
        return np.concatenate(kept)
