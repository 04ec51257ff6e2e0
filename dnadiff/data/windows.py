"""Windows of fixed length: at random positions for training, adjacent for evaluation.

Both are PyTorch datasets over the records and the intervals of a split; a window never crosses the
border of an interval. Windows in which the fraction of N exceeds `max_n` are left out. Labels are
multi-hot rows for conditioning, dropped at random in training.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, NotRequired, TypeAlias, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset
from typing_extensions import override

from dnadiff.data.intervals import Interval, Intervals, NRuns, Tile, Tiling, max_n_count
from dnadiff.data.records import Cutter, Records
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.vocab import Vocab

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_ROUNDS = 4


def bits(key: int, index: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 random bits for each index `(B,)`: the SplitMix64 mix of index and key."""
    return _mix(_mix(index.astype(np.uint64) * _GOLDEN + _GOLDEN) ^ np.uint64(key))


def uniform(key: int, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each index `(B,)`."""
    return (bits(key, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def shuffled(key: int, index: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Apply a random permutation of 0..size-1 to each index `(B,)`.

    A Feistel network over the next power of four, repeated until the result is below `size`: needs
    no memory of that size.
    """
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    values = index.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        left, right = values[outside] >> half, values[outside] & mask
        for number in range(_ROUNDS):
            left, right = (
                right,
                left ^ (_mix(right ^ np.uint64((key + number * int(_GOLDEN)) % 2**64)) & mask),
            )
        values[outside] = left << half | right
        outside[outside] = values[outside] >= np.uint64(size)
    return values.astype(np.int64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> _SHIFTS[0])) * _MULTIPLY[0]
    x = (x ^ (x >> _SHIFTS[1])) * _MULTIPLY[1]
    return x ^ (x >> _SHIFTS[2])


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


_AHEAD = 4096  # positions that are computed together
Batch: TypeAlias = dict[str, torch.Tensor]
Places: TypeAlias = tuple[
    NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]
]  # record, start and strand, each (B,)
Cut: TypeAlias = Callable[
    [NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_] | None], tuple[NDArray, NDArray]
]


class Window(TypedDict):
    """An item of a dataset of windows."""

    ids: torch.Tensor
    weight: torch.Tensor
    index: int
    valid: NotRequired[torch.Tensor]
    cond: NotRequired[torch.Tensor]


class RandomWindows(Dataset[Window]):
    """Training windows: window i of epoch e depends only on (seed, e, i), not on the process that
    asks for it.

    Index with (e, i), or with i in epoch 0. An item is a dict: `ids (L,)` token ids, `weight (L,)`
    uint8, 1 where the id can be emitted (0 for N; float32 for a fractional `soft_weight`), `index`
    i, and `cond (C,)` uint8 if there are labels.

    Args:
        intervals: intervals to cut windows from.
        length: tokens in a window.
        size: windows in an epoch; None: each window once.
        augment_rc: replace half of the windows, at random, by their reverse complement.
        n_runs: the runs of N; None: no window is left out.
        max_n: maximum fraction of N in a window.
        soft_weight: weight of soft-masked bases.
        cut: function of records and starts that returns ids and weights; None: a `Cutter`.

    Raises:
        ValueError: if no interval is as long as a window, or `augment_rc` is set for a vocabulary
            without complement.
    """

    def __init__(
        self,
        records: Records,
        intervals: Sequence[Interval],
        length: int,
        size: int | None,
        vocab: Vocab,
        seed: int,
        augment_rc: bool = False,
        n_runs: NRuns | None = None,
        max_n: float = 1.0,
        soft_weight: float = 1.0,
        labels: Labels | None = None,
        cut: Cut | None = None,
    ) -> None:
        if augment_rc and vocab.complement is None:
            raise ValueError(
                "data.augment_rc is true, but this vocabulary has no complement; set "
                "data.augment_rc=false"
            )
        self.intervals = _long_enough(intervals, length)
        self.records, self.length, self.seed, self.augment_rc, self.labels = (
            records,
            length,
            int(seed),
            augment_rc,
            labels,
        )
        self._cut: Cut = cut or Cutter(records, length, vocab, soft_weight)
        self._ahead: tuple[tuple[int, int], Places] | None = None
        self.num_starts = self._index_windows(
            n_runs if max_n < 1 else None, max_n_count(max_n, length)
        )
        if not self.num_starts:
            raise ValueError(_too_much_n(length, max_n))
        self.size = size or self.num_starts

    @abstractmethod
    def _index_windows(self, n_runs: NRuns | None, max_count: int) -> int:
        """Compute which windows there are, and return their number."""

    @abstractmethod
    def _places(
        self, key: int, index: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Record and start of windows `index (B,)` of the epoch with random key `key`."""

    def place(self, epoch: int, index: int) -> tuple[int, int, bool]:
        """Record and start of window `index` of `epoch`, and whether it is reverse-complemented."""
        record, start, reverse = self.places(int(epoch), np.array([index]))
        return int(record[0]), int(start[0]), bool(reverse[0])

    def places(self, epoch: int, index: NDArray[np.int64]) -> Places:
        """`place` of many windows at once: three arrays `(B,)`."""
        record, start = self._places(hash64(self.seed, "window", epoch), index)
        reverse = bits(hash64(self.seed, "strand", epoch), index) & np.uint64(1) == 1
        return record, start, reverse if self.augment_rc else np.zeros(len(index), dtype=bool)

    def batch(self, epoch: int, first: int, count: int, step: int = 1) -> Batch:
        """The `count` windows `first`, `first + step`, ... of an epoch, collated."""
        index = np.arange(first, first + count * step, step)
        record, start, reverse = self._looked_up(epoch, index)
        ids, weight = self._cut(record, start, reverse if self.augment_rc else None)
        batch = {
            "ids": torch.from_numpy(ids),
            "weight": torch.from_numpy(weight),
            "index": torch.from_numpy(index),
        }
        if self.labels is not None:
            batch["cond"] = torch.from_numpy(
                self.labels.with_dropout(hash64(self.seed, "label", epoch), record, index)
            )
        return batch

    def _looked_up(self, epoch: int, index: NDArray[np.int64]) -> Places:
        """`places` of increasing indices; thousands are computed at once, because the cost per call
        equals that of many windows."""
        begin = int(index[0] - index[0] % _AHEAD)
        if index[-1] >= begin + _AHEAD:
            return self.places(epoch, index)
        if self._ahead is None or self._ahead[0] != (epoch, begin):
            self._ahead = (epoch, begin), self.places(epoch, np.arange(begin, begin + _AHEAD))
        record, start, reverse = self._ahead[1]
        return record[index - begin], start[index - begin], reverse[index - begin]

    def __len__(self) -> int:
        return self.size

    @override
    def __getitem__(self, key: int | tuple[int, int]) -> Window:
        epoch, index = key if isinstance(key, tuple) else (0, key)
        if not 0 <= index < self.size:
            raise IndexError(f"window {index} of {self.size}")
        batch = self.batch(int(epoch), int(index), 1)
        item: Window = {"ids": batch["ids"][0], "weight": batch["weight"][0], "index": index}
        if self.labels is not None:
            item["cond"] = batch["cond"][0]
        return item


class UniformWindows(RandomWindows):
    """Random windows whose start is uniform over all starts that the intervals and `max_n` allow.

    An epoch may contain a window twice, and need not cover every base. Arguments and items as in
    `RandomWindows`.
    """

    @override
    def _index_windows(self, n_runs: NRuns | None, max_count: int) -> int:
        where = self.intervals
        first, after, self._record = where.start, where.end - self.length + 1, where.record
        unclear = (
            np.flatnonzero(n_runs.count(where.record, where.start, where.end) > max_count).tolist()
            if n_runs is not None
            else []
        )
        if n_runs is not None and unclear:  # in the other intervals every start is allowed
            allowed = [n_runs.allowed(*where[number], self.length, max_count) for number in unclear]
            count = np.ones(len(where), np.int64)
            count[unclear] = [len(ranges) for ranges in allowed]
            first, after, self._record = (
                np.repeat(each, count) for each in (first, after, self._record)
            )
            at = np.isin(np.repeat(np.arange(len(where)), count), unclear)
            first[at], after[at] = np.concatenate(allowed).T
        self._last = np.cumsum(after - first)  # number of starts up to the end of each range
        self._shift = after - self._last  # position of a start in its record minus its number
        return int(self._last[-1]) if len(self._last) else 0

    @override
    def _places(
        self, key: int, index: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        number = ((bits(key, index) >> np.uint64(1)) % np.uint64(self.num_starts)).astype(np.int64)
        found = np.searchsorted(self._last, number, "right")
        return self._record[found], number + self._shift[found]


class IntervalWindows(RandomWindows):
    """Each tile of each interval once per epoch, in random order, as published loaders read a BED
    of windows.

    Indices beyond the number of tiles begin another random order. Arguments and items as in
    `RandomWindows`.
    """

    @override
    def _index_windows(self, n_runs: NRuns | None, max_count: int) -> int:
        self._tiling = Tiling(self.intervals, self.length)
        self._kept = None if n_runs is None else self._tiling.with_few_n(n_runs, max_count)
        return len(self._tiling) if self._kept is None else len(self._kept)

    @override
    def _places(
        self, key: int, index: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        number = np.empty(len(index), np.int64)
        rounds = index // self.num_starts
        for each in np.unique(rounds).tolist():
            rows = rounds == each
            number[rows] = shuffled(
                hash64(key, "order", each), index[rows] % self.num_starts, self.num_starts
            )
        record, start, _ = self._tiling.at(
            number if self._kept is None else self._kept[number].astype(np.int64)
        )
        return record, start


class TiledWindows(Dataset[Window]):
    """Adjacent windows that count every position of the intervals once.

    The last tile of an interval is shifted inwards instead of shortened; its overlap with the
    previous tile gets weight 0, unless the previous tile is left out: every base in some tile that
    can be counted is counted once. Intervals shorter than a window are left out and listed in
    `skipped`. Tiles whose fraction of N exceeds `max_n` are left out and counted in `left_out`.
    Items are as in `RandomWindows`, with `index` the number in `tiles`.

    Args:
        intervals: intervals to cover.
        length: tokens in a window.
        n_runs: the runs of N; None: no window is left out.
        max_n: maximum fraction of N in a window.
        labels: labels of the records; never dropped here.

    Raises:
        ValueError: if no interval is as long as a window.
    """

    lead = 0  # positions of a window before the first one from the record

    def __init__(
        self,
        records: Records,
        intervals: Sequence[Interval],
        length: int,
        vocab: Vocab,
        n_runs: NRuns | None = None,
        max_n: float = 1.0,
        labels: Labels | None = None,
    ) -> None:
        self.records, self.length, self.labels = records, length, labels
        self.intervals = _long_enough(intervals, length)
        every = Intervals.of(intervals)
        self.skipped = every.where(every.length < length)
        tiling = Tiling(self.intervals, length)
        number = np.arange(len(tiling))
        if n_runs is not None and max_n < 1:
            number = tiling.with_few_n(n_runs, max_n_count(max_n, length)).astype(np.int64)
        self.left_out = len(tiling) - len(number)
        if not len(number):
            raise ValueError(_too_much_n(length, max_n))
        self._record, self._start, skip = tiling.at(number)
        follows = (
            np.diff(number, prepend=-2) == 1
        )  # the previous tile was not left out, and has counted the overlap
        self._skip = np.where(follows, skip, 0)
        self._cut: Cut = Cutter(records, length, vocab)

    @cached_property
    def tiles(self) -> list[Tile]:
        """All windows, in order."""
        return [
            Tile(*row)
            for row in zip(self._record.tolist(), self._start.tolist(), self._skip.tolist())
        ]

    def __len__(self) -> int:
        return len(self._start)

    @override
    def __getitem__(self, index: int) -> Window:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        rows = slice(index, index + 1)
        ids, weight = self._cut(self._record[rows], self._start[rows], None)
        weight[0, self.lead : self.lead + self._skip[index]] = 0
        item: Window = {
            "ids": torch.from_numpy(ids[0]),
            "weight": torch.from_numpy(weight[0]),
            "index": index,
        }
        if self.labels is not None:
            item["cond"] = torch.from_numpy(self.labels.rows(self._record[index : index + 1])[0])
        return item


def _too_much_n(length: int, max_n: float) -> str:
    return (
        f"every window of {length} tokens holds more than {100 * max_n:g} % N; set data.max_n "
        "to more"
    )


def _long_enough(intervals: Sequence[Interval], length: int) -> Intervals:
    if length < 1:
        raise ValueError(f"length is {length}; a window has at least one token: set data.length")
    every = Intervals.of(intervals)
    kept = every.where(every.length >= length)
    if not kept:
        longest = every.length.max(initial=0)
        raise ValueError(
            f"sequence shorter than the window: the longest of {len(intervals)} intervals has "
            f"{longest} tokens, a window {length}; "
            f"set data.length={longest} or less, or choose another data.split"
            if longest
            else (
                f"no interval to cut windows of {length} tokens from; choose another data.split, "
                "or data with more records"
            )
        )
    return kept


class WeightedWindows(UniformWindows):
    """Random windows that are drawn from a record in proportion to its weight and its number of
    starts, uniformly among these.

    Args:
        weights: for each record how often its starts are drawn, relative to those of others,
            `(number of records,)`.

    The other arguments, and items, are those of `RandomWindows`.

    Raises:
        ValueError: as `RandomWindows`, or if no record of a weight above 0 has a window.
    """

    def __init__(self, weights: NDArray[np.float64], *args: Any, **options: Any) -> None:
        self._weights = weights
        super().__init__(*args, **options)

    @override
    def _index_windows(self, n_runs: NRuns | None, max_count: int) -> int:
        count = super()._index_windows(n_runs, max_count)
        starts = np.diff(self._last, prepend=0)
        self._mass = np.cumsum(self._weights[self._record] * starts)
        if count and not self._mass[-1]:
            raise ValueError(
                "every window for training is of a file with weight 0 in the manifest; give "
                "another file a weight above 0"
            )
        return count

    @override
    def _places(
        self, key: int, index: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        mass = uniform(key, index) * self._mass[-1]
        found = np.minimum(
            np.searchsorted(self._mass, mass, "right"), np.searchsorted(self._mass, self._mass[-1])
        )
        first = np.where(found > 0, self._last[found - 1], 0)
        number = first + (bits(hash64(key, "start"), index) >> np.uint64(1)).astype(np.int64) % (
            self._last[found] - first
        )
        return self._record[found], number + self._shift[found]
