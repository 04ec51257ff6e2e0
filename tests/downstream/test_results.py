import csv
import json
import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from dnadiff.data.cache import locked
from dnadiff.downstream.items import Items, TaskData
from dnadiff.downstream.protocol import KFold, PaperSplit
from dnadiff.downstream.results import ResultsFolder, append_row, digest_of
from dnadiff.downstream.study import study


def data(fill: int = 7) -> TaskData:
    labels = torch.arange(40) % 2
    items = Items(torch.full((40, 4), fill, dtype=torch.uint8), torch.full((40,), 4), labels, torch.arange(40))
    return TaskData("toy task", ["a", "b"], items, items, items)


class Counted:
    """Right on every item but the first `seed`; remembers its calls."""

    random = True

    def __init__(self, setting: int = 0) -> None:
        self.setting, self.seeds, self.sizes = setting, [], []

    def describe(self) -> dict[str, int]:
        return {"setting": self.setting}

    def num_steps(self, task: TaskData) -> int:
        return 0

    def __call__(self, task: TaskData, seed: int, report) -> torch.Tensor:
        self.seeds.append(seed)
        self.sizes.append(len(task.test))
        right = torch.where(torch.arange(len(task.test)) < seed, 1 - task.test.labels, task.test.labels)
        return torch.log_softmax(4.0 * torch.nn.functional.one_hot(right, 2), -1)


def test_a_finished_piece_is_not_run_again_and_a_changed_one_is(tmp_path):
    folder = ResultsFolder(tmp_path, {"checkpoint": "c"}, "1")
    first, again, other = Counted(), Counted(), Counted(setting=1)
    one = study(data(), {"a model": first}, [1, 2], [], kept=folder)
    two = study(data(), {"a model": again}, [1, 2, 3], [], kept=folder)
    study(data(), {"a model": other}, [1], [], kept=folder)
    assert (first.seeds, again.seeds, other.seeds) == ([1, 2], [3], [1])
    assert two["models"]["a model"]["per_seed"][:2] == one["models"]["a model"]["per_seed"] == pytest.approx([39 / 40, 38 / 40])
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [(r["task"], r["model"], r["seed"], r["accuracy"], r["checkpoint"]) for r in rows[:2]] == [
        ("toy task", "a model", "1", "0.975", "c"),
        ("toy task", "a model", "2", "0.95", "c"),
    ]
    assert len(rows) == 4
    assert sorted(p.suffix for p in (tmp_path / "toy_task").iterdir()) == [".npz"] * 4


def test_summaries_of_several_tasks_lie_side_by_side(tmp_path):
    folder = ResultsFolder(tmp_path, {"checkpoint": "c"}, "1")
    folder.summarise("x", {"accuracy": 0.5})
    folder.summarise("y", {"accuracy": 0.6})
    assert json.loads((tmp_path / "results.json").read_text()) == {
        "x": {"checkpoint": "c", "accuracy": 0.5},
        "y": {"checkpoint": "c", "accuracy": 0.6},
    }


def test_the_digest_changes_with_items_division_and_settings():
    about = {"seed": 1}
    assert digest_of(data(), about) == digest_of(data(), dict(about))
    assert len({digest_of(data(), about), digest_of(data(8), about), digest_of(data(), {"seed": 2})}) == 3


class Slow(Counted):
    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log = log

    def __call__(self, task: TaskData, seed: int, report) -> torch.Tensor:
        with self.log.open("a") as file:
            file.write(f"{seed}\n")
        time.sleep(0.3)
        return super().__call__(task, seed, report)


def work(folder: Path) -> None:
    study(data(), {"m": Slow(folder / "calls.txt")}, [1, 2, 3, 4], [], kept=ResultsFolder(folder, {}, "1"))


def test_two_processes_share_the_work(tmp_path):
    processes = [multiprocessing.get_context("fork").Process(target=work, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted((tmp_path / "calls.txt").read_text().split()) == ["1", "2", "3", "4"]
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 5


def test_a_lock_is_held_by_one_and_freed_by_an_error(tmp_path):
    path = tmp_path / "x.lock"
    with pytest.raises(RuntimeError), locked(path, wait=False) as mine:
        assert mine
        with locked(path, wait=False) as other:
            assert not other
        raise RuntimeError
    with locked(path, wait=False) as mine:
        assert mine


def test_folds_are_pooled_into_one_result_over_all_items():
    distinct = torch.tensor([[7 + i // 16 % 4, 7 + i // 4 % 4, 7 + i % 4, 7 + i // 64 % 4] for i in range(120)], dtype=torch.uint8)
    parts = [
        Items(distinct[a:b], torch.full((b - a,), 4), torch.arange(a, b) % 2, torch.arange(a, b)) for a, b in ((0, 80), (80, 90), (90, 120))
    ]
    model = Counted()
    result = study(TaskData("t", ["a", "b"], *parts), {"m": model}, [1, 2], [], protocol=KFold(4))
    assert (result["task"]["tested"], result["task"]["protocol"]) == (120, "kfold")
    assert model.sizes == [24] * 10
    assert result["models"]["m"]["per_seed"] == pytest.approx([1 - 5 / 120, 1 - 10 / 120])
    assert np.sum(result["models"]["m"]["confusion"]) == 120


def test_under_the_papers_protocol_every_seed_counts_also_for_a_model_without_chance():
    model = Counted()
    model.random = False
    result = study(data(), {"m": model}, [1, 2, 3], [], protocol=PaperSplit(4))
    assert model.seeds == [1, 2, 3]
    assert result["models"]["m"]["metrics"]["accuracy"]["spread"] == pytest.approx(2 / 40)


def test_what_was_found_is_kept_with_the_predictions(tmp_path):
    model = Counted()
    model.found = {"chosen": {"lr": 0.1}}
    folder = ResultsFolder(tmp_path, {"checkpoint": "c"}, "1")
    first = study(data(), {"m": model}, [1], [], kept=folder)
    again = study(data(), {"m": Counted()}, [1], [], kept=folder)
    assert first["models"]["m"]["found"] == again["models"]["m"]["found"] == [[{"chosen": {"lr": 0.1}}]]


def hold(path: Path, ready) -> None:
    with locked(path):
        ready.set()
        time.sleep(60)


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=hold, args=(tmp_path / "x.lock", ready))
    process.start()
    assert ready.wait(30)
    with locked(tmp_path / "x.lock", wait=False) as mine:
        assert mine is False
    process.kill()
    process.join(30)
    with locked(tmp_path / "x.lock", wait=False) as mine:
        assert mine is True


def test_a_table_with_other_columns_is_written_anew_with_those_of_both(tmp_path):
    append_row(tmp_path / "t.csv", {"a": 1, "b": 2}, ("a", "b"))
    append_row(tmp_path / "t.csv", {"a": 3, "b": 4}, ("a", "b"))
    append_row(tmp_path / "t.csv", {"a": 5, "c": "x,y"}, ("a", "c"))
    append_row(tmp_path / "t.csv", {"b": 6}, ("b",))
    assert (tmp_path / "t.csv").read_text() == 'a,b,c\n1,2,\n3,4,\n5,,"x,y"\n,6,\n'


def test_a_piece_that_fails_leaves_no_lock(tmp_path):
    class Broken(Counted):
        def __call__(self, task, seed, report):
            raise RuntimeError("once")

    folder = ResultsFolder(tmp_path, {}, "1")
    with pytest.raises(RuntimeError):
        study(data(), {"m": Broken()}, [1], [], kept=folder)
    assert not list((tmp_path / "toy_task").iterdir())


def test_a_prediction_whose_line_was_lost_gets_it_back_once(tmp_path):
    folder = ResultsFolder(tmp_path, {"checkpoint": "c"}, "1")
    study(data(), {"m": Counted()}, [1, 2], [], kept=folder)
    path = tmp_path / "results.csv"
    whole = list(csv.DictReader(path.open()))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))  # killed before the last line
    for _ in range(2):
        study(data(), {"m": Counted()}, [1, 2], [], kept=folder)
    again = list(csv.DictReader(path.open()))
    assert [(r["seed"], r["digest"], r["accuracy"]) for r in again] == [(r["seed"], r["digest"], r["accuracy"]) for r in whole]


def test_a_line_cut_short_does_not_swallow_the_next(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3")
    append_row(tmp_path / "t.csv", {"a": 5, "b": 6}, ("a", "b"))
    assert (tmp_path / "t.csv").read_text() == "a,b\n1,2\n3\n5,6\n"
