"""The contract of a model in the downstream study: fit on a task's training items, predict its test
items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from dnadiff.config import Json
from dnadiff.supervised.classifier import SequenceClassifier
from dnadiff.supervised.items import TaskData

if TYPE_CHECKING:
    from dnadiff.supervised.classifier import SequenceClassifier


EVALUATION = 4  # batches for scoring are so many times larger than those for training


class Report(Protocol):
    """A callback for progress, such as `dnadiff.progress.Progress.update`."""

    def __call__(self, steps: int = 1, tokens: int = 0, **notes: str) -> None:
        """Add steps and tokens to the counts; `notes` (name=text) are displayed until replaced."""


def no_report(steps: int = 1, tokens: int = 0, **notes: str) -> None:
    """Discard the progress."""


class TaskModel(ABC):
    """Predicts what the target of a task asks of sequences.

    Attributes:
        kind: name of the class in the digests of stored predictions, where it differs from the
            class's own name.
        random: False if every seed gives the same result on the same items; the model then runs
            once per division of the data.
        fit_info: plain values that the last call recorded, such as the settings tried on validation
            or the speed.
        trained: the network of the last call, until it is taken.
        valid_predictions: predictions (V, C) of the validation items under the model that the last
            call used; None if it has none.
    """

    kind: ClassVar[str | None] = None
    random: bool = True
    fit_info: Mapping[str, Json] = MappingProxyType({})
    valid_predictions: Tensor | None = None
    trained: SequenceClassifier | None = None

    def describe(self) -> dict[str, Json]:
        """Everything the predictions depend on, except task and seed. Stored predictions are reused
        only if it is unchanged."""
        return {"kind": self.kind or type(self).__name__}

    def check(self, data: TaskData) -> None:
        """ValueError if the task does not fit the model; called before any model is fitted."""

    def num_steps(self, data: TaskData) -> int:
        """Upper bound on the steps that one call reports, for the progress display."""
        return 0

    def take_classifier(self) -> SequenceClassifier | None:
        """The network that the last call trained, which the model then forgets; None for a model
        without one."""
        taken, self.trained = self.trained, None
        return taken

    @abstractmethod
    def fit_predict(self, data: TaskData, seed: int = 0, report: Report = no_report) -> Tensor:
        """Fit on the training and validation items; predictions (S, C) of the test items, see
        `TaskTarget`. The same seed gives the same."""


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
