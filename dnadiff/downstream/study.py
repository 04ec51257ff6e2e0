"""The study of one task: several models with several seeds each, compared on the same test items.

Models implement `model.TaskModel`. The `protocol` decides which items they train on; `results` stores finished predictions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dnadiff.bootstrap import ConfidenceInterval, verdict
from dnadiff.config import Json
from dnadiff.downstream.combine import Combination
from dnadiff.downstream.items import Items, TaskData
from dnadiff.downstream.metrics import ScoredPredictions, bootstrap_weights, confusion_matrix, roc_curves, sign_flip_test, summarize
from dnadiff.downstream.model import Report, TaskModel, no_report
from dnadiff.downstream.protocol import FixedSplit
from dnadiff.downstream.results import Computed, Job, Prediction, Results

_POLL_SECONDS = 2.0  # between checks on what other processes are computing


def distinct_seeds(model: TaskModel, seeds: Sequence[int], protocol: FixedSplit) -> list[int]:
    """The seeds that give different results with this model: all of them, or only the first."""
    return list(seeds if model.random or protocol.varies else seeds[:1])


def run_study(
    data: TaskData,
    models: Mapping[str, TaskModel],
    seeds: Sequence[int],
    pairs: Sequence[tuple[str, str]],
    report: Report = no_report,
    protocol: FixedSplit | None = None,
    results: Results | None = None,
    subsets: Mapping[str, np.ndarray] | None = None,
    combinations: Sequence[Combination] = (),
) -> dict[str, Json]:
    """Fit every model with every seed and compare the predictions; plain values, ready for JSON.

    Args:
        pairs: (a, b) for the differences a minus b.
        report: called with steps and tokens, and with `now=` the model that is being fitted.
        protocol: which items are for training; None uses the task's own parts.
        subsets: see `compare`.
        combinations: further rows, made from those of the models.
    """
    start = time.monotonic()
    protocol = protocol or FixedSplit(pad_id=0)
    tested = protocol.tested(data)
    predictions = _predictions(data, models, seeds, report, protocol, results or Results(), tested.labels)
    predictions |= {one.name: one.combine(predictions, data, protocol, seeds) for one in combinations}
    task = {
        "name": data.name,
        "classes": data.classes,
        "items": data.counts(),
        "tested": len(tested),
        "stranded": data.stranded,
        "protocol": protocol.name,
        "chance": float(np.bincount(tested.labels.numpy()).max() / len(tested)),
    }
    compared = compare(predictions, tested, pairs, subsets)
    return {"task": task, **compared, "notes": data.notes, "seconds": round(time.monotonic() - start, 1)}


def compare(
    predictions: Mapping[str, Sequence[Prediction]],
    tested: Items,
    pairs: Sequence[tuple[str, str]] = (),
    subsets: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Json]:
    """`models`: metrics of predictions on the same items; `differences` between pairs. The items of a group are resampled together.

    `subsets` are masks (S,) bool by name; the accuracy on each subset is reported too.
    """
    labels, groups = tested.labels.numpy(), None if tested.groups is None else tested.groups.numpy()
    reports, correct = {}, {}
    for name, runs in predictions.items():
        scored = [ScoredPredictions(run.log_probs.numpy(), labels) for run in runs]
        correct[name] = np.stack([run.predicted == labels for run in scored])
        reports[name] = {
            **_accuracy(correct[name], groups),
            "metrics": summarize(scored, groups=groups),
            "confusion": confusion_matrix(scored),
            "roc": roc_curves(scored[0]),
            "seconds": round(sum(run.seconds for run in runs), 1),
            "found": [run.fit_info for run in runs],
            "subsets": {subset: _subset(correct[name], mask, groups) for subset, mask in (subsets or {}).items()},
        }
    return {"models": reports, "differences": [_difference(a, b, correct, groups) for a, b in pairs]}


def _predictions(
    data: TaskData,
    models: Mapping[str, TaskModel],
    seeds: Sequence[int],
    report: Report,
    protocol: FixedSplit,
    results: Results,
    labels: Tensor,
) -> dict[str, list[Prediction]]:
    """The predictions of every model with every seed. Those that another process is computing are skipped and checked again later."""
    pending = [(name, seed) for name, model in models.items() for seed in distinct_seeds(model, seeds, protocol)]
    done: dict[str, dict[int, Prediction | None]] = {name: {} for name in models}
    for name, seed in pending:
        done[name][seed] = None  # in the order of the seeds, whichever is finished first
    while pending:
        for name, seed in list(pending):

            def compute(name: str = name, seed: int = seed) -> Computed:
                report(0, now=f"{name}, seed {seed}")
                computed = predict_rounds(data, models[name], seed, report, protocol, labels)
                return computed._replace(classifier=models[name].take_classifier())

            about = {"protocol": protocol.name, "settings": models[name].describe()}
            prediction = results.get_or_compute(Job(data, name, seed, about, labels), compute)
            if prediction is not None:
                done[name][seed] = prediction
                pending.remove((name, seed))
        if pending:
            time.sleep(_POLL_SECONDS)
    return {name: [prediction for prediction in by_seed.values() if prediction is not None] for name, by_seed in done.items()}


def predict_rounds(data: TaskData, model: TaskModel, seed: int, report: Report, protocol: FixedSplit, labels: Tensor) -> Computed:
    """What the model computes in all rounds of one seed, without its network."""
    valid: list[Tensor | None] = []
    result, fit_info = torch.full((len(labels), len(data.classes)), float("nan"), dtype=torch.float64), []
    for one in protocol.rounds(data, seed):
        result[one.tested] = model.fit_predict(one.data, seed, report).to(result.dtype)
        fit_info.append(dict(model.fit_info))
        valid.append(model.valid_log_probs)
    known = [one for one in valid if one is not None]
    return Computed(result, fit_info, valid_log_probs=torch.cat(known) if len(known) == len(valid) else None)


def accuracy_interval(
    correct: np.ndarray, baseline: np.ndarray | None = None, num_resamples: int = 2000, seed: int = 0, groups: np.ndarray | None = None
) -> ConfidenceInterval:
    """Mean accuracy, or the difference of two, with its 95 % bootstrap interval over test items and seeds.

    Each replicate draws the test items with replacement, the same for both models, and each model's seeds with replacement.

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
    random = np.random.default_rng([seed, 1])

    def replicate_means(number: int) -> np.ndarray:
        count = len(models[number])
        seeds = random.multinomial(count, np.full(count, 1 / count), size=num_resamples) / count  # (W, R)
        # A bootstrap of R seeds underestimates their variance by the factor (R - 1)/R: scale their deviation from equal weights.
        seeds = 1 / count + (seeds - 1 / count) * (count / max(count - 1, 1)) ** 0.5
        return (np.concatenate(accuracies[number]) * seeds).sum(1)

    value, replicates = correct.mean(), replicate_means(0)
    if baseline is not None:
        value, replicates = value - baseline.mean(), replicates - replicate_means(1)
    low, high = np.quantile(replicates, [0.025, 0.975])
    return ConfidenceInterval(float(value), float(replicates.std(ddof=1)), float(low), float(high))


def _accuracy(correct: np.ndarray, groups: np.ndarray | None) -> dict[str, Json]:
    interval = accuracy_interval(correct, groups=groups)
    # The scaling over seeds may put a replicate outside of [0, 1].
    low, high = max(interval.low, 0.0), min(interval.high, 1.0)
    return {"accuracy": interval.value, "low": low, "high": high, "per_seed": correct.mean(1).tolist()}


def _subset(correct: np.ndarray, mask: np.ndarray, groups: np.ndarray | None) -> dict[str, Json]:
    size = int(mask.sum())
    found = _accuracy(correct[:, mask], None if groups is None else groups[mask]) if size else {}
    return {"items": size, **{key: found.get(key) for key in ("accuracy", "low", "high")}}


def _difference(a: str, b: str, correct: Mapping[str, np.ndarray], groups: np.ndarray | None) -> dict[str, Json]:
    interval = accuracy_interval(correct[a], correct[b], groups=groups)
    conclusion = verdict(interval.low, interval.high, above="better", below="worse")
    p_value = sign_flip_test(correct[a], correct[b], groups=groups)
    ends = {"low": interval.low, "high": interval.high}
    return {"a": a, "b": b, "difference": interval.value, **ends, "verdict": conclusion, "p_value": p_value}


def training_speed(model: Mapping[str, Json]) -> float | None:
    """Training sequences per second of a model's report, averaged over seeds and rounds; None if not measured."""
    each = [one["sequences_per_second"] for of_seed in model.get("found", ()) for one in of_seed if "sequences_per_second" in one]
    return float(np.mean(each)) if each else None


def table_rows(result: Mapping[str, Json]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The rows of the two tables of a study as text: models, and differences."""
    models: list[tuple[str, ...]] = [
        (
            name,
            f"{m['accuracy']:.3f}",
            f"{m['low']:.3f} .. {m['high']:.3f}",
            f"{min(m['per_seed']):.3f} .. {max(m['per_seed']):.3f}" if len(m["per_seed"]) > 1 else "-",
            f"{m['metrics']['mcc']['value']:.3f}",
            f"{m['metrics']['auroc']['value']:.3f}",
            f"{speed:,.0f}" if (speed := training_speed(m)) else "-",
        )
        for name, m in result["models"].items()
    ]
    differences: list[tuple[str, ...]] = [
        (f"{d['a']} - {d['b']}", f"{d['difference']:+.3f}", f"{d['low']:+.3f} .. {d['high']:+.3f}", d["verdict"])
        for d in result["differences"]
    ]
    return models, differences


def subset_rows(result: Mapping[str, Json]) -> list[tuple[str, ...]]:
    """The accuracy of each model on each subset of the items, with the number of items, as text."""
    return [
        (name, *(f"{one['accuracy']:.3f} ({one['items']:,})" if one["items"] else "- (0)" for one in m["subsets"].values()))
        for name, m in result["models"].items()
    ]
