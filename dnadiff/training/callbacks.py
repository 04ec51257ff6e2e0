"""What accompanies a training run: averaged weights, checkpoints, the metrics file and the progress bar."""

from __future__ import annotations

import csv
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, WeightAveraging
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor

from dnadiff.progress import Progress

COLUMNS = ("step", "tokens", "seconds", "train_loss", "train_nll", "lr", "valid_nll", "valid_nll_live")


class EMA(WeightAveraging):
    """Exponential moving average of the parameters with a warm-up: after n updates the decay is min(decay, (1+n)/(10+n)).

    Lightning's own average has no warm-up, so that a short run would be judged by its first weights. Buffers are copied,
    never averaged. Validation runs on the average; the live weights are scored beside it (`valid/nll_live`). Checkpoints
    hold the average as `state_dict` and the live weights besides.

    Args:
        decay: the long-run decay.
    """

    def __init__(self, decay: float = 0.9999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"callbacks.ema.decay {decay} must lie in [0, 1)")
        self.decay = decay
        super().__init__(use_buffers=False, multi_avg_fn=self.average)

    @torch.no_grad()
    def average(self, averaged: list[Tensor], current: list[Tensor], num_averaged: Tensor) -> None:
        """Move the average towards the current parameters, in place."""
        n = int(num_averaged)
        torch._foreach_lerp_(averaged, current, 1 - min(self.decay, (1 + n) / (10 + n)))

    def on_validation_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Score the live weights on the same batch and masks."""
        if self._average_model is None:
            return
        self._swap_models(pl_module)
        result = pl_module.valid_loss(batch, batch_idx)
        self._swap_models(pl_module)
        pl_module.log("valid/nll_live", result.nll, batch_size=max(int(result.num_tokens), 1), sync_dist=True)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Leave the live weights in place: what follows reads the checkpoint, and a resumed run needs both."""


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint beside its target, syncs it to the disk and renames it: a killed run leaves the old file or the new."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """See Lightning's CheckpointIO."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(temporary, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


class Checkpoints(Callback):
    """`last.ckpt` every so many steps and at the end, `best.ckpt` at the lowest validation bound; Ctrl-C ends in order.

    The first Ctrl-C finishes the step in hand, saves and stops; a second one stops at once, with the last saved file intact.

    Args:
        every_n_steps: optimizer steps between two writings of `last.ckpt`.
        folder: where; set by the command line.
    """

    def __init__(self, every_n_steps: int = 500, folder: str | os.PathLike[str] = "checkpoints") -> None:
        self.every_n_steps, self.folder = every_n_steps, Path(folder)
        self.best = float("inf")
        self.interrupted = False
        self._saved_step = self._step = -1
        self._handler: Any = None

    def state_dict(self) -> dict[str, Any]:
        """The best bound so far."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        self.best = state_dict["best"]

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Take over Ctrl-C."""
        self._saved_step = self._step = trainer.global_step
        for half_written in self.folder.glob(".*.ckpt.*"):  # of a killed process
            half_written.unlink(missing_ok=True)
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, self._on_interrupt)

    def _on_interrupt(self, number: int, frame: Any) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        print("\nCtrl-C: saving after this step; press it again to stop at once", flush=True)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save when it is time; runs after the averaging, for checkpoints come last."""
        step = trainer.global_step
        if step == self._step:
            return  # in the middle of an accumulation, whose gradients no checkpoint holds
        self._step = step
        interrupted = self.interrupted
        if trainer.world_size > 1:  # processes hear Ctrl-C within different steps; one that stops alone leaves the others waiting for ever
            interrupted = trainer.strategy.reduce_boolean_decision(interrupted, all=False)
        due = step % self.every_n_steps == 0 or interrupted or step == trainer.max_steps
        if due and step > self._saved_step:
            trainer.save_checkpoint(self.folder / "last.ckpt", weights_only=False)
            self._saved_step = step
        if interrupted:
            trainer.should_stop = True

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Keep the best."""
        nll = trainer.callback_metrics.get("valid/nll")
        if nll is not None and not trainer.sanity_checking and float(nll) < self.best:
            self.best = float(nll)
            trainer.save_checkpoint(self.folder / "best.ckpt", weights_only=False)
        if self._saved_step == trainer.global_step:
            # last.ckpt of this very step was written before the validation: a run resumed from it must know this best.
            trainer.save_checkpoint(self.folder / "last.ckpt", weights_only=False)

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Give Ctrl-C back."""
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            self._handler = None


class ProgressBar(Callback):
    """Loss, tokens a second and time left over the whole run."""

    def __init__(self) -> None:
        self.bar: Progress | None = None
        self._step, self._tokens = 0, 0

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Begin where a resumed run stands."""
        total = int(trainer.estimated_stepping_batches)
        self._step, self._tokens = trainer.global_step, pl_module.tokens_seen
        if trainer.is_global_zero:
            self.bar = Progress(total, "train", initial=self._step)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count."""
        if self.bar is not None and trainer.global_step > self._step:
            metrics = trainer.callback_metrics
            notes = {"loss": f"{float(metrics['train/loss']):.4f}"} if self._due(trainer) and "train/loss" in metrics else {}
            self.bar.update(trainer.global_step - self._step, pl_module.tokens_seen - self._tokens, **notes)
            self._step, self._tokens = trainer.global_step, pl_module.tokens_seen

    def _due(self, trainer: lightning.Trainer) -> bool:
        return trainer.global_step % 10 == 0 or self._step == 0

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Show the bound."""
        if self.bar is not None and "valid/nll" in trainer.callback_metrics:
            self.bar.notes["valid"] = f"{float(trainer.callback_metrics['valid/nll']):.4f}"

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """End the line."""
        if self.bar is not None:
            self.bar.close()


class MetricsFile(Logger):
    """`metrics.csv` with one row per logged step, continued on resume (Lightning's CSV logger starts anew).

    Columns: step (optimizer steps done), tokens seen, seconds of training, train_loss, train_nll, lr, valid_nll (averaged weights), valid_nll_live;
    nats per token, empty where nothing was measured.

    Args:
        folder: where; set by the command line.
    """

    def __init__(self, folder: str | os.PathLike[str] = ".") -> None:
        super().__init__()
        self.path = Path(folder) / "metrics.csv"
        self.module: Any = None
        self.earlier = 0.0
        self.start = time.monotonic()

    @property
    def name(self) -> str:
        """Lightning asks."""
        return "metrics"

    @property
    def version(self) -> str:
        """Lightning asks."""
        return ""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The run folder holds config.yaml instead."""

    def begin(self, module: Any, step: int) -> None:
        """Start the file, or cut a resumed one behind the step of its checkpoint."""
        self.module, self.start = module, time.monotonic()
        rows = [row for row in self.rows() if int(row["step"]) <= step] if step and self.path.is_file() else []
        self.earlier = float(rows[-1]["seconds"]) if rows else 0.0
        with open(self.path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)

    def rows(self) -> list[dict[str, str]]:
        """What has been written."""
        with open(self.path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    @property
    def seconds(self) -> float:
        """Seconds of training, those before a resume included."""
        return self.earlier + time.monotonic() - self.start

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one row."""
        names = {name: name.replace("/", "_") for name in metrics}
        row = {column: f"{float(metrics[name]):.6g}" for name, column in names.items() if column in COLUMNS}
        if not row or self.module is None:
            return
        row |= {"step": str((step or 0) + 1), "tokens": str(self.module.tokens_seen), "seconds": f"{self.seconds:.1f}"}
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, COLUMNS).writerow(row)
