"""Records of token ids: intervals of them, the runs of N in them, and cutting a batch of windows
out of them, all rows at once, from either strand.

Millions of intervals are three arrays, and are read one by one like a list. The number of N in a
window comes from prefix sums over the runs, not over the bases; it is piecewise linear in the start
of the window, so that the allowed starts form ranges, which are computed exactly and once. Rows,
strand, case and weight of a batch are computed on whole arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import DTypeLike, NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dnadiff.data.tokenizer import TokenIds
from dnadiff.diffusion.vocab import Vocab

T = TypeVar("T")
LONGEST = 1 << 40  # more tokens than any record has
TOKENS = 1 << 18  # of a batch, padding included: what a network reads at once

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Interval(NamedTuple):
    """Tokens `start` to `end` (0-based, half-open) of record number `record`."""

    record: int
    start: int
    end: int


@dataclass(eq=False)
class Intervals(Sequence[Interval]):
    """Intervals as arrays `(K,)`; equal to any sequence of the same intervals."""

    record: Integers
    start: Integers
    end: Integers

    @classmethod
    def of(cls, intervals: Iterable[Interval]) -> Intervals:
        """From any intervals; no copy if they are arrays already."""
        if isinstance(intervals, Intervals):
            return intervals
        return cls(*np.array(list(intervals), dtype=np.int64).reshape(-1, 3).T)

    @classmethod
    def whole(cls, lengths: Sequence[int]) -> Intervals:
        """Complete records of these lengths."""
        size = np.array(lengths, dtype=np.int64)
        return cls(np.arange(len(size)), np.zeros_like(size), size)

    @property
    def length(self) -> Integers:
        """Number of tokens of each interval."""
        return self.end - self.start

    def where(self, chosen: NDArray | slice) -> Intervals:
        """Those that a mask, indices or a slice choose."""
        return Intervals(self.record[chosen], self.start[chosen], self.end[chosen])

    def __len__(self) -> int:
        return len(self.record)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return self.where(number)
        return Interval(int(self.record[number]), int(self.start[number]), int(self.end[number]))

    def __iter__(self) -> Iterator[Interval]:
        return map(Interval, self.record.tolist(), self.start.tolist(), self.end.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


def num_tokens(intervals: Iterable[Interval]) -> int:
    """Number of tokens in all intervals."""
    return int(Intervals.of(intervals).length.sum())


class NRuns:
    """Runs of N in records, with positions counted over all records.

    Args:
        runs: (start, end) of each run, `(K, 2)`, sorted; no run crosses the border of a record.
        offsets: first position of each record, `(number of records,)`.
    """

    def __init__(self, runs: Integers, offsets: Sequence[int] | Integers) -> None:
        self.starts = np.ascontiguousarray(runs[:, 0])
        self.ends = np.ascontiguousarray(runs[:, 1])
        self.offsets = np.asarray(offsets, dtype=np.int64)
        self._total: Integers = np.append(0, np.cumsum(self.ends - self.starts))
        self._ends = np.append(0, self.ends)

    def before(self, position: Integers) -> Integers:
        """Number of N before each position, counted over all records."""
        number = np.searchsorted(self.starts, position, "right")
        return self._total[number] - np.maximum(self._ends[number] - position, 0)

    def count(self, record: int | Integers, start: int | Integers, end: int | Integers) -> Integers:
        """Number of N in each window `[start, end)`; arguments broadcast."""
        base = self.offsets[record]
        return self.before(base + end) - self.before(base + start)

    def allowed(self, interval: Interval, length: int, maximum: int) -> Integers:
        """The starts of windows of `length` inside an interval with at most `maximum` N, as ranges
        `(K, 2)`: first, and one past the last."""
        record, start, end = interval
        last = end - length + 1  # one past the last start
        base = int(self.offsets[record])
        low = np.searchsorted(self.ends, base + start, "right")
        high = np.searchsorted(self.starts, base + end, "left")
        knots = np.concatenate([self.starts[low:high], self.ends[low:high]]) - base
        # A window at `last` would leave the interval.
        breaks = np.concatenate([[start, last - 1, last], knots, knots - length])
        breaks = np.unique(breaks[(breaks >= start) & (breaks <= last)])
        begin = breaks[:-1]
        stop = breaks[1:]
        number = self.count(record, breaks, breaks + length)
        here = number[:-1]
        slope = np.sign(np.diff(number))
        # Between two breaks the number of N is constant, or changes by one per base.
        first = np.where(slope < 0, np.maximum(begin, begin + here - maximum), begin)
        after = np.where(slope > 0, np.minimum(stop, begin + maximum - here + 1), stop)
        kept = (first < after) & ((slope != 0) | (here <= maximum))
        first = first[kept]
        after = after[kept]
        return merged(first, after, first[1:] == after[:-1])


def merged(starts: Integers, ends: Integers, joins: Mask) -> Integers:
    """Ranges `(K, 2)` in order: those that `joins (K - 1,)` to the one before are one."""
    first = np.append(True, ~joins)[: len(starts)]
    last = np.append(~joins, True)[: len(starts)]
    return np.stack([starts[first], ends[last]], axis=1)


def union(intervals: Iterable[Interval], touching: bool = False) -> Intervals:
    """The intervals of all tokens in some intervals, sorted: those that overlap, or with `touching`
    also those that follow each other, are one."""
    every = Intervals.of(sorted(intervals))
    starts, ends = (every.record * LONGEST + each for each in (every.start, every.end))
    ends = np.maximum.accumulate(ends)
    starts, ends = merged(starts, ends, starts[1:] < ends[:-1] + touching).T
    return Intervals(starts // LONGEST, starts % LONGEST, ends % LONGEST)


def max_n_count(fraction: float, length: int) -> int:
    """Maximum number of N in a window of `length` whose fraction of N is at most `fraction`."""
    return int(np.floor(fraction * length + 1e-9))


_BLOCK = 1 << 20  # tiles that are checked together


class Tile(NamedTuple):
    """A window of `TiledWindows`."""

    record: int  # number of the record
    start: int  # first position in the record, from 0
    skip: int  # number of leading positions that the previous tile has already covered


@dataclass(eq=False)
class Tiling:
    """Adjacent windows in intervals, numbered consecutively and computed from their numbers; the
    last window of an interval is shifted inwards to fit.

    Args:
        intervals: intervals to cover, none shorter than a window.
        length: tokens in a window.
    """

    intervals: Intervals
    length: int

    def __post_init__(self) -> None:
        # one past the last tile of each interval
        self._last = np.cumsum(-(-self.intervals.length // self.length))

    def __len__(self) -> int:
        return int(self._last.max(initial=0))

    def at(self, number: Integers) -> tuple[Integers, Integers, Integers]:
        """Record, start and skip of tiles `number (B,)`."""
        interval = np.searchsorted(self._last, number, "right")
        where = self.intervals.where(interval)
        before = np.where(interval > 0, self._last[interval - 1], 0)
        regular = where.start + (number - before) * self.length
        start = np.minimum(regular, where.end - self.length)
        return where.record, start, regular - start

    def with_few_n(self, n_runs: NRuns, maximum: int) -> NDArray[np.integer]:
        """The numbers of the tiles that contain at most `maximum` N."""
        kept = []
        for first in range(0, len(self), _BLOCK):
            number = np.arange(first, min(first + _BLOCK, len(self)))
            record, start, _ = self.at(number)
            few = n_runs.count(record, start, start + self.length) <= maximum
            kept.append(number[few].astype(np.uint32 if len(self) < 2**32 else np.int64))
        return np.concatenate(kept)


class TokenArray(Protocol):
    """The token ids of a record; a NumPy array is one."""

    def __len__(self) -> int:
        """Number of tokens."""

    def __getitem__(self, key: slice, /) -> TokenIds:
        """Some of the tokens as an array."""


Records = Sequence[TokenArray]
SOFT_MASKED = 0x80  # the bit of a stored byte that says that the letter was lower case
TOKEN = np.uint8(0x7F)  # the bits of the token id
MAX_MAPPED = 128  # files that are open at a time


class StoredArray(NamedTuple):
    """An array in a file, mapped when it is needed: few files are open at a time, however many
    there are. It is pickled as a path."""

    path: str
    dtype: str
    size: int  # bytes
    version: tuple[int, int]  # inode and time stamp: another file may take its place

    @classmethod
    def at(cls, path: Path, dtype: DTypeLike = np.uint8) -> StoredArray:
        """The array in a file."""
        about = path.stat()
        version = about.st_ino, about.st_mtime_ns
        return cls(str(path), np.dtype(dtype).str, about.st_size, version)

    @property
    def mapped(self) -> NDArray:
        """The array, read-only."""
        return _mapped(self) if self.size else np.empty(0, self.dtype)


@functools.lru_cache(maxsize=MAX_MAPPED)
def _mapped(stored: StoredArray) -> NDArray:
    # Slicing a memmap takes five times as long as slicing an array.
    return np.memmap(stored.path, stored.dtype, "r").view(np.ndarray)


@dataclass(eq=False)
class Ids:
    """Token ids of a record with soft-masked bases: behaves as a read-only array `(length,)` of
    uint8, without the case."""

    packed: TokenIds

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, key: slice, /) -> TokenIds:
        return self.packed[key] & TOKEN

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray:
        return self[:].astype(dtype or np.uint8, copy=False)

    def tolist(self) -> list[int]:
        """All ids as Python integers."""
        return self[:].tolist()


@dataclass(eq=False)
class StoredRecords(Sequence[TokenArray]):
    """Records in a few large arrays, from which windows are copied in one step. Record r is
    `arrays[number[r]][offset[r] : offset[r] + length[r]]`.

    Args:
        arrays: in memory, or in files; then records are pickled as paths.
        number, offset, length: `(number of records,)`.
        soft: for each record, whether it has soft-masked bases; None: the highest bit of what is
            stored is not the case, but part of the id.
    """

    arrays: Sequence[NDArray | StoredArray]
    number: Integers
    offset: Integers
    length: Integers
    soft: Mask | None = None

    @classmethod
    def of(cls, records: Records) -> StoredRecords:
        """From any records, each an array of its own; no copy if they are stored already."""
        if isinstance(records, StoredRecords):
            return records
        arrays = [np.asarray(record[:]) for record in records]
        whole = Intervals.whole([len(array) for array in arrays])
        return cls(arrays, whole.record, whole.start, whole.end)

    def array(self, number: int) -> NDArray:
        """One of the arrays."""
        array = self.arrays[number]
        return array.mapped if isinstance(array, StoredArray) else array

    def packed(self, number: int) -> NDArray:
        """What is stored of a record, a view."""
        start = self.offset[number]
        return self.array(self.number[number])[start : start + self.length[number]]

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each record."""
        return self.length.tolist()

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, number: Any) -> Any:
        packed = self.packed(number)
        return packed if self.soft is None or not self.soft[number] else Ids(packed)


class TokenTable:
    """Which ids a model emits, and reverse complements, for NumPy arrays of ids. A table lookup per
    letter would take ten times as long as cutting a window.

    Raises:
        ValueError: if the ids of complementary bases are not mirror images of each other.
    """

    def __init__(self, vocab: Vocab) -> None:
        emitted = vocab.emitted
        complement = vocab.complement
        self.low = emitted[0]
        self.span = emitted[-1] - emitted[0]
        has_gaps = len(emitted) <= self.span  # BERT's mask is in between
        self.table = vocab.is_emitted().numpy().view(np.uint8) if has_gaps else None
        self.mirror = None
        if complement is not None:
            self.mirror = complement[self.low] + self.low
            if any(complement[i] + i != self.mirror for i in emitted):
                raise ValueError(
                    f"complement {complement} is not a mirror image of the emitted ids; number "
                    "complementary letters from both ends"
                )

    def is_emitted(self, ids: TokenIds) -> TokenIds:
        """1 where an id can be emitted, else 0; same shape as `ids`."""
        if self.table is not None:
            return self.table[ids]
        # unsigned: ids below `low` wrap around to large numbers
        return ((ids - self.low) <= self.span).view(np.uint8)

    def reverse_complement(self, ids: TokenIds) -> TokenIds:
        """The reverse complements of rows `(B, L)`, of a vocabulary that has a complement."""
        assert self.mirror is not None
        if ids.itemsize == 1 and ids.shape[1] % 8 == 0:  # eight bytes per step
            eights = np.ascontiguousarray(ids).view(np.uint64)[:, ::-1]
            ids = eights.byteswap().view(ids.dtype)
        else:
            ids = ids[:, ::-1].copy()
        mirrored = np.uint8(self.mirror) - ids
        return ids ^ ((ids ^ mirrored) * self.is_emitted(ids))


Ends = tuple[int, int] | None  # ids at the two ends of every window; None: none


class Cutter:
    """Cuts windows of a fixed length out of records.

    Args:
        length: tokens of a record in a window.
        soft_weight: weight of soft-masked bases; with 0 and 1 weights are uint8, with a fraction
            float32.
        ends: put at the ends of every window, and counted.
    """

    def __init__(
        self,
        records: Records,
        length: int,
        vocab: Vocab,
        soft_weight: float = 1.0,
        ends: Ends = None,
    ) -> None:
        self.records = StoredRecords.of(records)
        self.length = length
        self.tokens = TokenTable(vocab)
        self.soft_weight = soft_weight
        self.ends = ends

    def __call__(
        self, record: Integers, start: Integers, reverse: Mask | None = None
    ) -> dict[str, NDArray]:
        """`ids` and `weight (B, L)` of the windows that begin at `start`, reverse-complemented
        where `reverse` is True."""
        ids = self._stored(record, start)
        soft = None
        if self.records.soft is not None:
            soft = ids >= SOFT_MASKED if self.soft_weight != 1 else None
            ids &= TOKEN
        if reverse is not None and reverse.any():
            ids[reverse] = self.tokens.reverse_complement(ids[reverse])
            if soft is not None:
                soft[reverse] = soft[reverse, ::-1]
        weight = self.tokens.is_emitted(ids)
        if soft is not None and self.soft_weight == 0:
            weight *= ~soft
        elif soft is not None:
            weight = np.where(soft, np.float32(self.soft_weight), np.float32(1)) * weight
        return {"ids": between(self.ends, ids), "weight": between(self.ends and (1, 1), weight)}

    def _stored(self, record: Integers, start: Integers) -> NDArray:
        """The stored bytes of windows, case included: `(B, L)`."""
        number = self.records.number[record]
        position = self.records.offset[record] + start
        if (number == number[0]).all():
            return self._all_windows(number[0])[position]
        out = np.empty((len(position), self.length), self.records.array(0).dtype)
        for each in np.unique(number).tolist():
            rows = number == each
            out[rows] = self._all_windows(each)[position[rows]]
        return out

    def _all_windows(self, number: int) -> NDArray:
        """All windows of one array, without a copy."""
        return sliding_window_view(self.records.array(number), self.length)


@dataclass(eq=False)
class PaddedCutter:
    """Complete records, padded on the right and truncated, as rows of one length.

    Args:
        length: maximum length of a row, `ends` included.
        ends: put around every record, and counted.
        step: rows are padded to a multiple of this; None: to `length`.
        separator: the id of a token: what is before its first place, and itself, has weight 0;
            None: everything counts.
    """

    records: Records
    length: int
    vocab: Vocab
    ends: Ends = None
    step: int | None = None
    separator: int | None = None

    def __post_init__(self) -> None:
        self.pad_id, self.tokens = self.vocab.pad_id, TokenTable(self.vocab)

    def __call__(
        self, record: Integers, start: Integers, reverse: Mask | None = None
    ) -> dict[str, NDArray]:
        """`ids`, `weight` and `valid (B, L)` of records, reverse-complemented where `reverse` is
        True; every start is 0."""
        room = self.length - 2 * (self.ends is not None)
        rows = [np.asarray(self.records[number][:room]) for number in record.tolist()]
        if reverse is not None:
            for row in np.flatnonzero(reverse).tolist():
                rows[row] = self.tokens.reverse_complement(rows[row][None])[0]
        rows = [between(self.ends, row[None])[0] for row in rows]
        length = self.length
        if self.step is not None:
            length = min(length, -(-max(map(len, rows)) // self.step) * self.step)
        ids = np.full((len(rows), length), self.pad_id, rows[0].dtype)
        valid = np.zeros(ids.shape, bool)
        for number, text in enumerate(rows):
            ids[number, : len(text)], valid[number, : len(text)] = text, True
        weight = self.tokens.is_emitted(ids) & valid
        if self.separator is not None:
            separates = ids == self.separator
            weight *= np.cumsum(separates, 1) > separates
        return {"ids": ids, "weight": weight, "valid": valid}


def between(ends: Ends, text: NDArray) -> NDArray:
    """`text (B, L)` with the tokens at the ends of each row: `(B, L + 2)`; `text` itself if there
    are none."""
    if ends is None:
        return text
    bos, eos = (np.full((len(text), 1), end, text.dtype) for end in ends)
    return np.concatenate([bos, text, eos], axis=1)


class PaddedRows(NamedTuple):
    """Sequences of similar length, padded on the right."""

    number: list[int]  # (B,) their indices in the list
    ids: Tensor  # (B, L)
    valid: Tensor | None  # (B, L) bool, False on padding; None without padding


def pieces(lengths: Iterable[int], window: int) -> Iterator[Interval]:
    """Intervals of at most `window` tokens that cover records, one by one: as few as possible and,
    within a record, of (almost) equal length."""
    for record, length in enumerate(lengths):
        count = -(-length // window)
        for i in range(count):
            yield Interval(record, length * i // count, length * (i + 1) // count)


def grouped(
    intervals: Iterable[Interval], max_intervals: int, max_tokens: int
) -> Iterator[list[Interval]]:
    """Consecutive intervals in groups of at most so many intervals and tokens; an interval of more
    tokens is a group of its own."""
    return padded_groups(intervals, lambda i: i.end - i.start, max_intervals, max_tokens, False)


def padded_groups(
    items: Iterable[T],
    length: Callable[[T], int],
    most: float,
    tokens: int = TOKENS,
    padded: bool = True,
) -> Iterator[list[T]]:
    """Consecutive items in groups of at most `most`, which have at most so many tokens when they
    are padded to the longest (or together, if not `padded`); an item of more tokens is a group of
    its own."""
    group: list[T] = []
    longest = total = 0
    for item in items:
        size = length(item)
        longest = max(longest, size)
        total += size
        needed = longest * (len(group) + 1) if padded else total
        if group and (len(group) == most or needed > tokens):
            yield group
            group = []
            longest = size
            total = size
        group.append(item)
    if group:
        yield group


def padded_batches(
    sequences: Sequence[Tensor], batch_size: int, pad_id: int, tokens: int = TOKENS
) -> Iterator[PaddedRows]:
    """All sequences in batches (`padded_groups`), the longest first, each batch padded to its
    longest; depends only on lengths and batch size."""
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
    for number in padded_groups(order, lambda i: len(sequences[i]), batch_size, tokens):
        chosen = [sequences[i] for i in number]
        ids = pad_sequence(chosen, batch_first=True, padding_value=pad_id).long()
        valid = torch.arange(ids.shape[1]) < torch.tensor([[len(one)] for one in chosen])
        yield PaddedRows(number, ids, None if bool(valid.all()) else valid)
