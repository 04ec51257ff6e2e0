"""Intervals of records: the parts of a split. Millions of them are three arrays, and are read one
by one like a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload

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
