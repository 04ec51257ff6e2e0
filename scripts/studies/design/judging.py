"""The judges of the design study: models of other kinds than the oracle, fitted on data that it has
not read.

`dnadiff.supervised` models predict the test part of a task, so designs are judged as test
sequences. The same seeds give the same models: a judge that is fitted again has the same
predictions, which `checked` confirms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import measures
import numpy as np
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.finetune import finetune
from dnadiff.store.objects import build
from dnadiff.supervised.baselines import KmerLogistic, best_scores
from dnadiff.supervised.heads import ConvHead
from dnadiff.supervised.items import Items, TaskData, TaskModel
from dnadiff.supervised.networks import OneHotModel

CNN = "CNN"
KMERS = "6-mers"
SIGMA70 = "6-mers of sigma70"
MATRIX = "-10/-35 matrix"
JUDGES = (CNN, KMERS, SIGMA70, MATRIX)
LOWEST = 0.3  # Spearman's correlation on the official test part from which a judge counts
TSS = [
    "task=csv",
    "task.name=ecoli_tss_half",
    "task.label_column=expression",
    "task.split_column=split",
    "task.kind=regression",
    "task.transform=log1p",
    "task.stranded=true",
]
SPACER_PENALTY = 1.0  # bits, as in configs/baselines/ecoli_promoter.yaml
_BLOCK = 1000  # bases of the genome that are resampled together
_SAME = 1e-4


@dataclass(frozen=True)
class Judge:
    """A model with the task that it is fitted on, and its seeds, over which predictions are
    averaged."""

    data: TaskData
    model: Callable[[DNATokenizer], TaskModel]
    seeds: Sequence[int] = (1,)

    def predict(self, letters: Sequence[str]) -> np.ndarray:
        """Predictions (S,) on the scale of the task's transform."""
        tokenizer = DNATokenizer()
        ids = [tokenizer.encode(each) for each in letters]
        items = Items.from_sequences(
            ids, np.zeros((len(ids), 1), np.float32), tokenizer.vocab.pad_id
        )
        data = replace(self.data, test=items)
        found = [self.model(tokenizer).fit_predict(data, seed) for seed in self.seeds]
        return torch.stack(found).double().mean(0)[:, 0].numpy()


def task_data(overrides: Sequence[str], tokenizer: DNATokenizer) -> TaskData:
    """The task that `python -m dnadiff.finetune OVERRIDES` would read."""
    return build(finetune.compose(["checkpoint=none", *overrides]).task, trust=None).load(tokenizer)


def judges(half: Path, sigma70: Path, num_seeds: int, epochs: int) -> dict[str, Judge]:
    """The fitted judges by name; the matrix needs no fit."""
    tokenizer = DNATokenizer()
    tss = task_data([*TSS, f"task.path={half}"], tokenizer)
    grid = task_data(["task=ecoli_sigma70", f"task.path={sigma70}"], tokenizer)
    cnn = partial(
        OneHotModel,
        head=ConvHead,
        lr=2e-3,
        epochs=epochs,
        batch_size=32,
    )
    kmers = partial(KmerLogistic, k=6)
    return {
        CNN: Judge(tss, cnn, range(1, num_seeds + 1)),
        KMERS: Judge(tss, kmers),
        SIGMA70: Judge(grid, kmers),
    }


def predicted(made: Mapping[str, Judge], letters: Sequence[str]) -> dict[str, np.ndarray]:
    """What each judge predicts, and the score of the matrix in bits: (S,) each."""
    return {
        **{name: judge.predict(letters) for name, judge in made.items()},
        MATRIX: matrix_scores(letters),
    }


def matrix_scores(letters: Sequence[str]) -> np.ndarray:
    """The best pair of a -35 and a -10 hexamer on the given strand, in bits; sequences of one
    length."""
    tokenizer = DNATokenizer()
    bases = np.stack([tokenizer.bases(tokenizer.encode(each)) for each in letters])
    return best_scores(bases, np.full(len(bases), bases.shape[1]), SPACER_PENALTY)


def spearman(
    scores: Mapping[str, np.ndarray], expression: np.ndarray, start: np.ndarray
) -> dict[str, measures.Interval]:
    """Spearman's correlation of each score with the expression, with its 95 % interval over blocks
    of the genome.

    Sequences that are not in the genome are blocks of their own.
    """
    group = np.where(start >= 0, start // _BLOCK, -np.arange(len(start)) - 1)
    found = measures.bootstrap(
        lambda score, weight: measures.spearman(score, expression, weight), scores, group
    )
    return {
        name: {key: each[key] for key in ("value", "low", "high")} for name, each in found.items()
    }  # type: ignore[misc]


def checked(name: str, before: Sequence[float], again: np.ndarray) -> None:
    """Raise ValueError unless a judge that was fitted again has the predictions that its
    correlation was computed from."""
    if (worst := float(np.abs(np.asarray(before) - again).max())) > _SAME:
        raise ValueError(
            f"judge {name} changed by {worst:g} when it was fitted again; run the pieces judges "
            "and judge on one machine, or remove judges.json"
        )
