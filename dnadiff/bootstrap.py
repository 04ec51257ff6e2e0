"""Confidence intervals by resampling: blocks of neighbouring windows for likelihoods, items for classification.

Neighbouring windows of a genome resemble each other, so resampling single windows would give intervals that
are too narrow; whole blocks keep the dependence inside (Kuensch 1989). Two models compared on the same windows
are resampled together, and the interval is that of their difference.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

UNDECIDED = "no interval, so no verdict"
MIN_BLOCKS = 5  # blocks from which a spread can be told


class ConfidenceInterval(NamedTuple):
    """A ratio with its bootstrap standard error and 95 % interval; NaN where too little is there to tell."""

    value: float
    se: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.low > 0 or self.high < 0


def blocks(num_items: int, block_size: int) -> np.ndarray:
    """The block of each item, `(num_items,)`: consecutive runs of `effective_block_size` items (the last may be shorter)."""
    return np.arange(num_items) // effective_block_size(num_items, block_size)


def effective_block_size(num_items: int, block_size: int) -> int:
    """Items in a block: `block_size`, or fewer where that would leave fewer than 20 blocks, which know nothing of their own spread."""
    return max(1, min(block_size, num_items // 20))


def ratio(
    numerator: np.ndarray, denominator: np.ndarray, block: np.ndarray | None = None, num_resamples: int = 2000, seed: int = 0
) -> ConfidenceInterval:
    """sum(numerator)/sum(denominator) with its interval, blocks drawn with replacement.

    The bootstrap standard error of n blocks is too small by sqrt((n-1)/n), and n is sometimes small: it is scaled up, and
    the interval is value -+ t se with Student's t of n - 1 degrees of freedom.

    Args:
        numerator: (S,) such as the nats of each window, or the difference of two models' nats.
        denominator: (S,) such as the tokens of each window.
        block: (S,) block number of each item; None takes each item as its own block.
        num_resamples: bootstrap worlds.
        seed: of the resampling; the same seed and blocks give the same worlds to every call.

    Returns:
        With fewer than 5 blocks that hold anything, NaN for error and interval: nothing can be said.

    Raises:
        ValueError: if there is nothing to divide by.
    """
    numerator, denominator = np.asarray(numerator, float), np.asarray(denominator, float)
    if denominator.sum() <= 0:
        raise ValueError("nothing to average: no token counts here (every weight is 0)")
    value = float(numerator.sum() / denominator.sum())
    block = np.arange(len(numerator)) if block is None else block
    top, bottom = np.bincount(block, numerator), np.bincount(block, denominator)
    top, bottom = top[bottom > 0], bottom[bottom > 0]
    n = len(bottom)
    if n < MIN_BLOCKS:
        return ConfidenceInterval(value, float("nan"), float("nan"), float("nan"))
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=num_resamples)
    worlds = (counts @ top) / (counts @ bottom)
    se = float(worlds.std(ddof=1)) * math.sqrt(n / (n - 1))
    half = student_t(n - 1) * se
    return ConfidenceInterval(value, se, value - half, value + half)


def student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to 0.5 % from 4 degrees of freedom on (Abramowitz and Stegun 26.7.5)."""
    z, f = 1.959964, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / f + second / f**2 + third / f**3


def verdict(low: float | None, high: float | None, above: str, below: str, between: str = "not distinguishable") -> str:
    """What an interval says about 0: `above` it, `below` it, or `between` when 0 lies inside; None or NaN say nothing."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return UNDECIDED
    return above if low > 0 else below if high < 0 else between
