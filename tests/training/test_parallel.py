"""Training by several processes, as torchrun starts them, against one process with the same
batches."""

import csv
import json
import os
import re
import socket

import pytest
import torch

from dnadiff.renamed import with_current_choices
from dnadiff.training.trainer import with_shards
from dnadiff.weights import checkpoint
from dnadiff.weights.checkpoint import read

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
    *(
        "backbone.d_model=16",
        "backbone.n_layers=2",
        "data.length=24",
        "data.epoch_size=104",
        "data.max_valid_windows=2",
    ),
    *(
        f"trainer.max_steps={STEPS}",
        "trainer.val_check_interval=1000",
        "trainer.log_every_n_steps=1",
        "trainer.accelerator=cpu",
    ),
    "+callbacks.recorder._target_=recorder.Recorder",
]
DOUBLE = ["+callbacks.double._target_=recorder.Double", "callbacks.ema=null"]


def start(python, folder, name, processes, *options, windows=8, pieces=1):
    """Processes that train in `folder/name`, as torchrun would start them on one machine."""
    (folder / "recorder.py").write_text(CALLBACKS)
    size = windows * pieces // processes
    command = [
        "-m",
        "dnadiff.train",
        *RUN,
        f"data.batch_size={size}",
        f"trainer.devices={processes}",
        f"context_parallel={pieces}",
    ]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    found = []
    for rank in range(processes):
        place = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "GROUP_RANK": 0,
            "WORLD_SIZE": processes,
            "LOCAL_WORLD_SIZE": processes,
        }
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
        env = (
            {**os.environ, **{key: str(value) for key, value in place.items()}, **address}
            if processes > 1
            else os.environ
        )
        fork = "backbone.compile=true" not in options
        found.append(
            python(*command, *options, f"hydra.run.dir={name}", cwd=folder, env=env, fork=fork)
        )
    return found


def train(python, folder, name, processes, *options, status=0, **more):
    """The content of the last checkpoint of a finished run."""
    started = start(python, folder, name, processes, *options, **more)
    found = [process.wait(600) for process in started]
    assert found == [status] * processes, "\n".join(
        process.output + process.errors for process in started
    )
    return read(folder / name / "checkpoints" / "last.ckpt")


def losses(folder, name, column="train_loss"):
    with (folder / name / "metrics.csv").open() as file:
        return torch.tensor([float(row[column]) for row in csv.DictReader(file) if row[column]])


def seen(folder, name, processes, pieces=1):
    """The windows of each step, of all processes; those that hold pieces of the same windows count
    once."""
    steps, texts = {}, [(folder / f"{name}-seen-{rank}").read_text() for rank in range(processes)]
    assert texts == [texts[rank - rank % pieces] for rank in range(processes)]
    for text in texts[::pieces]:
        for line in text.splitlines():
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
    return folder, {
        kind: train(python, folder, kind, 1, *options)
        for kind, options in (("float64", DOUBLE), ("float32", []))
    }


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
    assert seen(tmp_path, "run", processes, pieces) == seen(folder, "float64", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "network",
    [["backbone=caduceus_ps"], ["backbone=mamba", "objective=ar"]],
    ids=["caduceus_ps", "mamba"],
)
def test_pieces_of_other_networks_equal_whole_windows(network, python, tmp_path):
    short = [*network, *DOUBLE, "trainer.max_steps=3"]
    alone, pieces = (
        train(python, tmp_path, f"run{n}", n, *short, pieces=n)["state_dict"] for n in (1, 2)
    )
    for name, weight in alone.items():
        torch.testing.assert_close(pieces[name], weight, rtol=0, atol=1e-10, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_several_processes_agree_with_one_in_float32(way, alone, python, tmp_path):
    processes, pieces, options = WAYS[way]
    found = train(python, tmp_path, "run", processes, *options, pieces=pieces)
    folder, expected = alone[0], alone[1]["float32"]
    ours, theirs = (
        torch.load(f"{run}-gradients.pt") for run in (tmp_path / "run", folder / "float32")
    )
    norm, error = (
        sum(float(x.norm()) ** 2 for x in each) ** 0.5
        for each in (theirs.values(), [ours[n] - theirs[n] for n in theirs])
    )
    assert error < 1e-5 * norm
    assert (losses(tmp_path, "run") - losses(folder, "float32")).abs().max() < 1e-3
    for column in (
        ("valid_nll", "valid_nll_live") if processes == pieces else ()
    ):  # other processes have other noise
        assert (
            losses(tmp_path, "run", column) - losses(folder, "float32", column)
        ).abs().max() < 1e-3
    for name in ("state_dict", "current_model_state"):  # the average and the live weights
        assert {key: value.shape for key, value in found[name].items()} == {
            key: value.shape for key, value in expected[name].items()
        }


@pytest.mark.slow
def test_a_run_continues_in_other_numbers_of_processes(alone, python, tmp_path):
    """Two, one and four processes, in shards and not: the windows and the weights are those of one
    run of one process."""
    constant = ["lr_scheduler=constant", "lr_scheduler.warmup_steps=1", *DOUBLE]
    expected = train(python, tmp_path, "whole", 1, *constant)
    train(python, tmp_path, "run", 2, *constant, "trainer.strategy=fsdp2", "trainer.max_steps=6")
    shards = tmp_path / "run" / "checkpoints" / "last.shards"
    assert len(list(shards.iterdir())) == 2
    train(python, tmp_path, "run", 1, *constant, "trainer.max_steps=13", "resume=true")
    assert not shards.exists()
    found = train(python, tmp_path, "run", 4, *constant, "trainer.strategy=fsdp2", "resume=true")
    assert found["global_step"] == STEPS and found["tokens_seen"] == expected["tokens_seen"]
    for name, weight in expected["state_dict"].items():
        torch.testing.assert_close(found["state_dict"][name], weight, rtol=0, atol=1e-10, msg=name)
    windows = seen(tmp_path, "run", 4)
    assert windows == seen(tmp_path, "whole", 1)
    first = [window for step in range(13) for window in windows[step]]
    assert sorted(first) == list(range(104))  # the first epoch: each window once


FEATURES = {
    "bf16, accumulation, recomputation": [
        *(
            "trainer.precision=bf16-mixed",
            "trainer.accumulate_grad_batches=2",
            "backbone.activation_checkpointing=true",
        ),
    ],
    "compiled": ["backbone.compile=true"],
}


@pytest.mark.slow
@pytest.mark.parametrize("options", FEATURES.values(), ids=FEATURES)
def test_settings_of_training_work_with_every_strategy(options, python, tmp_path):
    short = [*options, "trainer.max_steps=3"]
    train(python, tmp_path, "alone", 1, *short)
    for way in ("ddp", "fsdp2", "context"):
        processes, pieces, strategy = WAYS[way]
        train(python, tmp_path, way, processes, *short, *strategy, pieces=pieces)
        assert (losses(tmp_path, way) - losses(tmp_path, "alone")).abs().max() < 2e-3, way
        assert seen(tmp_path, way, processes, pieces) == seen(tmp_path, "alone", 1)


@pytest.mark.slow
def test_sharded_checkpoints_are_exported_and_sampled(python, tmp_path):
    content = train(
        python,
        tmp_path,
        "run",
        2,
        "trainer.strategy=fsdp2",
        "trainer.max_steps=2",
        "trainer.val_check_interval=2",
    )
    assert (tmp_path / "run" / "checkpoints" / "best.shards").is_dir()
    loaded = checkpoint.load(tmp_path / "run" / "checkpoints" / "last.ckpt")
    name, weight = next(iter(loaded.denoiser.state_dict().items()))
    assert torch.equal(weight, content["state_dict"][f"denoiser.{name}"])
    process = python(
        "-m", "dnadiff.export", "checkpoint=run", "output=shared", "license=cc0-1.0", cwd=tmp_path
    )
    assert process.wait() == 0, process.errors
    assert sorted(p.suffix for p in (tmp_path / "shared").iterdir()).count(".safetensors") == 1
    exported = checkpoint.load(tmp_path / "shared").denoiser.state_dict()
    best = checkpoint.load(tmp_path / "run").denoiser.state_dict()
    assert all(torch.equal(exported[key], value) for key, value in best.items())
    train(python, tmp_path, "tuned", 1, "init_from=run", "trainer.max_steps=1")


DEATHS = {
    "killed": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        -9,
        "error: another process of this run ended at step 2",
    ),
    "an error": (
        "raise ValueError('no more data')",
        1,
        "error: another process of this run ended at step 2",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("way", ["ddp", "fsdp2", "context"])
def test_a_process_that_dies_ends_the_run_with_its_reason(death, way, python, tmp_path):
    code, status, message = DEATHS[death]
    processes, pieces, options = WAYS[way]
    (tmp_path / "dying.py").write_text(
        "import os, signal\nfrom lightning.pytorch.callbacks import Callback\nclass "
        "Dying(Callback):\n"
        "    def on_train_batch_start(self, trainer, *_):\n        if trainer.global_step == 2 "
        f"and trainer.global_rank: {code}\n"
    )
    dying = ["+callbacks.dying._target_=dying.Dying", "callbacks.checkpoints.every_n_steps=1"]
    first, second = start(python, tmp_path, "run", processes, *options, *dying, pieces=pieces)
    assert (second.wait(600), first.wait(600)) == (status, 1), first.errors
    lines = [line for line in first.errors.splitlines() if line.startswith("error")]
    assert (
        len(lines) == 1
        and lines[0].startswith(message)
        and "resume=true hydra.run.dir=run" in lines[0]
    )
    if status == 1:
        assert "error: no more data" in second.errors
    assert read(tmp_path / "run" / "checkpoints" / "last.ckpt")["global_step"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp2", "context"])
def test_a_signal_to_one_process_stops_all_after_the_same_step(way, alone, python, tmp_path):
    processes, pieces, options = WAYS[way]
    (tmp_path / "signaled.py").write_text(
        "import os, signal\nfrom lightning.pytorch.callbacks import Callback\nclass "
        "Signaled(Callback):\n"
        "    def on_train_batch_start(self, trainer, *_):\n"
        "        if trainer.global_step == 2 and trainer.global_rank: os.kill(os.getpid(), "
        "signal.SIGUSR1)\n"
    )
    options = [*DOUBLE, *options, "+callbacks.signaled._target_=signaled.Signaled", "resume=true"]
    first, second = start(python, tmp_path, "run", processes, *options, pieces=pieces)
    assert (first.wait(600), second.wait(600)) == (143, 138), first.errors + second.errors
    assert read(tmp_path / "run" / "checkpoints" / "last.ckpt")["global_step"] == 3
    found = train(python, tmp_path, "run", processes, *options, pieces=pieces)
    for name, weight in alone[1]["float64"]["state_dict"].items():
        torch.testing.assert_close(found["state_dict"][name], weight, rtol=0, atol=1e-10, msg=name)


NETWORK = ["backbone.d_model=8", "backbone.n_layers=1"]
DIT = ["backbone=dit", "backbone.d_model=8", "backbone.n_layers=1", "backbone.n_heads=2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["trainer.strategy=fsdp"],
            "fsdp is not supported; .*, or fsdp2, which shards weights as fsdp",
        ),
        (["trainer.strategy=banana"], "trainer.strategy banana is not supported; choose auto"),
        (
            ["trainer.strategy={banana: 1}"],
            "trainer.strategy {'banana': 1} must be a string or a Strategy",
        ),
        (
            ["context_parallel=2", *DIT],
            "context_parallel 2 does not fit DiT, expected 1: only a network of Mamba layers",
        ),
        (
            ["context_parallel=2", "objective=block_mdlm"],
            "context_parallel 2 does not fit objective block_mdlm",
        ),
        (
            ["context_parallel=3", "data.length=32"],
            "data.length 32 is not a multiple of context_parallel 3.*data.length=33",
        ),
        (
            ["context_parallel=2", "data.length=32"],
            "context_parallel 2 does not divide the 1 processes",
        ),
        (["context_parallel=0"], "context_parallel 0 .*1"),
        (
            ["trainer.num_nodes=2", "trainer.strategy=ddp"],
            "trainer.num_nodes 2, but this process was not started by torchrun or srun",
        ),
    ],
)
def test_what_several_processes_cannot_do_is_refused(options, message, cli, tmp_path):
    command = [*NETWORK, "data.length=32", *options, "trainer.accelerator=cpu", "hydra.run.dir=run"]
    status, _, err = cli("train", *command)
    lines = [line for line in err.splitlines() if line.startswith("error")]
    assert status == 1 and len(lines) == 1 and re.search(message, lines[0]), err
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_keeps_the_number_of_windows_in_a_batch(cli, train_args):
    assert cli("train", *train_args("caduceus", 2))[0] == 0
    status, _, err = cli("train", *train_args("caduceus", 4), "data.batch_size=3", "resume=true")
    assert status == 1 and re.search(
        r"batches of 3 windows, and run/checkpoints/last.ckpt was trained with \d+; set "
        r"data.batch_size=\d+",
        err,
    )


def test_a_strategy_may_be_added_as_in_earlier_versions():
    assert with_current_choices(["+trainer.strategy=ddp", "+trainer.profiler=simple"]) == [
        "trainer.strategy=ddp",
        "+trainer.profiler=simple",
    ]


def test_tensors_are_cut_as_parameters_are():
    content = {
        "state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.ones(2)}},
        "param_groups": [{"params": [0, 1]}],
    }
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))]
    assert (
        with_shards(content, torch.optim.SGD(parameters, lr=1)) == content
    )  # not distributed: as they are
