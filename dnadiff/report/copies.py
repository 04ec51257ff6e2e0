"""How much of the samples stands in the training part, on either strand: memory, not knowledge."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dnadiff.kmers import UNKNOWN, KmerSet, checked, codes, reverse_complement

_SEED = 11  # matches begin with a word of so many bases, looked up in a table of 4^11


class Training:
    """The training part, ready to be searched on both strands.

    Memory: about 40 bytes a base while it is built, and 34 MB for the table.

    Args:
        sequences: arrays of bases; no match reaches from one into the next.
        k: bases in a word that counts as seen.

    Raises:
        ValueError: if it holds no known base.
    """

    def __init__(self, sequences: Iterable[np.ndarray], k: int = 24) -> None:
        sequences = checked(sequences)
        if not any((bases < UNKNOWN).any() for bases in sequences):
            raise ValueError("the training part holds no known base (A, C, G or T); copies cannot be looked for")
        gap = np.array([UNKNOWN], np.uint8)
        both = [part for bases in sequences for part in (gap, bases, gap, reverse_complement(bases))]
        self._text = np.concatenate([*both, gap])  # an unknown base at both ends and between: nothing runs out of the text
        self.k, self._words = k, KmerSet(sequences, k)
        values, known = codes(self._text, _SEED)
        place = np.flatnonzero(known)
        self._place = place[np.argsort(values[place], kind="stable")]
        self._first = np.concatenate([[0], np.cumsum(np.bincount(values[place].view(np.int64), minlength=4**_SEED))])

    def seen(self, windows: np.ndarray) -> np.ndarray:
        """Words of each window that the training part holds, and all its words without unknown bases: (S, 2)."""
        return np.array([(self._words.hits(bases).sum(), codes(bases, self.k)[1].sum()) for bases in windows])

    def longest_match(self, windows: np.ndarray) -> np.ndarray:
        """Bases in the longest stretch of each window that the training part holds exactly: (S,)."""
        return np.array([self._longest(bases) for bases in windows])

    def _longest(self, bases: np.ndarray) -> int:
        values, known = codes(bases, _SEED)
        start, hits = np.flatnonzero(known), self._words.hits(bases)
        if hits.any() and self.k >= _SEED:  # the longest match then begins with a word that was seen
            start = np.flatnonzero(hits)
        first, after = (self._first[values[start].view(np.int64) + one] for one in (0, 1))
        number = after - first
        if not number.sum():
            return next((k for k in range(_SEED - 1, 0, -1) if KmerSet([self._text], k).contains_any(bases)), 0)
        offset = np.repeat(start, number)
        rank = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
        place = self._place[np.repeat(first, number) + rank]
        # What goes on to the left is part of a match that begins there.
        padded = np.append(bases, np.uint8(UNKNOWN))  # padded[-1] stands before the window as well as behind it
        goes_on = _same(padded[offset - 1], self._text[place - 1])
        offset, place, length = offset[~goes_on], place[~goes_on], _SEED
        while True:
            going = _same(padded[offset + length], self._text[place + length])
            if not going.any():
                return length
            offset, place, length = offset[going], place[going], length + 1


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a == b) & (a < UNKNOWN)
