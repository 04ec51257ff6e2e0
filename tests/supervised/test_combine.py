import math

import numpy as np
import pytest
import torch

from dnadiff.supervised.classes import ClassTarget
from dnadiff.supervised.items import Items, Prediction, TaskData, TaskModel
from dnadiff.supervised.protocol import FixedSplit, KFold
from dnadiff.supervised.saved import ResultsFolder
from dnadiff.supervised.study import SeedAverage, Stack, best_weight, run_study
from dnadiff.supervised.targets import RegressionTarget

CLASSES = ClassTarget(["a", "b"])


def log(rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def data(labels=(0, 1, 0, 1)) -> TaskData:
    items = Items(
        torch.full((len(labels), 4), 7, dtype=torch.uint8),
        torch.full((len(labels),), 4),
        torch.tensor(labels),
    )
    return TaskData("toy", ["a", "b"], items, items, items)


def test_seeds_are_averaged_as_probabilities():
    runs = [Prediction(log([[0.9, 0.1]]), 1.0, []), Prediction(log([[0.3, 0.7]]), 2.0, [])]
    (run,) = SeedAverage("m", 2).combine({"m": runs}, data(), FixedSplit(4), [1, 2])
    assert (
        torch.allclose(run.predictions.exp(), torch.tensor([[0.6, 0.4]], dtype=torch.float64))
        and run.seconds == 3.0
    )
    assert SeedAverage("fine-tuned", 2).name == "fine-tuned, 2 seeds averaged"


def test_a_weight_of_zero_leaves_a_model_out_even_if_it_is_certain_and_wrong():
    first, second = torch.tensor([[0.0, -math.inf]]), log([[0.5, 0.5]])
    assert torch.equal(CLASSES.averaged([first, second], [0.0, 1.0]), second)
    assert best_weight(first, second, torch.tensor([1]), CLASSES) == 0.0
    assert best_weight(second, second, torch.tensor([1]), CLASSES) == 0.5


def test_the_weight_has_the_lowest_loss_on_validation():
    # The loss of w * .8 + (1 - w) * .3 and w * .1 + (1 - w) * .6 is lowest at w = .1: log(.3 + .5
    # w) + log(.6 - .5 w).
    first, second = log([[0.8, 0.2], [0.9, 0.1]]), log([[0.3, 0.7], [0.4, 0.6]])
    best = max(np.linspace(0, 1, 21), key=lambda w: (0.3 + 0.5 * w) * (0.6 - 0.5 * w))
    assert (
        best_weight(first, second, torch.tensor([0, 1]), CLASSES)
        == pytest.approx(best)
        == pytest.approx(0.3)
    )


def test_the_weight_of_values_has_the_lowest_loss_of_their_target():
    labels = torch.tensor([[1.0], [3.0]])
    target = RegressionTarget(["y"]).fit(labels)
    first, second = torch.tensor([[0.0], [4.0]]), torch.tensor([[2.0], [2.0]])
    assert best_weight(first, second, labels, target) == 0.5  # their mean is exact
    one, other = (Prediction(each, 1.0, [], valid_predictions=each) for each in (first, second))
    items = Items(torch.full((2, 4), 7, dtype=torch.uint8), torch.full((2,), 4), labels)
    task = TaskData("toy", ["y"], items, items, items, target=RegressionTarget(["y"]))
    (run,) = Stack("net", "kmers", "s").combine(
        {"net": [one], "kmers": [other]}, task, FixedSplit(4), [1]
    )
    assert torch.equal(run.predictions.double(), labels.double())
    (mean,) = SeedAverage("net", 2).combine({"net": [one, other]}, task, FixedSplit(4), [1, 2])
    assert torch.equal(mean.predictions, labels.double())


class Known(TaskModel):
    """Predicts given probabilities of class 1 for the items of each part."""

    def __init__(self, valid, test, random: bool = True) -> None:
        self.parts, self.random = (valid, test), random

    def fit_predict(self, data, seed=0, report=None):
        self.valid_predictions, log_probs = (log([[1 - p, p] for p in part]) for part in self.parts)
        return log_probs


def test_a_stack_is_fitted_on_validation_and_never_on_test():
    labels = (0, 1, 0, 1)
    right, wrong = (0.1, 0.9, 0.1, 0.9), (0.9, 0.1, 0.9, 0.1)
    models = {"net": Known(right, wrong), "kmers": Known(wrong, right, random=False)}
    pairs = [("stack", "net")]
    result = run_study(
        data(labels),
        models,
        [1, 2],
        pairs,
        combinations=[Stack("net", "kmers", "stack"), SeedAverage("net", 2)],
    )
    assert result["models"]["stack"]["found"] == [[{"chosen": {"weight of net": 1.0}}]] * 2
    assert result["models"]["stack"]["accuracy"] == 0.0  # the network is right on validation alone
    assert result["models"]["net, 2 seeds averaged"]["per_seed"] == [0.0]
    assert result["differences"][0]["difference"] == 0.0


def test_each_fold_has_its_own_weight():
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(7, 11, (40, 30)).astype(np.uint8))
    items = [
        Items(ids[i], torch.full((len(i),), 30), torch.arange(len(i)) % 2, torch.from_numpy(i))
        for i in np.split(np.arange(40), (20, 30))
    ]  # fmt: skip
    folds, task = KFold(4), TaskData("toy", ["a", "b"], *items)

    class Constant(TaskModel):
        def fit_predict(self, data, seed=0, report=None):
            self.valid_predictions = log([[0.4, 0.6]]).expand(len(data.valid), 2)
            return log([[0.4, 0.6]]).expand(len(data.test), 2)

    result = run_study(
        task,
        {"net": Constant(), "kmers": Constant()},
        [3],
        [],
        protocol=folds,
        combinations=[Stack("net", "kmers", "s")],
    )
    assert [one["chosen"] for one in result["models"]["s"]["found"][0]] == [
        {"weight of net": 0.5}
    ] * 5
    assert result["models"]["s"]["per_seed"] == result["models"]["net"]["per_seed"]


def test_stored_predictions_have_those_of_the_validation_items(tmp_path):
    models = {
        "net": Known((0.1, 0.8, 0.3, 0.7), (0.1, 0.9, 0.1, 0.9)),
        "kmers": Known((0.2, 0.6, 0.3, 0.9), (0.3, 0.6, 0.2, 0.4)),
    }
    study = [data(), models, [1], []]
    results = [
        run_study(
            *study,
            results=ResultsFolder(tmp_path, {}, {"code": "1"}),
            combinations=[Stack("net", "kmers", "s")],
        )
        for _ in range(2)
    ]
    assert (
        results[0]["models"]["s"] == results[1]["models"]["s"]
        and len(list(tmp_path.rglob("*.npz"))) == 2
    )


def test_a_model_without_validation_predictions_is_refused():
    run = Prediction(log([[0.5, 0.5]] * 4), 1.0, [])
    with pytest.raises(ValueError, match="stack=true: net has no predictions of validation items"):
        Stack("net", "kmers", "s").combine(
            {"net": [run], "kmers": [run]}, data(), FixedSplit(4), [1]
        )
