"""The page of a downstream study: a table of all tasks, then for each task its metric with
published ones, and pictures of the predictions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from dnadiff.fields import is_number
from dnadiff.report.page import write_page
from dnadiff.report.panels import in_order
from dnadiff.report.results import ACCURACY, Results, metric_of
from dnadiff.supervised.study import (
    PublishedResult,
    num_training_sequences,
    on_subsets,
    published_accuracies,
    published_counterpart,
    remarks,
    suite_rows,
)

_MAX_SCATTERED = 3  # models


def write_suite(
    path: str | os.PathLike[str],
    studies: Sequence[Results],
    commands: Sequence[str] = (),
    title: str | None = None,
) -> Path:
    """Write the page of `studies`, results of `dnadiff.supervised.study.study`, and the `commands`
    that produced them.

    Raises:
        ValueError: if there is no study.
    """
    if not studies:
        raise ValueError("nothing to report: give at least one study")
    names = [result["task"]["name"] for result in studies]
    are_classes = all(metric_of(result) is ACCURACY for result in studies)
    kind = "Classification" if are_classes else "Downstream tasks"
    header, *rows = suite_rows(studies)
    return write_page(
        path,
        "studies",
        title=title or f"{kind}: {names[0] if len(names) == 1 else f'{len(names)} tasks'}",
        studies=studies,
        head=[text.capitalize() if text.islower() else text for text in header],
        rows=rows,
        numbers=(1, 2, 3, 5, *range(7, len(header) - 2), len(header) - 1),
        has_published=any(row[-1] != "-" for row in rows),
        commands=commands,
        in_order=in_order,
        published_for=published_for,
        num_training_sequences=num_training_sequences,
        models_with=models_with,
        scattered=scattered,
        difference_rows=difference_rows,
        remarks=remarks,
        task_facts=task_facts,
        chosen=chosen,
        subsets=subsets,
    )


def published_for(result: Results) -> list[PublishedResult]:
    """The published accuracies of the models of a study."""
    name, pretrained = result["task"]["name"], result.get("counterpart")
    known = [published_counterpart(name, model, pretrained) for model in result["models"]]
    return [each for each in published_accuracies(name) if each in known]


def models_with(result: Results, key: str) -> list[str]:
    """The models of a study with a result of this name."""
    return [model for model in in_order(result) if result["models"][model].get(key)]


def scattered(result: Results) -> list[tuple[str, str]]:
    """The models and targets whose predictions are drawn against measured values."""
    shown = models_with(result, "scatter")[:_MAX_SCATTERED]
    return [(model, target) for model in shown for target in result["models"][model]["scatter"]]


def difference_rows(result: Results) -> list[tuple[str, ...]]:
    """The paired differences of a study."""
    return [
        (
            f"{d['a']} - {d['b']}",
            f"{d['difference']:+.3f}",
            f"{d['low']:+.3f} to {d['high']:+.3f}",
            f"{d['p_value']:.4f}",
            d["verdict"],
        )
        for d in result["differences"]
    ]


def task_facts(result: Results) -> Results:
    """The task and the notes about it."""
    task = result["task"]
    parts = {part: sum(of_class.values()) for part, of_class in task["items"].items()}
    about = {"sequences": parts, **{key: task[key] for key in ("tested", "protocol", "stranded")}}
    about |= {"predicted": task["target"]} if "target" in task else {}
    return {**about, **result.get("notes", {})}


def chosen(result: Results) -> Results:
    """What was chosen on validation for each model."""
    return {name: found for name, m in result["models"].items() if (found := _chosen(m))}


def subsets(result: Results) -> Results:
    """The metric of subsets of the items for each model."""
    return {
        name: {
            part: text
            for part, text in on_subsets(result, name).items()
            if model["subsets"][part]["items"]
        }
        for name, model in result["models"].items()
        if model.get("subsets")
    }


def _chosen(model: Results) -> str:
    every = [
        one["chosen"] for of_seed in model.get("found", ()) for one in of_seed if "chosen" in one
    ]
    said = [
        ", ".join(
            f"{key} {value:g}" if is_number(value) else f"{key} {value}"
            for key, value in one.items()
        )
        if isinstance(one, Mapping)
        else str(one)
        for one in every
    ]
    return "; ".join(dict.fromkeys(said))
