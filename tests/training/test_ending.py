"""Runs that `max_steps` does not end, and epochs that are no multiple of an optimizer step: nothing is lost, and resuming is exact."""

import csv
import json
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException

from dnadiff import checkpoint
from dnadiff.config import compose
from dnadiff.train import run
from dnadiff.training.callbacks import Checkpoints
from dnadiff.training.data_module import TrainingData
from dnadiff.training.fitting import fit
from dnadiff.training.module import DiffusionModule


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture
def training(tiny_fasta, tmp_path):
    """Runs a training with epochs of three batches, completed to four by steps of two: training("name", *more) -> its folder."""

    def start(name, *more):
        args = ["data=fasta", f"data.path={tiny_fasta}", "data.length=64", "data.batch_size=4", "data.epoch_size=12"]
        args += ["backbone=dit", "backbone.d_model=16", "backbone.n_layers=1", "backbone.n_heads=2", "trainer.accelerator=cpu"]
        args += ["trainer.accumulate_grad_batches=2", "lr_scheduler=constant", "lr_scheduler.warmup_steps=1", "trainer.max_steps=100"]
        args += ["data.max_valid_windows=4", "trainer.val_check_interval=50", *more]
        run(compose("train", args), tmp_path / name, args)
        return tmp_path / name

    return start


def validated(folder):
    return [int(row["step"]) for row in csv.DictReader((folder / "metrics.csv").open()) if row["valid_nll"]]


def steps_of(folder):
    return {name: checkpoint.read(folder / "checkpoints" / f"{name}.ckpt")["global_step"] for name in ("last", "best")}


def test_a_run_that_max_epochs_ends_is_saved_and_resumed(training):
    part = training("part", "+trainer.max_epochs=1")
    assert steps_of(part) == {"last": 2, "best": 2} and validated(part) == [2]
    metrics = json.loads((part / "metrics.json").read_text())
    assert metrics["finished"] and metrics["step"] == 2 and metrics["best_valid_nll"] == metrics["valid_nll"] > 0
    training("part", "+trainer.max_epochs=2", "resume=true")
    whole = training("whole", "+trainer.max_epochs=2")
    assert steps_of(whole)["last"] == 4 and validated(part) == [2, 4] and validated(whole) == [4]
    ours, theirs = (checkpoint.read(folder / "checkpoints" / "last.ckpt") for folder in (part, whole))
    assert all(torch.equal(ours["current_model_state"][key], theirs["current_model_state"][key]) for key in theirs["current_model_state"])
    assert ours["TrainingData"] == theirs["TrainingData"] == {"train_loader": {"epoch": 2, "batch": 0}}


def test_its_last_validation_is_repeated_if_it_was_killed(training, monkeypatch):
    def die(*args):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "on_validation_end", die)
        with pytest.raises(Killed):
            training("part", "+trainer.max_epochs=1")
    part = training("part", "+trainer.max_epochs=1", "resume=true")
    assert steps_of(part) == {"last": 2, "best": 2} and validated(part) == [2] and (part / "metrics.json").is_file()


def test_a_run_that_stops_in_the_middle_of_an_accumulation_repeats_its_step(training, monkeypatch):
    seen, original = [], DiffusionModule.training_step

    def training_step(self, batch, batch_idx):
        seen.append((self.global_step, batch["ids"][0].tolist()))
        self.trainer.should_stop |= len(seen) == 7
        return original(self, batch, batch_idx)

    monkeypatch.setattr(DiffusionModule, "training_step", training_step)
    lengths = ("trainer.max_steps=5", "trainer.val_check_interval=2")  # validations at steps 2 and 4
    part = training("part", *lengths)
    assert [step for step, _ in seen] == [0, 0, 1, 1, 2, 2, 3] and steps_of(part)["last"] == 3 and validated(part) == [2, 3]
    training("part", *lengths, "resume=true")
    assert validated(part) == [2, 3, 4] and [step for step, _ in seen[7:]] == [3, 3, 4, 4]
    resumed = seen[:6] + seen[7:]
    seen[:] = [(-1, [])] * 7  # not stopped again
    training("whole", *lengths)
    assert resumed == seen[7:]


@pytest.mark.parametrize(
    ("last", "ready", "completed", "first"),
    [
        (True, 3, 3, 0),  # the end of an epoch of three batches, whose last step had one
        (True, 3, 2, 0),  # the same, saved before its validation
        (False, 3, 2, 2),  # in the middle of a step, after a validation
        (False, 2, 1, None),  # after a step: as it is
    ],
)
def test_a_run_of_an_older_version_continues_with_complete_steps(last, ready, completed, first):
    progress = {"ready": ready, "completed": completed, "started": ready, "processed": ready}
    earlier = 6 - (last or ready == 2)  # batches of earlier epochs: fewer than two for each step
    total = {key: value + earlier for key, value in progress.items()}
    batches = {"current": dict(progress), "total": total, "is_last_batch": last}
    content = {"global_step": 5, "loops": {"fit_loop": {"epoch_loop.batch_progress": batches}}}
    DiffusionModule.on_load_checkpoint(SimpleNamespace(trainer=SimpleNamespace(accumulate_grad_batches=2)), content)
    assert batches["total"]["ready"] == 10
    if first is None:
        assert batches["current"] == progress and batches["total"] == {key: value + 8 for key, value in progress.items()}
    else:
        assert set(batches["current"].values()) == {first} and set(batches["total"].values()) == {10} and not batches["is_last_batch"]


def test_another_number_of_validation_windows_starts_the_comparison_again(training, caplog):
    length = ("trainer.val_check_interval=1", "trainer.max_steps=1")
    part = training("part", *length)
    last = part / "checkpoints" / "last.ckpt"
    content = torch.load(last, weights_only=True)
    assert content["callbacks"]["Checkpoints"]["valid_windows"] == 4
    content["callbacks"]["Checkpoints"]["best"] = 0.5  # lower than any loss of this run
    torch.save(content, last)
    training("part", *length, "resume=true", "trainer.max_steps=2")
    assert steps_of(part) == {"last": 2, "best": 1}
    with caplog.at_level("INFO", "dnadiff"):
        training("part", *length, "resume=true", "trainer.max_steps=3", "data.max_valid_windows=2")
    assert "the validation has 2 windows, 4 before: its loss is not compared with the lowest one so far" in caplog.text
    assert steps_of(part) == {"last": 3, "best": 3}
    assert json.loads((part / "metrics.json").read_text())["best_valid_nll"] > 0.5


def test_sigterm_before_the_first_batch_ends_with_its_status(training, monkeypatch, tmp_path):
    original = TrainingData.train_dataloader

    def signaled(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return original(self)

    monkeypatch.setattr(TrainingData, "train_dataloader", signaled)
    with pytest.raises(SystemExit) as stop:
        training("run", "trainer.accumulate_grad_batches=1")
    assert stop.value.code == 143 and not (tmp_path / "run" / "metrics.json").exists()
    assert checkpoint.read(tmp_path / "run" / "checkpoints" / "last.ckpt")["global_step"] == 1


def test_sigterm_that_lightning_handles_has_its_status():
    def stop(*args, **kwargs):
        raise SIGTERMException

    assert fit(SimpleNamespace(fit=stop), None, None, None) == 143
