"""Confidence intervals by resampling: blocks of neighboring windows for likelihoods, items for
classification.

Neighboring windows of a genome are correlated, so resampling single windows gives intervals that
are too narrow. Resampling whole blocks keeps the correlation inside each block (block bootstrap,
Kuensch 1989). To compare two models on the same windows, resample the difference of their values.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from dnadiff.fields import is_number

NEITHER = "not distinguishable"
UNDECIDED = "no interval, so no verdict"
LEVEL = 0.05  # intervals cover the true value in 95 % of all cases
MIN_BLOCKS = 5  # fewer blocks give no usable estimate of their spread


class ConfidenceInterval(NamedTuple):
    """A ratio with its bootstrap standard error and 95 % interval; NaN where there are too few
    blocks for an interval."""

    value: float
    se: float
    low: float
    high: float


def blocks(num_items: int, block_size: int) -> ndarray:
    """Block number of each item, `(num_items,)`: consecutive runs of `effective_block_size` items
    (the last may be shorter)."""
    return np.arange(num_items) // effective_block_size(num_items, block_size)


def effective_block_size(num_items: int, block_size: int) -> int:
    """Items per block: `block_size`, reduced if necessary to get at least 20 blocks, from which a
    spread can be estimated."""
    return max(1, min(block_size, num_items // 20))


def ratio(
    numerator: ndarray,
    denominator: ndarray,
    block: ndarray | None = None,
    num_resamples: int = 2000,
) -> ConfidenceInterval:
    """sum(numerator) / sum(denominator) with a block bootstrap interval; the same blocks have the
    same replicates in every call.

    The bootstrap standard error of n blocks is too small by sqrt((n - 1) / n), which matters for
    small n, so it is scaled up. The interval is value ± t se with the 97.5 % quantile t of
    Student's t distribution with n - 1 degrees of freedom.

    Args:
        numerator: (S,), for example the nats of each window, or the difference of two models' nats.
        denominator: (S,), for example the number of tokens of each window.
        block: (S,) block number of each item; None makes each item a block of its own.

    Returns:
        The ratio and its interval. Error and interval are NaN if fewer than 5 blocks have a
        positive denominator.

    Raises:
        ValueError: if the denominator sums to zero.
    """
    numerator = np.asarray(numerator, float)
    denominator = np.asarray(denominator, float)
    if denominator.sum() <= 0:
        raise ValueError("nothing to average: no token counts here (every weight is 0)")
    value = float(numerator.sum() / denominator.sum())
    block = np.arange(len(numerator)) if block is None else block
    top = np.bincount(block, numerator)
    bottom = np.bincount(block, denominator)
    top = top[bottom > 0]
    bottom = bottom[bottom > 0]
    n = len(bottom)
    if n < MIN_BLOCKS:
        return ConfidenceInterval(value, *3 * [math.nan])
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=num_resamples)
    replicates = (counts @ top) / (counts @ bottom)
    se = float(replicates.std(ddof=1)) * math.sqrt(n / (n - 1))
    half = student_t(n - 1) * se
    return ConfidenceInterval(value, se, value - half, value + half)


def student_t(degrees_of_freedom: float, level: float = LEVEL) -> float:
    """The quantile of Student's t distribution that is exceeded with probability level / 2, by
    default that of 97.5 %; of the normal distribution for infinite degrees of freedom."""
    # What scipy.stats.t.ppf calls; imported late to keep --help fast.
    from scipy.special import stdtrit

    return -float(stdtrit(min(degrees_of_freedom, 1e9), level / 2))


def verdict(
    low: float | None, high: float | None, above: str, below: str, between: str = NEITHER
) -> str:
    """Describe an interval relative to 0: `above`, `below`, or `between` if it contains 0;
    UNDECIDED if a bound is None or NaN."""
    if not (is_number(low) and is_number(high)):
        return UNDECIDED
    return above if low > 0 else below if high < 0 else between
