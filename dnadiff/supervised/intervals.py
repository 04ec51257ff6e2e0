"""Intervals and p-values of metrics and of paired differences, over test items or groups of them,
and over seeds.

Fractions of items have the exact interval of Clopper and Pearson (1934), paired differences of them
the score interval of Tango (1998), and other metrics one from the variance of their jackknife
replicates. The variance between seeds is added with Student's t. `docs/results/intervals.md` has
the coverage of all of them. A p-value is the level at which the interval of a difference ends at 0.

Shapes: `S` items, `J` replicates.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from dnadiff.diffusion.bootstrap import LEVEL, student_t
from dnadiff.fields import Json, is_number

MIN_ITEMS = 100  # of metrics without an exact interval: with fewer, intervals cover too little
NUM_REPLICATES = 200  # of the jackknife
_MAX_CELLS = 10**7  # items in all replicates: limits the time
TOO_FEW = "too few items"

Ends = Callable[[float], tuple[float, float]]  # the ends of the interval at a level such as 0.05


def clopper_pearson(right: float, total: float, level: float = LEVEL) -> tuple[float, float]:
    """The exact interval of a probability after `right` of `total` trials; both may be effective
    numbers, as in Korn and Graubard (1998)."""
    from scipy.special import betaincinv  # imported late, as in `student_t`

    wrong = max(total - right, 0.0)
    low = float(betaincinv(right, wrong + 1, level / 2)) if right > 0 else 0.0
    return low, 1 - (float(betaincinv(wrong, right + 1, level / 2)) if wrong > 0 else 0.0)


def tango(first: float, second: float, total: float, level: float = LEVEL) -> tuple[float, float]:
    """The score interval of a difference of paired probabilities (Tango 1998, equations 17 to 20).

    Args:
        first, second: numbers of items that only the first model has right, and only the second.
        total: number of all items.
    """

    def low(first: float, second: float) -> float:
        z = student_t(math.inf, level)
        excess = first - second

        def is_below(difference: float) -> bool:
            b = (2 * total - excess) * difference - first - second
            c = -second * difference * (1 - difference)
            only_second = (math.sqrt(max(b * b - 8 * total * c, 0)) - b) / (4 * total)
            variance = total * (2 * only_second + difference * (1 - difference))
            return excess - total * difference > z * math.sqrt(max(variance, 0))

        return _edge(is_below, -1.0, excess / total)

    return low(first, second), -low(second, first)


def _edge(holds: Callable[[float], bool], inside: float, outside: float) -> float:
    """The last value, on the way from `inside`, for which a condition holds."""
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside


def _shrinkage(degrees: float, level: float) -> float:
    """By how much fewer items have the interval that an estimated variance gives."""
    level = min(level, 1 - 1e-12)  # both quantiles are 0 at 1
    return (student_t(math.inf, level) / student_t(degrees, level)) ** 2


@dataclass(frozen=True)
class Estimate:
    """A metric averaged over the runs of a model, or the difference of two models.

    Attributes:
        per_seed: the value of each run of the first model.
        ends: over the items alone; None if there are too few of them.
        seeds: of each model with several runs, the variance of their mean and the degrees of
            freedom. Without seeds, the interval is that of these networks.
        limits: the range of the metric, or of a difference.
        inflation: of the variance over items (`of_folds`).
    """

    value: float
    per_seed: list[float]
    ends: Ends | None
    seeds: Sequence[tuple[float, int]] = ()
    limits: tuple[float, float] = (-math.inf, math.inf)
    inflation: float = 1.0

    def interval(self, level: float = LEVEL) -> tuple[float, float] | tuple[None, None]:
        """The interval over items and seeds; None twice if there are too few items.

        Squared distances of the ends are added, those of the seeds with the quantile of their own t
        distribution (Banerjee 1960). For normal seeds and items this covers the true value at least
        as often as promised, whichever of the variances is larger.
        """
        if self.ends is None:
            return None, None
        of_seeds = sum(v * student_t(degrees, level) ** 2 for v, degrees in self.seeds)
        distances = (self.inflation * (end - self.value) ** 2 for end in self.ends(level))
        below, above = (math.sqrt(distance + of_seeds) for distance in distances)
        lowest, highest = self.limits
        return max(lowest, self.value - below), min(highest, self.value + above)

    def p_value(self) -> float | None:
        """Of a difference of 0: below 0.05 if and only if the interval excludes 0; None if there
        are too few items."""

        def contains_zero(level: float) -> bool:
            low, high = self.interval(level)
            return low is None or high is None or low <= 0 <= high

        if self.ends is None:
            return None
        above = contains_zero(LEVEL)
        found = _edge(lambda level: contains_zero(level) == above, LEVEL, float(above))
        return found if above else min(found, math.nextafter(LEVEL, 0))

    def record(self) -> dict[str, Json]:
        """The ends of the interval, ready for JSON."""
        return dict(zip(("low", "high"), self.interval()))


def of_folds(folds: ndarray | None) -> float:
    """By how much larger the variance of a cross-validation is than over independent items; `folds`
    (S,), None for one model.

    The k models are trained on overlapping items, so that the scores of folds are correlated. With
    the correlation 1/k of Nadeau and Bengio (Machine Learning 52, 239, 2003), the variance of their
    mean is 1 + k / (k - 1) times that of independent scores.
    """
    count = 0 if folds is None else len(np.unique(folds))
    return 1 + count / (count - 1) if count > 1 else 1.0


def jackknife(size: int, groups: ndarray | None) -> Iterator[ndarray]:
    """Masks (S,) of the items that are kept: each leaves out a random part of the groups (S,), or
    of the single items; each item is left out once."""
    index = np.arange(size) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(index.max()) + 1
    number = min(NUM_REPLICATES, max(20, _MAX_CELLS // size), count)
    part = np.random.default_rng(0).permutation(count)[index] % number
    for left_out in range(number):
        yield part != left_out


def of_replicates(
    value: float, replicates: ndarray, limits: tuple[float, float] | None
) -> Ends | None:
    """The interval of a metric from its jackknife replicates (J,); None if all are the same, or one
    is not defined.

    The degrees of freedom follow from the kurtosis of the replicates: the variance is not known
    well if a few items decide the metric. A metric between two limits has the interval of a
    fraction with the same variance, one with one limit that of its logarithmic distance from it,
    and a difference, which has no `limits`, a symmetric one.
    """
    size = len(replicates)
    deviation = replicates - replicates.mean()
    variance = float((deviation**2).sum()) * (size - 1) / size
    if not math.isfinite(variance) or variance <= (1e-9 * max(abs(value), 1e-9)) ** 2:
        return None
    kurtosis = float((deviation**4).mean() / (deviation**2).mean() ** 2)
    degrees = min(size - 1, 2 * size / max(kurtosis - 1, 2.0))
    error = math.sqrt(variance)

    def ends(level: float) -> tuple[float, float]:
        half = student_t(degrees, level) * error
        if limits is None:
            return value - half, value + half
        if not all(map(math.isfinite, limits)):
            limit = limits[0] if math.isfinite(limits[0]) else limits[1]
            factor = math.exp(min(half / abs(value - limit), 700.0))
            found = limit + (value - limit) * factor, limit + (value - limit) / factor
            return min(found), max(found)
        low = limits[0]
        width = limits[1] - limits[0]
        fraction = (value - low) / width
        total = fraction * (1 - fraction) * width**2 / variance
        total *= _shrinkage(degrees, level)
        below, above = clopper_pearson(fraction * total, total, level)
        return low + width * below, low + width * above

    return ends


def of_correct(correct: ndarray, groups: ndarray | None, is_difference: bool) -> Ends:
    """The interval of a mean of fractions of runs that are correct (S,), or of a paired difference
    of them: exact for one run and single items, else with an effective number of items.

    The mean of several runs varies less over items than that of one. Items of a group resemble each
    other: their number is divided by the design effect, the variance over groups divided by that
    over single items (Korn and Graubard 1998).
    """
    size = len(correct)
    mean = float(correct.mean())
    first = np.maximum(correct, 0).sum()
    second = np.maximum(-correct, 0).sum()
    scale = (first + second) / (correct**2).sum() if is_difference and first + second else 1.0
    number = size
    plain = correct.var() / size if is_difference else mean * (1 - mean) / size
    if groups is not None:
        sums = np.bincount(np.unique(groups, return_inverse=True)[1], correct - mean)
        number = len(sums)
        variance = (sums**2).sum() / size**2 * number / max(number - 1, 1)
        scale /= max(1.0, variance / plain) if plain > 0 else size / number

    def ends(level: float) -> tuple[float, float]:
        factor = scale
        if groups is not None:
            factor *= _shrinkage(max(number - 1, 1), level)
        if is_difference:
            return tango(first * factor, second * factor, size * factor, level)
        return clopper_pearson(first * factor, size * factor, level)

    return ends


def interval_text(found: Mapping[str, Json], form: str = "{:.3f}") -> str:
    """The interval of a result in a table."""
    ends = found.get("low"), found.get("high")
    return " .. ".join(map(form.format, ends)) if all(map(is_number, ends)) else TOO_FEW
