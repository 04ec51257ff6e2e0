"""Choice among several settings of a model by the score on the validation items: accuracy, or the
loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor
from typing_extensions import override

from dnadiff.config import Json
from dnadiff.supervised.classifier import SequenceClassifier
from dnadiff.supervised.finetuning import NetworkModel
from dnadiff.supervised.items import TaskData
from dnadiff.supervised.model import Report, TaskModel, no_report
from dnadiff.supervised.targets.base import ValidScore


class GridSearch(TaskModel):
    """Trains every candidate and predicts with the one with the best validation score: accuracy,
    then loss; for other targets than classes the loss.

    A candidate is its settings, as they are to be recorded, and the model. Each seed chooses on its
    own validation items. `fit_info` records all candidates and the fit of the chosen one.
    """

    kind = "Grid"

    def __init__(self, candidates: Sequence[tuple[Mapping[str, Json], NetworkModel]]) -> None:
        self.candidates = candidates
        self._trained: SequenceClassifier | None = None

    @override
    def describe(self) -> dict[str, Json]:
        return super().describe() | {
            "candidates": [model.describe() for _, model in self.candidates]
        }

    @override
    def check(self, data: TaskData) -> None:
        for _, model in self.candidates:
            model.check(data)

    @override
    def num_steps(self, data: TaskData) -> int:
        return sum(model.num_steps(data) for _, model in self.candidates)

    @override
    def fit_predict(self, data: TaskData, seed: int = 0, report: Report = no_report) -> Tensor:
        tried: list[dict[str, Json]] = []
        best: (
            tuple[ValidScore, Mapping[str, Json], NetworkModel, SequenceClassifier, Tensor | None]
            | None
        ) = None
        for settings, model in self.candidates:
            classifier, score = model.fit(data, seed, report), model.valid_score
            settings = {
                **settings,
                **model.fit_info.get("chosen", {}),
            }  # a rate that the model chose
            tried.append({**settings, **model.record(score, data)})
            if best is None or score > best[0]:  # only the best classifier stays in memory
                best = score, settings, model, classifier, model.valid_predictions
        if best is None:
            raise ValueError("a grid search needs at least one candidate")
        _, settings, model, self._trained, valid = best
        self.fit_info = {**model.fit_info, "tried": tried, "chosen": dict(settings)}
        self.valid_predictions = valid
        return model.predict(self._trained, data)

    @override
    def take_classifier(self) -> SequenceClassifier | None:
        taken, self._trained = self._trained, None
        return taken
