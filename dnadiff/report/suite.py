"""The page of a downstream study: a table of all tasks, then for each task its metric with
published ones, and pictures of the predictions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path

from dnadiff.checks import is_number
from dnadiff.report import classification, panels
from dnadiff.report.figures import panel
from dnadiff.report.html import facts, pair, picture, section, table, write
from dnadiff.report.results import ACCURACY, Results, metric_of
from dnadiff.report.sections import footer
from dnadiff.supervised.protocol import KFold
from dnadiff.supervised.study import remarks
from dnadiff.supervised.tables import (
    num_training_sequences,
    published_accuracies,
    published_model_for,
    suite_header,
    suite_rows,
)

_PUBLISHED_NOTE = (
    "Each published accuracy is given with its number of training sequences and, after ±, the "
    "largest minus the smallest accuracy of its five "
    "seeds where that is known. A published model with more training sequences, pretrained on a "
    "thousand times more bases, is not a fair comparison: the difference shows the amount of "
    "training, not which method is better. If the "
    "chance level (always the larger class) differs from that of the complete task, the test "
    "sequences are a part of it with other class "
    "frequencies, and the accuracies are not comparable."
)


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
    title = title or f"{_kind(studies)}: {names[0] if len(names) == 1 else f'{len(names)} tasks'}"
    intro = (
        "Networks and baselines on the same test sequences; intervals are 95 % bootstrap "
        "intervals over sequences and seeds."
    )
    warnings = "".join(
        f"<p>Warning: {escape(r['task']['name'])}: {escape(r['warning'])}</p>"
        for r in studies
        if r.get("warning")
    )
    body = [
        f"<header>{warnings}<h1>{escape(title)}</h1><p>{escape(intro)}</p></header>",
        section("All results", _table(studies)),
    ]
    body += [_task(result, f"t{number}") for number, result in enumerate(studies)]
    return write(path, title, [*body, footer(commands)])


def _kind(studies: Sequence[Results]) -> str:
    return (
        "Classification"
        if all(metric_of(result) is ACCURACY for result in studies)
        else "Downstream tasks"
    )


def _table(studies: Sequence[Results]) -> str:
    rows = suite_rows(studies)
    note = f"<p>{escape(_PUBLISHED_NOTE)}</p>" if any(row[-1] != "-" for row in rows) else ""
    header = suite_header(studies)
    head = [text.capitalize() if text.islower() else text for text in header]
    return (
        table(
            head,
            rows,
            numbers=(1, 2, 3, 5, *range(7, len(header) - 2), len(header) - 1),
            kind="wide",
        )
        + note
    )


def _task(result: Results, name: str) -> str:
    task, models = result["task"], classification.in_order(result)
    counterparts = {published_model_for(model, result.get("counterpart")) for model in models}
    known = [row for row in published_accuracies(task["name"]) if row.model in counterparts]
    height = 0.9 + 0.36 * (len(models) + len(known))
    bars = picture(
        panel(partial(classification.accuracy_bars, result=result, published=known), height),
        f"{name}bars",
        f"{metric_of(result).title} of each model on {task['name']}; the table above gives the "
        "numbers.",
        "Orange: baselines and frozen features. Blue: fully trained networks, here on "
        f"{num_training_sequences(result):,} sequences. "
        + ("Gray: published, with their number of training sequences. " if known else "")
        + "Lines: 95 % intervals.",
    )
    first, *others = (
        *_curves(result, name),
        *_confusions(result, name),
        *_scatters(result, name),
        "",
    )
    return section(
        task["name"],
        pair(bars, first)
        + pair(*filter(None, others))
        + _differences(result, name)
        + _remarks(result)
        + _notes(result),
    )


def _curves(result: Results, name: str) -> list[str]:
    task = result["task"]
    if not any(model.get("roc") for model in result["models"].values()):
        return []
    note = "First seed; all folds together." if task["protocol"] == KFold.name else "First seed."
    label = f"ROC curves on {task['name']}; the table above gives the areas under them."
    return [
        picture(panel(partial(classification.roc, result=result), 4.6), f"{name}roc", label, note)
    ]


def _confusions(result: Results, name: str) -> list[str]:
    shown = [
        model
        for model in classification.in_order(result)
        if result["models"][model].get("confusion")
    ][:2]
    return [
        picture(
            panel(partial(classification.confusion, result=result, name=model), 3.4),
            f"{name}confusion{number}",
            f"Confusion matrix of {model} on {result['task']['name']}.",
            "Number of test sequences (mean over seeds), and their fraction of the true class.",
        )
        for number, model in enumerate(shown)
    ]


def _scatters(result: Results, name: str, num_models: int = 3) -> list[str]:
    shown = [
        model for model in classification.in_order(result) if result["models"][model].get("scatter")
    ][:num_models]
    pairs = [(model, target) for model in shown for target in result["models"][model]["scatter"]]
    return [
        picture(
            panel(partial(classification.scatter, result=result, name=model, target=target), 3.8),
            f"{name}scatter{number}",
            f"Predicted against measured {target} of {model} on {result['task']['name']}.",
            "Test sequences, first seed; dotted: the diagonal.",
        )
        for number, (model, target) in enumerate(pairs)
    ]


def _differences(result: Results, name: str) -> str:
    if not result.get("differences"):
        return ""
    metric, test = metric_of(result), result["task"].get("p_value_test", "sign-flip test")
    drawn = picture(
        panel(
            partial(panels.accuracy_differences, finetune=result),
            0.9 + 0.55 * len(result["differences"]),
        ),
        f"{name}differences",
        f"Paired differences of {metric.axis.removeprefix('test ')} with 95 % intervals; the table "
        "gives the numbers.",
        "Both models are tested on the same sequences. Filled: the interval excludes 0. Open: it "
        "contains 0.",
    )
    rows = [
        (
            f"{d['a']} - {d['b']}",
            f"{d['difference']:+.3f}",
            f"{d['low']:+.3f} to {d['high']:+.3f}",
            f"{d['p_value']:.4f}",
            d["verdict"],
        )
        for d in result["differences"]
    ]
    return pair(
        drawn,
        table(
            ("Difference", metric.title, "95 % interval", f"p, {test}", "First is"),
            rows,
            numbers=(1, 2, 3),
        ),
    )


def _remarks(result: Results) -> str:
    return "".join(f"<p>{escape(line[:1].upper() + line[1:])}.</p>" for line in remarks(result))


def _notes(result: Results) -> str:
    task, metric = result["task"], metric_of(result)
    parts = {part: sum(of_class.values()) for part, of_class in task["items"].items()}
    about = {
        "sequences": parts,
        "tested": task["tested"],
        "protocol": task["protocol"],
        "stranded": task["stranded"],
    }
    about |= {"predicted": task["target"]} if "target" in task else {}
    chosen = {name: found for name, m in result["models"].items() if (found := _chosen(m))}
    subsets = {
        name: {
            part: f"{one[metric.name]:.3f} ({one['items']:,})"
            for part, one in m["subsets"].items()
            if one["items"]
        }
        for name, m in result["models"].items()
        if m.get("subsets")
    }
    found = facts("Chosen on validation", chosen) + facts(f"{metric.title} of subsets", subsets)
    return pair(facts("Task", {**about, **result.get("notes", {})}), found)


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
