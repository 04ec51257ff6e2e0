"""The page of a downstream study: a table of all tasks, then for each task its metric next to
published ones, and its predictions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas

from dnadiff.fields import JsonDict, JsonMap
from dnadiff.report import charts
from dnadiff.report.page import Facts, Page, Part, Picture, Section, Table, html_of, shown
from dnadiff.store.disk import write_bytes
from dnadiff.supervised.metrics import title
from dnadiff.supervised.study import (
    PRETRAINING,
    PublishedResult,
    headline,
    num_training_sequences,
    of_rounds,
    on_subsets,
    primary_metric,
    published_accuracies,
    published_counterpart,
    remarks,
    scores_of,
    suite_rows,
    table_rows,
)

_MATRICES = 2  # models with a confusion matrix
_SCATTERED = 3  # models with a picture of predicted against measured values
_PUBLISHED = (
    "Each published accuracy is given with its number of training sequences and, after ±, the "
    "largest minus the smallest accuracy of its five seeds where that is known. A published model "
    "with more training sequences, pretrained on a thousand times more bases, is not a fair "
    "comparison: the difference shows the amount of training, not which method is better. If the "
    "chance level (always the larger class) differs from that of the complete task, the test "
    "sequences are a part of it with other class frequencies, and the accuracies are not "
    "comparable."
)


def write_suite(
    path: str | os.PathLike[str], studies: Sequence[JsonMap], commands: Sequence[str] = ()
) -> Path:
    """Write the page of `studies`; see `page_of`."""
    write_bytes(Path(path), html_of(page_of(studies, commands)))
    return Path(path)


def page_of(studies: Sequence[JsonMap], commands: Sequence[str] = ()) -> Page:
    """The page of `studies`, results of `dnadiff.supervised.study.run_study`, and the `commands`
    that produced them.

    Raises:
        ValueError: if there is no study.
    """
    if not studies:
        raise ValueError("nothing to report: give at least one study")
    warnings = [
        f"Warning: {result['task']['name']}: {result['warning']}. "
        for result in studies
        if result.get("warning")
    ]
    best = [next(iter(scores_of(result))) for result in studies]
    columns = [each for each in zip(*suite_rows(studies)) if {*each[1:]} != {"-"}]
    head, *rows = zip(*columns)
    numbers = {*range(1, len(head))} - {4, 6, head.index("published") if "published" in head else 0}
    text = "Networks and baselines on the same test sequences; intervals over sequences and seeds."
    sections = [section_of(result, f"task_{i}") for i, result in enumerate(studies, 1)]
    name, sentence = studies[0]["task"]["name"], f"{headline(studies[0])}."
    pictures: list[Picture] = []
    if len(studies) > 1:
        name = f"{len(studies)} tasks"
        tally = ", ".join(f"{model} on {count}" for model, count in Counter(best).most_common())
        sentence = f"The model with the highest test metric: {tally} of {name}."
    else:  # pictures of a single task come first
        parts = sections[0].parts
        pictures = [part for part in parts if isinstance(part, Picture)]
        sections = [Section(name, [part for part in parts if part not in pictures])]
    if "published" in head:
        sections.append(Section("Published results", [_PUBLISHED]))
    return Page(
        f"Fine-tuning: {name}",
        f"{''.join(warnings)}{sentence}",
        pictures,
        Table(head, rows, text, numbers),
        sections,
        commands=commands,
    )


def section_of(result: JsonMap, name: str) -> Section:
    """The results of a task; names of pictures start with `name`."""
    task, models = result["task"], result["models"]
    metric = title(primary_metric(result))
    parts: list[Part] = [f"{line[:1].upper()}{line[1:]}." for line in result.get("data", ())]
    parts += _pictures(result, metric, name)
    for model in [*scores_of(result)][:_MATRICES]:
        if counts := models[model].get("confusion"):
            rows = [
                [true, *(f"{n:,.0f} ({100 * n / max(sum(row), 1e-9):.0f} %)" for n in row)]
                for true, row in zip(task["classes"], counts)
            ]
            text = f"{model}: test sequences by true (rows) and predicted class, mean over seeds."
            columns = range(1, len(rows) + 1)
            parts.append(Table(["true class", *task["classes"]], rows, text, columns))
    if differences := result["differences"]:
        test = task.get("p_value_test", "sign-flip test")
        head = ("difference", metric, "95 % interval", "the first is", f"p, {test}")
        cells = zip(table_rows(result)[1], differences)
        rows = [[*row, one["p_value"]] for row, one in cells]
        parts.append(Table(head, rows, "Both are tested on the same sequences.", (1, 4)))
    parts += [f"{line[:1].upper()}{line[1:]}." for line in remarks(result)]
    items = {part: sum(of_class.values()) for part, of_class in task["items"].items()}
    about = {key: task[key] for key in ("tested", "protocol", "stranded", "target") if key in task}
    subsets = {model: found for model in models if (found := on_subsets(result, model))}
    parts += [
        Facts("Task", {"sequences": items, **about, **result.get("notes", {})}),
        Facts("Chosen on validation", chosen(result)),
        Facts(f"{metric} of subsets", subsets),
    ]
    return Section(task["name"], parts)


def _pictures(result: JsonMap, metric: str, name: str) -> Iterator[Picture]:
    """The metric of each model, and what is predicted for the test sequences."""
    task, models, scores = result["task"], result["models"], scores_of(result)
    score, ends = f"test {metric}", ("low", "high")
    known = published_for(result)
    kinds = {str(result.get("predictor")): "saved combination"}
    kinds |= dict.fromkeys(PRETRAINING, "trained network")
    points = [
        {"model": model, score: value, **{end: models[model].get(end) for end in ends}}
        | {"kind": kinds.get(model, "baseline or frozen features")}
        for model, value in scores.items()
    ]
    points += [
        {"model": f"{one.model} ({one.train:,})", score: one.accuracy, "kind": "published"}
        for one in known
    ]
    text = f"Trained on {num_training_sequences(result):,} sequences, chance {task['chance']:.3f}."
    if known:
        text += " Published results: with their number of training sequences."
    label = f"{metric} of each model on {task['name']}; the table has the numbers."
    chart = charts.dots(pandas.DataFrame(points), score, "model", ends, "kind")
    yield Picture(f"{name}_metric", label, f"{text} Lines: 95 % intervals.", chart)
    if differences := result["differences"]:
        frame = pandas.DataFrame(differences).rename(columns={"verdict": "the first is"})
        frame["pair"] = frame["a"] + "\n− " + frame["b"]
        label = f"Paired differences of {metric} with 95 % intervals; the table has the numbers."
        chart = charts.dots(frame, "difference", "pair", ends, "the first is", zero=True)
        text = f"Differences of {metric}: above 0 the first is better. Lines: 95 % intervals."
        yield Picture(f"{name}_differences", label, text, chart)
    # Two classes: a curve of each model. More: each class against the rest, of the best model.
    curves = {model: models[model]["roc"] for model in scores if models[model].get("roc")}
    text = "ROC curves"
    if curves:
        first = next(iter(curves))
        named = {model: of_model[0] for model, of_model in curves.items()}
        if len(task["classes"]) > 2:
            named = dict(zip(task["classes"], curves[first]))
            text += f" of {first}, each class against the rest"
        text += ", first seed" + "; all folds together" * (task["protocol"] == "kfold")
        frame = pandas.concat([pandas.DataFrame(x).assign(curve=key) for key, x in named.items()])
        x, y = "false positive rate", "true positive rate"
        chart = charts.lines(frame.rename(columns={"false": x, "true": y}), x, y, "curve")
        yield Picture(f"{name}_roc", f"ROC curves on {task['name']}.", f"{text}.", chart)
    for number, model in enumerate([*scores][:_SCATTERED]):
        for target, points in models[model].get("scatter", {}).items():
            frame = pandas.DataFrame(points).add_suffix(f" {target}")
            label = f"Predicted against measured {target} of {model} on {task['name']}."
            chart = charts.scatter(frame, f"measured {target}", f"predicted {target}")
            text = f"{model}: test sequences, first seed."
            yield Picture(f"{name}_{target}_{number}", label, text, chart)


def published_for(result: JsonMap) -> list[PublishedResult]:
    """The published accuracies of the models of a study."""
    name = result["task"]["name"]
    pretrained = result.get("counterpart")
    known = [published_counterpart(name, model, pretrained) for model in result["models"]]
    return [each for each in published_accuracies(name) if each in known]


def chosen(result: JsonMap) -> JsonDict:
    """What was chosen on validation for each model."""
    found = {name: map(shown, of_rounds(x, "chosen")) for name, x in result["models"].items()}
    texts = {name: "; ".join(filter(None, dict.fromkeys(each))) for name, each in found.items()}
    return {name: text for name, text in texts.items() if text}
