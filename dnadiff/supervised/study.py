"""A study: several models on the same items, their metrics and paired differences, also on subsets
of the items, and the tables of them beside published accuracies.

The published accuracies are in `genomic_benchmarks/published.csv`, which ships with the package;
each comes with the number of training sequences behind it.
"""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy import ndarray

from dnadiff.data.kmers import NOVELTY
from dnadiff.diffusion.bootstrap import MIN_BLOCKS, verdict
from dnadiff.fields import Json, JsonDict, JsonMap
from dnadiff.formats.table import read_csv
from dnadiff.progress import log
from dnadiff.store.objects import config_dir
from dnadiff.supervised.baselines import length_alone
from dnadiff.supervised.classes import ClassTarget
from dnadiff.supervised.classifier import HeadInputs
from dnadiff.supervised.intervals import interval_text
from dnadiff.supervised.items import Items, Job, Prediction, Report, TaskData, TaskModel, no_report
from dnadiff.supervised.metrics import ScoredValues, estimate, summarize_metrics, title
from dnadiff.supervised.protocol import FixedSplit, KFold, Round
from dnadiff.supervised.saved import ResultsFolder
from dnadiff.supervised.targets import TaskTarget

ONE_RUN = "one run, no verdict"
FINE_TUNED = "fine-tuned"
SCRATCH = "scratch"
PRETRAINING = (FINE_TUNED, SCRATCH)  # rows whose difference is the effect of pretraining
FREQUENT = 0.75  # the fraction of the test items in one class from which accuracy says little
_POLL_SECONDS = 2.0  # between checks on what other processes are computing


def compare(
    predictions: Mapping[str, Sequence[Prediction]],
    tested: Items,
    pairs: Sequence[tuple[str, str]] = (),
    subsets: Mapping[str, ndarray] | None = None,
    target: TaskTarget | None = None,
    fixed: Collection[str] = (),
) -> JsonDict:
    """Metrics of predictions on the same items, and differences between pairs, with intervals over
    items, or groups of them, and over runs.

    Args:
        predictions: of each run of each model.
        subsets: masks (S,) bool by name; the primary metric and its differences on each are
            reported too.
        target: None is classes.
        fixed: the models that are the same in each run. One run of another model shows nothing
            about further runs: its difference has the interval of these networks and no verdict.

    Returns:
        `models`: by name, the metric that models are compared by with its interval and its value
        for each run, and all others; `differences`: the primary metric of `a` minus that of `b`.
    """
    target = target or ClassTarget()
    metric = target.metrics[target.primary]
    labels, (groups, units) = tested.labels.numpy(), resampled(tested)
    if units.startswith("items of"):
        log.warning(
            f"the tested {units}, too few to estimate their variance: intervals are over items of "
            "these groups"
        )

    def scored(name: str, rows: slice | ndarray = slice(None)) -> list[ScoredValues]:
        return [
            target.scored(
                run.predictions.numpy()[rows],
                labels[rows],
                None if run.folds is None else run.folds[rows],
            )
            for run in predictions[name]
        ]

    def of_subsets(key: str, model: str, baseline: str | None = None) -> JsonDict:
        """The primary metric of a model on each subset, or the difference of two; None without
        items."""
        found: JsonDict = {}
        for name, mask in (subsets or {}).items():
            found[name] = {"items": int(mask.sum()), key: None, "low": None, "high": None}
            if mask.any():
                drawn = None if groups is None else groups[mask]
                of_baseline = [] if baseline is None else scored(baseline, mask)
                one = estimate(metric, scored(model, mask), of_baseline, drawn)
                found[name] |= {key: one.value, **one.record()}
        return found

    runs = {name: scored(name) for name in predictions}
    models = {}
    differences = []
    for name, own in runs.items():
        metrics = summarize_metrics(own, target.metrics, groups)
        primary = metrics[target.primary]
        models[name] = {
            target.primary: primary["value"],
            **{key: primary[key] for key in ("low", "high", "per_seed")},
            "metrics": metrics,
            **target.details(own),
            "seconds": round(sum(run.seconds for run in predictions[name]), 1),
            "found": [run.fit_info for run in predictions[name]],
            "subsets": of_subsets(target.primary, name),
        }
    for a, b in pairs:
        one = estimate(metric, runs[a], runs[b], groups)
        alone = any(len(runs[name]) == 1 and name not in fixed for name in (a, b))
        difference = {
            "a": a,
            "b": b,
            "difference": one.value,
            **one.record(),
            "verdict": ONE_RUN if alone else verdict(**one.record(), above="better", below="worse"),
            "p_value": one.p_value(),
        }
        differences.append(
            difference | ({"subsets": of_subsets("difference", a, b)} if subsets else {})
        )
    return {"models": models, "differences": differences}


def resampled(tested: Items) -> tuple[ndarray | None, str]:
    """The groups of items that intervals are over, and what they are over, in words; None is single
    items, also where there are too few groups to estimate their variance."""
    groups = np.arange(len(tested)) if tested.groups is None else tested.groups.numpy()
    count = len(np.unique(groups))
    if count == len(groups):
        return None, "items"
    shown = "1 group" if count == 1 else f"{count} groups"
    return (None, f"items of {shown}") if count < MIN_BLOCKS else (groups, shown)


def averaged_row(model: str, num_seeds: int) -> str:
    """The row of the mean of the predictions of a model over all seeds."""
    return f"{model}, {num_seeds} seeds averaged"


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
    results: ResultsFolder | None = None,
    subsets: Mapping[str, ndarray] | None = None,
    averaged: Collection[str] = (),
) -> JsonDict:
    """Fit every model with every seed and compare the predictions; plain values, ready for JSON.

    Predictions that another process is computing are skipped and checked again later.

    Args:
        pairs: (a, b) for the differences a minus b.
        report: called with steps and tokens, and with `now=` the model that is being fitted.
        protocol: which items are for training; None uses the task's own parts.
        subsets: see `compare`.
        averaged: models that also have a row of the mean of their predictions over all seeds, of
            probabilities, or of values.
    """
    start = time.monotonic()
    protocol = protocol or FixedSplit(pad_id=0)
    tested = protocol.tested(data)
    trained = {
        seed: round(np.mean([len(one.data.train) for one in protocol.rounds(data, seed)]))
        for seed in seeds
    }
    folds = {seed: folds_of(data, protocol, seed) for seed in seeds}
    rows: dict[str, TaskModel] = {}
    for name, model in models.items():
        rows |= {name: model, **model.members}
    # In the order of the seeds, whichever is finished first.
    done: dict[str, dict[int, Prediction | None]] = {
        name: dict.fromkeys(distinct_seeds(model, seeds, protocol)) for name, model in rows.items()
    }
    pending = [(name, seed) for name in models for seed in done[name]]
    while pending:
        for name, seed in list(pending):

            def compute(name: str = name, seed: int = seed) -> dict[str, Prediction]:
                report(0, now=f"{name}, seed {seed}")
                return predict_rounds(data, name, models[name], seed, report, protocol)

            about = {**protocol.describe(), "settings": models[name].describe()}
            job = Job(
                data,
                name,
                seed,
                about,
                tested.labels,
                trained[seed],
                folds[seed],
                [*models[name].members],
            )
            found = compute() if results is None else results.get_or_compute(job, compute)
            if found is not None:
                for row, one in found.items():
                    if seed in done[row]:
                        done[row][seed] = one._replace(folds=folds[seed], classifier=None)
                pending.remove((name, seed))
        if pending:
            time.sleep(_POLL_SECONDS)
    predictions: dict[str, list[Prediction]] = {}
    for name, of_seeds in done.items():
        predictions[name] = [run for run in of_seeds.values() if run is not None]
        if name in averaged:
            runs = predictions[name]
            each = [run.predictions for run in runs]
            mean = data.target.averaged(each, [1 / len(runs)] * len(runs))
            total = Prediction(mean, sum(run.seconds for run in runs), [])
            predictions[averaged_row(name, len(runs))] = [total]
    fixed = [name for name in rows if not (rows[name].random or protocol.varies)]
    task = {
        "name": data.name,
        "classes": data.classes,
        "items": protocol.example(data, seeds[0]).counts(),
        "tested": len(tested),
        "stranded": data.stranded,
        **protocol.describe(),
        "chance": data.target.chance(tested.labels.numpy()),
        "metric": data.target.primary,
        "shown": list(data.target.shown),
        "target": data.target.summary,
        "p_value_test": "from the interval",
        "resampled": resampled(tested)[1],
        "length_alone": length_alone(data),
    }
    return {
        "task": task,
        **compare(predictions, tested, pairs, subsets, data.target, fixed),
        "notes": data.notes,
        "seconds": round(time.monotonic() - start, 1),
    }


def folds_of(data: TaskData, protocol: FixedSplit, seed: int) -> ndarray | None:
    """The fold of each tested item, (S,); None if one model predicts all."""
    if not protocol.tests_all_items:
        return None
    found = np.zeros(len(protocol.tested(data)), np.int64)
    for number, one in enumerate(protocol.rounds(data, seed)):
        found[one.tested.numpy()] = number
    return found


def predict_rounds(
    data: TaskData,
    row: str,
    model: TaskModel,
    seed: int,
    report: Report,
    protocol: FixedSplit,
) -> dict[str, Prediction]:
    """What the model and its members compute in all rounds of one seed, by row."""
    rounds = protocol.rounds(data, seed)
    found = [model.fit_rows(row, one.data, seed, report) for one in rounds]
    return {name: _joined(rounds, [each[name] for each in found]) for name in found[0]}


def _joined(rounds: Sequence[Round], found: Sequence[Prediction]) -> Prediction:
    """The prediction of all rounds from those of each, with the classifier of the last."""
    shape = sum(len(one.tested) for one in rounds), found[0].predictions.shape[1]
    predictions = torch.full(shape, math.nan, dtype=torch.float64)
    for one, of_round in zip(rounds, found):
        predictions[one.tested] = of_round.predictions
    valid = [one.valid_predictions for one in found if one.valid_predictions is not None]
    return found[-1]._replace(
        predictions=predictions,
        seconds=sum(one.seconds for one in found),
        fit_info=[info for one in found for info in one.fit_info],
        valid_predictions=torch.cat(valid) if len(valid) == len(rounds) else None,
    )


def scores_of(result: JsonMap) -> dict[str, float]:
    """The metric of each model, the highest first."""
    metric = primary_metric(result)
    models = result["models"]
    return {name: models[name][metric] for name in sorted(models, key=lambda x: -models[x][metric])}


def headline(result: JsonMap) -> str:
    """One sentence: the model with the highest test metric, by how much the saved combination is
    better than its best member, and whether pretraining helped."""
    metric, scores = title(primary_metric(result)), scores_of(result)
    best = next(iter(scores))
    parts = [
        f"{best} has the highest {metric}: {scores[best]:.3f} "
        f"(95 % interval: {interval_text(result['models'][best])}) on "
        f"{result['task']['tested']:,} test sequences"
    ]
    differences = {(d["a"], d["b"]): d for d in result["differences"]}
    members = [name for name in scores if name in result.get("members", ())]
    texts = {
        (result.get("predictor"), name): f"over {name}, its best member" for name in members[:1]
    }
    for (a, b), text in (texts | {PRETRAINING: "from pretraining"}).items():
        if d := differences.get((a, b)):
            gain = f"{d['difference']:+.3f} ({interval_text(d, '{:+.3f}')}) {text}"
            parts.append(f"{a} has {gain}: {d['verdict']}")
    return "; ".join(parts)


def remarks(result: JsonMap) -> list[str]:
    """Lines below the table of a task: what heads read besides features, what the length reveals,
    what intervals leave out, and a frequent class."""
    task = result["task"]
    found = []
    if reads := HeadInputs(**result.get("inputs", {})).describe():
        found.append(f"the heads of the networks also read {reads}")
    if length := task.get("length_alone"):
        found.append(
            f"the length alone predicts the class of {100 * length['accuracy']:.0f} % of the "
            f"validation sequences (the most frequent class: {100 * length['chance']:.0f} %): "
            "check that this is not an artifact of how they were chosen"
        )
    if (units := task.get("resampled", "items")).startswith("items of"):
        found.append(
            f"intervals are over {units}: they do not include the variation between groups, and "
            "may be too narrow for new ones"
        )
    if any(d["verdict"] == ONE_RUN for d in result["differences"]):
        found.append(
            "the interval of a difference from one run, or from one average over seeds, is for "
            "these networks alone: other seeds may differ; train several of each model for a "
            "verdict"
        )
    subsets = next(iter(result["models"].values())).get("subsets", {})
    if training := subsets.get("inside training"):
        found.append(
            f"{training['items']:,} of {task['tested']:,} test sequences overlap the training part "
            f"(shared {NOVELTY}-mers cover half of them): expect the score outside it on new "
            "sequences"
        )
    if primary_metric(result) == ClassTarget.primary and task["chance"] == 1:
        found.append(
            "all test sequences are of one class: accuracy is the fraction of this class that is "
            "found, and AUROC is not defined"
        )
    elif primary_metric(result) == ClassTarget.primary and task["chance"] >= FREQUENT:
        balance = ", and class_weights=balanced gives each class the same weight in training"
        balance = "" if result.get("class_weights") == "balanced" else balance
        found.append(
            f"{100 * task['chance']:.0f} % of the test sequences are of one class: MCC and AUROC "
            f"show more than accuracy{balance}"
        )
    return found


def primary_metric(result: JsonMap) -> str:
    """The metric that a study compares models by; accuracy in the results of earlier versions."""
    return result["task"].get("metric", ClassTarget.primary)


def shown_metrics(result: JsonMap) -> list[str]:
    """Further metrics in the tables of a study."""
    return list(result["task"].get("shown", ClassTarget.shown))


def of_rounds(model: JsonMap, key: str) -> list[Json]:
    """What a model's fits recorded under a key, of all seeds and rounds."""
    return [one[key] for of_seed in model.get("found", ()) for one in of_seed if key in one]


def table_rows(result: JsonMap) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The two tables of a study as text: of models, with a header, and of differences."""
    shown = shown_metrics(result)
    columns = ("model", title(primary_metric(result)), "95 % interval", "over seeds")
    models: list[tuple[str, ...]] = [(*columns, *map(title, shown), "sequences/s")]
    for name, m in result["models"].items():
        seeds = m["per_seed"]
        speeds = of_rounds(m, "sequences_per_second")
        models.append(
            (
                name,
                f"{m[primary_metric(result)]:.3f}",
                interval_text(m),
                f"{min(seeds):.3f} .. {max(seeds):.3f}" if len(seeds) > 1 else "-",
                *(f"{m['metrics'][metric]['value']:.3f}" for metric in shown),
                f"{np.mean(speeds):,.0f}" if speeds else "-",
            )
        )
    differences: list[tuple[str, ...]] = [
        (
            f"{d['a']} - {d['b']}",
            f"{d['difference']:+.3f}",
            interval_text(d, "{:+.3f}"),
            d["verdict"],
        )
        for d in result["differences"]
    ]
    return models, differences


def on_subsets(result: JsonMap, model: str) -> dict[str, str]:
    """The primary metric of a model on each subset of the items, with the number of items, as
    text."""
    return {
        name: f"{one[primary_metric(result)]:.3f} ({one['items']:,})" if one["items"] else "- (0)"
        for name, one in result["models"][model].get("subsets", {}).items()
    }


class PublishedResult(NamedTuple):
    """A published accuracy: the mean over seeds, its `spread`, and the number of training
    sequences.

    The spread is None where the table lacks it; this does not mean that the paper prints none.
    """

    model: str
    accuracy: float
    spread: float | None
    train: int

    @property
    def text(self) -> str:
        """The accuracy with its spread, as in `0.823 ± 0.008`."""
        return f"{self.accuracy:.3f}" + ("" if self.spread is None else f" ± {self.spread:.3f}")


def published_accuracies(task: str) -> list[PublishedResult]:
    """All published results on the task of that name; an empty list for your own task."""
    rows = read_csv(config_dir().parent / "genomic_benchmarks" / "published.csv")[1]
    return [
        PublishedResult(
            row["model"],
            float(row["accuracy"]),
            float(row["spread"]) if row["spread"] else None,
            int(row["train"]),
        )
        for row in rows
        if row["task"] == task
    ]


# Published models by the class names of their network and pretraining objective.
PUBLISHED_MODELS = {
    ("Caduceus", "MDLM"): "Caduceus MDLM",
    ("Caduceus", "MLM"): "Caduceus MLM",
    ("CaduceusPS", "MLM"): "Caduceus-PS",
    ("Mamba", "AR"): "Mamba AR",
}


def published_counterpart(task: str, model: str, pretrained: str | None) -> PublishedResult | None:
    """The published result that corresponds to a model of a study, if any; `pretrained` is that of
    `PUBLISHED_MODELS`."""
    name = {FINE_TUNED: pretrained, "CNN": "CNN"}.get(model)
    return next((row for row in published_accuracies(task) if row.model == name), None)


def num_training_sequences(result: JsonMap) -> int:
    """Sequences for training and validation of a study, which is what published numbers count as
    training."""
    items = result["task"]["items"]
    parts = items if result["task"]["protocol"] == KFold.name else ("train", "valid")
    return sum(sum(items[part].values()) for part in parts)


def suite_rows(studies: Sequence[JsonMap]) -> list[tuple[str, ...]]:
    """The table of several studies as text: a header, in which columns of metrics name the metric
    of each kind of task, and a row for each task and model; a published number always with its
    number of training sequences."""
    shown = [shown_metrics(result) for result in studies]
    width = max(map(len, shown))
    shown = [[*names, *[""] * (width - len(names))] for names in shown]
    primary = dict.fromkeys(title(primary_metric(result)) for result in studies)
    metrics = [" / ".join(filter(None, dict.fromkeys(map(title, each)))) for each in zip(*shown)]
    columns = ("task", "train", "tested", "chance", "model", " / ".join(primary), "95 % interval")
    rows = [(*columns, "spread", *metrics, "published", "minus published")]
    for result, names in zip(studies, shown):
        task = result["task"]
        for model, m in result["models"].items():
            known = published_counterpart(task["name"], model, result.get("counterpart"))
            value = m[primary_metric(result)]
            seeds = m["per_seed"]
            rows.append(
                (
                    task["name"],
                    f"{num_training_sequences(result):,}",
                    f"{task['tested']:,}",
                    f"{task['chance']:.3f}",
                    model,
                    f"{value:.3f}",
                    interval_text(m),
                    f"{max(seeds) - min(seeds):.3f}" if len(seeds) > 1 else "-",
                    *(f"{m['metrics'][name]['value']:.3f}" if name else "-" for name in names),
                    f"{known.model} {known.text} ({known.train:,})" if known else "-",
                    f"{value - known.accuracy:+.3f}" if known else "-",
                )
            )
    return rows


def pretraining_warning(models: JsonMap) -> str | None:
    """One line, or None if the fine-tuned network is at least as good, or one of the two is
    missing.

    The means over all seeds and rounds are compared: first the accuracy of classes, and if it is
    the same, the loss; else the loss alone.

    Args:
        models: as in the result of `run_study`.
    """
    both = [models[name] for name in PRETRAINING if name in models]
    # What `fit_info` records, its name, and which sign is better.
    for key, name, sign in (
        ("valid_accuracy", "accuracy", 1),
        ("valid_weighted_accuracy", "weighted accuracy", 1),
        ("valid_loss", "loss", -1),
    ):
        values = [np.mean(of_model) for of_model in (of_rounds(m, key) for m in both) if of_model]
        if len(values) < 2:
            continue  # of values and several labels, there is no accuracy
        with_pretraining, without = values
        if sign * with_pretraining < sign * without:
            return (
                "on validation, the fine-tuned network is worse than the same network from "
                f"scratch ({name} {with_pretraining:.3f} and "
                f"{without:.3f}): with these settings, pretraining does not help on this task"
            )
        if with_pretraining != without:
            return None
    return None
