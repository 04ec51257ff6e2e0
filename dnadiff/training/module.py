"""What Lightning trains: the module (steps, logging, optimizer) and its data.

The mathematics is in `dnadiff.diffusion.objective`. Data modules are independent of Lightning,
whose import takes seconds.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dnadiff.data.base import LoaderState, ProcessRank, SequenceDataModule
from dnadiff.diffusion.denoiser import BaseDenoiser, DenoiserWrapper, Kind, OptTensor, Query
from dnadiff.diffusion.draws import Draws, hash64
from dnadiff.diffusion.objective.base import Loss, Objective
from dnadiff.fields import Config
from dnadiff.networks.backbone.base import Peers
from dnadiff.training.optim import parameter_groups
from dnadiff.training.trainer import DATA_STATE, reshard, spread, with_current_state

Batch = dict[
    str, Tensor
]  # ids (B, L) and weight (B, L) as bytes; optionally cond (B, C) and valid (B, L)

# Lightning asks which of both was meant when only the module has the hook. The module: it counts
# tokens, and data modules need no hook.
warnings.filterwarnings(
    "ignore", message="You have overridden `on_before_batch_transfer` in `LightningModule`"
)


class PiecewiseDenoiser(DenoiserWrapper):
    """A denoiser whose network reads one piece of every sequence, while the peers of this process
    read the others (context parallelism).

    It takes whole sequences, as an objective gives them, and returns predictions for all requested
    positions in every process.

    Each process computes the positions of its own piece and receives the other predictions without
    their gradients. So the objective is the same in all processes, and the gradient of each
    parameter is the sum over the processes.

    Args:
        denoiser: its network reads pieces (`Backbone.spread`).
        peers: the processes that hold the pieces.
    """

    def __init__(self, denoiser: BaseDenoiser, peers: Peers) -> None:
        super().__init__(denoiser)
        self.peers = peers
        self.fused_head = denoiser.fused_head
        self.banned = getattr(denoiser, "banned", self.banned)

    def cost(self, x0: Tensor, query: Query) -> Tensor:
        places, own = self._own(query)
        return self._joined(self.denoiser.nll(self._piece(x0), *own), places)

    def predict(self, kind: Kind, query: Query) -> Tensor:
        places, own = self._own(query)
        return query.shaped(self._joined(getattr(self.denoiser, kind)(*own), places))

    def log_sum_and_logits(
        self, ids: Tensor, banned: Sequence[int], query: Query
    ) -> tuple[Tensor, Tensor]:
        places, own = self._own(query)
        ids = ids[places[self.peers.rank]]
        log_sum, logits = self.denoiser.log_sum_and_logits(ids, banned, own)
        return self._joined(log_sum, places), self._joined(logits, places)

    def _piece(self, x: Tensor) -> Tensor:
        """The columns of this process."""
        return x.chunk(self.peers.size, 1)[self.peers.rank]

    def _own(self, query: Query) -> tuple[list[Tensor], Query]:
        """For each process, the places of its positions in the row-major order of all requested
        ones (call it before the network); and the part of this process."""
        positions = query.requested
        numbers = (positions.flatten().cumsum(0) - 1).view(positions.shape)
        chunks = (x.chunk(self.peers.size, 1) for x in (numbers, positions))
        places = [number[own] for number, own in zip(*chunks, strict=True)]
        valid, cond = (
            x if x is None or x.ndim < ndim else self._piece(x)  # labels are of whole sequences
            for x, ndim in ((query.valid, 2), (query.cond, 3))
        )
        return places, Query(self._piece(query.xt), query.t, cond, self._piece(positions), valid)

    def _joined(self, found: Tensor, places: list[Tensor]) -> Tensor:
        """What all processes found (m, ...) at their positions, in row-major order of all
        positions: (M, ...)."""
        return _Join.apply(found, places, self.peers)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, found: Tensor, places: list[Tensor], peers: Peers) -> Tensor:
        ctx.save_for_backward(places[peers.rank])
        sent = found.new_zeros(max(len(place) for place in places), *found.shape[1:])
        sent[: len(found)] = found
        joined = found.new_empty(sum(len(place) for place in places), *found.shape[1:])
        for place, received in zip(places, peers.gather(sent), strict=True):
            joined[place] = received[: len(place)]
        return joined

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[OptTensor, ...]:
        return gradient[ctx.saved_tensors[0]], None, None


class DiffusionModule(lightning.LightningModule):
    """One denoiser trained with one objective.

    The loss of a micro-batch is its mean over the tokens of all devices, and Lightning averages
    these equally over accumulation steps. If micro-batches hold different numbers of tokens (N,
    padding), a token of a shorter one weighs more. The mean over all tokens of the step would need
    their number before the first backward pass. Validation weights batches by their tokens.

    Args:
        lr_scheduler: called with (optimizer, number of steps); stepped after every optimizer step.
        weight_decay: for matrices, see `parameter_groups`.
        context_parallel: processes that hold a piece each of the same windows.
        seed: masks and times depend only on (seed, step, position in the global batch), dropout on
            (seed, step).
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
        context_parallel: int = 1,
    ) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.objective = objective
        self.valid_objective = objective.evaluation()
        self.make_optimizer = optimizer
        self.make_scheduler = lr_scheduler
        self.weight_decay = weight_decay
        self.seed = seed
        self.context_parallel = context_parallel
        # `run` gives loggers the configuration.
        self.save_hyperparameters(hyper_parameters or {}, logger=False)
        self.tokens_seen = 0  # in complete optimizer steps; of the current step:
        self._tokens_of_step = 0
        self.peers: Peers | None = None

    @property
    def groups(self) -> int:
        """The groups of processes that have different windows."""
        return self.trainer.world_size // self.context_parallel

    def setup(self, stage: str) -> None:
        if self.context_parallel > 1:
            self.peers = spread(self.denoiser, self.context_parallel)

    def draws(
        self, purpose: str, batch_size: int, step: int, micro: int = 0, accumulated: int = 1
    ) -> Draws:
        """The noise of one micro-batch.

        Its rows are spread evenly over the global batch, so that every device and every
        accumulation step sees all strata of time.
        """
        rank = self.trainer.global_rank // self.context_parallel
        rows = torch.arange(batch_size, device=self.device) * self.groups + rank
        of_step = batch_size * accumulated * self.groups
        return Draws(hash64(self.seed, purpose), rows * accumulated + micro, of_step, step)

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        # Counted before the batch is on a GPU, for which reading the number would wait. Tokens that
        # are read, not predicted: mlm predicts 15 %.
        if self.trainer.training:
            self._tokens_of_step += int((batch["weight"] > 0).sum()) * self.groups
        return batch

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        self.tokens_seen = self.tokens_seen + self._tokens_of_step
        self._tokens_of_step = 0

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        accumulated = self.trainer.accumulate_grad_batches
        micro = batch_idx % accumulated
        torch.manual_seed(
            hash64(self.seed, "dropout", self.global_step, micro, self.trainer.global_rank) % 2**63
        )
        size = len(batch["ids"])
        draws = self.draws("train", size, self.global_step, micro, accumulated)
        result = self.loss(batch, self.objective, draws)
        if self.global_step % 10 == 0 and not torch.isfinite(result.loss):
            raise ValueError(
                f"training diverged: the loss is {result.loss.item()} at step {self.global_step}; "
                "lower optimizer.lr, or set trainer.gradient_clip_val"
            )
        share = share_of_nll = self.share(result.num_tokens)
        if result.num_averaged is not None:
            share = self.share(result.num_averaged)
        losses = {
            "train/loss": share * result.loss.detach(),
            "train/nll": share_of_nll * result.nll,
        }
        # Their means over all processes. The size would be a weight in the means of epochs, which
        # are not logged.
        self.log_dict(losses, batch_size=size, on_step=True, sync_dist=True)
        self.log("lr", self.trainer.optimizers[0].param_groups[0]["lr"], on_step=True)
        # Strategies average over all processes, and gradients of pieces add up.
        return result.loss * (share * self.context_parallel)

    def share(self, tokens: Tensor) -> float:
        """The factor for this process's mean over its tokens that makes the average over processes
        the mean over all tokens."""
        if self.groups == 1:
            return 1.0
        total = float(self.trainer.strategy.reduce(tokens.detach().double(), reduce_op="sum"))
        return float(tokens) * self.trainer.world_size / total if total else 1.0

    @property
    def for_windows(self) -> BaseDenoiser:
        """The denoiser of complete windows; under context parallelism `denoiser` reads the piece of
        this process alone."""
        return self.denoiser if self.peers is None else PiecewiseDenoiser(self.denoiser, self.peers)

    def loss(self, batch: Batch, objective: Objective, draws: Draws) -> Loss:
        """The loss of a batch under an objective."""
        return objective(
            self.for_windows,
            batch["ids"].long(),
            batch["weight"].float(),
            draws,
            batch.get("cond"),
            batch.get("valid"),
        )

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.log_valid("valid/nll", batch, batch_idx)  # of the averaged weights, if there are any

    def log_valid(self, name: str, batch: Batch, batch_idx: int) -> None:
        """Log the validation loss of the current weights: the low-variance form of the objective,
        with the same masks at every validation."""
        draws = self.draws("valid", len(batch["ids"]), batch_idx)
        result = self.loss(batch, self.valid_objective, draws)
        reshard(self)  # the weights may be exchanged before the next pass
        self.log(name, result.nll, batch_size=max(int(result.num_tokens), 1), sync_dist=True)

    def configure_optimizers(self, num_steps: int | None = None) -> OptimizerLRSchedulerConfig:
        """The configured optimizer and its schedule over `num_steps`, by default those of the
        Trainer."""
        optimizer = self.make_optimizer(parameter_groups(self.denoiser, self.weight_decay))
        # A fused step could unscale gradients itself, which Lightning then refuses to clip.
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
        steps = int(self.trainer.estimated_stepping_batches) if num_steps is None else num_steps
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": self.make_scheduler(optimizer, steps),
                "interval": "step",
            },
        }

    def on_save_checkpoint(self, checkpoint: Config) -> None:
        checkpoint["tokens_seen"] = self.tokens_seen  # for the progress display of a resumed run
        checkpoint["groups"] = self.groups
        if state := self.objective.state_dict():
            checkpoint["objective"] = state

    def on_load_checkpoint(self, checkpoint: Config) -> None:
        self.tokens_seen = int(checkpoint.get("tokens_seen", 0))
        self.objective.load_state_dict(checkpoint.get("objective", {}))
        position = saved_position(checkpoint)
        if position is None:
            return
        # Lightning counts an epoch when its loop has ended: after a checkpoint of its last step,
        # and also if training stops in the middle. The loader's position is exact. Older versions
        # counted fewer batches, and saved in the middle of an optimizer step.
        accumulated = self.trainer.accumulate_grad_batches
        epoch = position["epoch"]
        batch = position["batch"] // accumulated * accumulated
        begun = epoch + (batch > 0)
        # Validations are due at multiples of a number of batches.
        done = checkpoint["global_step"] * accumulated
        epochs = {"ready": begun, "started": begun, "processed": epoch, "completed": epoch}
        loop = checkpoint["loops"]["fit_loop"]
        loop["epoch_progress"] |= {"current": epochs, "total": dict(epochs)}
        loop["epoch_loop.batch_progress"] |= {
            "current": dict.fromkeys(epochs, batch),
            "total": dict.fromkeys(epochs, done),
            "is_last_batch": False,
        }


class TrainingData(lightning.LightningDataModule):
    """Batches for training and validation.

    Args:
        data: where they come from.
        processes_per_window: processes that hold a piece each of the same windows (context
            parallelism).
    """

    def __init__(self, data: SequenceDataModule, processes_per_window: int = 1) -> None:
        super().__init__()
        self.data = data
        self.processes_per_window = processes_per_window

    def setup(self, stage: str | None = None) -> None:
        self.data.prepare()

    def train_dataloader(self) -> Iterable[object]:
        trainer = self.trainer
        pieces = self.processes_per_window
        assert trainer is not None

        # After Ctrl-C the current batch has left the loader, but the model is not trained on it.
        def progress() -> tuple[int, float]:
            current = trainer.fit_loop.epoch_loop.batch_progress.current
            return current.processed, trainer.num_training_batches  # type: ignore[attr-defined]

        self.data.process = ProcessRank(
            trainer.global_rank // pieces,
            trainer.world_size // pieces,
            progress,
            trainer.accumulate_grad_batches,
        )
        return self.data.train_dataloader()

    def val_dataloader(self) -> Iterable[object]:
        return self.data.val_dataloader()

    def state_dict(self) -> dict[str, LoaderState]:
        # Lightning saves the loader's state too, but does not restore it for a run that was saved
        # at the end of an epoch.
        return self.data.state_dict()

    def load_state_dict(self, state_dict: dict[str, LoaderState]) -> None:
        self.data.load_state_dict(state_dict)


def saved_position(checkpoint: Config) -> LoaderState | None:
    """The `epoch` and the `batch` in it with which a resumed run begins; None if the checkpoint has
    no state of `TrainingData`."""
    return with_current_state(checkpoint).get(DATA_STATE, {}).get("train_loader")
