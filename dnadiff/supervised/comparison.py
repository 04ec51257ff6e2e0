"""Metrics of several models on the same items, paired differences, and both on subsets of the
items."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from dnadiff.bootstrap import MIN_BLOCKS, verdict
from dnadiff.config import Json
from dnadiff.supervised.items import Items
from dnadiff.supervised.metric_intervals import summarize_metrics
from dnadiff.supervised.metrics import ScoredRun, metric_values
from dnadiff.supervised.prediction import Prediction
from dnadiff.supervised.targets.base import TaskTarget
from dnadiff.supervised.targets.classes import ClassTarget

log = logging.getLogger("dnadiff")


def compare(
    predictions: Mapping[str, Sequence[Prediction]],
    tested: Items,
    pairs: Sequence[tuple[str, str]] = (),
    subsets: Mapping[str, np.ndarray] | None = None,
    target: TaskTarget | None = None,
) -> dict[str, Json]:
    """`models`: metrics of predictions on the same items; `differences` between pairs. The items of
    a group are resampled together.

    `subsets` are masks (S,) bool by name; the primary metric and its differences on each are
    reported too. `target` None is classes.
    """
    target = ClassTarget() if target is None else target
    labels, groups = tested.labels.numpy(), resampled_groups(tested)
    reports, scored = {}, {}
    for name, runs in predictions.items():
        scored[name] = _scored(target, runs, labels)
        reports[name] = {
            **_primary(target, scored[name], groups),
            "metrics": summarize_metrics(scored[name], target.metrics, groups=groups),
            **target.details(scored[name]),
            "seconds": round(sum(run.seconds for run in runs), 1),
            "found": [run.fit_info for run in runs],
            "subsets": {
                subset: _subset(target, runs, labels, mask, groups)
                for subset, mask in (subsets or {}).items()
            },
        }
    differences = []
    for a, b in pairs:
        of_subsets = {
            name: _subset(target, predictions[a], labels, mask, groups, predictions[b])
            for name, mask in (subsets or {}).items()
        }
        differences.append(
            _difference(target, a, b, scored, groups)
            | ({"subsets": of_subsets} if of_subsets else {})
        )
    return {"models": reports, "differences": differences}


def _scored(
    target: TaskTarget,
    runs: Sequence[Prediction],
    labels: np.ndarray,
    mask: np.ndarray | None = None,
) -> list[Json]:
    """The predictions of some items, prepared for the metrics."""
    rows = slice(None) if mask is None else mask
    return [
        target.scored(
            run.predictions.numpy()[rows],
            labels[rows],
            None if run.folds is None else run.folds[rows],
        )
        for run in runs
    ]


def resampled_units(tested: Items) -> str:
    """What the intervals draw again: items, groups of items, or items of groups that are too few to
    draw."""
    if tested.groups is None:
        return "items"
    groups = tested.groups.numpy()
    count = len(np.unique(groups))
    shown = "1 group" if count == 1 else f"{count} groups"
    return f"items of {shown}" if _are_few(groups) else shown


def resampled_groups(tested: Items) -> np.ndarray | None:
    """The groups of items that a bootstrap draws together; None draws single items, also where
    there are too few groups to draw from."""
    if tested.groups is None:
        return None
    groups = tested.groups.numpy()
    if _are_few(groups):
        log.warning(
            f"the tested items are of {len(np.unique(groups))} groups, too few to resample: "
            "intervals are over items of these groups"
        )
        return None
    return groups


def _are_few(groups: np.ndarray) -> bool:
    return len(np.unique(groups)) < MIN_BLOCKS < len(groups)


def _primary(
    target: TaskTarget, runs: Sequence[ScoredRun], groups: np.ndarray | None
) -> dict[str, Json]:
    """The metric that models are compared by, with its interval and its value for each run."""
    interval, metric = target.interval(runs, groups=groups), target.metrics[target.primary]
    each = [metric_values(run, {target.primary: metric})[target.primary] for run in runs]
    return {
        target.primary: interval.value,
        "low": interval.low,
        "high": interval.high,
        "per_seed": each,
    }


def _subset(
    target: TaskTarget,
    runs: Sequence[Prediction],
    labels: np.ndarray,
    mask: np.ndarray,
    groups: np.ndarray | None,
    baseline: Sequence[Prediction] | None = None,
) -> dict[str, Json]:
    """The primary metric on some items, or the difference from the runs of a baseline; None without
    items."""
    size, chosen, key = (
        int(mask.sum()),
        None if groups is None else groups[mask],
        target.primary if baseline is None else "difference",
    )
    if not size:
        return {"items": 0, key: None, "low": None, "high": None}
    first, second = (_scored(target, each or (), labels, mask) for each in (runs, baseline))
    found = target.interval(first, second or None, groups=chosen)
    few = (
        chosen is not None and len(np.unique(chosen)) < MIN_BLOCKS
    )  # too few to resample; single items would give too narrow an interval
    return {
        "items": size,
        key: found.value,
        "low": None if few else found.low,
        "high": None if few else found.high,
    }


def _difference(
    target: TaskTarget,
    a: str,
    b: str,
    scored: Mapping[str, Sequence[ScoredRun]],
    groups: np.ndarray | None,
) -> dict[str, Json]:
    interval = target.interval(scored[a], scored[b], groups=groups)
    conclusion = verdict(interval.low, interval.high, above="better", below="worse")
    p_value = target.p_value(scored[a], scored[b], groups=groups)
    ends = {"low": interval.low, "high": interval.high}
    return {
        "a": a,
        "b": b,
        "difference": interval.value,
        **ends,
        "verdict": conclusion,
        "p_value": p_value,
    }
