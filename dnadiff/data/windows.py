"""Windows of fixed length: at random positions for training, adjacent for evaluation.

Both are PyTorch datasets over the records and the intervals of a split; a window never crosses the
border of an interval. Windows in which the fraction of N exceeds `max_n` are left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NotRequired, TypeAlias, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset
from typing_extensions import override

from dnadiff.data.cutter import Cutter
from dnadiff.data.genome.records import Records
from dnadiff.data.intervals import Interval, Intervals
from dnadiff.data.labels import Labels
from dnadiff.data.loader import Batch
from dnadiff.data.n_runs import NRuns, max_n_count
from dnadiff.data.shuffle import bits, shuffled
from dnadiff.data.tiles import Tile, Tiling
from dnadiff.draws import hash64
from dnadiff.vocab import Vocab

_AHEAD = 4096  # positions that are computed together
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
