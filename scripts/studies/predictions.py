"""Predictions of studies that run in pieces: stored by task, model and seed, and compared when they
are complete.

`saved.ResultsFolder` decides by a digest whether a stored prediction may be reused. Here the
names alone identify a prediction: the study that writes them defines what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.fields import Json
from dnadiff.finetune import finetune
from dnadiff.renamed import VERSION
from dnadiff.store.objects import build
from dnadiff.supervised.items import Prediction, Report, TaskData, TaskModel, no_report
from dnadiff.supervised.metrics import metric_values
from dnadiff.supervised.protocol import FixedSplit, build_protocol
from dnadiff.supervised.saved import load_prediction, save_prediction, slug
from dnadiff.supervised.study import compare, folds_of, predict_rounds


def task_data(overrides: Sequence[str], tokenizer: DNATokenizer) -> tuple[TaskData, FixedSplit]:
    """The task that `python -m dnadiff.finetune OVERRIDES` would read, and its protocol."""
    reader = build(finetune.compose(["checkpoint=none", *overrides]).task, trust=None)
    return reader.load(tokenizer), build_protocol(reader.protocol, tokenizer.vocab.pad_id)


class Predictions:
    """The predictions of a study: `folder/TASK/MODEL-sSEED.npz`.

    Args:
        folder: created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, task: str, model: str, seed: int) -> Path:
        """The file of a prediction."""
        return self.folder / slug(task) / f"{slug(model)}-s{seed}.npz"

    def add(
        self,
        task: str,
        name: str,
        seed: int,
        data: TaskData,
        model: TaskModel,
        protocol: FixedSplit,
        report: Report = no_report,
    ) -> dict[str, Json]:
        """Fit a model, store its predictions, and return metrics, settings and fit information as
        plain values."""
        tested, new = protocol.tested(data), predict_rounds(data, model, seed, report, protocol)
        settings = model.describe()
        about = {
            "task": task,
            "model": name,
            "seed": seed,
            "protocol": protocol.name,
            "train": len(data.train),
            "tested": len(tested),
            "settings": settings,
            "dnadiff": VERSION,
            "torch": torch.__version__,
        }
        save_prediction(self.path(task, name, seed), new, tested.labels, about)
        metrics = metric_values(
            data.target.scored(
                new.predictions.numpy(), tested.labels.numpy(), folds_of(data, protocol, seed)
            ),
            data.target.metrics,
        )
        return {
            **about,
            "metrics": metrics,
            "found": new.fit_info,
            "seconds": round(new.seconds, 1),
        }

    def of(
        self,
        task: str,
        models: Sequence[str],
        seeds: Sequence[int],
        labels: Tensor,
        folds: Mapping[int, np.ndarray | None] | None = None,
    ) -> dict[str, list[Prediction]]:
        """The finished predictions of these models, one per finished seed; ValueError if their
        items do not have these `labels`.

        `folds` are those of a cross-validation, for each seed.
        """
        found: dict[str, list[Prediction]] = {}
        for name in models:
            for seed in seeds:
                if (path := self.path(task, name, seed)).is_file():
                    prediction, stored = load_prediction(path)
                    if not np.array_equal(stored, labels, equal_nan=True):
                        raise ValueError(
                            f"{path} has different items from the task {task}; remove it and its "
                            "piece, and run the piece again"
                        )
                    found.setdefault(name, []).append(
                        prediction._replace(folds=(folds or {}).get(seed))
                    )
        return found

    def compared(
        self,
        task: str,
        data: TaskData,
        protocol: FixedSplit,
        models: Sequence[str],
        seeds: Sequence[int],
        **more: Json,
    ) -> Mapping[str, Json]:
        """`comparison.compare` of the finished predictions; pairs with an unfinished model are left
        out."""
        tested = protocol.tested(data)
        finished = self.of(
            task,
            models,
            seeds,
            tested.labels,
            {seed: folds_of(data, protocol, seed) for seed in seeds},
        )
        pairs = [(a, b) for a, b in more.pop("pairs", ()) if a in finished and b in finished]
        return compare(finished, tested, pairs, target=data.target, **more)
