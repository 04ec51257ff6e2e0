import itertools
from functools import partial

import numpy as np
import pytest
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.supervised.baselines import KmerLogistic
from dnadiff.supervised.classes import ClassTarget, MultiLabelTarget
from dnadiff.supervised.combined import (
    BASES,
    KMERS,
    NETWORK,
    CombinedClassifier,
    CombinedModel,
    Pool,
)
from dnadiff.supervised.heads import ConvHead
from dnadiff.supervised.items import Budget, Items, Prediction, TaskData, TaskModel
from dnadiff.supervised.networks import OneHotModel
from dnadiff.supervised.protocol import KFold
from dnadiff.supervised.saved import ResultsFolder
from dnadiff.supervised.study import averaged_row, run_study
from dnadiff.supervised.targets import RegressionTarget

DNA = DNATokenizer()
CLASSES = ClassTarget(["a", "b"])
ROWS = {NETWORK: "net", BASES: "bases", KMERS: "3-mers"}


def log(rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def items(size: int, seed: int, labels: torch.Tensor | None = None) -> Items:
    """Sequences of 20 to 40 bases with an N; those of class 1 have more G and C."""
    random = np.random.default_rng(seed)
    found = torch.arange(size) % 2 if labels is None else labels
    rows = []
    for number in range(size):
        length, rich = random.integers(20, 41), 0.15 + 0.2 * (number % 2)
        ids = random.choice([7, 8, 9, 10], length, p=[0.5 - rich, rich, rich, 0.5 - rich])
        ids[random.integers(length)] = 11
        rows.append(ids.astype(np.uint8))
    return Items.from_sequences(rows, found.numpy(), DNA.vocab.pad_id, np.arange(size) + 99 * seed)


def task(target=CLASSES, label=lambda part: part.labels, **settings) -> TaskData:
    parts = [items(size, seed) for seed, size in enumerate((60, 40, 30))]
    parts = [items(len(one), seed, label(one)) for seed, one in enumerate(parts)]
    return TaskData("toy", list(target.names), *parts, target=target, **settings)


def gc(part: Items) -> torch.Tensor:
    strong = (part.ids == 8) | (part.ids == 9)
    return strong.sum(1, keepdim=True) / part.lengths[:, None]


LABELED = task(
    MultiLabelTarget(["x", "y"]),
    lambda part: torch.cat([gc(part) > 0.5, gc(part) > 0.4], 1).float(),
)
VALUES = task(RegressionTarget(["v"]), gc)


def network(**settings) -> OneHotModel:
    head = partial(ConvHead, channels=4, num_convolutions=1, num_bins=2, hidden=4)
    return OneHotModel(DNA, head, 1e-2, epochs=2, batch_size=16, **settings)


def combined(**controls: TaskModel) -> CombinedModel:
    models = {NETWORK: network(), BASES: network(weight_decay=0.3), KMERS: KmerLogistic(DNA, 3)}
    return CombinedModel(ROWS, models, controls=controls)


def test_seeds_are_averaged_as_probabilities():
    runs = [Prediction(log([[0.9, 0.1]]), 1.0, []), Prediction(log([[0.3, 0.7]]), 2.0, [])]
    mean = CLASSES.averaged([run.predictions for run in runs], [0.5, 0.5])
    assert torch.allclose(mean.exp(), torch.tensor([[0.6, 0.4]], dtype=torch.float64))
    assert averaged_row("fine-tuned", 2) == "fine-tuned, 2 seeds averaged"


@pytest.mark.parametrize("stranded", [False, True])
@pytest.mark.parametrize("data", [task(), LABELED, VALUES], ids=["classes", "labels", "values"])
def test_the_classifier_of_kmers_predicts_as_its_model_of_scikit_learn(data, stranded):
    data = TaskData("toy", data.classes, *data.parts.values(), stranded, target=data.target)
    model = KmerLogistic(DNA, 3)
    expected = model.fit_predict(data)
    found = model.trained.predict(data.test, 7, both_strands=not stranded)
    assert found.dtype == torch.float64
    if data.target is CLASSES:
        found, expected = found.exp(), expected.exp()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_a_class_without_training_items_has_no_probability():
    target = ClassTarget(["a", "b", "c"])
    data = task(target)
    model = KmerLogistic(DNA, 3)
    expected = model.fit_predict(data).exp()
    found = model.trained.predict(data.test, 7, True).exp()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert found[:, 2].max() < 1e-10


@pytest.mark.parametrize("data", [task(), LABELED, VALUES], ids=["classes", "labels", "values"])
def test_weights_are_not_negative_and_optimal(data):
    random = np.random.default_rng(0)
    target, labels = data.target.fit(data.train.labels), data.valid.labels
    truth = torch.nn.functional.one_hot(labels).double() if data.target is CLASSES else labels
    noise = torch.from_numpy(random.normal(size=(2, *truth.shape)))
    good = target.normalized(truth + 0.3 * truth.std() * noise[0])
    bad = target.normalized(truth.std() * noise[1] - 0.5 * truth)
    pool = Pool.fit([good, bad], labels, target, penalty=1e-3)
    assert pool.weights.min() >= 0 and pool.weights[0] > pool.weights[1]
    loss = target.valid_loss(pool([good, bad], target), labels)
    grid = np.linspace(0, 4, 41)
    for weights in itertools.product(grid, grid):
        for shift in (0.0, *pool.intercept.unique().tolist()):
            intercept = torch.full_like(pool.intercept, shift)
            other = Pool(torch.tensor(weights), intercept)
            assert loss <= target.valid_loss(other([good, bad], target), labels) + 1e-3


def test_few_items_give_nearly_equal_weights():
    first, second = log([[0.9, 0.1]] * 4), log([[0.1, 0.9]] * 4)
    labels = torch.tensor([0, 0, 0, 1])
    pool = Pool.fit([first, second], labels, CLASSES, penalty=100.0)
    assert pool.weights.tolist() == pytest.approx([0.5, 0.5], abs=0.05)


def test_two_equal_members_predict_as_each():
    data = task()
    model = network()
    expected = model.fit_predict(data, 1)
    members = {NETWORK: model.trained, BASES: model.trained}
    both = CombinedClassifier(members, Pool(torch.tensor([0.5, 0.5]), torch.zeros(2)))
    torch.testing.assert_close(both.predict(data.test, 8, True).float(), expected)


def test_the_combination_predicts_what_it_computes_when_it_is_fitted():
    data, model = task(), combined(scratch=network())
    expected = model.fit_predict(data, 1)
    found = model.trained.predict(data.test, 64, both_strands=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    weights = [value for _, value in sorted(model.fit_info["chosen"].items())]
    assert min(weights) >= 0 and len(weights) == 3 and "valid_accuracy" in model.fit_info
    assert [*model.fit_rows("all", data, 1)] == ["all", "3-mers", "bases", "net", "scratch"]


def test_members_are_rows_of_a_study_and_the_same_when_they_are_read_again(tmp_path):
    results = []
    for _ in range(2):
        folder = ResultsFolder(tmp_path, {}, {"code": "1"}, ["combination", "scratch"])
        models = {"combination": combined(scratch=network())}
        pairs = [("combination", "net"), ("net", "scratch")]
        study = (task(), models, [1, 2], pairs)
        results.append(run_study(*study, results=folder, averaged=["combination"]))
        assert {name for name, _ in folder.networks} == {"combination", "scratch"}
    first, again = (one["models"] for one in results)
    names = ["combination", "combination, 2 seeds averaged", "net", "bases", "3-mers", "scratch"]
    assert [*first] == [*again] == names and first == again
    assert [len(first[name]["per_seed"]) for name in names] == [2, 1, 2, 2, 1, 2]
    assert [d["a"] for d in results[0]["differences"]] == ["combination", "net"]
    assert len(list(tmp_path.rglob("*.npz"))) == 2 * 5
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2 * 2
    rows = (tmp_path / "results.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 5


def test_each_fold_has_its_own_weights():
    models = {"combination": combined()}
    result = run_study(task(), models, [3], [], protocol=KFold(4, num_folds=3))
    found = result["models"]["combination"]["found"][0]
    assert len(found) == 3 and len({str(one["chosen"]) for one in found}) == 3
    assert [len(model["found"][0]) for model in result["models"].values()] == [3] * 4


def test_nothing_depends_on_labels_of_the_test_part():
    data = task()
    other = items(len(data.test), 2, 1 - data.test.labels)
    changed = TaskData("toy", data.classes, data.train, data.valid, other, target=data.target)
    one, two = combined(), combined()
    assert torch.equal(one.fit_predict(data, 1), two.fit_predict(changed, 1))
    assert one.fit_info == two.fit_info


class Timed(TaskModel):
    """Takes a number of seconds of a clock, or what it is given if that is less."""

    def __init__(self, model: TaskModel, clock: list[float], seconds: float) -> None:
        self.model, self.clock, self.seconds = model, clock, seconds

    def fit_predict(self, data, seed=0, report=None):
        self.given = self.budget.left
        found = self.model.fit_predict(data, seed)
        self.valid_predictions, self.trained = self.model.valid_predictions, self.model.trained
        self.fit_info = self.model.fit_info
        self.clock[0] += min(self.seconds, self.given)
        return found


def test_the_network_gets_what_the_others_leave():
    clock = [0.0]
    seconds = {NETWORK: 1e9, BASES: 10.0, KMERS: 2.0}
    inner = combined().models
    models = {name: Timed(inner[name], clock, seconds[name]) for name in ROWS}
    model = CombinedModel(ROWS, models)
    model.budget = Budget(1.0, lambda: clock[0])
    model.fit_predict(task(), 1)
    given = [models[name].given for name in (KMERS, BASES, NETWORK)]
    assert given == pytest.approx([0.15 * 60, 0.35 * 58, 48]) and clock[0] == pytest.approx(60)
