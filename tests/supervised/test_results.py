import csv
import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from dnadiff.store.disk import locked
from dnadiff.supervised.items import Items, TaskData, TaskModel
from dnadiff.supervised.protocol import FewItems, FixedSplit, KFold, PaperSplit
from dnadiff.supervised.saved import ResultsFolder, add_row, compute_digest, slug
from dnadiff.supervised.study import run_study

VERSION = {"dnadiff": "1", "code": "a"}


def data(fill: int = 7) -> TaskData:
    labels = torch.arange(40) % 2
    items = Items(
        torch.full((40, 4), fill, dtype=torch.uint8), torch.full((40,), 4), labels, torch.arange(40)
    )
    return TaskData("toy task", ["a", "b"], items, items, items)


class Counted(TaskModel):
    """Correct on every item except the first `seed`; records its calls."""

    random = True

    def __init__(self, setting: int = 0) -> None:
        self.setting, self.seeds, self.sizes = setting, [], []

    def describe(self) -> dict[str, int]:
        return {"setting": self.setting}

    def num_steps(self, task: TaskData) -> int:
        return 0

    def fit_predict(self, task: TaskData, seed: int, report) -> torch.Tensor:
        self.seeds.append(seed)
        self.sizes.append(len(task.test))
        right = torch.where(
            torch.arange(len(task.test)) < seed, 1 - task.test.labels, task.test.labels
        )
        return torch.log_softmax(4.0 * torch.nn.functional.one_hot(right, 2), -1)


def test_a_finished_prediction_is_reused_unless_its_settings_change(tmp_path):
    folder = ResultsFolder(tmp_path, {"checkpoint": "c"}, VERSION)
    first, again, other = Counted(), Counted(), Counted(setting=1)
    one = run_study(data(), {"a model": first}, [1, 2], [], results=folder)
    two = run_study(data(), {"a model": again}, [1, 2, 3], [], results=folder)
    run_study(data(), {"a model": other}, [1], [], results=folder)
    assert (first.seeds, again.seeds, other.seeds) == ([1, 2], [3], [1])
    assert (
        two["models"]["a model"]["per_seed"][:2]
        == one["models"]["a model"]["per_seed"]
        == pytest.approx([39 / 40, 38 / 40])
    )
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [
        (r["task"], r["model"], r["seed"], r["accuracy"], r["checkpoint"]) for r in rows[:2]
    ] == [
        ("toy task", "a model", "1", "0.975", "c"),
        ("toy task", "a model", "2", "0.95", "c"),
    ]
    assert len(rows) == 4
    assert sorted(p.suffix for p in (tmp_path / "toy_task").iterdir()) == [".npz"] * 4


@pytest.mark.parametrize(
    "other", [{"dnadiff": "1", "code": "b"}, {"dnadiff": "1", "code": "a", "torch": "9"}]
)
def test_predictions_of_other_code_are_not_reused(tmp_path, other):
    first, again, changed = Counted(), Counted(), Counted()
    for model, version in ((first, VERSION), (again, VERSION), (changed, other)):
        run_study(data(), {"m": model}, [1], [], results=ResultsFolder(tmp_path, {}, version))
    assert (first.seeds, again.seeds, changed.seeds) == ([1], [], [1])
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [row["code"] for row in rows] == ["a", other["code"]]


def test_the_digest_changes_with_items_division_and_settings():
    about = {"seed": 1}
    assert compute_digest(data(), about) == compute_digest(data(), dict(about))
    assert (
        len(
            {
                compute_digest(data(), about),
                compute_digest(data(8), about),
                compute_digest(data(), {"seed": 2}),
            }
        )
        == 3
    )


class Slow(Counted):
    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log = log

    def fit_predict(self, task: TaskData, seed: int, report) -> torch.Tensor:
        with self.log.open("a") as file:
            file.write(f"{seed}\n")
        time.sleep(0.3)
        return super().fit_predict(task, seed, report)


def work(folder: Path) -> None:
    run_study(
        data(),
        {"m": Slow(folder / "calls.txt")},
        [1, 2, 3, 4],
        [],
        results=ResultsFolder(folder, {}, VERSION),
    )


@pytest.mark.slow
def test_two_processes_share_the_work(tmp_path):
    processes = [
        multiprocessing.get_context("fork").Process(target=work, args=(tmp_path,)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted((tmp_path / "calls.txt").read_text().split()) == ["1", "2", "3", "4"]
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 5


def test_a_lock_has_one_holder_and_is_released_by_an_error(tmp_path):
    path = tmp_path / "x.lock"
    with pytest.raises(RuntimeError), locked(path, wait=0) as mine:
        assert mine
        with locked(path, wait=0) as other:
            assert not other
        raise RuntimeError
    with locked(path, wait=0) as mine:
        assert mine


def test_folds_are_pooled_into_one_result_over_all_items():
    distinct = torch.tensor(
        [[7 + i // 16 % 4, 7 + i // 4 % 4, 7 + i % 4, 7 + i // 64 % 4] for i in range(120)],
        dtype=torch.uint8,
    )
    parts = [
        Items(distinct[a:b], torch.full((b - a,), 4), torch.arange(a, b) % 2, torch.arange(a, b))
        for a, b in ((0, 80), (80, 90), (90, 120))
    ]
    model = Counted()
    result = run_study(
        TaskData("t", ["a", "b"], *parts), {"m": model}, [1, 2], [], protocol=KFold(4)
    )
    assert (result["task"]["tested"], result["task"]["protocol"]) == (120, "kfold")
    assert model.sizes == [24] * 10
    assert result["models"]["m"]["per_seed"] == pytest.approx([1 - 5 / 120, 1 - 10 / 120])
    assert np.sum(result["models"]["m"]["confusion"]) == 120


def test_paper_split_runs_every_seed_even_for_a_deterministic_model():
    model = Counted()
    model.random = False
    result = run_study(data(), {"m": model}, [1, 2, 3], [], protocol=PaperSplit(4))
    assert model.seeds == [1, 2, 3]
    assert result["models"]["m"]["metrics"]["accuracy"]["spread"] == pytest.approx(2 / 40)


def test_fit_info_is_stored_with_the_predictions(tmp_path):
    model = Counted()
    model.fit_info = {"chosen": {"lr": 0.1}}
    folder = ResultsFolder(tmp_path, {"checkpoint": "c"}, VERSION)
    first = run_study(data(), {"m": model}, [1], [], results=folder)
    again = run_study(data(), {"m": Counted()}, [1], [], results=folder)
    assert (
        first["models"]["m"]["found"]
        == again["models"]["m"]["found"]
        == [[{"chosen": {"lr": 0.1}}]]
    )


def hold(path: Path, ready) -> None:
    with locked(path):
        ready.set()
        time.sleep(60)


def test_the_lock_of_a_killed_process_is_released(tmp_path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=hold, args=(tmp_path / "x.lock", ready))
    process.start()
    assert ready.wait(300)
    with locked(tmp_path / "x.lock", wait=0) as mine:
        assert mine is False
    process.kill()
    process.join(30)
    with locked(tmp_path / "x.lock", wait=0) as mine:
        assert mine is True


def test_a_table_with_other_columns_is_rewritten_with_all_columns(tmp_path):
    add_row(tmp_path / "t.csv", {"digest": 1, "b": 2}, ("digest", "b"))
    add_row(tmp_path / "t.csv", {"digest": 3, "b": 4}, ("digest", "b"))
    add_row(tmp_path / "t.csv", {"digest": 5, "c": "x,y"}, ("digest", "c"))
    assert (tmp_path / "t.csv").read_text() == 'digest,b,c\n1,2,\n3,4,\n5,,"x,y"\n'


def test_a_failed_prediction_leaves_no_lock(tmp_path):
    class Broken(Counted):
        def fit_predict(self, task, seed, report):
            raise RuntimeError("once")

    folder = ResultsFolder(tmp_path, {}, VERSION)
    with pytest.raises(RuntimeError):
        run_study(data(), {"m": Broken()}, [1], [], results=folder)
    assert not list((tmp_path / "toy_task").iterdir())


def test_a_missing_row_is_added_once(tmp_path):
    folder = ResultsFolder(tmp_path, {"checkpoint": "c"}, VERSION)
    run_study(data(), {"m": Counted()}, [1, 2], [], results=folder)
    path = tmp_path / "results.csv"
    whole = list(csv.DictReader(path.open()))
    path.write_text(
        "".join(path.read_text().splitlines(keepends=True)[:-1])
    )  # killed before the last row was written
    for _ in range(2):
        run_study(data(), {"m": Counted()}, [1, 2], [], results=folder)
    again = list(csv.DictReader(path.open()))
    assert [(r["seed"], r["digest"], r["accuracy"]) for r in again] == [
        (r["seed"], r["digest"], r["accuracy"]) for r in whole
    ]


def test_a_truncated_line_is_left_out(tmp_path):
    (tmp_path / "t.csv").write_text("digest,b\n1,2\n3")
    add_row(tmp_path / "t.csv", {"digest": 5, "b": 6}, ("digest", "b"))
    assert (tmp_path / "t.csv").read_text() == "digest,b\n1,2\n5,6\n"


def test_a_slug_has_no_spaces():
    assert slug("6-mer logistic regression") == "6-mer_logistic_regression"


def test_damaged_results_are_refused_by_name(tmp_path):
    folder = ResultsFolder(tmp_path, {}, VERSION)
    run_study(data(), {"m": Counted()}, [1], [], results=folder)
    path = next(tmp_path.rglob("*.npz"))
    content = path.read_bytes()
    path.write_bytes(content[:400] + bytes([content[400] ^ 1]) + content[401:])
    with pytest.raises(ValueError, match=r"\.npz is damaged or cut short"):
        run_study(data(), {"m": Counted()}, [1], [], results=folder)


def test_the_lock_file_of_a_process_that_was_killed_after_its_prediction_is_removed(tmp_path):
    folder = ResultsFolder(tmp_path, {}, VERSION)
    run_study(data(), {"m": Counted()}, [1], [], results=folder)
    stored = next((tmp_path / "toy_task").glob("*.npz"))
    stored.with_suffix(".lock").touch()
    run_study(data(), {"m": Counted()}, [1], [], results=folder)
    assert [*(tmp_path / "toy_task").iterdir()] == [stored]


@pytest.mark.parametrize(
    ("protocol", "trained"), [(FixedSplit(4), "40"), (FewItems(4, 12), "12"), (PaperSplit(4), "72")]
)
def test_the_items_that_a_seed_was_trained_on_are_recorded(tmp_path, protocol, trained):
    folder = ResultsFolder(tmp_path, {}, VERSION)
    run_study(data(), {"m": Counted()}, [1, 2], [], protocol=protocol, results=folder)
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [(row["train"], row["train_items"]) for row in rows] == [("40", trained)] * 2
