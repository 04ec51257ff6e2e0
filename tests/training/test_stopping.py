"""Signals, kills and damaged files: a run ends with a documented status, and a second start
finishes what is missing."""

import csv
import json
import os
import re
import shlex
import signal

import pytest
import torch

from dnadiff.training.callbacks import SIGNALS, Checkpoints, StopSignals
from dnadiff.training.clip_search import ClipSearch
from dnadiff.training.loggers import MetricsFile
from dnadiff.training.module import DiffusionModule
from dnadiff.training.trainer import DATA_STATE
from dnadiff.weights import checkpoint

SLOW = pytest.mark.slow  # other places of the same kind


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the package runs after it."""


def die(*args, **kwargs):
    raise Killed


def eight_steps(folder, *more):
    """The folder of a run of eight steps with validations after four and eight, and its
    arguments."""
    from dnadiff.train import train

    (folder / "tiny.fa").write_text(">one\n" + "ACGTTGA" * 860 + "\n")
    args = [
        "data=fasta",
        f"data.path={folder / 'tiny.fa'}",
        "data.length=64",
        "data.batch_size=4",
        "data.max_valid_windows=8",
    ]
    args += ["backbone.d_model=16", "backbone.n_layers=1", "trainer.accelerator=cpu", *more]
    args += [
        "trainer.max_steps=8",
        "trainer.val_check_interval=4",
        "callbacks.checkpoints.every_n_steps=3",
        "data.epoch_size=12",
    ]
    args += ["trainer.log_every_n_steps=1"]
    train.start([*args, f"hydra.run.dir={folder / 'run'}"])
    return folder / "run", args


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run of masked diffusion."""
    return eight_steps(tmp_path_factory.mktemp("undisturbed"), "backbone=dit", "backbone.n_heads=2")


@pytest.fixture(scope="module")
def searching(tmp_path_factory):
    """A run of block diffusion whose validations choose the mask rates of the following steps."""
    blocks = [
        "objective=block_mdlm",
        "objective/masking=clipped",
        "objective.weighting=nelbo",
        "objective.block_size=4",
    ]
    return eight_steps(
        tmp_path_factory.mktemp("searching"), *blocks, "callbacks=clip_search", "optimizer.lr=2e-2"
    )


def rows(folder):
    """metrics.csv without the time."""
    return [
        {k: v for k, v in row.items() if k != "seconds"}
        for row in csv.DictReader((folder / "metrics.csv").open())
    ]


def assert_same(folder, whole):
    """Two runs agree to the last bit: weights, averages, optimizer and position in the data."""
    for name in ("last.ckpt", "best.ckpt"):
        ours, theirs = (checkpoint.read(f / "checkpoints" / name) for f in (folder, whole))
        for part in ("state_dict", "current_model_state", "averaging_state"):
            assert all(torch.equal(ours[part][key], theirs[part][key]) for key in theirs[part]), (
                name,
                part,
            )
        state, other = (c["optimizer_states"][0]["state"] for c in (ours, theirs))
        assert all(torch.equal(state[i]["exp_avg_sq"], other[i]["exp_avg_sq"]) for i in other)
        keys = (
            "global_step",
            "lr_schedulers",
            "tokens_seen",
            "SequenceDataModule",
            "GenomeDataModule",
        )
        assert all(ours.get(key) == theirs.get(key) for key in keys), name
        assert all(
            ours["callbacks"].get(key) == theirs["callbacks"].get(key)
            for key in ("Checkpoints", "ClipSearch")
        ), name
    assert rows(folder) == rows(whole)
    ours, theirs = (json.loads((f / "metrics.json").read_text()) for f in (folder, whole))
    assert {k: ours[k] for k in ("finished", "step", "tokens", "valid_nll", "best_valid_nll")} == {
        k: theirs[k] for k in ("finished", "step", "tokens", "valid_nll", "best_valid_nll")
    }


def killed_at(module, name, number):
    """Let a method of a class die at its call of this number."""
    original, calls = getattr(module, name), []

    def method(*args, **kwargs):
        calls.append(0)
        return die() if len(calls) == number else original(*args, **kwargs)

    return method


@pytest.mark.parametrize(
    ("where", "name", "number"),
    [
        pytest.param(
            DiffusionModule, "validation_step", 2, marks=SLOW
        ),  # in the middle of the first validation
        pytest.param(
            DiffusionModule, "validation_step", 3, marks=SLOW
        ),  # at the beginning of the last one
        (
            Checkpoints,
            "on_validation_end",
            2,
        ),  # its row is in metrics.csv, best.ckpt is not written
        (MetricsFile, "rows", 1),  # everything but metrics.json
    ],
)
def test_a_second_start_finishes_a_run_that_was_killed(
    where, name, number, undisturbed, cli, tmp_path, monkeypatch
):
    whole, args = undisturbed
    with monkeypatch.context() as patch:
        patch.setattr(where, name, killed_at(where, name, number))
        with pytest.raises(Killed):
            cli("train", *args, "hydra.run.dir=run")
    assert not (tmp_path / "run" / "metrics.json").exists()
    status, _, err = cli("train", *args, "hydra.run.dir=run", "resume=true")
    assert status == 0, err
    assert ("running the validation of step" in err) == (name != "rows")
    assert_same(tmp_path / "run", whole)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    status, out, _ = cli("train", *args, "hydra.run.dir=run", "resume=true")  # of a job that ended
    assert (
        status == 0
        and out == "run is complete already; to continue it, set trainer.max_steps higher\n"
    )
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    status, _, err = cli("train", *args, "hydra.run.dir=run", "resume=true", "trainer.max_steps=7")
    assert status == 1 and "is at step 8 already" in err
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    content = torch.load(last, weights_only=True)
    content[DATA_STATE] = "forged"
    torch.save(content, last)
    status, _, err = cli("train", *args, "hydra.run.dir=run", "resume=true")
    assert status == 1 and "last.ckpt does not describe a model that can be built" in err
    content = torch.load(last, weights_only=True) | {"global_step": -1}
    torch.save(content, last)
    status, _, err = cli("train", *args, "hydra.run.dir=run", "resume=true")
    assert status == 1 and "global_step -1 must be an integer of at least 0" in err


@pytest.mark.parametrize(
    ("where", "name", "number"),
    [
        pytest.param(
            DiffusionModule, "training_step", 8, marks=SLOW
        ),  # the last checkpoint is of step 6 and has the interval of step 4
        pytest.param(
            DiffusionModule, "training_step", 5, marks=SLOW
        ),  # of step 4, saved after its validation
        pytest.param(
            ClipSearch, "on_validation_epoch_end", 2, marks=SLOW
        ),  # before the last interval is chosen
        (Checkpoints, "on_validation_end", 1),  # an interval was chosen, and no checkpoint has it
    ],
)
def test_a_killed_run_with_a_search_of_mask_rates_ends_the_same(
    where, name, number, searching, cli, tmp_path, monkeypatch
):
    whole, args = searching
    chosen = [(row["clip_low"], row["clip_high"]) for row in rows(whole) if row["valid_nll"]]
    assert len(chosen) == 2 and ("0", "1") not in chosen
    with monkeypatch.context() as patch:
        patch.setattr(where, name, killed_at(where, name, number))
        with pytest.raises(Killed):
            cli("train", *args, "hydra.run.dir=run")
    status, _, err = cli("train", *args, "hydra.run.dir=run", "resume=true")
    assert status == 0, err
    assert_same(tmp_path / "run", whole)


@pytest.mark.parametrize(
    ("number", "where", "name", "call"),
    [
        (signal.SIGTERM, DiffusionModule, "training_step", 3),
        pytest.param(signal.SIGUSR1, DiffusionModule, "training_step", 8, marks=SLOW),
        pytest.param(signal.SIGTERM, DiffusionModule, "validation_step", 1, marks=SLOW),
    ],
)
def test_a_signal_ends_the_run_with_a_checkpoint_that_is_resumed(
    number, where, name, call, undisturbed, cli, tmp_path, monkeypatch
):
    whole, args = undisturbed
    original, calls = getattr(where, name), []

    def signaled(*arguments):
        calls.append(0)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, signaled)
        handlers = [signal.getsignal(n) for n in SIGNALS]
        status, out, err = cli("train", *args, "hydra.run.dir=run")
        assert [signal.getsignal(n) for n in SIGNALS] == handlers
    assert status == 128 + number, err
    step = call if name == "training_step" else 4
    assert f"stopped at step {step} of 8" in out
    given = " ".join([*map(shlex.quote, args), "hydra.run.dir=run", "resume=true"])
    assert f"to resume it: python -m dnadiff.train {given}" in err
    assert checkpoint.read(tmp_path / "run" / "checkpoints" / "last.ckpt")["global_step"] == step
    assert not (tmp_path / "run" / "metrics.json").exists()
    status, _, err = cli("train", *args, "hydra.run.dir=run", "resume=true")
    assert status == 0, err
    assert_same(tmp_path / "run", whole)


def test_the_second_signal_ends_the_process_at_once():
    signals = StopSignals()
    signals.on_signal(signal.SIGUSR1, None)  # an early notice
    signals.on_signal(signal.SIGTERM, None)
    assert signals.received == signal.SIGTERM
    with pytest.raises(SystemExit) as stop:
        signals.on_signal(signal.SIGINT, None)
    assert stop.value.code == 130


@SLOW
def test_a_killed_process_that_loads_data_is_named_and_the_run_is_resumed(
    undisturbed, cli, tmp_path, monkeypatch
):
    whole, args = undisturbed
    workers = [*args, "hydra.run.dir=run", "data.num_workers=1"]
    original, calls = DiffusionModule.training_step, []

    def training_step(*arguments):
        import multiprocessing
        import time

        calls.append(0)
        if len(calls) == 5:
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGKILL)
            time.sleep(1)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(DiffusionModule, "training_step", training_step)
        status, _, err = cli("train", *workers)
    last = err.strip().splitlines()[-1]
    # When the loss is noticed, and by what, depends on the time that the process had.
    assert status == 1 and re.match(
        r"error: a process that loads data ended at step [45]: .*DataLoader worker", last
    ), err
    assert "add resume=true hydra.run.dir=run" in last
    assert cli("train", *workers, "resume=true")[0] == 0
    assert_same(tmp_path / "run", whole)


def test_the_hashes_of_the_checkpoints_are_recorded(undisturbed):
    import hashlib

    run, _ = undisturbed
    recorded = json.loads((run / "metrics.json").read_text())["sha256"]
    assert recorded == {
        name: hashlib.sha256((run / "checkpoints" / name).read_bytes()).hexdigest()
        for name in ("best.ckpt", "last.ckpt")
    }


@pytest.mark.parametrize("how", ["resume", "init_from"])
def test_a_damaged_checkpoint_is_not_trained_on(how, undisturbed, cli, tmp_path):
    import shutil

    whole, args = undisturbed
    last = shutil.copytree(whole, tmp_path / "run") / "checkpoints" / "last.ckpt"
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 1
    last.write_bytes(data)
    more = (
        ["hydra.run.dir=run", "resume=true", "trainer.max_steps=9"]
        if how == "resume"
        else [f"init_from={last}"]
    )
    status, _, err = cli(
        "train", *[a for a in args if how == "resume" or "backbone" not in a], *more
    )
    assert (
        status == 1
        and "last.ckpt is damaged or cut short (the checksum of" in err
        and "use another copy" in err
    )


def test_a_run_that_is_continued_is_not_finished_until_it_ends(
    undisturbed, cli, tmp_path, monkeypatch
):
    import shutil

    whole, args = undisturbed
    shutil.copytree(whole, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(DiffusionModule, "training_step", die)
        with pytest.raises(Killed):
            cli("train", *args, "hydra.run.dir=run", "resume=true", "trainer.max_steps=9")
    assert not (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.parametrize(
    ("error", "num_workers", "reason"),
    [
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
            1,
            "DataLoader worker (pid 7) is killed by signal: Killed",
        ),
        (
            ConnectionResetError(104, "Connection reset by peer"),
            1,
            "the connection to a DataLoader worker failed",
        ),
        (EOFError(), 2, "the connection to a DataLoader worker failed (EOFError)"),
        (ConnectionResetError(104, "Connection reset by peer"), 0, None),
        (RuntimeError("shape mismatch"), 1, None),
    ],
)
def test_the_loss_of_a_worker_is_recognized(error, num_workers, reason):
    from dnadiff.data.base import worker_loss

    found = worker_loss(error, num_workers)
    assert found is None if reason is None else found.startswith(reason)


def test_no_row_is_lost_if_a_run_is_killed_right_after_a_checkpoint(
    undisturbed, cli, tmp_path, monkeypatch
):
    whole, args = undisturbed
    original = MetricsFile.log_metrics

    def log_metrics(self, *args, **kwargs):
        return (
            die()
            if (tmp_path / "run" / "checkpoints" / "last.ckpt").exists()
            else original(self, *args, **kwargs)
        )

    with monkeypatch.context() as patch:
        patch.setattr(MetricsFile, "log_metrics", log_metrics)
        with pytest.raises(Killed):
            cli("train", *args, "hydra.run.dir=run")
    assert (
        len(rows(tmp_path / "run")) == 3
        and cli("train", *args, "hydra.run.dir=run", "resume=true")[0] == 0
    )
    assert rows(tmp_path / "run") == rows(whole)
