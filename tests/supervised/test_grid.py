import copy
from types import SimpleNamespace

import pytest
import torch

from dnadiff.supervised.classes import ClassTarget
from dnadiff.supervised.items import Items, TaskData
from dnadiff.supervised.networks import GridSearch
from dnadiff.supervised.targets import ValidScore


class Candidate:
    """A model with a given validation score that predicts its own name."""

    def __init__(self, name: str, accuracy: float, loss: float) -> None:
        self.name, self.valid_score, self.fit_info, self.fitted = (
            name,
            ValidScore(-1.0, 0.0),
            {},
            [],
        )
        self.valid_predictions = None
        self.final_score = ValidScore(accuracy, -loss)

    def describe(self):
        return {"name": self.name}

    def num_steps(self, data):
        return 3

    def fit(self, data, seed, report):
        self.fitted.append(seed)
        self.valid_score, self.fit_info = self.final_score, {"best_epoch": 2}
        return self.trained(data)

    def trained(self, data):
        return SimpleNamespace(name=self.name, target=ClassTarget(data.classes, [1.0, 3.0]))

    def predict(self, classifier, data):
        return f"{classifier.name} on test"


def task() -> TaskData:
    items = Items(
        torch.full((4, 4), 7, dtype=torch.uint8), torch.full((4,), 4), torch.arange(4) % 2
    )
    return TaskData("toy", ["a", "b"], items, items, items)


def test_only_the_best_candidate_on_validation_predicts_test_items():
    candidates = [
        Candidate("a", 0.7, 0.5),
        Candidate("b", 0.8, 0.6),
        Candidate("c", 0.8, 0.4),
        Candidate("d", 0.6, 0.1),
    ]
    grid = GridSearch([({"lr": number}, model) for number, model in enumerate(candidates)])
    assert grid.fit_predict(task(), 5) == "c on test"
    assert grid.fit_info["chosen"] == {"lr": 2} and grid.fit_info["best_epoch"] == 2
    assert grid.fit_info["tried"][1] == {"lr": 1, "valid_weighted_accuracy": 0.8, "valid_loss": 0.6}
    assert [model.fitted for model in candidates] == [[5]] * 4
    assert grid.num_steps(task()) == 12
    other = GridSearch([({"lr": 0}, copy.copy(candidates[0]))])
    assert grid.describe() != other.describe()


@pytest.mark.parametrize("seed", [1, 2])
def test_every_seed_chooses_for_itself(seed):
    class SeedDependent(Candidate):
        def fit(self, data, seed, report):
            super().fit(data, seed, report)
            self.valid_score = (
                ValidScore(seed / 10, 0.0) if self.name == "a" else ValidScore(0.15, 0.0)
            )
            return self.trained(data)

    grid = GridSearch([({"name": name}, SeedDependent(name, 0, 0)) for name in "ab"])
    grid.fit_predict(task(), seed)
    assert grid.fit_info["chosen"] == {"name": {1: "b", 2: "a"}[seed]}
