"""Several settings of one model, of which the validation items choose one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from dnadiff.downstream.finetuning import Trained
from dnadiff.downstream.items import TaskData


class Grid:
    """Trains every candidate, and scores on the test items only the one that is most often right on the validation items (ties: the lower loss).

    Every seed chooses for itself, on its own validation items.

    Args:
        candidates: the settings of each, as they are recorded, with the model.

    Attributes:
        found: of the last call: what was tried, what was chosen, and what the chosen one found.
    """

    random = True

    def __init__(self, candidates: list[tuple[Mapping[str, Any], Trained]]) -> None:
        self.candidates, self.found = candidates, {}

    def describe(self) -> dict[str, Any]:
        """What the result depends on, besides task and seed."""
        return {"kind": type(self).__name__, "candidates": [model.describe() for _, model in self.candidates]}

    def num_steps(self, data: TaskData) -> int:
        """Optimizer steps of one call, at most."""
        return sum(model.num_steps(data) for _, model in self.candidates)

    def __call__(self, data: TaskData, seed: int, report: Callable[..., None] = lambda *_, **__: None) -> Tensor:
        """Log-probabilities of the test items, (S, C)."""
        tried, best, chosen = [], None, None
        for settings, model in self.candidates:
            classifier = model.fit(data, seed, report)
            tried.append({**settings, "valid_accuracy": model.score[0], "valid_loss": -model.score[1]})
            if best is None or model.score > best[0].score:
                best, chosen = (model, classifier), settings
        model, classifier = best
        self.found = {"tried": tried, "chosen": dict(chosen), **model.found}
        return model.predict(classifier, data)
