"""Training by two processes, as a user starts it."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dnadiff.training.callbacks import Checkpoints, Stopped

RECORDER = """
import json
from lightning.pytorch.callbacks import Callback

class Recorder(Callback):
    def write(self, trainer, row):
        with open(f"seen-{trainer.world_size}-{trainer.global_rank}", "a") as file:
            file.write(json.dumps(row) + "\\n")

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        rows = zip(batch["index"].tolist(), batch["ids"].tolist())
        self.write(trainer, [[i, bytes(ids).hex()] for i, ids in rows])

    def on_train_end(self, trainer, module):
        parameters = module.denoiser.parameters()
        self.write(trainer, [float(p.detach().double().sum()) for p in parameters])
"""
NETWORK = [
    "backbone=dit",
    "backbone.d_model=16",
    "backbone.n_layers=1",
    "backbone.n_heads=2",
    "data.length=32",
]
RUN = [
    "trainer.max_steps=6",
    "trainer.val_check_interval=3",
    "trainer.log_every_n_steps=1",
    "data.epoch_size=16",
    "data.max_valid_windows=4",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of six steps over two epochs of 16 windows, by one process and by two, with the same
    global batch."""
    folder = tmp_path_factory.mktemp("devices")
    (folder / "recorder.py").write_text(RECORDER)
    for devices in (1, 2):
        how = [
            f"data.batch_size={8 // devices}",
            f"trainer.devices={devices}",
            "trainer.accelerator=cpu",
            f"hydra.run.dir=run{devices}",
        ]
        how += ["trainer.strategy=ddp"] if devices > 1 else []
        command = [
            sys.executable,
            "-m",
            "dnadiff.train",
            *NETWORK,
            *RUN,
            *how,
            "+callbacks.recorder._target_=recorder.Recorder",
        ]
        env = {
            key: value
            for key, value in os.environ.items()
            if key not in ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")
        }
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            env=env | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        (folder / f"out{devices}").write_text(done.stdout)
    return folder


def seen(folder, devices, rank):
    rows = [
        json.loads(line) for line in (folder / f"seen-{devices}-{rank}").read_text().splitlines()
    ]
    return [{tuple(window) for window in step} for step in rows[:-1]], rows[-1]


@pytest.mark.slow
def test_two_processes_share_the_windows_of_one(folder):
    (whole, _), (first, weights), (second, others) = (
        seen(folder, 1, 0),
        seen(folder, 2, 0),
        seen(folder, 2, 1),
    )
    assert len(whole) == len(first) == len(second) == 6 and all(len(step) == 8 for step in whole)
    for step, one, two in zip(whole, first, second):
        assert len(one) == len(two) == 4 and not one & two and one | two == step
    assert whole[0] | whole[1] != whole[2] | whole[3]  # another epoch
    assert weights == others


@pytest.mark.slow
def test_one_of_two_processes_writes_the_run_folder(folder):
    alone, pair = folder / "run1", folder / "run2"
    assert {str(p.relative_to(pair)) for p in pair.rglob("*")} == {
        str(p.relative_to(alone)) for p in alone.rglob("*")
    }
    rows = [
        [line.split(",")[:2] for line in (run / "metrics.csv").read_text().splitlines()]
        for run in (alone, pair)
    ]
    assert rows[0] == rows[1] and [row[0] for row in rows[1][1:]].count("2") == 1
    metrics = json.loads((pair / "metrics.json").read_text())
    assert (
        metrics["finished"]
        and metrics["tokens"] == json.loads((alone / "metrics.json").read_text())["tokens"]
    )
    assert (folder / "out2").read_text().count("files are in") == 1


def test_all_processes_stop_when_one_hears_ctrl_c(tmp_path):
    saved = []
    trainer = SimpleNamespace(
        world_size=2,
        global_step=3,
        max_steps=9,
        enable_validation=False,
        val_check_batch=4,
        logger=None,
        log_every_n_steps=50,
        callback_metrics={},
        save_checkpoint=lambda path, **_: saved.append(path),
    )
    trainer.strategy = SimpleNamespace(
        reduce_boolean_decision=lambda own, all: not own
    )  # the other one heard it
    checkpoints = Checkpoints(folder=tmp_path)
    checkpoints.on_train_batch_end(trainer, None, None, None, 0)
    assert saved == [tmp_path / "last.ckpt"]
    with pytest.raises(Stopped):
        checkpoints.on_train_batch_start(trainer, None, None, 1)
