"""The LightningModule of training: steps, logging, optimizer. The mathematics is in `dnadiff.objective`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from typing_extensions import override

from dnadiff.config import Config
from dnadiff.draws import Draws, hash64
from dnadiff.objective.base import Loss, Objective
from dnadiff.training.optim import parameter_groups

if TYPE_CHECKING:
    from dnadiff.denoiser import BaseDenoiser

Batch = dict[str, Tensor]  # ids (B, L) and weight (B, L) as bytes; optionally cond (B, C) and valid (B, L)


class DiffusionModule(lightning.LightningModule):
    """One denoiser trained with one objective.

    The loss of a micro-batch is its mean over tokens, and Lightning averages these equally over accumulation steps and devices. If
    micro-batches hold different numbers of tokens (N, padding), a token of a shorter one weighs more. The mean over all tokens of the
    step would need their number on all devices before the first backward pass. Validation weights batches by their tokens.

    Args:
        lr_scheduler: called with (optimizer, number of steps); stepped after every optimizer step.
        weight_decay: for matrices, see `parameter_groups`.
        seed: masks and times depend only on (seed, step, position in the global batch), dropout on (seed, step).
        hyper_parameters: plain dicts for the checkpoint: `config` and `tokenizer`.
    """

    def __init__(
        self,
        denoiser: BaseDenoiser,
        objective: Objective,
        optimizer: Callable[..., Optimizer],
        lr_scheduler: Callable[..., LRScheduler],
        weight_decay: float = 0.0,
        seed: int = 0,
        hyper_parameters: Config | None = None,
    ) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.objective, self.valid_objective = objective, objective.evaluation()
        self.make_optimizer, self.make_scheduler, self.weight_decay = optimizer, lr_scheduler, weight_decay
        self.seed = seed
        self.save_hyperparameters(hyper_parameters or {}, logger=False)  # train.py gives loggers the configuration
        self.tokens_seen = 0

    def draws(self, purpose: str, batch_size: int, step: int, micro: int = 0, accumulated: int = 1) -> Draws:
        """The noise of one micro-batch.

        Its rows are spread evenly over the global batch, so that every device and every accumulation step sees all strata of time.
        """
        world, rank = self.trainer.world_size, self.trainer.global_rank
        rows = (torch.arange(batch_size, device=self.device) * world + rank) * accumulated + micro
        return Draws(hash64(self.seed, purpose), rows, batch_size * accumulated * world, step)

    @override
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        accumulated = self.trainer.accumulate_grad_batches
        micro = batch_idx % accumulated
        torch.manual_seed(hash64(self.seed, "dropout", self.global_step, micro, self.trainer.global_rank) % 2**63)
        result = self.loss(batch, self.objective, self.draws("train", len(batch["ids"]), self.global_step, micro, accumulated))
        tokens = int(result.num_tokens)
        self.tokens_seen += int((batch["weight"] > 0).sum()) * self.trainer.world_size  # read, not predicted: mlm predicts 15 %
        if self.global_step % 10 == 0 and not torch.isfinite(result.loss):
            raise ValueError(
                f"training diverged: the loss is {result.loss.item()} at step {self.global_step}; lower optimizer.lr, or set trainer.gradient_clip_val"
            )
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.log_dict({"train/loss": result.loss.detach(), "train/nll": result.nll, "lr": rate}, batch_size=max(tokens, 1), on_step=True)
        return result.loss

    def loss(self, batch: Batch, objective: Objective, draws: Draws) -> Loss:
        """The loss of a batch under an objective."""
        return objective(self.denoiser, batch["ids"].long(), batch["weight"].float(), draws, batch.get("cond"), batch.get("valid"))

    def valid_loss(self, batch: Batch, batch_idx: int) -> Loss:
        """The low-variance form of the objective, with the same masks at every validation."""
        return self.loss(batch, self.valid_objective, self.draws("valid", len(batch["ids"]), batch_idx))

    @override
    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        result = self.valid_loss(batch, batch_idx)  # of the averaged weights, if training averages them
        self.log("valid/nll", result.nll, batch_size=max(int(result.num_tokens), 1), prog_bar=False, sync_dist=True)

    @override
    def configure_optimizers(self, num_steps: int | None = None) -> OptimizerLRSchedulerConfig:
        """The configured optimizer and its schedule over `num_steps`, by default those of the Trainer."""
        optimizer = self.make_optimizer(parameter_groups(self.denoiser, self.weight_decay))
        steps = int(self.trainer.estimated_stepping_batches) if num_steps is None else num_steps
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.make_scheduler(optimizer, steps), "interval": "step"}}

    @override
    def on_save_checkpoint(self, checkpoint: Config) -> None:
        checkpoint["tokens_seen"] = self.tokens_seen  # for the progress display of a resumed run

    @override
    def on_load_checkpoint(self, checkpoint: Config) -> None:
        self.tokens_seen = int(checkpoint.get("tokens_seen", 0))
