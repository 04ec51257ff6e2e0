"""Bootstrap replicates over test items, or over groups of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

import numpy as np

from dnadiff.bootstrap import student_t

MIN_DEFINED = 0.9  # of the replicates: an interval from fewer would be that of other data
_NORMAL = 1.959963984540054  # the 97.5 % quantile of the normal distribution
_BATCH = 50  # replicates at once: limits the memory
log = logging.getLogger("dnadiff")


def bootstrap_weights(
    size: int, num_resamples: int, seed: int, groups: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Item weights of bootstrap replicates, (W, S) a few at a time; the same arguments give the
    same replicates for every model.

    The items of a group, such as overlapping sequences, are drawn together: `groups (S,)` are their
    numbers. None: single items.
    """
    random = np.random.default_rng(seed)
    index = np.arange(size) if groups is None else np.unique(groups, return_inverse=True)[1]
    num_groups = int(index.max()) + 1
    for first in range(0, num_resamples, _BATCH):
        number = min(_BATCH, num_resamples - first)
        # As `random.multinomial`, in a quarter of the time for many items.
        drawn = [
            np.bincount(random.integers(num_groups, size=num_groups), minlength=num_groups)
            for _ in range(number)
        ]
        yield np.stack(drawn)[:, index].astype(np.float64)


def defined_replicates(replicates: np.ndarray, name: str) -> np.ndarray:
    """The bootstrap replicates (W,) that are defined; none, with a line in the log, if they are
    fewer than 90 % of all."""
    known = replicates[np.isfinite(replicates)]
    if len(known) >= MIN_DEFINED * len(replicates):
        return known
    log.warning(
        f"{name} is defined in {100 * len(known) / len(replicates):.0f} % of the bootstrap "
        "replicates, too few for an interval"
    )
    return known[:0]


def widened(replicates: np.ndarray, value: float, groups: np.ndarray | None) -> np.ndarray:
    """Bootstrap replicates (W,) around `value`, with larger deviations if few groups of items were
    drawn.

    A bootstrap of n groups underestimates a standard deviation by sqrt((n - 1) / n), and the
    quantiles of few are those of Student's t distribution with n - 1 degrees of freedom, not those
    of a normal one (as in `dnadiff.bootstrap.ratio`): the factor is 1.58 for 5 groups, 1.10 for 20
    and 1.01 for 200.
    """
    if groups is None:
        return replicates
    count = len(np.unique(groups))
    factor = math.sqrt(count / max(count - 1, 1)) * student_t(max(count - 1, 1)) / _NORMAL
    return value + factor * (replicates - value)
