"""Published accuracies on the tasks, for comparison; each comes with the number of training
sequences behind it.

The table is `genomic_benchmarks/published.csv`, which ships with the package.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dnadiff.fields import Json
from dnadiff.store.objects import config_dir
from dnadiff.supervised.metrics import title
from dnadiff.supervised.protocol import KFold
from dnadiff.supervised.study import primary_metric, shown_metrics

FIRST_COLUMNS, LAST_COLUMNS = (
    ("task", "train", "tested", "chance", "model"),
    ("published", "minus published"),
)
_PUBLISHED_BASELINES = {"CNN": "CNN"}  # name in our study -> name in published.csv
# class of network, class of objective -> name of the model in published.csv
_PRETRAINED = {
    ("Caduceus", "MDLM"): "Caduceus MDLM",
    ("Caduceus", "MLM"): "Caduceus MLM",
    ("CaduceusPS", "MLM"): "Caduceus-PS",
    ("Mamba", "AR"): "Mamba AR",
}


class PublishedResult(NamedTuple):
    """A published accuracy: the mean over seeds, its `spread` with the kind of it, and the number
    of training sequences.

    The spread is None where the table lacks it; this does not mean that the paper prints none.
    """

    model: str
    accuracy: float
    spread: float | None
    spread_kind: str
    train: int
    source: str

    @property
    def text(self) -> str:
        """The accuracy with its spread, as in `0.823 ± 0.008`."""
        return f"{self.accuracy:.3f}" + ("" if self.spread is None else f" ± {self.spread:.3f}")


def table_path() -> Path:
    """The CSV file: inside the installed package, or next to it in a checkout; FileNotFoundError if
    it is missing."""
    if not (found := config_dir().parent / "genomic_benchmarks" / "published.csv").is_file():
        raise FileNotFoundError(f"{found} is missing; reinstall dnadiff")
    return found


def published_accuracies(task: str) -> list[PublishedResult]:
    """All published results on the task of that name; an empty list for your own task."""
    with table_path().open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == task]
    spreads = [float(row["spread"]) if row["spread"] else None for row in rows]
    return [
        PublishedResult(
            r["model"], float(r["accuracy"]), s, r["spread_kind"], int(r["train"]), r["source"]
        )
        for r, s in zip(rows, spreads)
    ]


def published_model_of(backbone: str, objective: str) -> str | None:
    """The published model with that network and pretraining objective, both given as class names;
    None if there is none."""
    return _PRETRAINED.get((backbone, objective))


def published_model_for(model: str, pretrained: str | None) -> str | None:
    """The published model that corresponds to a model of our study, if any; `pretrained` is
    `published_model_of` the network."""
    return pretrained if model == "fine-tuned" else _PUBLISHED_BASELINES.get(model)


def published_counterpart(task: str, model: str, pretrained: str | None) -> PublishedResult | None:
    """The published result that corresponds to a model of our study, if any; arguments as in
    `published_model_for`."""
    name = published_model_for(model, pretrained)
    return next((row for row in published_accuracies(task) if row.model == name), None)


def num_training_sequences(result: Mapping[str, Json]) -> int:
    """Sequences for training and validation of a study, which is what published numbers count as
    training."""
    items = result["task"]["items"]
    parts = items if result["task"]["protocol"] == KFold.name else ("train", "valid")
    return sum(sum(items[part].values()) for part in parts)


def suite_header(studies: Sequence[Mapping[str, Json]]) -> tuple[str, ...]:
    """The columns of `suite_rows`; those of metrics name the metric of each kind of task."""
    primary = dict.fromkeys(title(primary_metric(result)) for result in studies)
    shown = zip(*dict.fromkeys(tuple(map(title, shown_of(result, studies))) for result in studies))
    metrics = (" / ".join(filter(None, dict.fromkeys(names))) for names in shown)
    return (*FIRST_COLUMNS, " / ".join(primary), "95 % interval", "spread", *metrics, *LAST_COLUMNS)


def shown_of(result: Mapping[str, Json], studies: Sequence[Mapping[str, Json]]) -> list[str]:
    """The further metrics of a study, filled with empty names to as many as all studies have."""
    own = shown_metrics(result)
    return own + [""] * (max(len(shown_metrics(each)) for each in studies) - len(own))


def suite_rows(studies: Sequence[Mapping[str, Json]]) -> list[tuple[str, ...]]:
    """One row per task and model, under `suite_header`; a published number always with its number
    of training sequences."""
    rows: list[tuple[str, ...]] = []
    for result in studies:
        task = result["task"]
        for name, m in result["models"].items():
            known, accuracy = (
                published_counterpart(task["name"], name, result.get("counterpart")),
                m[primary_metric(result)],
            )
            rows.append(
                (
                    task["name"],
                    f"{num_training_sequences(result):,}",
                    f"{task['tested']:,}",
                    f"{task['chance']:.3f}",
                    name,
                    f"{accuracy:.3f}",
                    f"{m['low']:.3f} .. {m['high']:.3f}",
                    f"{max(m['per_seed']) - min(m['per_seed']):.3f}"
                    if len(m["per_seed"]) > 1
                    else "-",
                    *(
                        f"{m['metrics'][metric]['value']:.3f}" if metric else "-"
                        for metric in shown_of(result, studies)
                    ),
                    f"{known.model} {known.text} ({known.train:,})" if known else "-",
                    f"{accuracy - known.accuracy:+.3f}" if known else "-",
                )
            )
    return rows


# What `fit_info` records, its name, and which sign is better.
_SCORES = (
    ("valid_accuracy", "accuracy", 1),
    ("valid_weighted_accuracy", "weighted accuracy", 1),
    ("valid_loss", "loss", -1),
)


def pretraining_warning(models: Mapping[str, Json], fine_tuned: str, scratch: str) -> str | None:
    """One line, or None if the fine-tuned network is at least as good, or one of the two is
    missing.

    The means over all seeds and rounds are compared: first the accuracy of classes, and if it is
    the same, the loss; else the loss alone.

    Args:
        models: as in the result of `dnadiff.supervised.study.run_study`.
    """
    if fine_tuned not in models or scratch not in models:
        return None
    for key, name, sign in _SCORES:
        with_pretraining, without = _mean(models[fine_tuned], key), _mean(models[scratch], key)
        if with_pretraining is None or without is None:
            continue  # of values and several labels, there is no accuracy
        if sign * with_pretraining < sign * without:
            return (
                "on validation, the fine-tuned network is worse than the same network from "
                f"scratch ({name} {with_pretraining:.3f} and "
                f"{without:.3f}): with these settings, pretraining does not help on this task"
            )
        if with_pretraining != without:
            return None
    return None


def _mean(model: Json, key: str) -> float | None:
    values = [one[key] for of_seed in model.get("found", ()) for one in of_seed if key in one]
    return sum(values) / len(values) if values else None
