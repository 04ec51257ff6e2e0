"""Runs that `max_steps` does not end, and epochs that are no multiple of an optimizer step: nothing
is lost, and resuming is exact."""

import csv
import json
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.utilities.exceptions import SIGTERMException

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.objective.bound import Bound
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.train import train
from dnadiff.training.callbacks import Checkpoints, fit
from dnadiff.training.module import DiffusionModule, TrainingData
from dnadiff.weights import checkpoint


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture
def training(tiny_fasta, tmp_path):
    """Runs a training with epochs of three batches, completed to four by steps of two:
    training("name", *more) -> its folder."""

    def start(name, *more):
        args = [
            "data=fasta",
            f"data.path={tiny_fasta}",
            "data.length=64",
            "data.batch_size=4",
            "data.epoch_size=12",
        ]
        args += [
            "backbone=dit",
            "backbone.d_model=16",
            "backbone.n_layers=1",
            "backbone.n_heads=2",
            "trainer.accelerator=cpu",
        ]
        args += [
            "trainer.accumulate_grad_batches=2",
            "lr_scheduler=constant",
            "lr_scheduler.warmup_steps=1",
            "trainer.max_steps=100",
        ]
        args += ["data.max_valid_windows=4", "trainer.val_check_interval=50", *more]
        train.start([*args, f"hydra.run.dir={tmp_path / name}"])
        return tmp_path / name

    return start


def validated(folder):
    return [
        int(row["step"])
        for row in csv.DictReader((folder / "metrics.csv").open())
        if row["valid_nll"]
    ]


def content_of(folder):
    return checkpoint.read(folder / "checkpoints" / "last.ckpt")


def steps_of(folder):
    return {
        name: checkpoint.read(folder / "checkpoints" / f"{name}.ckpt")["global_step"]
        for name in ("last", "best")
    }


def test_a_run_that_max_epochs_ends_is_saved_and_resumed(training):
    part = training("part", "+trainer.max_epochs=1")
    assert steps_of(part) == {"last": 2, "best": 2} and validated(part) == [2]
    metrics = json.loads((part / "metrics.json").read_text())
    assert (
        metrics["finished"]
        and metrics["step"] == 2
        and metrics["best_valid_nll"] == metrics["valid_nll"] > 0
    )
    training("part", "+trainer.max_epochs=2", "resume=true")
    whole = training("whole", "+trainer.max_epochs=2")
    assert steps_of(whole)["last"] == 4 and validated(part) == [2, 4] and validated(whole) == [4]
    ours, theirs = content_of(part), content_of(whole)
    assert all(
        torch.equal(ours["current_model_state"][key], theirs["current_model_state"][key])
        for key in theirs["current_model_state"]
    )
    assert (
        ours["TrainingData"] == theirs["TrainingData"] == {"train_loader": {"epoch": 2, "batch": 0}}
    )


def test_its_last_validation_is_repeated_if_it_was_killed(training, monkeypatch):
    def die(*args):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "on_validation_end", die)
        with pytest.raises(Killed):
            training("part", "+trainer.max_epochs=1")
    part = training("part", "+trainer.max_epochs=1", "resume=true")
    assert (
        steps_of(part) == {"last": 2, "best": 2}
        and validated(part) == [2]
        and (part / "metrics.json").is_file()
    )


def test_a_run_that_stops_in_the_middle_of_an_accumulation_repeats_its_step(training, monkeypatch):
    seen, original = [], DiffusionModule.training_step

    def training_step(self, batch, batch_idx):
        seen.append((self.global_step, batch["ids"][0].tolist()))
        self.trainer.should_stop |= len(seen) == 7
        return original(self, batch, batch_idx)

    monkeypatch.setattr(DiffusionModule, "training_step", training_step)
    lengths = (
        "trainer.max_steps=5",
        "trainer.val_check_interval=2",
    )  # validations at steps 2 and 4
    part = training("part", *lengths)
    assert (
        [step for step, _ in seen] == [0, 0, 1, 1, 2, 2, 3]
        and steps_of(part)["last"] == 3
        and validated(part) == [2, 3]
    )
    training("part", *lengths, "resume=true")
    assert validated(part) == [2, 3, 4] and [step for step, _ in seen[7:]] == [3, 3, 4, 4]
    resumed = seen[:6] + seen[7:]
    seen[:] = [(-1, [])] * 7  # not stopped again
    whole = training("whole", *lengths)
    assert (
        resumed == seen[7:]
        and content_of(part)["tokens_seen"] == content_of(whole)["tokens_seen"] > 0
    )


def test_epochs_are_counted_by_the_position_in_the_data(training):
    part = training(
        "part", "trainer.val_check_interval=2", "+trainer.max_epochs=1"
    )  # a validation at the end of the epoch
    whole = training("whole", "trainer.val_check_interval=2", "+trainer.max_epochs=2")
    (part / "metrics.json").unlink()  # as if it had been killed before it was written
    training("part", "trainer.val_check_interval=2", "+trainer.max_epochs=1", "resume=true")
    assert (
        steps_of(part)["last"] == 2 and validated(part) == [2] and (part / "metrics.json").is_file()
    )
    finished = (part / "metrics.json").stat().st_mtime_ns  # a complete run is left as it is
    training("part", "trainer.val_check_interval=2", "+trainer.max_epochs=1", "resume=true")
    assert (part / "metrics.json").stat().st_mtime_ns == finished
    with pytest.raises(
        ValueError,
        match=r"has 2 complete epochs already; set trainer\.max_epochs above 2 to continue",
    ):
        training("whole", "trainer.val_check_interval=2", "+trainer.max_epochs=1", "resume=true")
    assert (part / "metrics.json").is_file() and (whole / "metrics.json").is_file()
    training("part", "trainer.val_check_interval=2", "+trainer.max_epochs=2", "resume=true")
    ours, theirs = content_of(part), content_of(whole)
    assert (
        ours["global_step"] == theirs["global_step"] == 4
        and ours["TrainingData"] == theirs["TrainingData"]
    )
    assert validated(part) == validated(whole) == [2, 4]


def test_an_epoch_in_which_training_stopped_is_completed(training, monkeypatch):
    seen, original = [], DiffusionModule.training_step

    def training_step(self, batch, batch_idx):
        seen.append(self.global_step)
        self.trainer.should_stop |= len(seen) == 2
        return original(self, batch, batch_idx)

    monkeypatch.setattr(DiffusionModule, "training_step", training_step)
    part = training("part", "+trainer.max_epochs=1")
    assert steps_of(part)["last"] == 1 and content_of(part)["TrainingData"] == {
        "train_loader": {"epoch": 0, "batch": 2}
    }
    training("part", "+trainer.max_epochs=1", "resume=true")
    assert seen == [0, 0, 1, 1] and steps_of(part)["last"] == 2 and validated(part) == [1, 2]


def interrupt(patch, how, owner, name, call):
    """Let a run be killed, or receive SIGTERM, at a call of a method; returns what it raises
    then."""
    original, calls = getattr(owner, name), []

    def method(*args):
        calls.append(0)
        if len(calls) == call and how == "kill":
            raise Killed
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args)

    patch.setattr(owner, name, method)
    return Killed if how == "kill" else SystemExit


@pytest.mark.parametrize(
    ("how", "owner", "name", "call"),
    [
        ("kill", Checkpoints, "on_validation_end", 1),
        ("signal", DiffusionModule, "training_step", 4),
    ],
)
def test_the_last_validation_is_due_although_the_last_step_was_saved(
    how, owner, name, call, training, tmp_path, monkeypatch
):
    args = ("+trainer.max_epochs=1", "callbacks.checkpoints.every_n_steps=1")
    with monkeypatch.context() as patch, pytest.raises(interrupt(patch, how, owner, name, call)):
        training("part", *args)
    assert content_of(tmp_path / "part")["callbacks"]["Checkpoints"]["validation_due"]
    part = training("part", *args, "resume=true")
    assert (
        steps_of(part) == {"last": 2, "best": 2}
        and validated(part) == [2]
        and (part / "metrics.json").is_file()
    )


@pytest.mark.parametrize(
    ("how", "owner", "name"),
    [("kill", Checkpoints, "on_validation_end"), ("signal", DiffusionModule, "validation_step")],
)
def test_the_validation_at_the_end_of_max_time_is_repeated(
    how, owner, name, training, tmp_path, monkeypatch
):
    args = ("+trainer.max_time=00:01:00:00", "data.max_valid_windows=8")  # in two batches
    seen, original = [], DiffusionModule.training_step

    def training_step(self, batch, batch_idx):
        seen.append(self.global_step)
        return original(self, batch, batch_idx)

    monkeypatch.setattr(DiffusionModule, "training_step", training_step)
    monkeypatch.setattr(
        Timer, "time_elapsed", lambda self, stage="train": 7200.0 * (len(seen) >= 2)
    )
    with monkeypatch.context() as patch, pytest.raises(interrupt(patch, how, owner, name, 1)):
        training("part", *args)
    content = content_of(tmp_path / "part")
    assert content["global_step"] == 1 and content["callbacks"]["Checkpoints"]["validation_due"]
    part = training("part", *args, "resume=true")
    assert (
        steps_of(part) == {"last": 1, "best": 1}
        and validated(part) == [1]
        and seen == [0, 0]
        and (part / "metrics.json").is_file()
    )


@pytest.fixture
def streaming(tmp_path):
    """Runs a training with epochs of four batches of a text that is streamed: streaming("name",
    *more) -> its folder."""

    def start(name, *more):
        for part, count in (("train", 4), ("valid", 1)):
            (tmp_path / f"{part}.txt").write_text("abcdefgh" * 2 * count)
        paths = f"data.path={{train:{tmp_path}/train.txt,valid:{tmp_path}/valid.txt}}"
        args = [
            "data=text",
            paths,
            "data.length=8",
            "data.batch_size=2",
            "data.streaming=true",
            "data.wrap=true",
            "trainer.accelerator=cpu",
        ]
        args += [
            "backbone=dit",
            "backbone.d_model=16",
            "backbone.n_layers=1",
            "backbone.n_heads=2",
            "trainer.max_steps=6",
        ]
        args += ["callbacks.checkpoints.every_n_steps=4", "trainer.val_check_interval=6", *more]
        train.start([*args, f"hydra.run.dir={tmp_path / name}"])
        return tmp_path / name

    return start


def test_a_stream_resumed_at_the_end_of_an_epoch_has_its_position(streaming, monkeypatch):
    with (
        monkeypatch.context() as patch,
        pytest.raises(interrupt(patch, "kill", DiffusionModule, "training_step", 5)),
    ):
        streaming("part")
    part, whole = streaming("part", "resume=true"), streaming("whole")
    ours, theirs = content_of(part), content_of(whole)
    assert (
        ours["TrainingData"]
        == theirs["TrainingData"]
        == {"train_loader": {"epoch": 1, "batch": 2, "document": 0, "token": 32}}
    )
    assert all(
        torch.equal(ours["current_model_state"][key], theirs["current_model_state"][key])
        for key in theirs["current_model_state"]
    )


def test_a_stream_that_is_too_short_for_an_optimizer_step_is_refused_before_anything_is_written(
    streaming, tmp_path
):
    with pytest.raises(
        ValueError,
        match=(
            "the stream ended before the first 10 windows of 8 tokens, which one optimizer step "
            "needs"
        ),
    ):
        streaming("run", "trainer.accumulate_grad_batches=5")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("batch", "first"), [(0, 0), (2, 2), (3, 2)]
)  # older versions saved in the middle of a step
def test_progress_is_that_of_the_loader(batch, first):
    counters = {"ready": 3, "completed": 2, "started": 3, "processed": 3}
    loop = {
        name: {"current": dict(counters), "total": dict(counters)}
        for name in ("epoch_progress", "epoch_loop.batch_progress")
    }
    loop["epoch_loop.batch_progress"]["is_last_batch"] = True
    content = {"global_step": 5, "loops": {"fit_loop": loop}}
    trainer = SimpleNamespace(accumulate_grad_batches=2)
    module = SimpleNamespace(
        trainer=trainer, objective=Bound(AbsorbingProcess(DNATokenizer().vocab, LogLinear()))
    )
    DiffusionModule.on_load_checkpoint(module, content)  # of other data than ours
    assert loop["epoch_loop.batch_progress"]["current"] == counters
    DiffusionModule.on_load_checkpoint(
        module, {**content, "GenomeDataModule": {"train_loader": {"epoch": 4, "batch": batch}}}
    )
    begun = 4 + (first > 0)
    assert loop["epoch_progress"]["current"] == loop["epoch_progress"]["total"]
    assert loop["epoch_progress"]["current"] == {
        "ready": begun,
        "started": begun,
        "processed": 4,
        "completed": 4,
    }
    batches = loop["epoch_loop.batch_progress"]
    assert (
        set(batches["current"].values()) == {first}
        and set(batches["total"].values()) == {10}
        and not batches["is_last_batch"]
    )


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
    assert (
        "the validation has 2 windows, 4 before: its loss is not compared with the lowest one "
        "so far" in caplog.text
    )
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
