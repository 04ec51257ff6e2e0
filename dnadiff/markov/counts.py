"""How often each base followed each context: the counts under `dnadiff.markov.model`, of a whole genome or of what was read so far.

Sequences are arrays of bases as in `dnadiff.kmers`; a context that holds an unknown base has no counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np

from dnadiff.kmers import UNKNOWN, codes, reverse_complement, reverse_complement_codes, spectrum

_TABLE_ORDER = 9  # orders up to here are tables of 4^(order+1) counts; higher ones share one sorted array of windows
_BLOCK = 1 << 19  # bases looked at at once: bounds the memory on top of the sequence


class Stretch:
    """A stretch of bases with what precedes each of them.

    `index` is the code of the last bases, a place in a table. The `words` read backwards from each position, the base just before it
    as the highest of `order` digits in radix 5 (4 is unknown): contexts that agree in their last k bases are neighbours in
    sorted order, for every k at once.
    """

    def __init__(self, stretch: np.ndarray, order: int):
        """`stretch` opens with the `order` bases that precede the first one of interest."""
        self.stretch, self.order = stretch, order
        self.bases = stretch[order:]  # (L,)
        position = np.arange(len(stretch))
        after_unknown = np.maximum.accumulate(np.concatenate([[0], np.where(stretch[:-1] < UNKNOWN, 0, position[1:])]))
        self.known = (position - after_unknown)[order:]  # (L,) known bases in a row before each position, `order` at most
        digits = min(order, _TABLE_ORDER)
        self.index = codes(stretch[:-1], digits)[0][order - digits :].view(np.int64) if digits else np.zeros(len(self.bases), np.int64)

    def words(self) -> np.ndarray:
        """(L,) uint64, not kept: counting needs them once, unsorted."""
        words = np.zeros(len(self.bases), np.uint64)
        for distance in range(1, self.order + 1):
            words *= np.uint64(5)
            words += self.stretch[self.order - distance : len(self.stretch) - distance]
        return words

    @cached_property
    def sorted_words(self) -> tuple[np.ndarray, np.ndarray]:
        """The words in ascending order and the position of each: searching for neighbours in turn reads neighbouring memory."""
        words = self.words()
        position = np.argsort(words)
        return words[position], position


class Counts:
    """n(c, x) of every order: tables for short contexts, one sorted array of windows (next base, context backwards) for long ones."""

    def __init__(self, bases: np.ndarray, order: int):
        self.order = order
        self.num_bases = int((bases < UNKNOWN).sum())
        self._tables = [spectrum([bases], k + 1, both_strands=True).reshape(-1, 4) for k in range(min(order, _TABLE_ORDER) + 1)]
        self._windows = np.empty(2 * self.num_bases if order > _TABLE_ORDER else 0, np.uint64)
        filled = 0
        for strand in (bases, reverse_complement(bases)) if order > _TABLE_ORDER else ():
            for _, seen in stretches(strand, order):
                known = seen.bases < UNKNOWN
                words = seen.words()[known] + seen.bases[known] * _digit(order)
                self._windows[filled : filled + len(words)] = words
                filled += len(words)
        self._windows.sort()

    def after(self, seen: Stretch, order: int) -> np.ndarray:
        """How often each base followed the last `order` bases before each position: (L, 4) int64, zero where those are not all known."""
        if order <= _TABLE_ORDER:
            return np.where(seen.known[:, None] >= order, self._tables[order][seen.index & (4**order - 1)], 0)
        words, position = seen.sorted_words
        known = seen.known[position] >= order
        words, position = words[known], position[known]
        width = _digit(self.order - order)
        first = words - words % width
        counts = np.zeros((len(seen.bases), 4), np.int64)
        for x in range(4):
            low = first + np.uint64(x) * _digit(self.order)
            counts[position, x] = np.searchsorted(self._windows, low + width) - np.searchsorted(self._windows, low)
        return counts


def _digit(place: int) -> np.uint64:
    return np.uint64(5**place)


def stretches(bases: np.ndarray, order: int) -> Iterator[tuple[slice, Stretch]]:
    """The sequence in blocks, each with the `order` bases before it; nothing precedes the first."""
    padded = np.concatenate([np.full(order, UNKNOWN, np.uint8), bases])
    for start in range(0, len(bases), _BLOCK):
        stretch = padded[start : start + _BLOCK + order]
        yield slice(start, start + len(stretch) - order), Stretch(stretch, order)


def of_next(counts: np.ndarray, bases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """n(c, x) for the base x that comes next, and n(c): both (L,); at unknown bases the first means nothing."""
    return counts[np.arange(len(bases)), bases & 3], counts.sum(1)


class RunningCounts:
    """n(c, x) of one order for a sequence that is read block by block: counts of the blocks before in a table, ranks within a block."""

    def __init__(self, order: int, both_strands: bool):
        self.order, self.both_strands = order, both_strands
        self._table = np.zeros(4 ** (order + 1), np.int32)

    def add(self, stretch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """n(c, x) and n(c), both (L,) int64, at each of the L bases of a block that follows `order` bases; then the block is counted."""
        words, valid = codes(stretch, self.order + 1)
        where = np.flatnonzero(valid)
        events, strands = _events(words[where], self.order + 1, self.both_strands)
        n_x, n = np.zeros((2, len(stretch) - self.order), np.int64)
        contexts = self._table.reshape(-1, 4)
        n[where] = _before(events >> np.uint64(2), lambda c: contexts[c].sum(1))[::strands]
        n_x[where] = _before(events, lambda c: self._table[c], self._count)[::strands]
        return n_x, n

    def _count(self, words: np.ndarray, times: np.ndarray) -> None:
        self._table[words] += times.astype(np.int32)


def _events(words: np.ndarray, k: int, both_strands: bool) -> tuple[np.ndarray, int]:
    """The windows in the order in which they become known, and how many at once: with both strands the forward one stands first, so
    that its own reverse is not yet counted."""
    strands = [words, reverse_complement_codes(words, k)] if both_strands else [words]
    return np.stack(strands, axis=1).ravel(), len(strands)


def _before(
    events: np.ndarray, earlier: Callable[[np.ndarray], np.ndarray], count: Callable[[np.ndarray, np.ndarray], None] | None = None
) -> np.ndarray:
    """For each event how many equal ones stand before it: here, and `earlier(values)` of them; `count(values, times)` hears of those here.

    One sort of (value, place) in a single integer, which is unique: several times faster than a stable sort of places.
    """
    shift = np.uint64(max(len(events) - 1, 1).bit_length())
    key = events << shift | np.arange(len(events), dtype=np.uint64)
    key.sort()
    place, value = (key & np.uint64((1 << int(shift)) - 1)).view(np.int64), (key >> shift).view(np.int64)
    first = np.flatnonzero(np.append(True, value[1:] != value[:-1])[: len(value)])
    times = np.diff(np.append(first, len(value)))
    rank = np.empty(len(events), np.int64)
    rank[place] = np.arange(len(events)) + np.repeat(earlier(value[first]) - first, times)
    if count is not None:
        count(value[first], times)
    return rank


def counts_so_far(bases: np.ndarray, order: int, both_strands: bool) -> tuple[np.ndarray, np.ndarray]:
    """n(c, x) and n(c) at each position, counted over the windows that end before it: both (L,) int64."""
    words, valid = codes(bases, order + 1)
    start = np.flatnonzero(valid)
    words = words[start]
    events, strands = _events(words, order + 1, both_strands)
    n_x, n = np.zeros((2, len(bases)), np.int64)
    n_x[start + order] = _earlier_equals(events)[::strands]
    n[start + order] = _earlier_equals(events >> np.uint64(2))[::strands]
    return n_x, n


def _earlier_equals(values: np.ndarray) -> np.ndarray:
    """For each value, how many equal ones stand before it."""
    order = np.argsort(values, kind="stable")
    ordered, place = values[order], np.arange(len(values))
    first = np.maximum.accumulate(np.where(np.append(True, ordered[1:] != ordered[:-1])[: len(values)], place, 0))
    rank = np.empty(len(values), np.int64)
    rank[order] = place - first
    return rank
