"""What models of a study predict, and what a prediction is made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor

from dnadiff.config import Json
from dnadiff.supervised.classifier import SequenceClassifier
from dnadiff.supervised.items import TaskData


class Computed(NamedTuple):
    """Predictions (S, C) of the tested items (of classes, log-probabilities), `TaskModel.fit_info`
    of each round, and the last round's network.

    `valid_predictions` are those of the validation items of all rounds, in their order; None for a
    model that does not have them.
    """

    predictions: Tensor
    fit_info: list[dict[str, Json]]
    classifier: SequenceClassifier | None = None
    valid_predictions: Tensor | None = None


Compute = Callable[[], Computed]


class Prediction(NamedTuple):
    """Predictions (S, C) of the tested items (of classes, log-probabilities), the seconds of fit
    and prediction, `TaskModel.fit_info` of each round.

    `weights` is the SHA-256 of the file of the network's weights, if kept; `folds` (S,) are those
    of a cross-validation, with a model each.
    """

    predictions: Tensor
    seconds: float
    fit_info: list[dict[str, Json]]
    weights: str | None = None
    valid_predictions: Tensor | None = None
    folds: np.ndarray | None = None


class Job(NamedTuple):
    """What a prediction is made from.

    Attributes:
        about: everything else that it depends on.
        labels, folds: (S,) of the tested items; folds of a cross-validation.
        train_items: that the model is trained on with this seed (of several rounds the mean); None
            is the training part of the task.
    """

    data: TaskData
    model: str
    seed: int
    about: dict[str, Json]
    labels: Tensor
    train_items: int | None = None
    folds: np.ndarray | None = None
