"""Training by several processes, as torchrun starts them, against one process with the same batches."""

import json
import os
import socket

import pytest
import torch

from dnadiff.checkpoint import read

CALLBACKS = """
import json
from lightning.pytorch.callbacks import Callback

class Double(Callback):
    def setup(self, trainer, module, stage):
        module.double()

class Recorder(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        with open(f"{trainer.default_root_dir}-seen-{trainer.global_rank}", "a") as file:
            file.write(json.dumps([trainer.global_step, batch["index"].tolist()]) + "\\n")

    def on_before_optimizer_step(self, trainer, module, optimizer):
        if trainer.global_step == 0:
            import torch
            full = lambda g: g.full_tensor() if hasattr(g, "full_tensor") else g
            gradients = {n: full(p.grad).clone() for n, p in module.named_parameters()}
            if trainer.is_global_zero:
                torch.save(gradients, f"{trainer.default_root_dir}-gradients.pt")
"""
STEPS = 20
RUN = [
    *("backbone.d_model=16", "backbone.n_layers=2", "data.length=48", "data.epoch_size=104", "data.max_valid_windows=2"),
    *(f"trainer.max_steps={STEPS}", "trainer.val_check_interval=1000", "trainer.log_every_n_steps=1", "trainer.accelerator=cpu"),
    "+callbacks.recorder._target_=recorder.Recorder",
]
DOUBLE = ["+callbacks.double._target_=recorder.Double", "callbacks.ema=null"]


def start(python, folder, name, processes, *options, windows=8, pieces=1):
    """Processes that train in `folder/name`, as torchrun would start them on one machine."""
    (folder / "recorder.py").write_text(CALLBACKS)
    size = windows * pieces // processes
    command = ["-m", "dnadiff.train", *RUN, f"data.batch_size={size}", f"trainer.devices={processes}", f"context_parallel={pieces}"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    found = []
    for rank in range(processes):
        place = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
        env = {**os.environ, **{key: str(value) for key, value in place.items()}, **address} if processes > 1 else os.environ
        found.append(python(*command, *options, f"hydra.run.dir={name}", cwd=folder, env=env))
    return found


def train(python, folder, name, processes, *options, status=0, **more):
    """The content of the last checkpoint of a finished run."""
    started = start(python, folder, name, processes, *options, **more)
    found = [process.wait(240) for process in started]
    assert found == [status] * processes, "\n".join(process.errors for process in started)
    return read(folder / name / "checkpoints" / "last.ckpt")


def losses(folder, name):
    rows = [line.split(",") for line in (folder / name / "metrics.csv").read_text().splitlines()[1:]]
    return torch.tensor([float(row[3]) for row in rows if row[3]])


def seen(folder, name, processes):
    """The windows of each step, of all processes."""
    steps = {}
    for rank in range(processes):
        for line in (folder / f"{name}-seen-{rank}").read_text().splitlines():
            step, index = json.loads(line)
            steps.setdefault(step, []).extend(index)
    return {step: sorted(index) for step, index in steps.items()}


WAYS = {
    "ddp": (2, 1, ["trainer.strategy=ddp"]),
    "fsdp2": (2, 1, ["trainer.strategy=fsdp2"]),
    "context": (2, 2, ["trainer.strategy=ddp"]),
    "ddp of four": (4, 1, ["trainer.strategy=ddp"]),
    "fsdp2 of four": (4, 1, ["trainer.strategy=fsdp2"]),
    "context of four": (4, 4, ["trainer.strategy=ddp"]),
    "fsdp2 of pieces": (4, 2, ["trainer.strategy=fsdp2"]),
}


@pytest.fixture(scope="module")
def alone(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return folder, {kind: train(python, folder, kind, 1, *options) for kind, options in (("float64", DOUBLE), ("float32", []))}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_several_processes_equal_one_in_float64(way, alone, python, tmp_path):
    processes, pieces, options = WAYS[way]
    found = train(python, tmp_path, "run", processes, *DOUBLE, *options, pieces=pieces)
    folder, expected = alone[0], alone[1]["float64"]
    assert found["global_step"] == STEPS and found["tokens_seen"] == expected["tokens_seen"]
    assert found["state_dict"].keys() == expected["state_dict"].keys()
    for name, weight in expected["state_dict"].items():
        assert weight.dtype == torch.float64
        torch.testing.assert_close(found["state_dict"][name], weight, rtol=0, atol=1e-10, msg=name)
    if pieces == 1:
        assert seen(tmp_path, "run", processes) == seen(folder, "float64", 1)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_several_processes_agree_with_one_in_float32(way, alone, python, tmp_path):
    processes, pieces, options = WAYS[way]
    found = train(python, tmp_path, "run", processes, *options, pieces=pieces)
    folder, expected = alone[0], alone[1]["float32"]
    ours, theirs = (torch.load(f"{run}-gradients.pt") for run in (tmp_path / "run", folder / "float32"))
    norm, error = (sum(float(x.norm()) ** 2 for x in each) ** 0.5 for each in (theirs.values(), [ours[n] - theirs[n] for n in theirs]))
    assert error < 1e-5 * norm
    assert (losses(tmp_path, "run") - losses(folder, "float32")).abs().max() < 1e-3
    for name in ("state_dict", "current_model_state"):  # the average and the live weights
        assert {key: value.shape for key, value in found[name].items()} == {key: value.shape for key, value in expected[name].items()}
