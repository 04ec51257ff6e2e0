"""Studies of many models on many tasks in pieces: predictions kept under the names of task, model and seed, and compared when all is there.

Unlike `results.ResultsFolder`, which decides by a digest whether a prediction may be used again, the study that writes these knows
what its names mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dnadiff import __version__
from dnadiff.config import build, compose
from dnadiff.downstream.items import TaskData
from dnadiff.downstream.metrics import Scored, values
from dnadiff.downstream.protocol import FixedSplit, named
from dnadiff.downstream.results import Prediction, load, save, slug
from dnadiff.downstream.study import TaskModel, compare, predict


def task_data(overrides: Sequence[str], tokenizer: Any) -> tuple[TaskData, FixedSplit]:
    """The task that `python -m dnadiff.finetune OVERRIDES` would read, and its protocol."""
    reader = build(compose("finetune", ["checkpoint=none", *overrides])["task"], trust=None)
    return reader.load(tokenizer), named(reader.protocol, tokenizer.vocab.pad_id)


class Predictions:
    """The predictions of a study: `folder/TASK/MODEL-sSEED.npz`.

    Args:
        folder: made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, task: str, model: str, seed: int) -> Path:
        """Where one is kept."""
        return self.folder / slug(task) / f"{slug(model)}-s{seed}.npz"

    def add(
        self,
        task: str,
        name: str,
        seed: int,
        data: TaskData,
        model: TaskModel,
        protocol: FixedSplit,
        report: Callable[..., None] = lambda *_, **__: None,
    ) -> dict[str, Any]:
        """Let a model learn and predict, keep what it predicts, and return metrics, settings and what it found, plain values."""
        tested, start = protocol.tested(data), time.monotonic()
        log_probs, found = predict(data, model, seed, report, protocol, tested.labels)
        new = Prediction(log_probs, time.monotonic() - start, found)
        settings = dict(getattr(model, "describe", dict)())
        about = {
            "task": task,
            "model": name,
            "seed": seed,
            "protocol": protocol.name,
            "train": len(data.train),
            "tested": len(tested),
            "settings": settings,
            "dnadiff": __version__,
            "torch": torch.__version__,
        }
        save(self.path(task, name, seed), new, tested.labels, about)
        metrics = values(Scored(log_probs.numpy(), tested.labels.numpy()))
        return {**about, "metrics": metrics, "found": found, "seconds": round(new.seconds, 1)}

    def of(self, task: str, models: Sequence[str], seeds: Sequence[int]) -> dict[str, list[Prediction]]:
        """What is finished of these models, one for each finished seed."""
        found = {m: [load(p)[0] for seed in seeds if (p := self.path(task, m, seed)).is_file()] for m in models}
        return {name: there for name, there in found.items() if there}

    def compared(
        self, task: str, data: TaskData, protocol: FixedSplit, models: Sequence[str], seeds: Sequence[int], **more: Any
    ) -> Mapping[str, Any]:
        """`run.compare` of what is finished; pairs with a model that is not are left out."""
        there = self.of(task, models, seeds)
        pairs = [(a, b) for a, b in more.pop("pairs", ()) if a in there and b in there]
        return compare(there, protocol.tested(data), pairs, **more)
