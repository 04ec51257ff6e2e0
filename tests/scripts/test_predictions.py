import numpy as np
import pytest
import torch
from predictions import Predictions, task_data

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.downstream.items import Items, TaskData
from dnadiff.downstream.model import TaskModel
from dnadiff.downstream.protocol import FixedSplit, PaperSplit


def data() -> TaskData:
    labels = torch.arange(40) % 2
    items = Items(torch.full((40, 4), 7, dtype=torch.uint8), torch.full((40,), 4), labels, torch.arange(40))
    return TaskData("toy", ["a", "b"], items, items, items)


class Right(TaskModel):
    """Correct on all except the first `seed` items."""

    random, fit_info = True, {"chosen": "this"}

    def describe(self):
        return {"kind": "Right"}

    def fit_predict(self, task, seed, report):
        right = torch.where(torch.arange(40) < seed, 1 - task.test.labels, task.test.labels)
        return torch.log_softmax(4.0 * torch.nn.functional.one_hot(right, 2), -1)


def test_finished_predictions_are_compared(tmp_path):
    kept = Predictions(tmp_path)
    for name, seeds in (("good", (1, 2)), ("bad, worse", (20,))):
        for seed in seeds:
            row = kept.add("a task", name, seed, data(), Right(), FixedSplit(4))
    assert row["metrics"]["accuracy"] == 0.5 and row["found"] == [{"chosen": "this"}] and row["settings"] == {"kind": "Right"}
    assert sorted(p.name for p in (tmp_path / "a_task").iterdir()) == ["bad_worse-s20.npz", "good-s1.npz", "good-s2.npz"]
    pairs = [("good", "bad, worse"), ("good", "missing")]
    subsets = {"first": np.arange(40) < 2, "none": np.zeros(40, bool)}
    result = Predictions(tmp_path).compared(
        "a task", data(), FixedSplit(4), ["good", "bad, worse", "missing"], (1, 2, 3, 20), pairs=pairs, subsets=subsets
    )
    assert list(result["models"]) == ["good", "bad, worse"] and len(result["differences"]) == 1
    assert result["models"]["good"]["per_seed"] == pytest.approx([39 / 40, 38 / 40])
    assert result["models"]["good"]["found"] == [[{"chosen": "this"}]] * 2
    assert result["models"]["good"]["subsets"]["first"]["accuracy"] == pytest.approx(0.25)
    assert result["models"]["good"]["subsets"]["none"] == {"items": 0, "accuracy": None, "low": None, "high": None}


def test_a_task_is_read_as_by_the_command_line():
    task, how = task_data(["task=ecoli_coding", "task.max_train=20", "task.protocol=paper"], DNATokenizer())
    assert task.counts()["train"] == {"coding": 20, "noncoding": 20} and isinstance(how, PaperSplit)
