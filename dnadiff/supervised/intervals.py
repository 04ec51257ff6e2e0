"""Bootstrap replicates over test items, or over groups of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dnadiff.bootstrap import ConfidenceInterval, student_t
from dnadiff.config import Json
from dnadiff.supervised.metrics import RANGES, AnyScored, Metric, metric_values, title

log = logging.getLogger("dnadiff")


MIN_DEFINED = 0.9  # of the replicates: an interval from fewer would be that of other data
_NORMAL = 1.959963984540054  # the 97.5 % quantile of the normal distribution
_BATCH = 50  # replicates at once: limits the memory


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


NUM_RESAMPLES = 2000


def accuracy_interval(
    correct: np.ndarray,
    baseline: np.ndarray | None = None,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> ConfidenceInterval:
    """Mean accuracy, or the difference of two.

    Args:
        correct: (R, S) of 0 and 1: whether item s was classified correctly with seed r.
        baseline: (R', S) of another model on the same items, whose accuracy is subtracted.
        groups: (S,) group numbers; the items of a group are drawn together. None: single items.
    """
    models = [correct] if baseline is None else [correct, baseline]
    accuracies: list[list[np.ndarray]] = [[] for _ in models]
    for weights in bootstrap_weights(correct.shape[1], num_resamples, seed, groups):
        for of_model, rows in zip(accuracies, models):
            of_model.append(weights @ rows.T.astype(float) / weights.sum(1, keepdims=True))
    value = correct.mean() if baseline is None else correct.mean() - baseline.mean()
    return _interval(
        float(value),
        widened(
            _over_seeds([np.concatenate(each) for each in accuracies], seed), float(value), groups
        ),
    )


def metric_interval(
    metric: Metric[AnyScored],
    runs: Sequence[AnyScored],
    baseline: Sequence[AnyScored] | None = None,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> ConfidenceInterval:
    """The mean of a metric over the runs of a model, or the difference of two; arguments as in
    `accuracy_interval`."""
    value = _mean_over_runs(metric, runs) - (
        0.0 if baseline is None else _mean_over_runs(metric, baseline)
    )
    return _interval(
        value,
        widened(
            _metric_replicates(metric, runs, baseline, num_resamples, seed, groups), value, groups
        ),
    )


def summarize_metrics(
    runs: Sequence[AnyScored],
    metrics: Mapping[str, Metric[AnyScored]],
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
        of_few = widened(np.concatenate(values), float(np.mean(per_seed)), groups)
        known = (
            defined_replicates(of_few, title(name)) if np.isfinite(per_seed).all() else np.empty(0)
        )
        low, high = (
            np.quantile(known, [0.025, 0.975]).clip(*RANGES[name.partition(" of ")[0]])
            if len(known)
            else (np.nan, np.nan)
        )
        result[name] = {
            "value": float(np.mean(per_seed)),
            "low": float(low),
            "high": float(high),
            "per_seed": per_seed,
            "spread": max(per_seed) - min(per_seed),
        }
    return result


def bootstrap_p_value(
    metric: Metric[AnyScored],
    runs: Sequence[AnyScored],
    baseline: Sequence[AnyScored],
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> float:
    """Two-sided p-value that a difference is 0: twice the fraction of replicates of the interval on
    the side where fewer are; NaN if too few are defined."""
    value = _mean_over_runs(metric, runs) - _mean_over_runs(metric, baseline)
    replicates = widened(
        _metric_replicates(metric, runs, baseline, num_resamples, seed, groups), value, groups
    )
    replicates, ones = replicates[np.isfinite(replicates)], np.ones((1, len(runs[0].labels)))
    is_defined = all(np.isfinite(metric(run, ones)[0]) for run in (*runs, *baseline))
    if (
        not is_defined or len(replicates) < MIN_DEFINED * num_resamples
    ):  # the interval of the difference says so in the log
        return float("nan")
    tail = min((replicates <= 0).sum(), (replicates >= 0).sum())
    return float(min(1.0, 2 * (tail + 1) / (len(replicates) + 1)))


def _mean_over_runs(metric: Metric[AnyScored], runs: Sequence[AnyScored]) -> float:
    return float(np.mean([metric_values(run, {"": metric})[""] for run in runs]))


def _metric_replicates(
    metric: Metric[AnyScored],
    runs: Sequence[AnyScored],
    baseline: Sequence[AnyScored] | None,
    num_resamples: int,
    seed: int,
    groups: np.ndarray | None,
) -> np.ndarray:
    models = [runs] if baseline is None else [runs, baseline]
    found: list[list[np.ndarray]] = [[] for _ in models]
    for weights in bootstrap_weights(len(runs[0].labels), num_resamples, seed, groups):
        for of_model, each in zip(found, models):
            of_model.append(np.stack([metric(run, weights) for run in each], 1))
    return _over_seeds([np.concatenate(each) for each in found], seed)


def _over_seeds(models: Sequence[np.ndarray], seed: int) -> np.ndarray:
    """Replicates (W,) of the mean over seeds of the first model, minus that of the second if there
    is one; from values (W, R) of each."""
    random = np.random.default_rng([seed, 1])

    def replicate_means(values: np.ndarray) -> np.ndarray:
        num_resamples, count = values.shape
        seeds = (
            random.multinomial(count, np.full(count, 1 / count), size=num_resamples) / count
        )  # (W, R)
        # A bootstrap of R seeds underestimates their variance by the factor (R - 1)/R: scale their
        # deviation from equal weights.
        seeds = 1 / count + (seeds - 1 / count) * (count / max(count - 1, 1)) ** 0.5
        return (values * seeds).sum(1)

    first, *others = (replicate_means(each) for each in models)
    return first - others[0] if others else first


def _interval(value: float, replicates: np.ndarray) -> ConfidenceInterval:
    known = (
        defined_replicates(replicates, "a metric of a model or a difference")
        if np.isfinite(value)
        else replicates[:0]
    )
    if not len(known):  # a replicate may have no item with a label, or none of a class
        return ConfidenceInterval(value, np.nan, np.nan, np.nan)
    low, high = np.quantile(known, [0.025, 0.975])
    return ConfidenceInterval(value, float(known.std(ddof=1)), float(low), float(high))
