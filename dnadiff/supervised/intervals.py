"""95 % bootstrap intervals of metrics over test items, or over groups of them; of the metric by
which models are compared, and of differences, also over seeds.

Each replicate draws the test items with replacement, the same for all models, and the seeds of each
model with replacement.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dnadiff.diffusion.bootstrap import ConfidenceInterval, student_t
from dnadiff.fields import Json
from dnadiff.supervised.metrics import RANGES, Metric, ScoredValues, metric_values, title

NUM_RESAMPLES = 2000
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
        # As `random.multinomial`, in a quarter of the time for many items.
        drawn = [
            np.bincount(random.integers(num_groups, size=num_groups), minlength=num_groups)
            for _ in range(min(_BATCH, num_resamples - first))
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
    of a normal one (as in `dnadiff.diffusion.bootstrap.ratio`): the factor is 1.58 for 5 groups,
    1.10 for 20 and 1.01 for 200.
    """
    if groups is None:
        return replicates
    count = len(np.unique(groups))
    factor = math.sqrt(count / max(count - 1, 1)) * student_t(max(count - 1, 1)) / _NORMAL
    return value + factor * (replicates - value)


def metric_interval(
    metric: Metric,
    runs: Sequence[ScoredValues],
    baseline: Sequence[ScoredValues] = (),
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> ConfidenceInterval:
    """The mean of a metric over the runs of a model, or the difference of two.

    Args:
        baseline: runs of another model on the same items, whose metric is subtracted.
        groups: (S,) group numbers; the items of a group are drawn together. None: single items.
    """
    value, replicates = _replicates(metric, runs, baseline, num_resamples, seed, groups)
    known = replicates[:0]
    if np.isfinite(value):
        known = defined_replicates(replicates, "a metric of a model or a difference")
    if not len(known):  # a replicate may have no item with a label, or none of a class
        return ConfidenceInterval(value, np.nan, np.nan, np.nan)
    low, high = np.quantile(known, [0.025, 0.975])
    return ConfidenceInterval(value, float(known.std(ddof=1)), float(low), float(high))


def summarize_metrics(
    runs: Sequence[ScoredValues],
    metrics: Mapping[str, Metric],
    num_resamples: int = 500,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> dict[str, dict[str, Json]]:
    """Metrics averaged over runs on the same items (one for each seed), with their 95 % bootstrap
    intervals over test items.

    By metric: `value`, `low`, `high`, `per_seed`, and `spread` (max - min over runs).
    """
    replicates: dict[str, list[np.ndarray]] = {name: [] for name in metrics}
    for weights in bootstrap_weights(len(runs[0].labels), num_resamples, seed, groups):
        for name, metric in metrics.items():
            replicates[name].append(np.mean([metric(run, weights) for run in runs], 0))
    result = {}
    metrics_of_runs = [metric_values(run, metrics) for run in runs]
    for name, values in replicates.items():
        per_seed = [of_run[name] for of_run in metrics_of_runs]
        value, known, low, high = float(np.mean(per_seed)), np.empty(0), np.nan, np.nan
        if np.isfinite(per_seed).all():
            known = defined_replicates(widened(np.concatenate(values), value, groups), title(name))
        if len(known):
            low, high = np.quantile(known, [0.025, 0.975]).clip(*RANGES[name.partition(" of ")[0]])
        result[name] = {
            "value": value,
            "low": float(low),
            "high": float(high),
            "per_seed": per_seed,
            "spread": max(per_seed) - min(per_seed),
        }
    return result


def bootstrap_p_value(
    metric: Metric,
    runs: Sequence[ScoredValues],
    baseline: Sequence[ScoredValues],
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> float:
    """Two-sided p-value that a difference is 0: twice the fraction of replicates of the interval on
    the side where fewer are; NaN if too few are defined."""
    value, replicates = _replicates(metric, runs, baseline, num_resamples, seed, groups)
    replicates = replicates[np.isfinite(replicates)]
    # If there are too few, the interval of the difference says so in the log.
    if not np.isfinite(value) or len(replicates) < MIN_DEFINED * num_resamples:
        return float("nan")
    tail = min((replicates <= 0).sum(), (replicates >= 0).sum())
    return float(min(1.0, 2 * (tail + 1) / (len(replicates) + 1)))


def sign_flip_test(
    first: np.ndarray,
    second: np.ndarray,
    num_flips: int = 5000,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> float:
    """Two-sided p-value of the paired permutation test that two models have the same accuracy on
    the same items.

    Under the null hypothesis the results of the two models can be swapped item by item. With one
    run each, this is McNemar's test by permutation.

    Args:
        first: (R, S) whether each item was classified correctly with each seed.
        second: (R', S) of the other model.
        groups: (S,) the items of a group get the same sign. None: each item has its own.
    """
    difference = first.mean(0) - second.mean(0)
    if groups is not None:
        difference = np.bincount(np.unique(groups, return_inverse=True)[1], difference)
    difference = difference[difference != 0]
    if not len(difference):
        return 1.0
    random, observed, extreme = np.random.default_rng(seed), abs(difference.sum()) - 1e-9, 0
    for begin in range(0, num_flips, 500):
        shape = (min(500, num_flips - begin), len(difference))
        signs = random.integers(0, 2, size=shape, dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ difference) >= observed).sum())
    return (extreme + 1) / (num_flips + 1)


def _replicates(
    metric: Metric,
    runs: Sequence[ScoredValues],
    baseline: Sequence[ScoredValues],
    num_resamples: int,
    seed: int,
    groups: np.ndarray | None,
) -> tuple[float, np.ndarray]:
    """The mean of a metric over the runs, minus that over the runs of a baseline if there are any,
    and its replicates (W,)."""
    models = [each for each in (runs, baseline) if each]
    drawn: list[list[np.ndarray]] = [[] for _ in models]
    for weights in bootstrap_weights(len(runs[0].labels), num_resamples, seed, groups):
        for of_model, each in zip(drawn, models):
            of_model.append(np.stack([metric(run, weights) for run in each], 1))
    random = np.random.default_rng([seed, 1])
    means = [float(np.mean([metric_values(run, {"": metric})[""] for run in m])) for m in models]
    found = [_mean_over_seeds(np.concatenate(each), random) for each in drawn]
    value = means[0] - sum(means[1:])
    return value, widened(found[0] - sum(found[1:]), value, groups)


def _mean_over_seeds(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The mean (W,) of values (W, R) over seeds that are drawn with replacement.

    A bootstrap of R seeds underestimates their variance by the factor (R - 1)/R: their deviation
    from equal weights is scaled.
    """
    num_resamples, count = values.shape
    drawn = random.multinomial(count, np.full(count, 1 / count), size=num_resamples) / count
    scaled = 1 / count + (drawn - 1 / count) * (count / max(count - 1, 1)) ** 0.5
    return (values * scaled).sum(1)
