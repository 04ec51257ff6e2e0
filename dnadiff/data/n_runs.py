"""Runs of N in a genome: how many N a window contains, and which windows contain few enough.

Counts come from prefix sums over the runs, not over the bases, and therefore need almost no memory.
The number of N in a window is piecewise linear in the start of the window, so the allowed starts
form ranges, which are computed exactly and once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ranges: TypeAlias = NDArray[np.int64]  # (K, 2): first, and one past the last


class NRuns:
    """Runs of N in records, with positions counted over all records.

    Args:
        runs: (start, end) of each run, `(K, 2)`, sorted; no run crosses the border of a record.
        offsets: first position of each record, `(number of records,)`.
    """

    def __init__(self, runs: Ranges, offsets: Sequence[int] | NDArray[np.int64]) -> None:
        self.starts, self.ends = np.ascontiguousarray(runs[:, 0]), np.ascontiguousarray(runs[:, 1])
        self.offsets = np.asarray(offsets, dtype=np.int64)
        self._total: NDArray[np.int64] = np.concatenate(
            [np.zeros(1, np.int64), np.cumsum(self.ends - self.starts)]
        )

    def before(self, position: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of N before each position, counted over all records."""
        number = np.searchsorted(self.starts, position, "right")
        beyond = (
            np.where(number > 0, np.maximum(self.ends[np.maximum(number, 1) - 1] - position, 0), 0)
            if len(self.ends)
            else 0
        )
        return self._total[number] - beyond

    def count(
        self,
        record: int | NDArray[np.int64],
        start: int | NDArray[np.int64],
        end: int | NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Number of N in each window `[start, end)`; arguments broadcast."""
        base = self.offsets[record]
        return self.before(base + end) - self.before(base + start)

    def allowed(self, record: int, start: int, end: int, length: int, maximum: int) -> Ranges:
        """The starts of windows of `length` inside `[start, end)` with at most `maximum` N, as
        ranges."""
        last = end - length + 1  # one past the last start
        base = int(self.offsets[record])
        low, high = (
            np.searchsorted(self.ends, base + start, "right"),
            np.searchsorted(self.starts, base + end, "left"),
        )
        if low == high or last <= start:
            return np.array(
                [[start, last]] if last > start else np.empty((0, 2)), dtype=np.int64
            ).reshape(-1, 2)
        knots = np.concatenate([self.starts[low:high], self.ends[low:high]]) - base
        breaks = np.concatenate(
            [[start, last - 1, last], knots, knots - length]
        )  # a window at `last` would leave the interval
        breaks = np.unique(breaks[(breaks >= start) & (breaks <= last)])
        begin, stop = breaks[:-1], breaks[1:]
        number = self.count(record, breaks, breaks + length)
        here, slope = number[:-1], np.sign(number[1:] - number[:-1])
        # Between two breaks the number of N is constant, or changes by one per base.
        first = np.where(slope < 0, np.maximum(begin, begin + here - maximum), begin)
        after = np.where(
            slope > 0,
            np.minimum(stop, begin + maximum - here + 1),
            np.where((slope == 0) & (here > maximum), begin, stop),
        )
        kept = first < after
        return _joined(first[kept], after[kept])


def _joined(first: NDArray[np.int64], after: NDArray[np.int64]) -> Ranges:
    """Merge adjacent ranges."""
    if not len(first):
        return np.empty((0, 2), np.int64)
    new = np.concatenate([[True], first[1:] != after[:-1]])
    return np.stack([first[new], after[np.concatenate([new[1:], [True]])]], axis=1)


def max_n_count(fraction: float, length: int) -> int:
    """Maximum number of N in a window of `length` whose fraction of N is at most `fraction`."""
    return int(np.floor(fraction * length + 1e-9))
