"""How many of many differences remain after a correction for testing all of them.

A two-sided p-value is taken from a difference and its 95 % bootstrap interval, as of a normal
distribution with the interval's width.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

LEVEL = 0.05


class Difference(NamedTuple):
    """A difference with its 95 % interval."""

    value: float
    low: float
    high: float


class Counts(NamedTuple):
    """How many differences are above and below 0: uncorrected, after Holm's correction, and after
    Benjamini and Hochberg's."""

    total: int
    plain: tuple[int, int]
    holm: tuple[int, int]
    benjamini_hochberg: tuple[int, int]


def p_value(difference: Difference) -> float:
    """Two-sided, by the normal approximation."""
    error = (difference.high - difference.low) / (2 * 1.959964)
    return 1.0 if error <= 0 else math.erfc(abs(difference.value) / error / math.sqrt(2))


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which hypotheses are rejected with a probability of at most `level` for any false rejection
    (Holm 1979)."""
    order, rejected = (
        sorted(range(len(p_values)), key=p_values.__getitem__),
        [False] * len(p_values),
    )
    for rank, i in enumerate(order):
        if p_values[i] > level / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected


def benjamini_hochberg(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which hypotheses are rejected with an expected fraction of at most `level` false rejections
    (Benjamini and Hochberg 1995)."""
    ordered = sorted(p_values)
    below = [p for rank, p in enumerate(ordered, 1) if p <= level * rank / len(ordered)]
    return [bool(below) and p <= below[-1] for p in p_values]


def count(differences: Sequence[Difference]) -> Counts:
    """The numbers of differences above and below 0 whose intervals exclude 0, and those that remain
    after each correction."""
    p_values = [p_value(d) for d in differences]
    plain = [d.low > 0 or d.high < 0 for d in differences]

    def signs(chosen: Sequence[bool]) -> tuple[int, int]:
        return sum(c and d.value > 0 for c, d in zip(chosen, differences)), sum(
            c and d.value < 0 for c, d in zip(chosen, differences)
        )

    return Counts(
        len(differences), signs(plain), signs(holm(p_values)), signs(benjamini_hochberg(p_values))
    )


def sentence(differences: Sequence[Difference]) -> str:
    """The counts in words."""
    found = count(differences)
    said = [f"{up} above 0 and {down} below" for up, down in found[1:]]
    return (
        f"Of the {found.total} intervals of differences from the untrained network, "
        f"{sum(found.plain)} exclude 0 ({said[0]}); about "
        f"{LEVEL * found.total:.1f} would by chance if there were no difference. With p-values "
        "from these intervals (normal approximation), "
        f"{sum(found.holm)} remain by Holm's correction for all {found.total} ({said[1]}, "
        "family-wise error 5 %), and "
        f"{sum(found.benjamini_hochberg)} by that of Benjamini and Hochberg ({said[2]}, false "
        "discovery rate 5 %)."
    )
