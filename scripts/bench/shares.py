"""Where the time of the commands goes: the share inside the network in training, fine-tuning,
evaluation, sampling and scoring.

    python scripts/bench/shares.py [--width 64] [--layers 4] [--steps 60] [--only train sample]
    [--json FILE]

Each command runs in a process of its own with small settings: a network of random or briefly
trained weights on the bundled genome. Parts are timed by wrapping functions, and a part inside
another counts for itself alone, so the parts add up to the whole. The whole is the time from the
first call of the network, after warming up, to the last; start and end of a command are printed
apart. `network` is forward pass, loss and backward pass. Times are of the processor (all threads,
without waiting), because other programs disturb them less than the clock.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMANDS = ("train", "finetune", "evaluate", "sample", "score")
WARM_UP = (
    5  # calls of the network before the clock starts: kernels are compiled, memory is allocated
)


class Parts:
    """Processor seconds of named parts; time inside an inner part is not counted for the outer
    one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.open: list[str] = []
        self.since = self.began = self.ended = time.process_time()
        self.calls = 0

    def switch(self) -> None:
        """Book the time since the last switch on the innermost open part."""
        now = time.process_time()
        self.seconds[self.open[-1] if self.open else "rest"] += now - self.since
        self.since = now

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Time all calls of a method or function as `part`."""
        inner: Callable[..., Any] = getattr(owner, name)
        is_network = part == "network"

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.switch()
            if is_network:
                self.calls += 1
                if self.calls == WARM_UP + 1:
                    self.seconds.clear()
                    self.began = self.since
            self.open.append(part)
            try:
                return inner(*args, **kwargs)
            finally:
                self.switch()
                self.open.pop()
                if is_network:
                    self.ended, self.at_end = self.since, dict(self.seconds)

        setattr(owner, name, timed)


def arguments(command: str, folder: Path, width: int, layers: int, steps: int) -> list[str]:
    """The command line of one command."""
    run = f"checkpoint={folder / 'model'}"
    network = [
        f"backbone.d_model={width}",
        f"backbone.n_layers={layers}",
        "data.max_valid_windows=16",
    ]
    return {
        "model": [
            *network,
            "trainer.max_steps=2",
            "trainer.val_check_interval=2",
            f"hydra.run.dir={folder / 'model'}",
        ],
        "train": [
            *network,
            f"trainer.max_steps={steps}",
            f"trainer.val_check_interval={steps}",
            f"hydra.run.dir={folder / 'train'}",
        ],
        "finetune": [
            run,
            "seeds=1",
            "scratch=false",
            f"task.max_train={8 * steps}",
            f"hydra.run.dir={folder / 'finetune'}",
        ],
        "evaluate": [run, "orders=[0]", "num_draws=2", f"hydra.run.dir={folder / 'evaluate'}"],
        "sample": [
            run,
            f"num_samples={16}",
            "length=512",
            f"output={folder / 'samples.fa'}",
            f"hydra.run.dir={folder / 'sample'}",
        ],
        "score": [
            run,
            f"input={folder / 'records.fa'}",
            "num_draws=4",
            f"hydra.run.dir={folder / 'score'}",
        ],
    }[command]


def profile(command: str, line: list[str]) -> None:
    """Run one command in this process and print the parts of its time as JSON."""
    parts = Parts()
    import importlib

    import torch

    from dnadiff import commands, denoiser
    from dnadiff.backbone.caduceus import Caduceus

    module = importlib.import_module(f"dnadiff.{command}")
    parts.wrap(Caduceus, "features", "network")
    parts.wrap(Caduceus, "head", "network")
    parts.wrap(torch.Tensor, "backward", "network")
    if command in ("train", "finetune"):
        import lightning
        from lightning.pytorch.strategies import SingleDeviceStrategy
        from torch.optim import AdamW

        from dnadiff.data.loader import TrainLoader
        from dnadiff.objective.base import Objective
        from dnadiff.supervised.training import FineTuningModule
        from dnadiff.training.callbacks import EMA
        from dnadiff.training.module import DiffusionModule

        parts.wrap(AdamW, "step", "optimizer")
        parts.wrap(lightning.Trainer, "fit", "Lightning")
        parts.wrap(SingleDeviceStrategy, "backward", "Lightning")
        parts.wrap(DiffusionModule, "training_step", "rest of the step")
        parts.wrap(FineTuningModule, "training_step", "rest of the step")
        parts.wrap(FineTuningModule, "on_train_epoch_end", "validation")
        parts.wrap(Objective, "__call__", "masking and loss")
        parts.wrap(EMA, "average", "averaging of weights")
        parts.wrap(lightning.LightningModule, "configure_gradient_clipping", "clipping")
        parts.wrap(TrainLoader, "_batches", "data")
        parts.wrap(DiffusionModule, "log_dict", "logging")
        inner = AdamW.step

        def step(
            self: Any, closure: Any = None
        ) -> Any:  # Lightning runs the whole step inside the optimizer's
            return inner(self, closure and (lambda: outside(closure)))

        def outside(closure: Any) -> Any:
            parts.switch()
            parts.open.append("Lightning")
            try:
                return closure()
            finally:
                parts.switch()
                parts.open.pop()

        AdamW.step = step  # type: ignore[method-assign]
    else:
        parts.wrap(denoiser.Denoiser, "log_probs", "probabilities")
    started = time.process_time()
    commands.run(command, module.run, module.KEYS, line)
    whole = parts.ended - parts.began
    print(
        json.dumps(
            {
                "parts": parts.at_end,
                "whole": whole,
                "start and end": time.process_time() - started - whole,
                "calls": parts.calls,
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument(
        "--steps", type=int, default=60, help="of training and fine-tuning (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--json", type=Path, help="also write the shares here")
    parser.add_argument("--profile", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.profile:
        profile(options.profile[0], options.profile[1:])
        return
    rows = []
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        )
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "records.fa").write_text(
            "".join(f">r{i}\n{'ACGTTGACCATG' * 42}\n" for i in range(128))
        )
        for command in ("model", *options.only):
            line = arguments(command, folder, options.width, options.layers, options.steps)
            call = [
                sys.executable,
                __file__,
                "--profile",
                "train" if command == "model" else command,
                *line,
            ]
            result = subprocess.run(
                call, capture_output=True, text=True, env=environment, cwd=folder
            )
            if result.returncode:
                raise SystemExit(
                    f"{command} failed:\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
                )
            if command == "model":
                continue
            found = json.loads(result.stdout.splitlines()[-1])
            shares = {
                part: seconds / found["whole"]
                for part, seconds in sorted(found["parts"].items(), key=lambda item: -item[1])
            }
            listed = ", ".join(
                f"{part} {share:.1%}"
                for part, share in shares.items()
                if part != "network" and share >= 0.001
            )
            print(
                f"{command:9} network {shares['network']:.1%} of {found['whole']:.1f} s; {listed}",
                flush=True,
            )
            rows.append(
                {
                    "command": command,
                    "seconds": found["whole"],
                    "start and end": found["start and end"],
                    "shares": shares,
                }
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
