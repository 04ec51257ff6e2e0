"""The interval of mask rates with the least variance of the loss, chosen again at every validation
(BD3-LM, arXiv 2503.09573v3)."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from annotated_types import Interval
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.objective.base import MaskedObjective, Objective, TrainingBatch
from dnadiff.diffusion.objective.block_mdlm import BlockMDLM
from dnadiff.diffusion.objective.masking import Clipped, Positions
from dnadiff.diffusion.objective.mdlm import MDLM
from dnadiff.fields import Config, Positive, PositiveInt, checked
from dnadiff.progress import log
from dnadiff.store.objects import build, locate
from dnadiff.training.module import Batch, DiffusionModule
from dnadiff.training.trainer import reshard

LOWEST = 1e-3  # of the rates that are searched, as published: from 0 on the variance is infinite
WIDTHS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # as published
Width = Annotated[float, Interval(gt=LOWEST, le=1)]


@checked
class ClipSearch(Callback):
    """Sets `low` and `high` of the objective's `Clipped` masking to the candidate interval with the
    least variance of the loss.

    The variance is that of a block's loss per token, over blocks, rates and masks (arXiv
    2503.09573v3, section 5.3: a proxy for the variance of the gradient). Each validation computes
    it with its own weights, the averaged ones if training averages them. One more pass over
    validation batches serves all candidates: exact counts give the mean cost and squared cost of a
    block with k masks for every k, and `Clipped.moments` the variance under each interval.
    Published code draws masks for each candidate instead.

    Blocks that are not counted as a whole (padding, N, the end of a sequence) are left out. Under
    `objective=mdlm` a block is the window. Training then depends on the validations: a resumed run
    is the same as an undisturbed one unless it validates at other steps.

    Args:
        widths: of the intervals; 1 is the complete one.
        step: between the ends of intervals of one width. No interval begins below 1e-3.
        max_batches: validation batches that are used; 100 is published.
    """

    def __init__(
        self,
        widths: Sequence[Width] = WIDTHS,
        step: Positive = 0.05,
        max_batches: PositiveInt = 100,
    ) -> None:
        if not widths:
            raise ValueError("callbacks.clip_search.widths is empty; give at least one width")
        self.max_batches = max_batches
        self.candidates = candidates(widths, step)
        self.interval: tuple[float, float] | None = None
        self._sums: Tensor | None = None

    def masking_of(self, objective: Objective) -> Clipped:
        """The masking whose interval is chosen.

        Raises:
            ValueError: if the masking is not `Clipped`, blocks have one token, or the loss is not
                an estimate of the bound.
        """
        masking = objective.masking if isinstance(objective, MaskedObjective) else None
        if not isinstance(masking, Clipped):
            which = "no masking" if masking is None else f"the masking {type(masking).__name__}"
            raise ValueError(
                "callbacks.clip_search chooses the mask rates of objective/masking=clipped, and "
                f"objective {type(objective).__name__} has "
                f"{which}; set objective/masking=clipped, or leave out callbacks=clip_search"
            )
        if isinstance(objective, BlockMDLM) and objective.block_size == 1:
            raise ValueError(
                "objective.block_size 1: callbacks.clip_search has no mask rates to choose in "
                "blocks of one token; set objective/masking=count, "
                "which masks all of them, and leave out callbacks=clip_search"
            )
        if isinstance(objective, MDLM) and not objective.bound:
            raise ValueError(
                "objective.weighting=cross_entropy: callbacks.clip_search minimizes the variance "
                "of the bound's estimate, which is not "
                "trained on; set objective.weighting=nelbo, or leave out callbacks=clip_search"
            )
        return masking

    def state_dict(self) -> Config:
        return {"interval": None if self.interval is None else list(self.interval)}

    def load_state_dict(self, state_dict: Config) -> None:
        found = state_dict["interval"]
        self.interval = None if found is None else (float(found[0]), float(found[1]))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, DiffusionModule)
        masking = self.masking_of(pl_module.objective)
        if self.interval is not None:
            masking.low, masking.high = self.interval

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._sums = None

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: STEP_OUTPUT,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if batch_idx >= self.max_batches:
            return
        assert isinstance(pl_module, DiffusionModule)
        objective = pl_module.valid_objective
        assert isinstance(objective, MaskedObjective)
        model = pl_module.for_windows
        assert isinstance(model, MaskedDenoiser)
        with trainer.precision_plugin.val_step_context():
            found = sums_by_count(
                objective, model, batch, pl_module.draws("clip", len(batch["ids"]), batch_idx)
            )
        reshard(pl_module)
        self._sums = found if self._sums is None else self._sums + found

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._sums is None:
            return
        assert isinstance(pl_module, DiffusionModule)
        masking = self.masking_of(pl_module.objective)
        sums = self._sums
        if trainer.world_size > 1:
            sums = trainer.strategy.reduce(sums.to(pl_module.device), reduce_op="sum").cpu()
        best = least_variance(sums, self.candidates)
        if best is None:
            log.warning(
                "callbacks.clip_search: no block to measure; the mask rates stay between "
                f"{masking.low:g} and {masking.high:g}"
            )
        else:
            masking.low, masking.high = self.interval = (best.low, best.high)
        pl_module.log_dict({"clip/low": masking.low, "clip/high": masking.high}, sync_dist=True)


def check_search(callbacks: Config, objective: Objective) -> None:
    """Raise a ValueError if the configuration of callbacks has a search that does not fit the
    objective."""
    for settings in callbacks.values():
        if settings and locate(settings["_target_"], trust=None) is ClipSearch:
            build(settings, trust=None).masking_of(objective)


def candidates(widths: Sequence[float], step: float) -> list[Clipped]:
    """The intervals of each width that begin at a multiple of `step`, the wide ones first: of equal
    variance the least biased is chosen."""
    found = [
        (i * step, i * step + width)
        for width in sorted(widths, reverse=True)
        for i in range(int((1 - width) / step + 1e-6) + 1)
    ]
    return [Clipped(max(LOWEST, round(low, 10)), min(1.0, round(high, 10))) for low, high in found]


def sums_by_count(
    objective: MaskedObjective, denoiser: MaskedDenoiser, batch: Batch, draws: Draws
) -> Tensor:
    """Sums over the blocks of a batch that have k masks, and are counted as a whole: (3, b) float64
    on the CPU, k = 1..b.

    Their number, and the sums of the cost of their masks, nats, and of its square.
    """
    x0 = batch["ids"].long()
    weight = batch["weight"].float()
    valid = None if objective.masks_padding else batch.get("valid")
    read = TrainingBatch(x0, weight, draws, batch.get("cond"), valid)
    masked, positions = objective.masked_positions(read)
    nll = objective.token_nll(denoiser, read, masked, Positions(positions))
    cost = torch.zeros_like(weight).masked_scatter(positions, nll.float() * weight[positions])
    whole = objective.rows(weight > 0).all(1)
    count = objective.rows(positions)[whole].sum(1).cpu()
    total = objective.rows(cost)[whole].sum(1).cpu().double()
    length = objective.rows(weight).shape[1]
    return torch.zeros(3, length + 1, dtype=torch.float64).index_add_(
        1, count, torch.stack([torch.ones_like(total), total, total**2])
    )[:, 1:]


def least_variance(sums: Tensor, intervals: Sequence[Clipped]) -> Clipped | None:
    """The first of the intervals with the least variance of a block's loss, given the sums (3, b)
    of `sums_by_count`.

    Costs per token of counts that no block has are interpolated. None if no variance can be
    computed: without blocks, or if all costs are infinite.
    """
    blocks, cost, square = sums.numpy()
    seen = blocks > 0
    if not seen.any():
        return None
    k = np.arange(1, len(blocks) + 1)
    mean = k * np.interp(k, k[seen], (cost / k)[seen] / blocks[seen])
    mean_square = k**2 * np.interp(k, k[seen], (square / k**2)[seen] / blocks[seen])
    variance = np.empty(len(intervals))
    for i, interval in enumerate(intervals):
        first, second = interval.moments(len(k)).numpy()
        variance[i] = second @ mean_square - (first @ mean) ** 2
    return intervals[int(np.nanargmin(variance))] if np.isfinite(variance).any() else None
