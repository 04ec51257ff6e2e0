"""Kill a training run at random times, resume it each time, and compare its final state with that of an uninterrupted run.

    python scripts/kill.py [--kills 20] [--seed 0] [--workers 0] [KEY=VALUE ...]

Every step is saved and the network is small, so that SIGKILL hits steps, validations and the writing of checkpoints alike. The weights,
their averages and the optimizer state must be bit-identical; otherwise the exit status is 1 and the differing entries are listed.
Further arguments go to the training configuration.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from dnadiff.commands import configure_logging
from dnadiff.config import compose
from dnadiff.train import run
from dnadiff.training.module import DiffusionModule

SMALL = [
    *("data=ecoli", "data.length=64", "data.batch_size=4", "data.max_valid_windows=4", "data.epoch_size=40"),
    *("backbone=dit", "backbone.d_model=16", "backbone.n_layers=1", "backbone.n_heads=2"),
    *("trainer.accelerator=cpu", "trainer.val_check_interval=7", "callbacks.checkpoints.every_n_steps=1", "callbacks.progress=null"),
]


def train(folder: Path, arguments: list[str], step: int | None = None, delay: float = 0.0) -> int:
    """Train in a child process, killed `delay` seconds after the start of a step; returns its exit status, -9 if it was killed."""
    checkpoint = folder / "checkpoints" / "last.ckpt"
    # A run killed before its first checkpoint has nothing to resume.
    how = ["resume=true"] if checkpoint.exists() else ["overwrite=true"]
    child = os.fork()  # so that torch is imported once
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        original = DiffusionModule.training_step

        def counted(module: DiffusionModule, *batch: object) -> torch.Tensor:
            if module.global_step == step:
                threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
            return original(module, *batch)

        DiffusionModule.training_step = counted
        overrides = [*SMALL, *arguments, *how]
        with (folder.parent / f"{folder.name}.log").open("a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            configure_logging()
            run(compose("train", overrides), folder, overrides)
        status = 0
    finally:
        os._exit(status)


def steps_done(folder: Path) -> int:
    path = folder / "checkpoints" / "last.ckpt"
    return int(torch.load(path, weights_only=True)["global_step"]) if path.exists() else 0


def differences(one: object, other: object, where: str = "") -> list[str]:
    """Names of the entries that are not bit-identical."""
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [where]
    if isinstance(one, dict):
        return [d for key in one.keys() | other.keys() for d in differences(one.get(key), other.get(key), f"{where}/{key}")]
    if isinstance(one, list | tuple):
        return [d for n, (a, b) in enumerate(zip(one, other, strict=True)) for d in differences(a, b, f"{where}/{n}")]
    return [] if one == other else [where]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="number of kills (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the times (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="data loader processes (default: %(default)s)")
    parser.add_argument("arguments", nargs="*", help="KEY=VALUE for the training configuration")
    args = parser.parse_args()
    torch.set_num_threads(1)
    draw = random.Random(args.seed)
    steps = 6 * args.kills + 12
    arguments = [f"trainer.max_steps={steps}", f"data.num_workers={args.workers}", *args.arguments]
    with tempfile.TemporaryDirectory() as temporary:
        complete, killed = Path(temporary) / "complete", Path(temporary) / "killed"
        if train(complete, arguments):
            sys.exit(f"error: the uninterrupted run failed:\n{complete.with_name('complete.log').read_text()[-2000:]}")
        pace = json.loads((complete / "metrics.json").read_text())["seconds"] / steps
        kills = 0
        while kills < args.kills:
            done = steps_done(killed)
            if done >= steps - 1:
                sys.exit(f"error: the run ended after {kills} kills")
            step, delay = done + draw.randint(0, 2), draw.uniform(0, 1.2 * pace)
            status = train(killed, arguments, step, delay)
            if status == -signal.SIGKILL:
                kills += 1
                print(f"killed {delay * 1e3:5.1f} ms into step {step}; step {steps_done(killed)} is saved", flush=True)
            elif status:
                sys.exit(f"error: a resumed run failed:\n{killed.with_name('killed.log').read_text()[-2000:]}")
        if steps_done(killed) < steps and train(killed, arguments):
            sys.exit(f"error: the last run failed:\n{killed.with_name('killed.log').read_text()[-2000:]}")
        one, other = (torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True) for folder in (complete, killed))
        parts = ("state_dict", "current_model_state", "optimizer_states", "lr_schedulers", "global_step")
        wrong = [d for part in parts for d in differences(one[part], other[part], part)]
    if wrong:
        sys.exit(f"error: after {kills} kills these differ: {', '.join(wrong[:10])}")
    print(f"{kills} kills in {steps} steps: weights, averages and optimizer are bit-identical")


if __name__ == "__main__":
    main()
