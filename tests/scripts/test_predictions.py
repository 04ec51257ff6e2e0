from dataclasses import replace

import numpy as np
import pytest
import torch
from predictions import Predictions, task_data

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.supervised.items import Items, TaskData, TaskModel
from dnadiff.supervised.protocol import FixedSplit, PaperSplit
from dnadiff.supervised.targets.regression import RegressionTarget


def data() -> TaskData:
    labels = torch.arange(40) % 2
    items = Items(
        torch.full((40, 4), 7, dtype=torch.uint8), torch.full((40,), 4), labels, torch.arange(40)
    )
    return TaskData("toy", ["a", "b"], items, items, items)


class Right(TaskModel):
    """Correct on all except the first `seed` items."""

    random, fit_info = True, {"chosen": "this"}

    def describe(self):
        return {"kind": "Right"}

    def fit_predict(self, task, seed, report):
        right = torch.where(torch.arange(40) < seed, 1 - task.test.labels, task.test.labels)
        return torch.log_softmax(4.0 * torch.nn.functional.one_hot(right, 2), -1)


class Known(TaskModel):
    """Predicts the values of the items."""

    def fit_predict(self, task, seed, report):
        self.valid_predictions = task.valid.labels
        return task.test.labels


def test_finished_predictions_are_compared(tmp_path):
    kept = Predictions(tmp_path)
    for name, seeds in (("good", (1, 2)), ("bad, worse", (20,))):
        for seed in seeds:
            row = kept.add("a task", name, seed, data(), Right(), FixedSplit(4))
    assert (
        row["metrics"]["accuracy"] == 0.5
        and row["found"] == [{"chosen": "this"}]
        and row["settings"] == {"kind": "Right"}
    )
    assert sorted(p.name for p in (tmp_path / "a_task").iterdir()) == [
        "bad_worse-s20.npz",
        "good-s1.npz",
        "good-s2.npz",
    ]
    pairs = [("good", "bad, worse"), ("good", "missing")]
    subsets = {"first": np.arange(40) < 2, "none": np.zeros(40, bool)}
    result = Predictions(tmp_path).compared(
        "a task",
        data(),
        FixedSplit(4),
        ["good", "bad, worse", "missing"],
        (1, 2, 3, 20),
        pairs=pairs,
        subsets=subsets,
    )
    assert list(result["models"]) == ["good", "bad, worse"] and len(result["differences"]) == 1
    assert result["models"]["good"]["per_seed"] == pytest.approx([39 / 40, 38 / 40])
    assert result["models"]["good"]["found"] == [[{"chosen": "this"}]] * 2
    assert result["models"]["good"]["subsets"]["first"]["accuracy"] == pytest.approx(0.25)
    assert result["models"]["good"]["subsets"]["none"] == {
        "items": 0,
        "accuracy": None,
        "low": None,
        "high": None,
    }


def test_values_are_compared_by_their_own_metric_and_can_be_stacked(tmp_path):
    values = torch.arange(40.0)[:, None]
    items = Items(torch.full((40, 4), 7, dtype=torch.uint8), torch.full((40,), 4), values)
    task = TaskData("toy", ["y"], items, items, items, target=RegressionTarget(["y"]))
    row = Predictions(tmp_path).add("t", "known", 1, task, Known(), FixedSplit(4))
    assert row["metrics"]["spearman"] == pytest.approx(1)
    assert Predictions(tmp_path).compared("t", task, FixedSplit(4), ["known"], (1,))["models"][
        "known"
    ]["spearman"] == pytest.approx(1)
    (stored,) = Predictions(tmp_path).of("t", ["known"], (1,), values)["known"]
    assert torch.equal(stored.valid_predictions, values)


def test_predictions_of_other_items_are_refused(tmp_path):
    Predictions(tmp_path).add("a task", "good", 1, data(), Right(), FixedSplit(4))
    changed = replace(data(), test=replace(data().test, labels=1 - data().test.labels))
    with pytest.raises(
        ValueError,
        match=r"good-s1\.npz has different items from the task a task; remove it and its piece",
    ):
        Predictions(tmp_path).compared("a task", changed, FixedSplit(4), ["good"], (1,))


def test_a_task_is_read_as_by_the_command_line():
    task, how = task_data(
        ["task=ecoli_coding", "task.max_train=20", "task.protocol=paper"], DNATokenizer()
    )
    assert task.counts()["train"] == {"coding": 20, "noncoding": 20} and isinstance(how, PaperSplit)
