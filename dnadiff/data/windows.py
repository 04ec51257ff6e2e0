"""Windows of fixed length: at random positions for training, adjacent for evaluation.

Both are PyTorch datasets over the records and the intervals of a split; a window never crosses the
border of an interval. Windows in which the fraction of N exceeds `max_n` are left out. What a
network is conditioned on, labels and values of records, and columns of an alignment, is dropped at
random in training.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from dnadiff.data.records import (
    Cutter,
    Ends,
    Integers,
    Interval,
    Intervals,
    Mask,
    NRuns,
    Records,
    Tile,
    Tiling,
    max_n_count,
)
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.vocab import Vocab
from dnadiff.progress import closest

if TYPE_CHECKING:
    from dnadiff.data.alignment import Alignment

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_ROUNDS = 4


def bits(key: int, index: Integers) -> NDArray[np.uint64]:
    """64 random bits for each index `(B,)`: the SplitMix64 mix of index and key."""
    return _mix(_mix(index.astype(np.uint64) * _GOLDEN + _GOLDEN) ^ np.uint64(key))


def uniform(key: int, index: Integers) -> NDArray[np.float64]:
    """A number in [0, 1) for each index `(B,)`."""
    return (bits(key, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def shuffled(key: int, index: Integers, size: int) -> Integers:
    """Apply a random permutation of 0..size-1 to each index `(B,)`.

    A Feistel network over the next power of four, repeated until the result is below `size`: needs
    no memory of that size.
    """
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    values = index.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        left = values[outside] >> half
        right = values[outside] & mask
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


@dataclass(frozen=True)
class Conditions:
    """The conditions that a network takes: labels, and values such as a measured activity.

    It reads them as `cond` (B, C). A label has one column, 1 where it applies. A value has two
    columns: 1 where it is given, and its distance from the mean in standard deviations. A row of
    zeros is no condition.

    Attributes:
        labels: their names.
        values: mean and standard deviation of each value in the training data.
    """

    labels: tuple[str, ...] = ()
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @classmethod
    def read(cls, described: Mapping[str, Any], num_columns: int) -> Conditions:
        """Those that a run or an exported folder describes; labels without names have numbers."""
        values = described.get("values") or {}
        number = num_columns - 2 * len(values)
        labels = described.get("labels")
        if not isinstance(labels, (list, tuple)) or len(labels) != number:
            labels = range(number)
        return cls(tuple(map(str, labels)), values)

    def describe(self) -> dict[str, Any]:
        """What `read` reads."""
        return {"labels": list(self.labels), **({"values": self.values} if self.values else {})}

    @property
    def num_columns(self) -> int:
        """C."""
        return len(self.labels) + 2 * len(self.values)

    @property
    def choices(self) -> tuple[str, ...]:
        """What `row` takes, with NUMBER in place of a value."""
        return (*self.labels, *(f"{name}=NUMBER" for name in self.values))

    def row(self, names: Sequence[str]) -> list[float]:
        """The columns `(C,)` of labels such as `yeast` and of values such as `activity=2.5`.

        Raises:
            ValueError: if one is not known, or its value is not a number.
        """
        row = [0.0] * self.num_columns
        columns = {name: len(self.labels) + 2 * n for n, name in enumerate(self.values)}
        for name in names:
            key, _, text = name.partition("=")
            if name in self.labels:
                row[self.labels.index(name)] = 1.0
            elif key in columns:
                mean, sd = self.values[key]
                value = number(text, f"label {name!r}: {key}")
                row[columns[key] : columns[key] + 2] = 1.0, (value - mean) / sd
            else:
                raise ValueError(
                    f"label {name!r} is not known{closest(name, self.choices)}; this model knows "
                    f"{', '.join(self.choices)}"
                )
        return row


class RecordConditions(NamedTuple):
    """The conditions of records. With `dropout`, the model also learns the unconditional
    distribution."""

    conditions: Conditions
    # (number of records, K): the numbers of each record's labels, -1 where there are fewer than K
    numbers: Integers
    values: NDArray  # (number of records, 2 V): their columns
    dropout: float = 0.0  # fraction of training windows without conditions (a row of zeros)

    @classmethod
    def of(
        cls,
        labels: Sequence[Sequence[str]],
        values: Mapping[str, Sequence[float]],
        dropout: float = 0.0,
    ) -> RecordConditions | None:
        """From the labels and values of each record; None if no record has any.

        Raises:
            ValueError: if all records have the same value.
        """
        names = sorted({label for many in labels for label in many})
        place = {name: each for each, name in enumerate(names)}
        numbers = np.full((len(labels), max(map(len, labels), default=0)), -1)
        for row, many in zip(numbers, labels):
            row[: len(many)] = [place[label] for label in many]
        scales = {name: (float(np.mean(v)), float(np.std(v))) for name, v in values.items()}
        columns = np.zeros((len(labels), 2 * len(values)), np.float32 if values else np.uint8)
        for n, (name, (mean, sd)) in enumerate(scales.items()):
            if not sd:
                raise ValueError(
                    f"{name} is {mean:g} in all records, expected different values; leave it out "
                    "of data.condition_columns"
                )
            columns[:, 2 * n] = 1
            columns[:, 2 * n + 1] = (np.asarray(values[name]) - mean) / sd
        found = Conditions(tuple(names), scales)
        return cls(found, numbers, columns, dropout) if found.num_columns else None

    def rows(self, record: Integers, *window: Any) -> NDArray:
        """The columns of records `(B, C)`, whatever the window."""
        # the last column takes the entries of -1
        rows = np.zeros((len(record), len(self.conditions.labels) + 1), dtype=np.uint8)
        rows[np.arange(len(record))[:, None], self.numbers[record]] = 1
        return np.concatenate([rows[:, :-1], self.values[record]], axis=1)


def number(text: str, what: str) -> float:
    """A finite number; a ValueError names `what` it is."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{what} is {text[:40]!r}, expected a number; correct it")
    return value


class Columns(NamedTuple):
    """The columns of an alignment. With `dropout`, the model also learns to do without them."""

    alignment: Alignment
    names: Sequence[str]  # of the records
    dropout: float = 0.0  # fraction of training windows without columns (zeros)

    def rows(
        self, record: Integers, start: Integers, length: int, reverse: Mask | None
    ) -> NDArray[np.float32]:
        """The columns of windows `(B, length, 10)`, complemented where `reverse` is True."""
        turned = np.zeros(len(record), bool) if reverse is None else reverse
        places = zip(record.tolist(), start.tolist(), turned.tolist())
        found = [self.alignment.columns(self.names[n], at, at + length, rc) for n, at, rc in places]
        return np.stack(found)


Batch = dict[str, torch.Tensor]
Window = dict[str, Any]  # an item: a row of a batch, whose `index` is an int
# Arrays of a batch from record, start and strand of each row
Cut = Callable[[Integers, Integers, Mask | None], dict[str, NDArray]]


class SampledWindows(Dataset[Window]):
    """Training windows: window i of epoch e depends only on (seed, e, i), not on the process that
    asks for it.

    Index with (e, i), or with i in epoch 0. An item is a dict: `ids (L,)` token ids, `weight (L,)`
    uint8, 1 where the id can be emitted (0 for N; float32 for a fractional `soft_weight`), `index`
    i, `valid (L,)` bool if there is padding, and `cond`, `(C,)` if there are labels or values, or
    `(L, 10)` float32 if there is an alignment.

    Attributes:
        cut: the arrays of a batch from record, start and strand of its windows.
        size: windows in an epoch.
        num_starts: different windows, without those of the other strand.
        augment_rc: replace half of the windows, at random, by their reverse complement.
        cond: labels and values of the records, or columns of an alignment.
    """

    cut: Cut
    size: int
    num_starts: int
    seed: int
    augment_rc = False
    cond: RecordConditions | Columns | None = None

    @abstractmethod
    def _places(self, epoch: int, index: Integers) -> tuple[Integers, Integers]:
        """Record and start of windows `index (B,)` of an epoch."""

    def places(self, epoch: int, index: Integers) -> tuple[Integers, Integers, Mask]:
        """Record and start of windows `index (B,)` of an epoch, and whether they are
        reverse-complemented: three arrays `(B,)`."""
        reverse = np.zeros(len(index), dtype=bool)
        if self.augment_rc:
            reverse = bits(hash64(self.seed, "strand", epoch), index) & np.uint64(1) == 1
        return *self._places(epoch, index), reverse

    def batch(self, epoch: int, first: int, count: int, step: int = 1) -> Batch:
        """The `count` windows `first`, `first + step`, ... of an epoch, collated."""
        index = np.arange(first, first + count * step, step)
        record, start, reverse = self.places(epoch, index)
        arrays = self.cut(record, start, reverse) | {"index": index}
        if self.cond is not None:
            dropped = uniform(hash64(self.seed, "label", epoch), index) < self.cond.dropout
            rows = self.cond.rows(record, start, arrays["ids"].shape[1], reverse)
            rows[dropped] = 0
            arrays["cond"] = rows
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: int | tuple[int, int]) -> Window:
        epoch, index = key if isinstance(key, tuple) else (0, key)
        if not 0 <= index < self.size:
            raise IndexError(f"window {index} of {self.size}")
        batch = self.batch(int(epoch), int(index), 1)
        return {name: rows[0] for name, rows in batch.items()} | {"index": index}


@dataclass(eq=False)
class RandomWindows(SampledWindows):
    """Training windows that are cut out of intervals; for items see `SampledWindows`.

    Args:
        intervals: intervals to cut windows from.
        length: tokens of a record in a window.
        size: windows in an epoch; 0: each window once.
        n_runs: the runs of N; None: no window is left out.
        max_n: maximum fraction of N in a window.
        soft_weight: weight of soft-masked bases.
        ends: ids put at the ends of every window.

    Raises:
        ValueError: if no interval is as long as a window, or `augment_rc` is set for a vocabulary
            without complement.
    """

    records: Records
    intervals: Sequence[Interval]
    length: int
    size: int
    vocab: Vocab
    seed: int
    augment_rc: bool = False
    n_runs: InitVar[NRuns | None] = None
    max_n: InitVar[float] = 1.0
    soft_weight: InitVar[float] = 1.0
    cond: RecordConditions | Columns | None = None
    ends: InitVar[Ends] = None

    def __post_init__(
        self, n_runs: NRuns | None, max_n: float, soft_weight: float, ends: Ends
    ) -> None:
        if self.augment_rc and self.vocab.complement is None:
            raise ValueError(
                "augment_rc true is for DNA, and this vocabulary has no complement; set "
                "data.augment_rc=false"
            )
        where = _long_enough(self.intervals, self.length)
        self.cut = Cutter(self.records, self.length, self.vocab, soft_weight, ends)
        maximum = max_n_count(max_n, self.length)
        self.num_starts = self._index_windows(where, n_runs, maximum)
        if not self.num_starts:
            raise ValueError(_too_much_n(self.length, max_n))
        self.size = self.size or self.num_starts

    @abstractmethod
    def _index_windows(self, where: Intervals, n_runs: NRuns | None, max_count: int) -> int:
        """Compute which windows there are, and return their number."""


@dataclass(eq=False)
class UniformWindows(RandomWindows):
    """Random windows whose start is uniform over all starts that the intervals and `max_n` allow.

    An epoch may contain a window twice, and need not cover every base. Arguments and items as in
    `RandomWindows`.

    Args:
        weights: for each record how often its starts are drawn, relative to those of others,
            `(number of records,)`; None: equally often.

    Raises:
        ValueError: as `RandomWindows`, or if no record of a weight above 0 has a window.
    """

    weights: NDArray[np.float64] | None = None

    def _index_windows(self, where: Intervals, n_runs: NRuns | None, max_count: int) -> int:
        first = where.start
        after = where.end - self.length + 1
        self._record = where.record
        if n_runs is not None:
            too_many = n_runs.count(where.record, where.start, where.end) > max_count
            # in the other intervals every start is allowed
            if unclear := np.flatnonzero(too_many).tolist():
                allowed = [n_runs.allowed(where[i], self.length, max_count) for i in unclear]
                count = np.ones(len(where), np.int64)
                count[unclear] = [len(ranges) for ranges in allowed]
                first, after, self._record = (
                    np.repeat(each, count) for each in (first, after, self._record)
                )
                replaced = np.repeat(too_many, count)
                first[replaced], after[replaced] = np.concatenate(allowed).T
        self._last = np.cumsum(after - first)  # number of starts up to the end of each range
        self._shift = after - self._last  # position of a start in its record minus its number
        if self.weights is not None and len(self._last):
            self._mass = np.cumsum(self.weights[self._record] * (after - first))
            if not self._mass[-1]:
                raise ValueError(
                    "every window for training is of a file with weight 0 in the manifest; give "
                    "another file a weight above 0"
                )
        return int(self._last.max(initial=0))

    def _places(self, epoch: int, index: Integers) -> tuple[Integers, Integers]:
        key = hash64(self.seed, "window", epoch)
        if self.weights is None:
            drawn = bits(key, index) >> np.uint64(1)
            number = (drawn % np.uint64(self.num_starts)).astype(np.int64)
            found = np.searchsorted(self._last, number, "right")
        else:
            mass = uniform(key, index) * self._mass[-1]
            last = np.searchsorted(self._mass, self._mass[-1])
            found = np.minimum(np.searchsorted(self._mass, mass, "right"), last)
            first = np.where(found > 0, self._last[found - 1], 0)
            drawn = bits(hash64(key, "start"), index) >> np.uint64(1)
            number = first + drawn.astype(np.int64) % (self._last[found] - first)
        return self._record[found], number + self._shift[found]


class IntervalWindows(RandomWindows):
    """Each tile of each interval once per epoch, in random order, as published loaders read a BED
    of windows.

    Indices beyond the number of tiles begin another random order. Arguments and items as in
    `RandomWindows`.
    """

    def _index_windows(self, where: Intervals, n_runs: NRuns | None, max_count: int) -> int:
        self._tiling = Tiling(where, self.length)
        self._kept = None if n_runs is None else self._tiling.with_few_n(n_runs, max_count)
        return len(self._tiling) if self._kept is None else len(self._kept)

    def _places(self, epoch: int, index: Integers) -> tuple[Integers, Integers]:
        key = hash64(self.seed, "window", epoch)
        number = in_random_order(lambda turn: hash64(key, "order", turn), index, self.num_starts)
        if self._kept is not None:
            number = self._kept[number].astype(np.int64)
        return self._tiling.at(number)[:2]


def in_random_order(key: Callable[[int], int], index: Integers, size: int) -> Integers:
    """The number in 0..size-1 of each index `(B,)`: `size` indices have each number once, in the
    random order of `key(turn)`, and the next ones begin another turn."""
    number = np.empty(len(index), np.int64)
    turns = index // size
    for turn in np.unique(turns).tolist():
        rows = turns == turn
        number[rows] = shuffled(key(turn), index[rows] % size, size)
    return number


class TiledWindows(Dataset[Window]):
    """Adjacent windows that count every position of the intervals once.

    The last tile of an interval is shifted inwards instead of shortened; its overlap with the
    previous tile gets weight 0, unless the previous tile is left out: every base in some tile that
    can be counted is counted once. Intervals shorter than a window are left out. Tiles whose
    fraction of N exceeds `max_n` are left out and counted in `left_out`. Items are as in
    `SampledWindows`, with `index` the number in `tiles`.

    Args:
        intervals: intervals to cover.
        length: tokens of a record in a window.
        n_runs: the runs of N; None: no window is left out.
        max_n: maximum fraction of N in a window.
        cond: as in `SampledWindows`; never dropped here.
        ends: ids put at the ends of every window.
        cut: see `SampledWindows`; None: a `Cutter`.

    Attributes:
        length: tokens in a window, `ends` included.

    Raises:
        ValueError: if no interval is as long as a window.
    """

    def __init__(
        self,
        records: Records,
        intervals: Sequence[Interval],
        length: int,
        vocab: Vocab,
        n_runs: NRuns | None = None,
        max_n: float = 1.0,
        cond: RecordConditions | Columns | None = None,
        ends: Ends = None,
        cut: Cut | None = None,
    ) -> None:
        self.records = records
        self.cond = cond
        self.cut = cut or Cutter(records, length, vocab, ends=ends)
        self._lead = int(ends is not None)  # positions before the first one from the record
        self.length = length + 2 * self._lead
        tiling = Tiling(_long_enough(intervals, length), length)
        number = np.arange(len(tiling))
        if n_runs is not None:
            number = tiling.with_few_n(n_runs, max_n_count(max_n, length)).astype(np.int64)
        self.left_out = len(tiling) - len(number)
        if not len(number):
            raise ValueError(_too_much_n(length, max_n))
        self._record, self._start, skip = tiling.at(number)
        # the previous tile was not left out, and has counted the overlap
        self._skip = np.where(np.diff(number, prepend=-2) == 1, skip, 0)

    @cached_property
    def tiles(self) -> list[Tile]:
        """All windows, in order."""
        return [*map(Tile, self._record.tolist(), self._start.tolist(), self._skip.tolist())]

    def __len__(self) -> int:
        return len(self._start)

    def __getitem__(self, index: int) -> Window:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        rows = slice(index, index + 1)
        arrays = self.cut(self._record[rows], self._start[rows], None)
        arrays["weight"][0, self._lead : self._lead + self._skip[index]] = 0
        if self.cond is not None:
            where = self._record[rows], self._start[rows], self.length
            arrays["cond"] = self.cond.rows(*where, None)
        return {name: torch.from_numpy(array[0]) for name, array in arrays.items()} | {
            "index": index
        }


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
