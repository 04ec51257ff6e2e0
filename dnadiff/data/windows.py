"""Windows of fixed length: drawn at random for training, tiled for evaluation.

Both are PyTorch datasets over records of token ids and intervals of a split. A window lies inside one interval. Where N
stands may be told (`unknown`): windows with more of it than the share `max_n` are then left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from dnadiff.data.cutter import Cutter, Records
from dnadiff.data.labels import Labels
from dnadiff.data.n_runs import NRuns, max_n_count
from dnadiff.data.shuffle import bits, shuffled
from dnadiff.data.splits import Interval
from dnadiff.data.tiles import Tile, Tiling
from dnadiff.draws import hash64
from dnadiff.vocab import Vocab

_AHEAD = 4096  # places worked out at once


class RandomWindows(Dataset):
    """Training windows: number i of epoch e is a function of (seed, e, i), whoever asks for it.

    Index with i for the epoch set by `set_epoch`, or with (e, i). An item is a dict: `ids (L,)` token ids, `weight (L,)`
    uint8, 1 where the id can be emitted (an N has 0; float32 for a fractional `soft_weight`), `index`, which is i, and
    `cond (C,)` uint8 if there are labels.

    Args:
        records: token ids of each record.
        intervals: where windows may lie.
        length: tokens in a window.
        size: windows in an epoch.
        vocab: which ids are emitted, and their complements.
        seed: of all draws.
        augment_rc: show the reverse complement of half of the windows, by a coin.
        unknown: where N stands; None: no window is left out.
        max_n: largest share of N in a window.
        soft_weight: weight of soft-masked bases.
        labels: one for each record.
        cut: makes windows of records and starts; None: a `Cutter`.

    Raises:
        ValueError: if no interval holds a window, or `augment_rc` is asked of an alphabet without complement.
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
        cut: Any = None,
    ) -> None:
        if augment_rc and vocab.complement is None:
            raise ValueError("augment_rc is true, but this alphabet has no complement; set data.augment_rc=false")
        self.intervals = _long_enough(intervals, length)
        self.records, self.length, self.seed, self.augment_rc, self.labels = records, length, int(seed), augment_rc, labels
        self.epoch = 0
        self._cut = cut or Cutter(records, length, vocab, soft_weight)
        self._ahead: tuple[tuple[int, int], Any] | None = None
        self.num_starts = self._lay_out(n_runs if max_n < 1 else None, max_n_count(max_n, length))
        if not self.num_starts:
            raise ValueError(f"every window of {length} tokens holds more than {100 * max_n:g} % N; set data.max_n to more")
        self.size = size or self.num_starts

    @abstractmethod
    def _lay_out(self, n_runs: NRuns | None, most: int) -> int:
        """Work out which windows there are, and say how many."""

    @abstractmethod
    def _places(self, key: int, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Record and start of windows `index (B,)` of the epoch that `key` stands for."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that plain indices refer to."""
        self.epoch = epoch

    def place(self, epoch: int, index: int) -> tuple[int, int, bool]:
        """Where window `index` of `epoch` lies: record, start, and whether it is read from the other strand."""
        record, start, reverse = self.places(int(epoch), np.array([index]))
        return int(record[0]), int(start[0]), bool(reverse[0])

    def places(self, epoch: int, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """`place` of many windows at once: three arrays `(B,)`."""
        record, start = self._places(hash64(self.seed, "window", epoch), index)
        reverse = bits(hash64(self.seed, "strand", epoch), index) & np.uint64(1) == 1
        return record, start, reverse if self.augment_rc else np.zeros(len(index), dtype=bool)

    def batch(self, epoch: int, first: int, count: int) -> dict[str, torch.Tensor]:
        """Windows `first` up to `first + count` of an epoch, collated."""
        index = np.arange(first, first + count)
        record, start, reverse = self._looked_up(epoch, first, count)
        ids, weight = self._cut(record, start, reverse if self.augment_rc else None)
        batch = {"ids": torch.from_numpy(ids), "weight": torch.from_numpy(weight), "index": torch.from_numpy(index)}
        if self.labels is not None:
            batch["cond"] = torch.from_numpy(self.labels.drawn(hash64(self.seed, "label", epoch), record, index))
        return batch

    def _looked_up(self, epoch: int, first: int, count: int) -> tuple[Any, Any, Any]:
        """`places` of consecutive windows: thousands are worked out at once, for a call costs as much as many windows."""
        begin = first - first % _AHEAD
        if first + count > begin + _AHEAD:
            return self.places(epoch, np.arange(first, first + count))
        if self._ahead is None or self._ahead[0] != (epoch, begin):
            self._ahead = (epoch, begin), self.places(epoch, np.arange(begin, begin + _AHEAD))
        part = slice(first - begin, first - begin + count)
        record, start, reverse = self._ahead[1]
        return record[part], start[part], reverse[part]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Any]:
        epoch, index = key if isinstance(key, tuple) else (self.epoch, key)
        if not 0 <= index < self.size:
            raise IndexError(f"window {index} of {self.size}")
        return {name: row[0] for name, row in self.batch(int(epoch), int(index), 1).items()} | {"index": index}


class UniformWindows(RandomWindows):
    """Random windows whose start is uniform over all starts that the intervals and `max_n` allow.

    Arguments and items: see `RandomWindows`. An epoch may hold a window twice, and not every base.
    """

    def _lay_out(self, n_runs: NRuns | None, most: int) -> int:
        records, ranges = [], [np.empty((0, 2), np.int64)]
        for record, start, end in self.intervals:
            whole = np.array([[start, end - self.length + 1]])
            part = whole if n_runs is None else n_runs.allowed(record, start, end, self.length, most)
            records.append(np.full(len(part), record))
            ranges.append(part)
        first, after = np.concatenate(ranges).T
        self._record = np.concatenate(records)
        self._until = np.cumsum(after - first)  # starts up to the end of each range, counted through
        self._shift = after - self._until  # a start's place in its record minus its number
        return int(self._until[-1]) if len(self._until) else 0

    def _places(self, key: int, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        number = ((bits(key, index) >> np.uint64(1)) % np.uint64(self.num_starts)).astype(np.int64)
        place = np.searchsorted(self._until, number, "right")
        return self._record[place], number + self._shift[place]


class IntervalWindows(RandomWindows):
    """Each tile of each interval once an epoch, in random order: what published loaders do with a BED of windows.

    Arguments and items: see `RandomWindows`; indices beyond the number of tiles begin another random order.
    """

    def _lay_out(self, n_runs: NRuns | None, most: int) -> int:
        self._tiling = Tiling(self.intervals, self.length)
        self._kept = None if n_runs is None else self._tiling.with_few_n(n_runs, most)
        return len(self._tiling) if self._kept is None else len(self._kept)

    def _places(self, key: int, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        number = np.empty(len(index), np.int64)
        turns = index // self.num_starts
        for turn in np.unique(turns).tolist():
            rows = turns == turn
            number[rows] = shuffled(hash64(key, "order", turn), index[rows] % self.num_starts, self.num_starts)
        record, start, _ = self._tiling.at(number if self._kept is None else self._kept[number].astype(np.int64))
        return record, start


class TiledWindows(Dataset):
    """Windows side by side, so that every position of the intervals counts once.

    The last tile of an interval is shifted inwards rather than shortened; what it shares with the tile before gets
    weight 0. Intervals shorter than a window cannot be tiled and are left out: `skipped` lists them. So are tiles with more
    N than `max_n` allows: `left_out` says how many. Items are as in `RandomWindows`, with `index` the place in `tiles`.

    Args:
        records: token ids of each record.
        intervals: what to cover.
        length: tokens in a window.
        vocab: which ids are emitted.
        unknown: where N stands; None: no window is left out.
        max_n: largest share of N in a window.
        labels: one for each record; none is dropped here.

    Raises:
        ValueError: if no interval holds a window.
    """

    lead = 0  # positions before the first that comes from the record

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
        self.skipped = [i for i in intervals if i.end - i.start < length]
        tiling = Tiling(self.intervals, length)
        filtered = n_runs is not None and max_n < 1
        number = tiling.with_few_n(n_runs, max_n_count(max_n, length)).astype(np.int64) if filtered else np.arange(len(tiling))
        self.left_out = len(tiling) - len(number)
        if not len(number):
            raise ValueError(f"every window of {length} tokens holds more than {100 * max_n:g} % N; set data.max_n to more")
        self._record, self._start, self._skip = tiling.at(number)
        self._cut = Cutter(records, length, vocab)

    @cached_property
    def tiles(self) -> list[Tile]:
        """All windows, in order."""
        return [Tile(*row) for row in zip(self._record.tolist(), self._start.tolist(), self._skip.tolist())]

    def __len__(self) -> int:
        return len(self._start)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        rows = slice(index, index + 1)
        ids, weight = self._cut(self._record[rows], self._start[rows])
        weight[0, self.lead : self.lead + self._skip[index]] = 0
        item = {"ids": torch.from_numpy(ids[0]), "weight": torch.from_numpy(weight[0]), "index": index}
        if self.labels is not None:
            item["cond"] = torch.from_numpy(self.labels.rows[self._record[index]])
        return item


def _long_enough(intervals: Sequence[Interval], length: int) -> list[Interval]:
    if length < 1:
        raise ValueError(f"length is {length}; a window has at least one token: set data.length")
    kept = [i for i in intervals if i.end - i.start >= length]
    if not kept:
        longest = max((i.end - i.start for i in intervals), default=0)
        raise ValueError(
            f"sequence shorter than the window: the longest of {len(intervals)} intervals has {longest} tokens, a window {length}; "
            f"set data.length={longest} or less, or choose another data.split"
            if longest
            else f"no interval to cut windows of {length} tokens from; choose another data.split, or data with more records"
        )
    return kept
