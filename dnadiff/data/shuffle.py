"""Random numbers and permutations for batches of indices: each value depends only on a key and its
index.

The NumPy counterpart of `dnadiff.draws`: the SplitMix64 finalizer of a key and a counter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_ROUNDS = 4


def bits(key: int, index: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 random bits for each index `(B,)`: the SplitMix64 mix of index and key."""
    return _mix(_mix(index.astype(np.uint64) * _GOLDEN + _GOLDEN) ^ np.uint64(key))


def uniform(key: int, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each index `(B,)`."""
    return (bits(key, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def shuffled(key: int, index: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Apply a random permutation of 0..size-1 to each index `(B,)`.

    A Feistel network over the next power of four, repeated until the result is below `size`: needs
    no memory of that size.
    """
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    values = index.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        left, right = values[outside] >> half, values[outside] & mask
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
