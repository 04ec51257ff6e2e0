import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from dnadiff.supervised.baselines import length_alone
from dnadiff.supervised.items import Items, Prediction, TaskData, TaskModel
from dnadiff.supervised.metrics import METRICS, ScoredPredictions, estimate
from dnadiff.supervised.protocol import KFold
from dnadiff.supervised.study import compare, remarks, run_study, table_rows
from dnadiff.supervised.targets import RegressionTarget


def accuracy_of(correct, baseline=()):
    """The accuracy of rows (R, S) of correct predictions of two classes, or a difference."""
    log_probs = np.log([[0.9, 0.1]] * correct.shape[1])
    runs = [
        [ScoredPredictions(log_probs, 1 - row.astype(int)) for row in each]
        for each in (correct, baseline)
    ]
    return estimate(METRICS["accuracy"], *runs)


def data(number: int = 100) -> TaskData:
    labels = torch.arange(number) % 2
    items = Items(torch.full((number, 4), 7, dtype=torch.uint8), torch.full((number,), 4), labels)
    return TaskData("toy", ["a", "b"], items, items, items, notes={"why": "a test"})


class Oracle(TaskModel):
    """Correct on the first `right` items; with seed s, on s more."""

    def __init__(self, right: int, random: bool = True) -> None:
        self.right, self.random, self.seeds = right, random, []

    def num_steps(self, task: TaskData) -> int:
        return 0

    def fit_predict(self, task: TaskData, seed: int, report) -> torch.Tensor:
        self.seeds.append(seed)
        labels = task.test.labels.clone()
        wrong = torch.arange(len(labels)) >= self.right + seed
        return torch.nn.functional.one_hot(torch.where(wrong, 1 - labels, labels), 2).float()


def test_the_interval_of_one_seed_has_the_binomial_width():
    rows = np.zeros((1, 400), bool)
    rows[0, :300] = True
    found = accuracy_of(rows)
    low, high = found.interval()
    assert found.value == 0.75
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(0.75 * 0.25 / 400), rel=0.05)


def test_seeds_that_differ_widen_the_interval():
    rows = np.ones((4, 1000), bool)
    rows[:2, :500] = rows[2:, 500:] = False
    alike = accuracy_of(rows[:2]).interval()
    rows[2:] = True
    low, high = accuracy_of(rows).interval()
    assert high - low > 3 * (alike[1] - alike[0])


def test_the_difference_of_a_model_from_itself_is_exactly_zero():
    rows = np.random.default_rng(0).random((1, 50)) < 0.7
    found = accuracy_of(rows, rows)
    # 50 items that agree do not exclude that 7 % of others differ: z^2 / (n + z^2).
    assert found.value == 0 and found.interval() == pytest.approx((-0.0713, 0.0713), abs=1e-3)
    assert found.p_value() == 1


def test_differences_on_the_same_items_are_paired():
    rows = np.random.default_rng(0).random((1, 400)) < 0.5
    better = rows.copy()
    better[0, np.flatnonzero(~rows[0])[:20]] = True
    paired = accuracy_of(better, rows)
    (low, high), alone = paired.interval(), accuracy_of(rows).interval()
    assert paired.value == pytest.approx(0.05)
    assert low > 0
    assert high - low < alone[1] - alone[0]


def test_a_study_runs_every_seed_and_better_means_that_the_interval_excludes_zero():
    models = {
        "good": Oracle(90),
        "fair": Oracle(60),
        "same": Oracle(89),
        "fixed": Oracle(70, random=False),
    }
    result = run_study(
        data(),
        models,
        [1, 2, 3],
        [("good", "fair"), ("fair", "good"), ("good", "same"), ("good", "good")],
    )
    assert [m.seeds for m in models.values()] == [[1, 2, 3]] * 3 + [[1]]
    assert result["models"]["good"]["per_seed"] == pytest.approx([0.91, 0.92, 0.93])
    assert result["models"]["fixed"]["per_seed"] == pytest.approx([0.71])
    assert [d["verdict"] for d in result["differences"]] == [
        "better",
        "worse",
        "not distinguishable",
        "not distinguishable",
    ]
    assert result["differences"][0]["difference"] == pytest.approx(0.3)
    assert result["task"]["items"]["test"] == {"a": 50, "b": 50}
    assert result["task"]["chance"] == 0.5
    assert json.loads(json.dumps(result)) == result


@pytest.mark.parametrize(("seeds", "verdict"), [([0], "one run, no verdict"), ([0, 1], "better")])
def test_the_tables_show_each_model_and_each_difference(seeds, verdict):
    models = {"good": Oracle(90), "fixed": Oracle(70, random=False), "same": Oracle(69, False)}
    result = run_study(data(), models, seeds, [("good", "fixed"), ("fixed", "same")])
    (_, *rows), differences = table_rows(result)
    assert rows[0][:2] == ("good", "0.900" if len(seeds) == 1 else "0.905")
    assert differences[0][0] == "good - fixed" and differences[0][3] == verdict
    if len(seeds) == 1:
        assert differences[0][1:3] == ("+0.200", "+0.133 .. +0.289")
    assert differences[1][3] == "not distinguishable"  # both are the same in each run
    assert ["other seeds may differ" in line for line in remarks(result)] == [True] * (
        verdict != "better"
    )


def test_one_run_against_several_has_no_verdict_either():
    predictions = {
        name: [Prediction(Oracle(right).fit_predict(data(), seed, None), 0.0, []) for seed in seeds]
        for name, right, seeds in (("a", 90, [0, 1, 2]), ("b", 60, [0]))
    }
    for fixed, verdict in (((), "one run, no verdict"), (["b"], "better")):
        (found,) = compare(predictions, data().test, [("a", "b")], fixed=fixed)["differences"]
        assert found["verdict"] == verdict and found["p_value"] < 0.05 and found["low"] > 0


def test_few_items_have_an_interval_of_accuracy_alone():
    model = run_study(data(32), {"right": Oracle(32, False)}, [0], [])["models"]["right"]
    assert (model["low"], model["high"]) == (pytest.approx(0.89112, abs=1e-5), 1.0)
    assert model["metrics"]["auroc"]["low"] is model["metrics"]["mcc"]["high"] is None
    random = np.random.default_rng(0)
    labels = torch.from_numpy(random.standard_normal((60, 1))).float()
    items = Items(torch.full((60, 4), 7, dtype=torch.uint8), torch.full((60,), 4), labels)
    runs = {name: [Prediction(labels.double() + k, 0.0, [])] for k, name in enumerate("ab")}
    compared = compare(runs, items, [("a", "b")], None, RegressionTarget(["y"]), "ab")
    (difference,) = compared["differences"]
    assert difference["verdict"] == "no interval, so no verdict" and difference["p_value"] is None
    task = {"metric": "spearman", "shown": ["r2"]}
    (_, *rows), differences = table_rows({"task": task, **compared})
    assert rows[0][2] == differences[0][2] == "too few items"


def test_an_interval_of_accuracy_is_clipped_to_0_and_1():
    class Nearly(Oracle):
        def fit_predict(self, task, seed, report):
            labels = task.test.labels.clone()
            labels[: 6 * (seed - 1)] = 1 - labels[: 6 * (seed - 1)]
            return torch.nn.functional.one_hot(labels, 2).float()

    few = run_study(data(20), {"m": Nearly(0)}, [1, 2], [])["models"]["m"]
    assert few["per_seed"] == pytest.approx([1, 0.7]) and 0 <= few["low"] < few["high"] == 1


def test_fit_info_is_in_the_report_of_a_model():
    model = Oracle(90)
    model.fit_info = {"sequences_per_second": 120.0, "chosen": {"lr": 0.1}}
    result = run_study(data(), {"m": model, "n": Oracle(80)}, [1, 2], [])
    assert (
        result["models"]["m"]["found"] == [[model.fit_info]] * 2
        and result["models"]["n"]["found"] == [[{}]] * 2
    )
    (_, *rows), _ = table_rows(result)
    assert [row[-1] for row in rows] == ["120", "-"]


def test_overlapping_items_widen_the_interval_of_a_difference():
    groups = torch.arange(200) // 20
    labels = torch.arange(200) % 2
    overlapping = Items(
        torch.full((200, 4), 7, dtype=torch.uint8), torch.full((200,), 4), labels, groups
    )
    alone = Items(overlapping.ids, overlapping.lengths, labels)

    class Blocks(Oracle):
        def fit_predict(self, task, seed, report):
            wrong = (torch.arange(200) // 20) % 3 == self.right
            return torch.nn.functional.one_hot(torch.where(wrong, 1 - labels, labels), 2).float()

    widths = []
    for items in (alone, overlapping):
        task = TaskData("t", ["a", "b"], items, items, items)
        (d,) = run_study(task, {"x": Blocks(0, False), "y": Blocks(1, False)}, [1], [("x", "y")])[
            "differences"
        ]
        widths.append(d["high"] - d["low"])
    assert widths[1] > 3 * widths[0]


@pytest.mark.parametrize(
    "size, units", [(None, "items"), (6, "10 groups"), (20, "items of 3 groups")]
)
def test_a_study_says_what_its_intervals_are_over(size, units):
    groups = None if size is None else torch.arange(60) // size
    items = Items(
        torch.full((60, 4), 7, dtype=torch.uint8),
        torch.full((60,), 4),
        torch.arange(60) % 2,
        groups,
    )

    class Constant(TaskModel):
        def fit_predict(self, data, seed=0, report=None):
            return torch.tensor([[0.0, -1.0]]).repeat(len(data.test), 1)

    result = run_study(TaskData("t", ["a", "b"], items, items, items), {"x": Constant()}, [1], [])
    assert result["task"]["resampled"] == units
    few = [
        "intervals are over items of 3 groups: they do not include the variation between groups, "
        "and may be too narrow for new ones"
    ]
    assert remarks(result) == (few if units.startswith("items of") else [])


@pytest.mark.parametrize(
    "rare, weights, said", [(20, "none", 0), (10, "none", 1), (10, "balanced", 1)]
)
def test_a_study_says_when_one_class_is_frequent(rare, weights, said):
    labels = (torch.arange(60) < rare).long()
    items = Items(torch.full((60, 4), 7, dtype=torch.uint8), torch.full((60,), 4), labels)

    class Constant(TaskModel):
        def fit_predict(self, data, seed=0, report=None):
            return torch.tensor([[0.0, -1.0]]).repeat(len(data.test), 1)

    result = run_study(TaskData("t", ["a", "b"], items, items, items), {"x": Constant()}, [1], [])
    lines = remarks({**result, "class_weights": weights})
    assert len(lines) == said and all(
        line.startswith("83 % of the test sequences are of one class") for line in lines
    )
    assert ("class_weights=balanced" in " ".join(lines)) == (said and weights == "none")


def test_a_subset_of_a_few_groups_has_no_interval():
    groups = torch.arange(60) // 6
    items = Items(
        torch.full((60, 4), 7, dtype=torch.uint8),
        torch.full((60,), 4),
        torch.arange(60) % 2,
        groups,
    )
    subsets = {"one": (groups < 1).numpy(), "five": (groups < 5).numpy()}
    prediction = Prediction(torch.tensor([[0.0, -1.0]], dtype=torch.float64).repeat(60, 1), 0.0, [])
    found = compare({"zero": [prediction]}, items, subsets=subsets)["models"]["zero"]["subsets"]
    assert found["one"] == {"items": 6, "accuracy": 0.5, "low": None, "high": None}
    assert found["five"]["low"] < 0.25 and found["five"]["high"] > 0.75  # over five groups


def test_differences_on_a_subset_are_those_of_its_items_alone():
    labels = torch.arange(80) % 2
    items = Items(torch.full((80, 4), 7, dtype=torch.uint8), torch.full((80,), 4), labels)
    right = torch.nn.functional.one_hot(labels, 2).double().mul(9).log_softmax(-1)
    half = torch.where(
        torch.arange(80)[:, None] < 40, right, right.flip(-1)
    )  # right on the first half only
    runs = {name: [Prediction(one, 0.0, [])] for name, one in (("right", right), ("half", half))}
    subsets = {
        "first": np.arange(80) < 40,
        "second": np.arange(80) >= 40,
        "none": np.zeros(80, bool),
    }
    (found,) = compare(runs, items, [("right", "half")], subsets)["differences"]
    assert found["difference"] == pytest.approx(0.5)
    z = 1.96**2 / (40 + 1.96**2)  # Tango's interval of 40 items that agree, and that do not
    ends = {
        name: [found["subsets"][name][key] for key in ("difference", "low", "high")]
        for name in ("first", "second")
    }
    assert ends["first"] == pytest.approx([0, -z, z], abs=1e-4)
    assert ends["second"] == pytest.approx([1, 1 - 2 * z, 1], abs=1e-4)
    assert found["subsets"]["none"] == {"items": 0, "difference": None, "low": None, "high": None}
    (plain,) = compare(runs, items, [("right", "half")])["differences"]
    assert "subsets" not in plain


def test_cross_validation_of_noise_is_not_below_chance():
    """The mean of the training items of a fold is high where that of its test items is low."""
    random = np.random.default_rng(0)
    values = torch.from_numpy(random.standard_normal((100, 1)).astype(np.float32))
    items = Items(
        torch.full((100, 4), 7, dtype=torch.uint8), torch.full((100,), 4), values, torch.arange(100)
    )
    data = TaskData(
        "t",
        ["y"],
        *(items.select(torch.arange(100) % 5 == n) for n in range(3)),
        target=RegressionTarget(["y"]),
    )

    class TrainingMean(TaskModel):
        def fit_predict(self, data, seed=0, report=None):
            return data.train.labels.mean().repeat(len(data.test), 1)

    protocol = KFold(pad_id=0)
    result = run_study(data, {"mean": TrainingMean()}, [1, 2], [], protocol=protocol)["models"][
        "mean"
    ]
    assert (
        result["spearman"] == result["metrics"]["pearson"]["value"] == 0.0
        and result["metrics"]["r2"]["value"] < 0
    )
    tested = protocol.tested(data)
    pooled = np.zeros(len(tested))
    for one in protocol.rounds(data, 1):
        pooled[one.tested.numpy()] = float(one.data.train.labels.mean())
    assert (
        spearmanr(pooled, tested.labels[:, 0]).statistic < -0.05
    )  # what a ranking over all folds would give


@pytest.mark.parametrize(
    ("lengths", "said"), [((20, 30), True), ((30, 30), False), ((20, 21), True)]
)
def test_a_study_says_when_the_length_reveals_the_class(lengths, said):
    labels = torch.arange(80) % 2
    items = Items(torch.full((80, 30), 7, dtype=torch.uint8), torch.tensor(lengths)[labels], labels)
    data = TaskData("t", ["a", "b"], items, items, items)

    class Constant(TaskModel):
        def fit_predict(self, data, seed=0, report=None):
            return torch.tensor([[0.0, -1.0]]).repeat(len(data.test), 1)

    lines = remarks(run_study(data, {"x": Constant()}, [1], []))
    expected = (
        "the length alone predicts the class of 100 % of the validation sequences (the "
        "most "
        "frequent class: 50 %): check"
    )
    assert [line.startswith(expected) for line in lines] == [True] * said
    shuffled = torch.randperm(80, generator=torch.Generator().manual_seed(0))
    mixed = Items(items.ids, items.lengths[shuffled], labels)
    assert (
        length_alone(TaskData("t", ["a", "b"], mixed, mixed.select(torch.arange(40)), mixed))
        is None
        or lengths[0] == lengths[1]
    )


def test_a_study_says_which_test_items_overlap_the_training_part():
    items = Items(
        torch.full((60, 4), 7, dtype=torch.uint8), torch.full((60,), 4), torch.arange(60) % 2
    )

    class Constant(TaskModel):
        def fit_predict(self, data, seed=0, report=None):
            return torch.tensor([[0.0, -1.0]]).repeat(len(data.test), 1)

    inside = np.arange(60) < 7
    subsets = {"inside training": inside, "outside training": ~inside}
    (line,) = remarks(
        run_study(
            TaskData("t", ["a", "b"], items, items, items),
            {"x": Constant()},
            [1],
            [],
            subsets=subsets,
        )
    )
    assert (
        line.startswith("7 of 60 test sequences overlap the training part")
        and "outside it on new sequences" in line
    )
