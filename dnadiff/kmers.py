"""Words of k bases as integers: codes on both strands, sets of words, spectra.

A sequence is a uint8 array of *bases*: 0 A, 1 C, 2 G, 3 T, 4 anything else (N, the end of a record). A word takes two bits
a base, its first base in the highest bits, and never contains an unknown base. Letters and files belong to `dnadiff.data`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

UNKNOWN = 4
MAX_K = 31  # 62 bits: the same integers fit uint64 and int64
MAX_SPECTRUM_K = 12
_BLOCK = 1 << 20  # windows handled at once: bounds the memory on top of the sequence


def check_bases(bases: np.ndarray) -> None:
    """Refuses what is not a sequence of bases.

    Raises:
        ValueError: if it is not a one-dimensional uint8 array of 0..4.
    """
    if not isinstance(bases, np.ndarray) or bases.dtype != np.uint8 or bases.ndim != 1:
        got = f"{bases.dtype} {bases.shape}" if isinstance(bases, np.ndarray) else type(bases).__name__
        raise ValueError(f"bases must be a one-dimensional uint8 array (0 A, 1 C, 2 G, 3 T, 4 unknown), got {got}")
    if len(bases) and bases.max() > UNKNOWN:
        raise ValueError(f"bases hold {bases.max()}; the largest is {UNKNOWN}, unknown (0 A, 1 C, 2 G, 3 T)")


def checked(sequences: Iterable[np.ndarray]) -> list[np.ndarray]:
    """The sequences as a list, each one checked.

    Raises:
        ValueError: as `check_bases`, or if one array came instead of several.
    """
    if isinstance(sequences, np.ndarray):
        raise ValueError("sequences is a single array; put it into a list: [bases]")
    sequences = list(sequences)
    for bases in sequences:
        check_bases(bases)
    return sequences


def reverse_complement(bases: np.ndarray) -> np.ndarray:
    """The other strand read in its own direction; unknown bases stay unknown."""
    return np.where(bases > 3, np.uint8(UNKNOWN), 3 - bases)[::-1]


def codes(bases: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The word of k bases that starts at each position of the forward strand.

    Returns:
        values (L-k+1,) uint64 and valid (L-k+1,) bool, False where the word holds an unknown base (its value then means nothing).

    Raises:
        ValueError: if k is outside 1..31, or `bases` is not a one-dimensional uint8 array.
    """
    _check_k(k, MAX_K)
    check_bases(bases)
    if len(bases) < k:
        return np.empty(0, np.uint64), np.empty(0, bool)
    digits = (bases & 3).astype(np.uint64)
    values, width = digits, 1
    for bit in bin(k)[3:]:  # doubling, as in fast exponentiation: log2 k passes instead of k
        values = values[:-width] << np.uint64(2 * width) | values[width:]
        width *= 2
        if bit == "1":
            values = values[:-1] << np.uint64(2) | digits[width:]
            width += 1
    return values, _windows_without(bases > 3, k)


def canonical(bases: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """As `codes`, with each word replaced by the smaller of itself and its reverse complement: one value for both strands."""
    values, valid = codes(bases, k)
    return np.minimum(values, reverse_complement_codes(values, k)), valid


def reverse_complement_codes(values: np.ndarray, k: int) -> np.ndarray:
    """The codes of the reverse complements of words of k bases: `values (...)` uint64."""
    x = ~values  # complements every base: 3 - b flips both bits
    for shift, mask in ((2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F)):  # base pairs, then nibbles, then bytes change places
        x = (x & np.uint64(mask)) << np.uint64(shift) | (x >> np.uint64(shift)) & np.uint64(mask)
    return x.byteswap() >> np.uint64(64 - 2 * k)


def spectrum(sequences: Iterable[np.ndarray], k: int, both_strands: bool = False) -> np.ndarray:
    """How often each of the 4^k words occurs: counts (4**k,) int64, indexed by code.

    With `both_strands` every occurrence is counted once on each strand, so a word and its reverse complement have equal counts.

    Raises:
        ValueError: if k is outside 1..12.
    """
    _check_k(k, MAX_SPECTRUM_K)
    counts = np.zeros(4**k, np.int64)
    for bases in checked(sequences):
        for _, block in _blocks(bases, k, max(_BLOCK, 4**k)):
            values, valid = codes(block, k)
            counts += np.bincount(values[valid].view(np.int64), minlength=4**k)
    if both_strands:
        counts += counts[reverse_complement_codes(np.arange(4**k, dtype=np.uint64), k).view(np.int64)]
    return counts


class KmerSet:
    """The words of k bases that occur in some sequences, on either strand: *repeated* bases lie in one, *novel* bases do not.

    Memory: 8 bytes for each different word, twice that while it is built.
    """

    def __init__(self, sequences: Iterable[np.ndarray], k: int = 24):
        _check_k(k, MAX_K)
        sequences = checked(sequences)
        self.k = k
        values = np.empty(sum(max(len(bases) - k + 1, 0) for bases in sequences), np.uint64)
        filled = 0
        for bases in sequences:
            for _, block in _blocks(bases, k):
                words, valid = canonical(block, k)
                words = words[valid]
                values[filled : filled + len(words)] = words
                filled += len(words)
        values = values[:filled]
        values.sort()
        self._values = values[np.append(True, values[1:] != values[:-1])] if filled else values

    def __len__(self) -> int:
        """The number of different words, a word and its reverse complement counted once."""
        return len(self._values)

    def hits(self, bases: np.ndarray) -> np.ndarray:
        """Whether the word that starts at each position is in the set: (L-k+1,) bool."""
        check_bases(bases)
        found = np.zeros(max(len(bases) - self.k + 1, 0), bool)
        if len(self) == 0:
            return found
        for start, block in _blocks(bases, self.k):
            words, valid = canonical(block, self.k)
            order = np.argsort(words)  # neighbouring queries then read neighbouring memory
            place = np.minimum(np.searchsorted(self._values, words[order]), len(self) - 1)
            found[start + order] = (self._values[place] == words[order]) & valid[order]
        return found

    def contains_any(self, bases: np.ndarray) -> bool:
        """Whether any word of the sequence is in the set."""
        return bool(self.hits(bases).any())

    def covered(self, bases: np.ndarray) -> np.ndarray:
        """Whether each base lies in some word of the set: (L,) bool, True for *repeated* bases."""
        hits = self.hits(bases)
        change = np.zeros(len(bases) + 1, np.int32)
        change[: len(hits)] += hits
        change[self.k : self.k + len(hits)] -= hits
        return np.cumsum(change[:-1]) > 0


def _windows_without(marked: np.ndarray, k: int) -> np.ndarray:
    """Which windows of k positions hold no marked one: (L-k+1,) bool."""
    total = np.concatenate([[0], np.cumsum(marked)])
    return total[k:] == total[:-k]


def _blocks(bases: np.ndarray, k: int, size: int = _BLOCK) -> Iterator[tuple[int, np.ndarray]]:
    """Pieces that together hold every window of k bases exactly once, each with the position where it starts."""
    for start in range(0, len(bases) - k + 1, size):
        yield start, bases[start : start + size + k - 1]


def _check_k(k: int, largest: int) -> None:
    if not 1 <= k <= largest:
        raise ValueError(f"k is {k}; it must lie in 1..{largest}")
