"""Windows of fixed length: drawn at random for training, tiled for evaluation.

Both are PyTorch datasets over records of token ids and intervals of a split. A window lies inside one interval.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from dnadiff.data.splits import Interval
from dnadiff.draws import hash64
from dnadiff.vocab import Vocab

Records = Sequence[NDArray[Any]]  # anything whose [record][start:end] is an array of token ids


class TrainWindows(Dataset):
    """Random windows: number i of epoch e is a function of (seed, e, i), whoever asks for it.

    The start is uniform over all starts that the intervals allow; intervals shorter than a window have none. Index
    with i for the epoch set by `set_epoch`, or with (e, i). An item is a dict: `ids (L,)` token ids, `weight (L,)`
    uint8, 1 where the id can be emitted (an N has 0), and `index`, which is i.

    Args:
        records: token ids of each record.
        intervals: where windows may lie.
        length: tokens in a window.
        size: windows in an epoch.
        vocab: which ids are emitted, and their complements.
        seed: of all draws.
        augment_rc: show the reverse complement of half of the windows, by a coin.

    Raises:
        ValueError: if no interval holds a window, or `augment_rc` is asked of an alphabet without complement.
    """

    def __init__(
        self, records: Records, intervals: Sequence[Interval], length: int, size: int, vocab: Vocab, seed: int, augment_rc: bool = False
    ) -> None:
        if augment_rc and vocab.complement is None:
            raise ValueError("augment_rc is true, but this alphabet has no complement; set data.augment_rc=false")
        self.intervals = _long_enough(intervals, length)
        self.records, self.length, self.size, self.seed, self.augment_rc = records, length, size, int(seed), augment_rc
        self.epoch = 0
        self._last_start = list(accumulate(i.end - i.start - length + 1 for i in self.intervals))  # of each interval, counted through
        self._weight = vocab.is_emitted().to(torch.uint8).numpy()
        self._complement = None if vocab.complement is None else np.array(vocab.complement, dtype=np.uint8)

    @property
    def num_starts(self) -> int:
        """How many different windows there are, strands apart."""
        return self._last_start[-1]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that plain indices refer to."""
        self.epoch = epoch

    def place(self, epoch: int, index: int) -> tuple[int, int, bool]:
        """Where window `index` of `epoch` lies: record, start, and whether it is read from the other strand."""
        bits = hash64(self.seed, "window", int(epoch), int(index))  # NumPy integers would hash differently
        start = (bits >> 1) % self.num_starts
        number = bisect_right(self._last_start, start)
        interval = self.intervals[number]
        before = self._last_start[number - 1] if number else 0
        return interval.record, interval.start + start - before, self.augment_rc and bool(bits & 1)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Any]:
        epoch, index = key if isinstance(key, tuple) else (self.epoch, key)
        if not 0 <= index < self.size:
            raise IndexError(f"window {index} of {self.size}")
        record, start, reverse = self.place(epoch, index)
        ids = self.records[record][start : start + self.length]
        ids = self._complement[ids[::-1]] if reverse else ids.copy()
        return {"ids": torch.from_numpy(ids), "weight": torch.from_numpy(self._weight[ids]), "index": index}


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


class TiledWindows(Dataset):
    """Windows side by side, so that every position of the intervals counts once.

    The last tile of an interval is shifted inwards rather than shortened; what it shares with the tile before gets
    weight 0. Intervals shorter than a window cannot be tiled and are left out: `skipped` lists them. Items are as in
    `TrainWindows`, with `index` the place in `tiles`.

    Args:
        records: token ids of each record.
        intervals: what to cover.
        length: tokens in a window.
        vocab: which ids are emitted.

    Raises:
        ValueError: if no interval holds a window.
    """

    def __init__(self, records: Records, intervals: Sequence[Interval], length: int, vocab: Vocab) -> None:
        self.records, self.length = records, length
        self.intervals = _long_enough(intervals, length)
        self.skipped = [i for i in intervals if i.end - i.start < length]
        self.tiles = [tile for interval in self.intervals for tile in _tiles(interval, length)]
        self._weight = vocab.is_emitted().to(torch.uint8).numpy()

    def __len__(self) -> int:
        return len(self.tiles)

    def __getitem__(self, index: int) -> dict[str, Any]:
        record, start, skip = self.tiles[index]
        ids = self.records[record][start : start + self.length].copy()
        weight = self._weight[ids]
        weight[:skip] = 0
        return {"ids": torch.from_numpy(ids), "weight": torch.from_numpy(weight), "index": index}


def _tiles(interval: Interval, length: int) -> list[Tile]:
    starts = range(interval.start, interval.end - length + 1, length)
    tiles = [Tile(interval.record, start, 0) for start in starts]
    left = interval.end - starts[-1] - length
    return [*tiles, Tile(interval.record, interval.end - length, length - left)] if left else tiles


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
