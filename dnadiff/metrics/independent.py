"""What sets of real windows say about a set that is independent of them, such as samples of a
model.

Random sets of n out of N real windows overlap: their values vary with 1/n - 1/N, and have the error
of the N in common. The value of an independent set differs from the mean of the N with 1/n + 1/N.
"""

from __future__ import annotations

import math

import numpy as np


def widening(number: int, total: int) -> float:
    """How much wider the range of independent sets is than that of random sets of `number` out of
    `total` windows."""
    return math.sqrt((total + number) / (total - number))


def independent_range(values: np.ndarray, number: int, total: int) -> np.ndarray:
    """The range of 95 % of independent sets, (2, ...), from `values (sets, ...)` of random sets of
    `number` out of `total` windows."""
    mean = values.mean(0)
    return mean + widening(number, total) * (np.quantile(values, [0.025, 0.975], axis=0) - mean)


def independent_sets(number: int, total: int, num_sets: int, seed: int) -> np.ndarray:
    """Indices (num_sets, m) of windows, drawn with replacement: sets whose fractions vary as those
    of an independent set of `number` do.

    Sets of m with replacement vary with 1/m, which is 1/n + 1/N. Histograms take sets, not a range.
    """
    size = max(1, round(number * total / (number + total)))
    return np.random.default_rng(seed).integers(total, size=(num_sets, size))
