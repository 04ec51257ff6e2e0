"""k-mers as integers: codes on both strands, sets of k-mers, k-mer spectra.

A sequence is a uint8 array of *bases*: 0 A, 1 C, 2 G, 3 T, 4 unknown (N, the end of a record). The
code of a k-mer takes two bits per base, with the first base in the highest bits. A k-mer that
contains an unknown base has no code. Reading letters and files is done in `dnadiff.data`.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated

import numpy as np
from annotated_types import Interval
from numpy import ndarray

from dnadiff.fields import check_value

UNKNOWN = 4
MAX_K = 31  # 62 bits: the same integers fit uint64 and int64
MAX_SPECTRUM_K = 12
NOVELTY = 24  # k: a base is repeated if it is in a k-mer of the training part, on either strand
# bases of the largest training part whose 24-mers are stored: 8 GB while the set is built
MAX_KMERS = 500_000_000
K = Annotated[int, Interval(ge=1, le=MAX_K)]
SpectrumK = Annotated[int, Interval(ge=1, le=MAX_SPECTRUM_K)]
_BLOCK = 1 << 20  # k-mers processed at once: bounds the memory needed in addition to the sequence


def reverse_complement(bases: ndarray) -> ndarray:
    """Reverse complement of `bases (L,)`; unknown bases stay unknown."""
    return np.where(bases > 3, np.uint8(UNKNOWN), 3 - bases)[::-1]


def codes(bases: ndarray, k: int) -> tuple[ndarray, ndarray]:
    """Code of the k-mer that starts at each position of the forward strand.

    Returns:
        values (L-k+1,) uint64 and valid (L-k+1,) bool, False where the k-mer contains an unknown
        base (its value is then meaningless).
    """
    check_value("k", k, K)
    if len(bases) < k:
        return np.empty(0, np.uint64), np.empty(0, bool)
    digits = (bases & 3).astype(np.uint64)
    values = digits
    width = 1
    for bit in bin(k)[3:]:  # doubling, as in fast exponentiation: log2 k passes instead of k
        values = values[:-width] << np.uint64(2 * width) | values[width:]
        width *= 2
        if bit == "1":
            values = values[:-1] << np.uint64(2) | digits[width:]
            width += 1
    num_unknown = np.concatenate([[0], np.cumsum(bases > 3)])
    return values, num_unknown[k:] == num_unknown[:-k]


def canonical(bases: ndarray, k: int) -> tuple[ndarray, ndarray]:
    """As `codes`, for canonical k-mers: the smaller code of each k-mer and its reverse complement,
    the same on both strands."""
    values, valid = codes(bases, k)
    return np.minimum(values, reverse_complement_codes(values, k)), valid


def reverse_complement_codes(values: ndarray, k: int) -> ndarray:
    """Codes of the reverse complements of the k-mers with codes `values (...)` uint64."""
    x = ~values  # complement of every base: 3 - b flips both bits
    for shift, mask in (
        (2, 0x3333333333333333),
        (4, 0x0F0F0F0F0F0F0F0F),
    ):  # reverse pairs of bases, then nibbles, then bytes
        x = (x & np.uint64(mask)) << np.uint64(shift) | (x >> np.uint64(shift)) & np.uint64(mask)
    return x.byteswap() >> np.uint64(64 - 2 * k)


def spectrum(sequences: Iterable[ndarray], k: int, both_strands: bool = False) -> ndarray:
    """Number of occurrences of each of the 4^k k-mers: counts (4**k,) int64, indexed by code.

    With `both_strands` every occurrence is counted once on each strand, so a k-mer and its reverse
    complement have equal counts. k is 1..12.
    """
    check_value("k", k, SpectrumK)
    counts = np.zeros(4**k, np.int64)
    for bases in sequences:
        for _, block in blocks(bases, k, max(_BLOCK, 4**k)):
            values, valid = codes(block, k)
            counts += np.bincount(values[valid].view(np.int64), minlength=4**k)
    if both_strands:
        counts += counts[
            reverse_complement_codes(np.arange(4**k, dtype=np.uint64), k).view(np.int64)
        ]
    return counts


class KmerSet:
    """The k-mers that occur in some sequences, on either strand. A base covered by one of them is
    *repeated*, others are *novel*.

    Memory: 8 bytes per distinct k-mer, twice that during construction. k is 1..31.

    Examples:
        >>> found = KmerSet([np.array([0, 0, 1, 3], np.uint8)], k=3)  # AACT
        >>> # GTTA: GTT is the reverse complement of AAC
        >>> found.hits(np.array([2, 3, 3, 0], np.uint8)).tolist()
        [True, False]
    """

    def __init__(self, sequences: Iterable[ndarray], k: int = 24):
        self.k = check_value("k", k, K)
        sequences = list(sequences)
        values = np.empty(sum(max(len(bases) - k + 1, 0) for bases in sequences), np.uint64)
        filled = 0
        for _, block in (each for bases in sequences for each in blocks(bases, k)):
            kmers, valid = canonical(block, k)
            number = int(valid.sum())
            values[filled : filled + number] = kmers[valid]
            filled += number
        values = values[:filled]
        values.sort()
        self._values = values[np.append(True, values[1:] != values[:-1])] if filled else values

    def __len__(self) -> int:
        """Number of distinct canonical k-mers."""
        return len(self._values)

    def hits(self, bases: ndarray) -> ndarray:
        """Whether the k-mer that starts at each position is in the set: (L-k+1,) bool."""
        found = np.zeros(max(len(bases) - self.k + 1, 0), bool)
        if len(self) == 0:
            return found
        for start, block in blocks(bases, self.k):
            kmers, valid = canonical(block, self.k)
            order = np.argsort(kmers)  # consecutive queries then read neighboring memory
            index = np.minimum(np.searchsorted(self._values, kmers[order]), len(self) - 1)
            found[start + order] = (self._values[index] == kmers[order]) & valid[order]
        return found

    def covered(self, bases: ndarray) -> ndarray:
        """Whether each base is in an occurrence of a k-mer of the set: (L,) bool, True for
        *repeated* bases."""
        hits = self.hits(bases)
        change = np.zeros(len(bases) + 1, np.int32)
        change[: len(hits)] += hits
        change[self.k : self.k + len(hits)] -= hits
        return np.cumsum(change[:-1]) > 0


def blocks(bases: ndarray, k: int, size: int = _BLOCK) -> Iterator[tuple[int, ndarray]]:
    """Overlapping blocks that together contain every k-mer exactly once, each with its start
    position."""
    for start in range(0, len(bases) - k + 1, size):
        yield start, bases[start : start + size + k - 1]
