"""Intervals of records, the tiles that cover them, and the runs of N in them.

Millions of intervals are three arrays, and are read one by one like a list. Tiles are computed from
their numbers, without a list of them. The number of N in a window comes from prefix sums over the
runs, not over the bases; it is piecewise linear in the start of the window, so that the allowed
starts form ranges, which are computed exactly and once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override


class Interval(NamedTuple):
    """Tokens `start` to `end` (0-based, half-open) of record number `record`."""

    record: int
    start: int
    end: int


class Intervals(Sequence[Interval]):
    """Intervals as arrays `(K,)`; equal to any sequence of the same intervals."""

    def __init__(
        self, record: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]
    ) -> None:
        self.record, self.start, self.end = record, start, end

    @classmethod
    def of(cls, intervals: Iterable[Interval]) -> Intervals:
        """From any intervals; no copy if they are arrays already."""
        if isinstance(intervals, Intervals):
            return intervals
        record, start, end = np.array(list(intervals), dtype=np.int64).reshape(-1, 3).T
        return cls(record, start, end)

    @property
    def length(self) -> NDArray[np.int64]:
        """Number of tokens of each interval."""
        return self.end - self.start

    def where(self, chosen: NDArray[np.bool_]) -> Intervals:
        """Those for which `chosen` is True."""
        return Intervals(self.record[chosen], self.start[chosen], self.end[chosen])

    @override
    def __len__(self) -> int:
        return len(self.record)

    @overload
    def __getitem__(self, number: int) -> Interval: ...
    @overload
    def __getitem__(self, number: slice) -> Intervals: ...
    @override
    def __getitem__(self, number: int | slice) -> Interval | Intervals:
        if isinstance(number, slice):
            return Intervals(self.record[number], self.start[number], self.end[number])
        return Interval(int(self.record[number]), int(self.start[number]), int(self.end[number]))

    @override
    def __iter__(self) -> Iterator[Interval]:
        return map(Interval, self.record.tolist(), self.start.tolist(), self.end.tolist())

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @override
    def __repr__(self) -> str:
        return f"Intervals({list(self)})"


def num_tokens(intervals: Iterable[Interval]) -> int:
    """Number of tokens in all intervals."""
    return int(Intervals.of(intervals).length.sum())


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
