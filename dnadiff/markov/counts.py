"""Counts of each base after each context, for contexts of every order: the sufficient statistics of
`dnadiff.markov.model`.

Sequences are arrays of bases as in `dnadiff.kmers`. A context that contains an unknown base has no
counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from dnadiff.kmers import UNKNOWN, codes, reverse_complement, spectrum

# orders up to here are tables of 4^(order+1) counts; higher orders share one sorted array of
# windows
_TABLE_ORDER = 9
MAX_BASES = (
    500_000_000  # bases of the largest training part whose windows are stored: 16 bytes for each
)
_BLOCK = 1 << 19  # bases processed at once: bounds the memory needed in addition to the sequence


class Segment:
    """A segment of a sequence with the context of each base.

    `index` is the code of the context, an index into a table of counts. `reversed_contexts` reads
    the context backwards from each position, with the base just before it as the highest of `order`
    digits in radix 5 (4 is unknown). Contexts that agree in their last k bases are then neighbors
    in sorted order, for every k at once.

    Args:
        padded: (order + L,) the `order` bases before the segment, then its L bases.
        order: length of the longest context.
    """

    def __init__(self, padded: np.ndarray, order: int) -> None:
        self.padded, self.order = padded, order
        self.bases = padded[order:]  # (L,)
        position = np.arange(len(padded))
        after_unknown = np.maximum.accumulate(
            np.concatenate([[0], np.where(padded[:-1] < UNKNOWN, 0, position[1:])])
        )
        self.num_known = (position - after_unknown)[
            order:
        ]  # (L,) known bases in a row before each position, at most `order`
        digits = min(order, _TABLE_ORDER)
        self.index = (
            codes(padded[:-1], digits)[0][order - digits :].view(np.int64)
            if digits
            else np.zeros(len(self.bases), np.int64)
        )

    def reversed_contexts(self) -> np.ndarray:
        """(L,) uint64. Not cached: counting needs them once, unsorted."""
        contexts = np.zeros(len(self.bases), np.uint64)
        for distance in range(1, self.order + 1):
            contexts *= np.uint64(5)
            contexts += self.padded[self.order - distance : len(self.padded) - distance]
        return contexts

    @cached_property
    def sorted_contexts(self) -> tuple[np.ndarray, np.ndarray]:
        """The reversed contexts in ascending order, with their positions: searches in this order
        read neighboring memory."""
        contexts = self.reversed_contexts()
        position = np.argsort(contexts)
        return contexts[position], position


def countable(order: int, num_bases: int) -> bool:
    """Whether the counts of an order fit into memory: tables always do, windows of up to
    `MAX_BASES` bases."""
    return order <= _TABLE_ORDER or num_bases <= MAX_BASES


class Counts:
    """n(c, x) for contexts c of every order up to `order` and the next base x, on both strands.

    Short contexts have tables; long ones share one sorted array of windows (next base, context
    backwards).
    """

    def __init__(self, bases: np.ndarray, order: int) -> None:
        self.order = order
        self.num_bases = int((bases < UNKNOWN).sum())
        self._tables = [
            spectrum([bases], k + 1, both_strands=True).reshape(-1, 4)
            for k in range(min(order, _TABLE_ORDER) + 1)
        ]
        self._windows = np.empty(2 * self.num_bases if order > _TABLE_ORDER else 0, np.uint64)
        filled = 0
        for strand in (bases, reverse_complement(bases)) if order > _TABLE_ORDER else ():
            for _, segment in segments(strand, order):
                known = segment.bases < UNKNOWN
                windows = segment.reversed_contexts()[known] + segment.bases[known] * _digit(order)
                self._windows[filled : filled + len(windows)] = windows
                filled += len(windows)
        self._windows.sort()

    def following(self, segment: Segment, order: int) -> np.ndarray:
        """Counts of each base after the context of length `order` at each position: (L, 4) int64, 0
        for contexts that are not known."""
        if order <= _TABLE_ORDER:
            return np.where(
                segment.num_known[:, None] >= order,
                self._tables[order][segment.index & (4**order - 1)],
                0,
            )
        contexts, position = segment.sorted_contexts
        known = segment.num_known[position] >= order
        contexts, position = contexts[known], position[known]
        width = _digit(self.order - order)
        first = contexts - contexts % width
        counts = np.zeros((len(segment.bases), 4), np.int64)
        for x in range(4):
            low = first + np.uint64(x) * _digit(self.order)
            counts[position, x] = np.searchsorted(self._windows, low + width) - np.searchsorted(
                self._windows, low
            )
        return counts

    def of_next(self, segment: Segment, order: int) -> tuple[np.ndarray, np.ndarray]:
        """n(c, x) of the observed next base x, and n(c): both (L,); the first is meaningless at
        unknown bases."""
        counts = self.following(segment, order)
        return counts[np.arange(len(counts)), segment.bases & 3], counts.sum(1)


def _digit(place: int) -> np.uint64:
    return np.uint64(5**place)


def segments(bases: np.ndarray, order: int) -> Iterator[tuple[slice, Segment]]:
    """The sequence in consecutive segments, each with the `order` bases before it; the first one is
    preceded by unknown bases."""
    padded = np.concatenate([np.full(order, UNKNOWN, np.uint8), bases])
    for start in range(0, len(bases), _BLOCK):
        block = padded[start : start + _BLOCK + order]
        yield slice(start, start + len(block) - order), Segment(block, order)
