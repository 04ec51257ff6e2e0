"""Where N stands in a genome, as runs: how many lie in a window, and which windows hold few enough.

Counting is by prefix sums over the runs, not over the bases, so that it costs nothing in memory. The number of N in a window
is piecewise linear in its start, so the starts that are allowed are ranges, found exactly and once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ranges = NDArray[np.int64]  # (K, 2): first, and one past the last


class NRuns:
    """Runs of N in records that lie one after the other.

    Args:
        runs: (start, end) of each run, `(K, 2)`, sorted, none touching two records.
        offsets: where each record begins, `(number of records,)`.
    """

    def __init__(self, runs: Ranges, offsets: Sequence[int] | NDArray[np.int64]) -> None:
        self.starts, self.ends = np.ascontiguousarray(runs[:, 0]), np.ascontiguousarray(runs[:, 1])
        self.offsets = np.asarray(offsets, dtype=np.int64)
        self._total = np.concatenate([[0], np.cumsum(self.ends - self.starts)])

    @classmethod
    def from_records(cls, records: Sequence[NDArray[Any]], unknown: int) -> NRuns:
        """The runs of the id `unknown` in arrays of ids."""
        runs, offsets, total = [np.empty((0, 2), np.int64)], [], 0
        for ids in records:
            marked = np.concatenate([[False], np.asarray(ids) == unknown, [False]])
            runs.append(np.flatnonzero(marked[1:] != marked[:-1]).reshape(-1, 2) + total)
            offsets.append(total)
            total += len(ids)
        return cls(np.concatenate(runs), offsets)

    def before(self, place: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many N lie before each place, records counted through."""
        number = np.searchsorted(self.starts, place, "right")
        beyond = np.where(number > 0, np.maximum(self.ends[np.maximum(number, 1) - 1] - place, 0), 0) if len(self.ends) else 0
        return self._total[number] - beyond

    def count(self, record: Any, start: Any, end: Any) -> NDArray[np.int64]:
        """How many N lie in each window `[start, end)`."""
        base = self.offsets[record]
        return self.before(base + end) - self.before(base + start)

    def allowed(self, record: int, start: int, end: int, length: int, most: int) -> Ranges:
        """The starts of windows of `length` inside `[start, end)` with at most so many N, as ranges."""
        last = end - length + 1  # one past the last start
        base = int(self.offsets[record])
        low, high = np.searchsorted(self.ends, base + start, "right"), np.searchsorted(self.starts, base + end, "left")
        if low == high or last <= start:
            return np.array([[start, last]] if last > start else np.empty((0, 2)), dtype=np.int64).reshape(-1, 2)
        knots = np.concatenate([self.starts[low:high], self.ends[low:high]]) - base
        breaks = np.concatenate([[start, last - 1, last], knots, knots - length])  # a window at `last` would leave the interval
        breaks = np.unique(breaks[(breaks >= start) & (breaks <= last)])
        begin, stop = breaks[:-1], breaks[1:]
        number = self.count(record, breaks, breaks + length)
        here, slope = number[:-1], np.sign(number[1:] - number[:-1])
        # Between two breaks the number of N is constant, grows by one a base, or falls by one a base.
        first = np.where(slope < 0, np.maximum(begin, begin + here - most), begin)
        after = np.where(slope > 0, np.minimum(stop, begin + most - here + 1), np.where((slope == 0) & (here > most), begin, stop))
        kept = first < after
        return _joined(first[kept], after[kept])


def _joined(first: NDArray[np.int64], after: NDArray[np.int64]) -> Ranges:
    """Ranges that touch become one."""
    if not len(first):
        return np.empty((0, 2), np.int64)
    new = np.concatenate([[True], first[1:] != after[:-1]])
    return np.stack([first[new], after[np.concatenate([new[1:], [True]])]], axis=1)


def max_n_count(share: float, length: int) -> int:
    """How many N a window may hold when more than `share` of it is too much."""
    return int(np.floor(share * length + 1e-9))
