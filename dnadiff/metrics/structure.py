"""Structure beyond k-mers: mutual information between distant bases, the three-base period of
codons, open reading frames.

A set of windows is an array (S, L) uint8 of bases as in `dnadiff.kmers`.
"""

from __future__ import annotations

import numpy as np

from dnadiff.kmers import UNKNOWN

_STOPS = ((3, 0, 0), (3, 0, 2), (3, 2, 0))  # TAA, TAG, TGA


def pair_counts(windows: np.ndarray, max_distance: int) -> np.ndarray:
    """Counts of base a at d positions before base b: (S, max_distance, 16) int32 for d = 1 ..
    max_distance, indexed by 4 a + b.

    Pairs with an unknown base are not counted.
    """
    number, length = windows.shape
    counts = np.zeros((number, max_distance, 16), np.int32)
    row = np.arange(number)[:, None] * 17
    for d in range(1, min(max_distance, length - 1) + 1):
        first, second = windows[:, :-d].astype(np.int64), windows[:, d:]
        pair = np.where((first < UNKNOWN) & (second < UNKNOWN), 4 * first + second, 16)
        counts[:, d - 1] = np.bincount((pair + row).ravel(), minlength=17 * number).reshape(
            number, 17
        )[:, :16]
    return counts


def mutual_information(counts: np.ndarray) -> np.ndarray:
    """Mutual information in bits of two bases at distance d: (D,), from `pair_counts` of a set (S,
    D, 16) summed over its windows.

    The estimate is biased: with N pairs, independent bases give about 9/(2 N ln 2). Compare only
    sets of the same size.
    """
    joint = counts.sum(0).reshape(-1, 4, 4) / np.maximum(counts.sum((0, 2)), 1)[:, None, None]
    product = joint.sum(2)[:, :, None] * joint.sum(1)[:, None, :]
    ratio = np.divide(joint, product, where=joint > 0, out=np.ones_like(joint))
    return (joint * np.log2(ratio)).sum((1, 2))


def period_three(windows: np.ndarray) -> np.ndarray:
    """Spectral power at a period of three bases, for each window, (S,): 1 on average for
    independent bases, more in coding sequence.

    The sum of the squared Fourier coefficients at frequency 1/3 of the four base indicators,
    divided by its mean over shuffles of the window (after Tiwari et al., CABIOS 13, 263, 1997).
    """
    wave = np.exp(2j * np.pi * np.arange(windows.shape[1]) / 3)
    is_base = windows[:, :, None] == np.arange(4)  # (S, L, 4)
    number = is_base.sum(1)
    total = np.maximum(number.sum(1), 1)
    centered = (
        np.einsum("slb,l->sb", is_base, wave)
        - number / total[:, None] * ((windows < UNKNOWN) @ wave)[:, None]
    )
    expected = total - (number**2).sum(1) / total
    return (np.abs(centered) ** 2).sum(1) / np.maximum(expected, 1e-12)


def longest_orf(windows: np.ndarray) -> np.ndarray:
    """Length in bases of the longest open reading frame of each window, in any of six frames: (S,).

    A frame is a run of codons without a stop (TAA, TAG, TGA). It needs no start codon and may
    extend past both ends of a window, because genes are longer than windows; a codon with an
    unknown base ends it.
    """
    other = np.where(windows < UNKNOWN, 3 - windows.astype(np.int16), UNKNOWN)[:, ::-1]
    return np.max(
        [_longest(strand[:, start:]) for strand in (windows, other) for start in range(3)], axis=0
    )


def _longest(strand: np.ndarray) -> np.ndarray:
    """`longest_orf` in the frame of the first base."""
    codons = strand[:, : strand.shape[1] // 3 * 3].reshape(len(strand), -1, 3)
    if not codons.shape[1]:
        return np.zeros(len(strand), np.int64)
    ends = (codons == UNKNOWN).any(2)
    for stop in _STOPS:
        ends |= (codons == stop).all(2)
    place = np.arange(codons.shape[1])
    last = np.maximum.accumulate(
        np.where(ends, place, -1), axis=1
    )  # the last stop at or before each codon
    return 3 * (place - last).max(1)
