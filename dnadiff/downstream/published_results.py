"""Published numbers of the tasks, for standing beside ours; never without the number of training sequences they rest on.

The table is `genomic_benchmarks/published.csv`, which ships with the package.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SUITE_HEADER = (
    "task",
    "train",
    "tested",
    "chance",
    "model",
    "accuracy",
    "95 % interval",
    "spread",
    "MCC",
    "AUROC",
    "published",
    "minus published",
)


# network and objective, by our class names -> the model as published.csv calls it
_COUNTERPARTS = {
    ("Caduceus", "MDLM"): "Caduceus MDLM",
    ("Caduceus", "MLM"): "Caduceus MLM",
    ("CaduceusPS", "MLM"): "Caduceus-PS",
    ("Mamba", "AR"): "Mamba AR",
}


class PublishedResult(NamedTuple):
    """A published accuracy.

    Attributes:
        model: as its source calls it.
        accuracy: mean over seeds.
        spread: max - min over seeds, where printed.
        train: training sequences.
        source: paper and table.
    """

    model: str
    accuracy: float
    spread: float | None
    train: int
    source: str


def table() -> Path:
    """The file: inside the installed package, or beside it in a checkout.

    Raises:
        FileNotFoundError: if it is missing.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package, package.parent):
        if (found := folder / "genomic_benchmarks" / "published.csv").is_file():
            return found
    raise FileNotFoundError(f"genomic_benchmarks/published.csv is missing beside {package}; reinstall dnadiff")


def published_accuracies(task: str) -> list[PublishedResult]:
    """What is published for a task of that name; nothing for one of your own."""
    with table().open(encoding="utf-8", newline="") as file:
        return [
            PublishedResult(
                row["model"], float(row["accuracy"]), float(row["spread"]) if row["spread"] else None, int(row["train"]), row["source"]
            )
            for row in csv.DictReader(file)
            if row["task"] == task
        ]


def published_model_of(backbone: str, objective: str) -> str | None:
    """The published model with that network and that pretraining, both by the names of our classes; None if nobody published it."""
    return _COUNTERPARTS.get((backbone, objective))


def published_model_for(ours: str, pretrained: str | None) -> str | None:
    """The published model that a model of ours is held against; None for those that nobody published.

    Args:
        ours: name in the study.
        pretrained: `published_model_of` of the network that was fine-tuned.
    """
    if ours == "CNN":
        return "CNN"
    return pretrained if ours.startswith("fine-tuned") else None


def published_counterpart(task: str, ours: str, pretrained: str | None) -> PublishedResult | None:
    """The published number that one of ours is held against, if there is one; arguments as of `published_model_for`."""
    name = published_model_for(ours, pretrained)
    return next((row for row in published_accuracies(task) if row.model == name), None)


def num_training_sequences(result: Mapping[str, Any]) -> int:
    """Sequences for training and validation of a study; what a published number counts as training."""
    items = result["task"]["items"]
    if result["task"]["protocol"] == "kfold":
        return sum(sum(of_class.values()) for of_class in items.values())
    return sum(sum(items[part].values()) for part in ("train", "valid"))


def suite_rows(studies: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """One row for each model on each task, under `SUITE_HEADER`; a published number always with its training sequences."""
    rows = []
    for result in studies:
        task = result["task"]
        for name, m in result["models"].items():
            known, accuracy = published_counterpart(task["name"], name, result.get("counterpart")), m["accuracy"]
            rows.append(
                (
                    task["name"],
                    f"{num_training_sequences(result):,}",
                    f"{task['tested']:,}",
                    f"{task['chance']:.3f}",
                    name,
                    f"{accuracy:.3f}",
                    f"{m['low']:.3f} .. {m['high']:.3f}",
                    f"{max(m['per_seed']) - min(m['per_seed']):.3f}" if len(m["per_seed"]) > 1 else "-",
                    f"{m['metrics']['mcc']['value']:.3f}",
                    f"{m['metrics']['auroc']['value']:.3f}",
                    f"{known.model} {known.accuracy:.3f} ({known.train:,})" if known else "-",
                    f"{accuracy - known.accuracy:+.3f}" if known else "-",
                )
            )
    return rows
