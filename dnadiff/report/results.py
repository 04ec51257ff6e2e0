"""Reading the results that a report is made of: `metrics.csv`, and the dicts of `evaluate.json` and `finetune.json`."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

BIT = math.log(2)  # nats
GROUPS = {"all": "All held-out", "novel": "Novel", "repeated": "Repeated"}
LOSSES = ("train_nll", "valid_nll", "valid_nll_live")
Columns = Mapping[str, np.ndarray]


def read_metrics(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The columns of `metrics.csv` as float arrays; empty cells are NaN.

    Raises:
        ValueError: if a cell is no number, a row is cut short, or there is no row.
    """
    with open(path, newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    if not rows:
        raise ValueError(f"{path} holds no row; has the training logged anything?")
    return {name: np.array([_cell(row[name], name, number, path) for number, row in enumerate(rows, start=2)]) for name in rows[0] if name}


def has_loss(metrics: Columns) -> bool:
    """Whether any loss was logged."""
    return any(np.isfinite(metrics[name]).any() for name in LOSSES if name in metrics)


def shown_groups(evaluation: Mapping[str, Any]) -> list[str]:
    """The groups of bases with a number: `all` first, and those that hold no base left out."""
    groups = evaluation["groups"]
    order = [g for g in GROUPS if g in groups] + [g for g in groups if g not in GROUPS]
    return [g for g in order if is_number(groups[g].get("bits"))]


def markov_models(evaluation: Mapping[str, Any], group: str = "all") -> list[Mapping[str, Any]]:
    """The Markov models with a number for a group, by order."""
    models = sorted(evaluation.get("markov") or (), key=lambda m: m["order"])
    return [m for m in models if is_number(m["groups"].get(group, {}).get("bits"))]


def chance_level(finetune: Mapping[str, Any]) -> float | None:
    """One over the number of classes, where the task says how many it has (`classes`: a number or their names)."""
    classes = (finetune.get("task") or {}).get("classes")
    number = classes if is_number(classes) else len(classes or ())
    return 1 / number if number else None


def progress(metrics: Columns) -> tuple[np.ndarray, str]:
    """What the loss is drawn against, tokens where they are known for every row, with its label."""
    tokens = metrics.get("tokens")
    if tokens is not None and len(tokens) and np.isfinite(tokens).all():
        return tokens, "tokens seen in training"
    return metrics["step"], "training steps"


def smoothed(values: np.ndarray) -> np.ndarray:
    """Centred moving average over a fifteenth of the points; at the ends the window is cut off."""
    half, index = max(len(values) // 30, 1), np.arange(len(values))
    total = np.concatenate([[0], np.cumsum(values)])
    first, last = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (total[last] - total[first]) / (last - first)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float | np.number) and math.isfinite(value)


def short_count(value: float) -> str:
    """1,500,000 as 1.5 M."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _cell(text: str | None, name: str, line: int, path: str | os.PathLike[str]) -> float:
    if text is None:
        raise ValueError(f"{path}, line {line}: the row is cut short, {name} is missing")
    try:
        return float(text) if text.strip() else float("nan")
    except ValueError:
        raise ValueError(f"{path}, line {line}: {name} is {text!r}, which is no number") from None
