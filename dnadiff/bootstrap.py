"""Confidence intervals by resampling: blocks of neighbouring windows for likelihoods, items for classification.

Neighbouring windows of a genome resemble each other, so resampling single windows would give intervals that
are too narrow; whole blocks keep the dependence inside (Kuensch 1989). Two models compared on the same windows
are resampled together, and the interval is that of their difference.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """A ratio with its bootstrap standard error and 95 % percentile interval."""

    value: float
    se: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.low > 0 or self.high < 0


def blocks(num_items: int, block_size: int) -> np.ndarray:
    """The block of each item, `(num_items,)`: consecutive runs of `block_size` (the last may be shorter)."""
    return np.arange(num_items) // max(1, block_size)


def ratio(
    numerator: np.ndarray, denominator: np.ndarray, block: np.ndarray | None = None, num_resamples: int = 2000, seed: int = 0
) -> Interval:
    """sum(numerator)/sum(denominator) with its interval, blocks drawn with replacement.

    Args:
        numerator: (S,) such as the nats of each window, or the difference of two models' nats.
        denominator: (S,) such as the tokens of each window.
        block: (S,) block number of each item; None takes each item as its own block.
        num_resamples: bootstrap worlds.
        seed: of the resampling; the same seed and blocks give the same worlds to every call.

    Raises:
        ValueError: if there is nothing to divide by.
    """
    numerator, denominator = np.asarray(numerator, float), np.asarray(denominator, float)
    if denominator.sum() <= 0:
        raise ValueError("nothing to average: no token counts here (every weight is 0)")
    block = np.arange(len(numerator)) if block is None else block
    num_blocks = int(block.max()) + 1
    top = np.bincount(block, numerator, num_blocks)
    bottom = np.bincount(block, denominator, num_blocks)
    counts = np.random.default_rng(seed).multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), size=num_resamples)
    worlds_bottom = counts @ bottom
    worlds = (counts @ top)[worlds_bottom > 0] / worlds_bottom[worlds_bottom > 0]
    low, high = np.quantile(worlds, [0.025, 0.975])
    se = float(worlds.std(ddof=1)) if len(worlds) > 1 else float("nan")
    return Interval(float(numerator.sum() / denominator.sum()), se, float(low), float(high))
