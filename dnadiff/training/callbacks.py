"""The loop of a training run and its callbacks: averaged weights, checkpoints, stopping by a signal
(Ctrl-C, or the one that a scheduler sends before its time limit) and the progress bar."""

import json
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Sized
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, WeightAveraging
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from torch.utils.data import DataLoader

from dnadiff.data.base import worker_loss
from dnadiff.diffusion.draws import Draws, hash64
from dnadiff.diffusion.sampler.base import Sampler
from dnadiff.fields import Config, Probability, checked
from dnadiff.progress import Progress, log, pasted
from dnadiff.store.disk import append
from dnadiff.store.objects import build
from dnadiff.training.loggers import MetricsFile
from dnadiff.training.module import Batch, DiffusionModule, TrainingData
from dnadiff.training.trainer import ShardedStrategy, local_parts, reshard, shard

_OF_A_STEP = ("train/loss", "train/nll", "lr")
SAMPLES = "samples.jsonl"  # in a run folder
Settings = Callable[[str], Config]  # of a sampler by its name
# SLURM sends SIGTERM at the time limit, and with --signal=USR1@120 SIGUSR1 two minutes before.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# How the libraries of torch.distributed say that another process has ended.
_LOST = re.compile(
    r"gloo|NCCL|closed by peer|reset by peer|Broken pipe|Timed out waiting|process group",
    re.IGNORECASE,
)


def fit(
    trainer: Trainer, module: DiffusionModule, data: TrainingData, start_from: Path | None
) -> int:
    """Train, and return the exit status: 0, or 128 + the number of the signal that stopped the run.

    Raises:
        ValueError: if a process that loads data, or another process of the run, has ended.
    """
    try:
        trainer.fit(module, data, ckpt_path=start_from, weights_only=True if start_from else None)
    except Stopped as stopped:
        return stopped.status
    # Of Lightning, with status 0: SIGTERM arrived before `Checkpoints` handled it, or there is no
    # such callback.
    except SIGTERMException:
        return 128 + signal.SIGTERM
    except (RuntimeError, ConnectionError, EOFError) as error:
        step = trainer.global_step
        remedy = (
            f"add resume=true {pasted('hydra.run.dir', trainer.default_root_dir)} to continue from "
            "the last checkpoint"
        )
        if (reason := worker_loss(error, data.data.num_workers)) is not None:
            text = (
                f"a process that loads data ended at step {step}: {reason}; often memory was "
                f"short: set data.num_workers lower and {remedy}"
            )
        elif trainer.world_size > 1 and (
            isinstance(error, dist.DistError) or _LOST.search(str(error))
        ):
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            text = (
                f"another process of this run ended at step {step} ({reason}); its own message "
                f"says why; {remedy}"
            )
        else:
            raise
        raise ValueError(text) from error
    return 0


class Stopped(Exception):
    """Training was stopped by a signal; `last.ckpt` holds its state.

    Attributes:
        status: exit status of the process, 128 + the number of the signal, as a shell reports it:
            130 for Ctrl-C, 143 for SIGTERM.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.status = 128 + number


class StopSignals:
    """Remembers the first signal; a second one ends the process at once.

    Attributes:
        received: the signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._handlers: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def install(self) -> None:
        """Handle the signals, if this is the main thread (others cannot)."""
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self.on_signal) for number in SIGNALS}

    def restore(self) -> None:
        """Install the previous handlers again."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        # SIGUSR1 is an early notice, which SIGTERM may follow.
        if self.received not in (None, signal.SIGUSR1):
            self.restore()
            raise SystemExit(128 + number)
        if self.received is None:
            name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            print(f"\n{name}: saving after this step; a second signal stops at once", flush=True)
        self.received = number


@checked
class EMA(WeightAveraging):
    """Exponential moving average of the parameters with a warm-up: after n updates the decay is
    min(decay, (1+n)/(10+n)).

    Lightning's own average has no warm-up, so a short run would be evaluated with its first
    weights. Buffers are copied, not averaged. Validation uses the average, and the live weights too
    (`valid/nll_live`). Checkpoints hold the average as `state_dict` and the live weights as
    `current_model_state`.
    """

    def __init__(self, decay: Probability = 0.9999) -> None:
        self.decay = decay
        super().__init__(use_buffers=False, multi_avg_fn=self.average)

    @torch.no_grad()
    def average(self, averaged: list[Tensor], current: list[Tensor], num_averaged: Tensor) -> None:
        """Move the average towards the current parameters, in place."""
        n = int(num_averaged)
        torch._foreach_lerp_(
            local_parts(averaged), local_parts(current), 1 - min(self.decay, (1 + n) / (10 + n))
        )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(trainer.strategy, ShardedStrategy) and self._average_model is not None:
            average = cast(DiffusionModule, self._average_model.module)
            shard(average.denoiser, trainer.strategy.mesh)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: STEP_OUTPUT,
        batch: Batch,
        batch_idx: int,
        *_: Any,
    ) -> None:
        if self._average_model is None:
            return
        self._swap_models(pl_module)
        # Which Lightning enters for validation_step alone. The live weights, with the same masks.
        with trainer.precision_plugin.val_step_context():
            cast(DiffusionModule, pl_module).log_valid("valid/nll_live", batch, batch_idx)
        self._swap_models(pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the live weights in place: later steps read the checkpoint, and a resumed run needs
        both."""


class Checkpoints(Callback):
    """Saves `last.ckpt` at regular intervals, before each validation and at the end, and
    `best.ckpt` at the lowest validation loss, unless the objective says that it is not the best.

    Training that ends before `trainer.max_steps`, by `max_epochs`, `max_time` or another callback,
    is validated at its last step. A run that was killed during a validation repeats it when it is
    resumed. If the number of validation windows has changed, the lowest loss is forgotten. At the
    first signal of `stopping.SIGNALS` the current step is finished and saved, and `Stopped` is
    raised. A second signal stops at once and keeps the last saved file. The command line sets
    `folder`.
    """

    def __init__(
        self, every_n_steps: int = 500, folder: str | os.PathLike[str] = "checkpoints"
    ) -> None:
        self.every_n_steps = every_n_steps
        self.folder = Path(folder)
        self.best = math.inf
        # At the step of the checkpoint; None: an older version wrote it.
        self.validation_due: bool | None = False
        self.signals = StopSignals()
        self.valid_windows: int | None = None  # None: not known
        self._saved_step = self._validated_step = self._step = -1
        self._stopped: Stopped | None = None
        # max_steps, max_epochs and min_epochs
        self._limits: tuple[int, int | None, int | None] | None = None

    def state_dict(self) -> Config:
        return {
            "best": self.best,
            "validation_due": self.validation_due,
            "valid_windows": self.valid_windows,
        }

    def load_state_dict(self, state_dict: Config) -> None:
        self.best, self.validation_due = state_dict["best"], state_dict.get("validation_due")
        self.valid_windows = state_dict.get("valid_windows")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Otherwise Lightning ends at once at the last step, without calling `on_train_start`.
        if self.validation_due is not False:
            loop = trainer.fit_loop
            self._limits = loop.max_steps, loop.max_epochs, loop.min_epochs
            loop.epoch_loop.max_steps = loop.max_epochs = -1
            # `max_time`, if it is over, sets `should_stop` after this hook.
            loop.min_epochs = sys.maxsize

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_step = self._validated_step = self._step = trainer.global_step
        for incomplete in self.folder.rglob(".*.ckpt.*"):  # of a killed process
            incomplete.unlink(missing_ok=True)
        self.signals.install()
        if trainer.received_sigterm:  # by Lightning, since `fit` began
            self.signals.received = signal.SIGTERM
        if self._limits is not None:
            loop = trainer.fit_loop
            loop.epoch_loop.max_steps, loop.max_epochs, loop.min_epochs = self._limits
        loader = trainer.val_dataloaders
        if isinstance(loader, DataLoader) and isinstance(loader.dataset, Sized):
            number = len(loader.dataset)
            if self.valid_windows not in (None, number):
                log.info(
                    f"the validation has {number:,} windows, {self.valid_windows:,} before: its "
                    "loss is not compared with the lowest one so far"
                )
                self.best = math.inf
            self.valid_windows = number
        if self.validation_due is None:
            self.validation_due = trainer.global_step == trainer.max_steps
        if self.validation_due:
            log.info(f"running the validation of step {trainer.global_step}, which was interrupted")
            if isinstance(trainer.logger, MetricsFile) and trainer.is_global_zero:
                trainer.logger.remove_validation(trainer.global_step)
            self._validate(trainer)

    def _validate(self, trainer: Trainer) -> None:
        # As in Lightning's training loop. Its own restart would skip the validation.
        loop = trainer.fit_loop.epoch_loop.val_loop
        loop.restarting = False
        trainer.validating = True
        loop.run()
        trainer.training = True

    def _signal(self, trainer: Trainer) -> int | None:
        """The signal that was received by this process or another one of the run."""
        number = self.signals.received
        if trainer.world_size == 1:
            return number
        # Processes receive it in different steps; one that stops alone leaves the others waiting
        # forever.
        several = trainer.strategy.reduce_boolean_decision(number is not None, all=False)
        return (number or signal.SIGTERM) if several else None

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if self._stopped is not None:  # only now are the metrics of the last step written
            raise self._stopped
        # The step under which Lightning logs. A checkpoint saved after a validation restores a
        # number that is too small by 1.
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        # Runs after the averaging, because checkpoints are the last callback.
        step = trainer.global_step
        if step == self._step:
            return  # in the middle of an accumulation, whose gradients no checkpoint holds
        self._step, number = step, self._signal(trainer)
        every = trainer.val_check_batch
        self.validation_due = (
            trainer.enable_validation
            and every is not None
            and (trainer.fit_loop.total_batch_idx + 1) % every == 0
        )
        due = (
            step % self.every_n_steps == 0
            or number is not None
            or self.validation_due
            or step == trainer.max_steps
        )
        if due and step > self._saved_step:
            # Lightning logs a step after this hook. A run killed in between would resume after the
            # step and never log it.
            every = trainer.log_every_n_steps  # type: ignore[attr-defined]
            metrics = trainer.logger
            if isinstance(metrics, MetricsFile) and trainer.is_global_zero and step % every == 0:
                found = trainer.callback_metrics
                metrics.log_metrics(
                    {k: float(found[k]) for k in _OF_A_STEP if k in found}, step - 1
                )
            self._save(trainer)
        if number is not None:
            self._stopped = Stopped(number)

    def _save(self, trainer: Trainer) -> None:
        trainer.save_checkpoint(self.folder / "last.ckpt", weights_only=False)
        self._saved_step = trainer.global_step

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        step = trainer.global_step
        is_last = step < trainer.max_steps or math.isinf(self.best)
        self.validation_due = trainer.enable_validation and is_last and step > self._validated_step
        if step > self._saved_step or self.validation_due:
            self._save(trainer)
        if self.validation_due:
            self._validate(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._stopped is not None:
            raise self._stopped
        # Under which Lightning logs. It is larger by 1 at the end of training and in the middle of
        # an accumulation.
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step - 1
        # Lightning validates because `should_stop` was set, such as by `max_time`.
        if 0 <= self._saved_step < trainer.global_step:
            self.validation_due = True
            self._save(trainer)

    def on_validation_batch_start(self, trainer: Trainer, *_: Any) -> None:
        number = self._signal(trainer)
        # The resumed run repeats the validation.
        if number is not None and self._saved_step == trainer.global_step:
            raise Stopped(number)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.validation_due = False
        self._validated_step = trainer.global_step
        nll = trainer.callback_metrics.get("valid/nll")
        if nll is not None and not trainer.sanity_checking and float(nll) < self.best:
            self.best = float(nll)
            if not cast(DiffusionModule, pl_module).objective.distills:
                trainer.save_checkpoint(self.folder / "best.ckpt", weights_only=False)
        if self._saved_step == trainer.global_step:
            # last.ckpt of this step was written before the validation: a run resumed from it must
            # know this best value.
            self._save(trainer)

    def on_exception(self, *_: Any) -> None:
        self.signals.restore()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.signals.restore()


@dataclass(eq=False)
class SampleLog(Callback):
    """Generates the first two validation windows again at each validation, by the averaged weights,
    with their labels or columns and what is not counted in them: a line of `samples.jsonl` in the
    run folder, with the step and the samples.

    The noise is its own, and the same each time: losses and weights are those of a run without
    samples. Under context parallelism there are none.

    Args:
        settings: the configuration of a sampler by its name.
    """

    settings: Settings

    # Not at the start of the validation, when `EMA` may not have exchanged the weights yet.
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int, *_: Any
    ) -> None:
        module = cast(DiffusionModule, pl_module)
        if batch_idx or module.peers is not None:
            return
        some = {name: rows[:2] for name, rows in batch.items()}
        process = module.objective.process
        template = some["ids"].long().masked_fill(some["weight"] > 0, process.vocab.mask_id)
        noise = Draws.for_batch(hash64(module.seed, "samples"), 2, device=template.device)
        sampler: Sampler = build(self.settings(module.denoiser.sampler), trust=None)
        read = some.get("cond"), some.get("valid")
        found = sampler.sample(module.denoiser, process, template, noise, None, *read)
        reshard(module)
        if trainer.is_global_zero:
            decode = trainer.datamodule.data.tokenizer.decode  # type: ignore[attr-defined]
            texts = [decode(row[row != process.vocab.pad_id]) for row in found.tokens]
            line = json.dumps({"step": trainer.global_step, "samples": texts})
            append(Path(trainer.default_root_dir) / SAMPLES, f"{line}\n".encode())


class ProgressBar(Callback):
    """Loss, tokens per second and remaining time over the whole run."""

    def __init__(self) -> None:
        self.bar: Progress | None = None
        self._step = 0
        self._tokens = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        total = int(trainer.estimated_stepping_batches)
        self._step, self._tokens = trainer.global_step, cast(DiffusionModule, pl_module).tokens_seen
        if trainer.is_global_zero:
            # The network is also called for validation, which is no part of a step.
            self.bar = Progress(total, "train", initial=self._step, calls=math.inf)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self.bar is None or trainer.global_step <= self._step:
            return
        metrics = trainer.callback_metrics
        tokens = cast(DiffusionModule, pl_module).tokens_seen
        due = "train/loss" in metrics and (trainer.global_step % 10 == 0 or self._step == 0)
        notes = {"loss": f"{float(metrics['train/loss']):.4f}"} if due else {}
        self.bar.update(trainer.global_step - self._step, tokens - self._tokens, **notes)
        self._step = trainer.global_step
        self._tokens = tokens

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: STEP_OUTPUT,
        batch: Batch,
        batch_idx: int,
        *_: Any,
    ) -> None:
        if self.bar is not None:
            self.bar.update(0, valid=f"batch {batch_idx + 1}/{trainer.num_val_batches[0]}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.bar is not None and "valid/nll" in trainer.callback_metrics:
            self.bar.notes["valid"] = f"{float(trainer.callback_metrics['valid/nll']):.4f}"

    def on_train_end(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()

    def on_exception(self, *_: Any) -> None:
        self.on_train_end()
