"""What is known of a sequence beyond its words: dependence at a distance, the rhythm of codons, open reading frames.

A set of windows is an array (S, L) uint8 of bases as in `dnadiff.kmers`.
"""

from __future__ import annotations

import numpy as np

from dnadiff.kmers import UNKNOWN

_STOPS = ((3, 0, 0), (3, 0, 2), (3, 2, 0))  # TAA, TAG, TGA


def pair_counts(windows: np.ndarray, most: int) -> np.ndarray:
    """How often base a stands d before base b: (S, most, 16) int32 for d = 1 .. most, indexed by 4 a + b; unknown bases do not count."""
    number, length = windows.shape
    counts = np.zeros((number, most, 16), np.int32)
    row = np.arange(number)[:, None] * 17
    for d in range(1, min(most, length - 1) + 1):
        first, second = windows[:, :-d].astype(np.int64), windows[:, d:]
        pair = np.where((first < UNKNOWN) & (second < UNKNOWN), 4 * first + second, 16)
        counts[:, d - 1] = np.bincount((pair + row).ravel(), minlength=17 * number).reshape(number, 17)[:, :16]
    return counts


def mutual_information(counts: np.ndarray) -> np.ndarray:
    """Bits that a base tells about the one d further: (D,) from `pair_counts` of a set (S, D, 16), summed over its windows.

    Not corrected for the number of pairs N: independent bases give about 9/(2 N ln 2). Compare sets of one size.
    """
    joint = counts.sum(0).reshape(-1, 4, 4) / np.maximum(counts.sum((0, 2)), 1)[:, None, None]
    product = joint.sum(2)[:, :, None] * joint.sum(1)[:, None, :]
    ratio = np.divide(joint, product, where=joint > 0, out=np.ones_like(joint))
    return (joint * np.log2(ratio)).sum((1, 2))


def period_three(windows: np.ndarray) -> np.ndarray:
    """Power of the period of three bases in each window, (S,): 1 on average for independent bases, more in coding sequence.

    The squared Fourier coefficients at frequency 1/3 of the indicators of the four bases, summed, over what they are on average when the
    window's bases are shuffled (after Tiwari et al., CABIOS 13, 263, 1997).
    """
    turn = np.exp(2j * np.pi * np.arange(windows.shape[1]) / 3)
    is_base = windows[:, :, None] == np.arange(4)  # (S, L, 4)
    number = is_base.sum(1)
    total = np.maximum(number.sum(1), 1)
    centred = np.einsum("slb,l->sb", is_base, turn) - number / total[:, None] * ((windows < UNKNOWN) @ turn)[:, None]
    expected = total - (number**2).sum(1) / total
    return (np.abs(centred) ** 2).sum(1) / np.maximum(expected, 1e-12)


def longest_frame(windows: np.ndarray) -> np.ndarray:
    """Bases in the longest stretch of codons without a stop (TAA, TAG, TGA), in any of six frames: (S,).

    From stop to stop, open at both ends of a window, for genes are longer than windows; a codon with an unknown base ends a stretch.
    """
    other = np.where(windows < UNKNOWN, 3 - windows.astype(np.int16), UNKNOWN)[:, ::-1]
    return np.max([_longest(strand[:, start:]) for strand in (windows, other) for start in range(3)], axis=0)


def _longest(strand: np.ndarray) -> np.ndarray:
    """The same in the one frame that begins with the first base."""
    codons = strand[:, : strand.shape[1] // 3 * 3].reshape(len(strand), -1, 3)
    if not codons.shape[1]:
        return np.zeros(len(strand), np.int64)
    ends = (codons == UNKNOWN).any(2)
    for stop in _STOPS:
        ends |= (codons == stop).all(2)
    place = np.arange(codons.shape[1])
    last = np.maximum.accumulate(np.where(ends, place, -1), axis=1)  # the last end at or before each codon
    return 3 * (place - last).max(1)
