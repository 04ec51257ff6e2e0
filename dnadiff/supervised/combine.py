"""Rows of a study that combine the predictions of its models: the mean over seeds, and a stack of
two models.

Nothing here is fitted on test items.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.config import Json
from dnadiff.supervised.items import TaskData
from dnadiff.supervised.prediction import Prediction
from dnadiff.supervised.protocol import FixedSplit
from dnadiff.supervised.targets.base import TaskTarget

WEIGHTS = tuple(np.linspace(0, 1, 21).round(2).tolist())  # of the first model, to choose from


class Combination(ABC):
    """A row of a study that is made from those of models.

    Attributes:
        name: of the row.
    """

    name: str

    @abstractmethod
    def combine(
        self,
        predictions: Mapping[str, Sequence[Prediction]],
        data: TaskData,
        protocol: FixedSplit,
        seeds: Sequence[int],
    ) -> list[Prediction]:
        """The predictions of the row, one for each run.

        Args:
            predictions: of the models, of each seed, or of the first one alone for a model whose
                seeds are the same.
        """


class SeedAverage(Combination):
    """The mean of the predictions of a model over all seeds: of probabilities, or of values."""

    def __init__(self, model: str, num_seeds: int) -> None:
        self.model, self.name = model, f"{model}, {num_seeds} seeds averaged"

    @override
    def combine(
        self,
        predictions: Mapping[str, Sequence[Prediction]],
        data: TaskData,
        protocol: FixedSplit,
        seeds: Sequence[int],
    ) -> list[Prediction]:
        runs = predictions[self.model]
        mean = data.target.averaged([run.predictions for run in runs], [1 / len(runs)] * len(runs))
        return [Prediction(mean, sum(run.seconds for run in runs), [])]


class Stack(Combination):
    """A weighted mean of the predictions of two models (of probabilities, a linear opinion pool),
    with the lowest loss on validation items.

    One weight instead of a regression: the epoch of a network is chosen on the same items, which
    makes its predictions of them look too good, and small validation parts would be overfitted.
    """

    def __init__(self, first: str, second: str, name: str) -> None:
        self.first, self.second, self.name = first, second, name

    @override
    def combine(
        self,
        predictions: Mapping[str, Sequence[Prediction]],
        data: TaskData,
        protocol: FixedSplit,
        seeds: Sequence[int],
    ) -> list[Prediction]:
        first, second = predictions[self.first], predictions[self.second]
        return [
            self._stacked(run, second[min(number, len(second) - 1)], data, protocol, seeds[number])
            for number, run in enumerate(first)
        ]

    def _stacked(
        self, first: Prediction, second: Prediction, data: TaskData, protocol: FixedSplit, seed: int
    ) -> Prediction:
        result, chosen, start = (
            torch.empty_like(first.predictions, dtype=torch.float64),
            list[dict[str, Json]](),
            0,
        )
        for one in protocol.rounds(data, seed):
            labels = one.data.valid.labels
            part = slice(start, start + len(labels))
            start = part.stop
            target = one.data.target.fit(one.data.train.labels)
            weight = best_weight(
                self._valid(first, self.first)[part],
                self._valid(second, self.second)[part],
                labels,
                target,
            )
            result[one.tested] = target.averaged(
                [run.predictions[one.tested] for run in (first, second)], [weight, 1 - weight]
            )
            chosen.append({"chosen": {f"weight of {self.first}": weight}})
        return Prediction(result, first.seconds + second.seconds, chosen, folds=first.folds)

    def _valid(self, run: Prediction, model: str) -> Tensor:
        if run.valid_predictions is None:
            raise ValueError(
                f"stack=true: {model} has no predictions of validation items; set stack=false"
            )
        return run.valid_predictions


def best_weight(first: Tensor, second: Tensor, labels: Tensor, target: TaskTarget) -> float:
    """The weight of the first model with the lowest loss of the target; in a tie, the one closest
    to 1/2."""
    losses = {
        weight: target.valid_loss(target.averaged([first, second], [weight, 1 - weight]), labels)
        for weight in WEIGHTS
    }
    return min(losses, key=lambda weight: (round(losses[weight], 9), abs(weight - 0.5)))
