"""Block diffusion (BD3-LM, arXiv 2503.09573): autoregressive over blocks, masked diffusion inside
each block."""

from __future__ import annotations

from torch import Tensor

from dnadiff.diffusion.denoiser import Backbone, BlockBackbone, BlockDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.objective.base import Loss, Protocol, TrainingBatch, mean_over
from dnadiff.diffusion.objective.masking import ExactCount, MaskedBatch, Masking, Positions
from dnadiff.diffusion.objective.mdlm import MDLM, Weighting
from dnadiff.diffusion.process import AbsorbingProcess, block_rows, sequence_rows
from dnadiff.fields import NonNegative, PositiveInt, checked


@checked
class BlockMDLM(MDLM):
    """The sum over blocks of the NELBO of each block given the clean blocks before it (arXiv
    2503.09573v3, eq. 7).

    Each block is masked on its own, by the masking that `MDLM` uses for a sequence; every block of
    every sequence is trained in one pass. With one block (b = L) it is `MDLM`. With b = 1 every
    block is a mask with weight 1, and the loss is -log p by the chain rule.

    Args:
        process: the absorbing process.
        block_size: b, tokens of a block.
        masking: how each block is masked; exact counts by default.
        weighting: as in `MDLM`.
        next_token_weight: of an auxiliary loss, -log p of each token but the first given those
            before it, computed by the clean stream, which is there anyway. For networks whose clean
            stream is causal. It is trained only and not part of `nll`.
        protocol: see `MaskedObjective`.
    """

    reads = BlockBackbone
    takes_time = False

    def __init__(
        self,
        process: AbsorbingProcess,
        block_size: PositiveInt,
        masking: Masking | None = None,
        weighting: Weighting = "cross_entropy",
        next_token_weight: NonNegative = 0.0,
        protocol: Protocol = "count",
    ) -> None:
        super().__init__(process, masking or ExactCount(), weighting, protocol=protocol)
        self.block_size = block_size
        self.next_token_weight = float(next_token_weight)

    def make_denoiser(self, backbone: Backbone, time_conditioning: bool) -> BlockDenoiser:
        if backbone.max_length is not None and self.block_size > backbone.max_length:
            raise ValueError(
                f"objective.block_size {self.block_size} is more than the {backbone.max_length} "
                "tokens that this network takes; lower it"
            )
        denoiser = BlockDenoiser(backbone, self.block_size)
        denoiser.backbone.check_blocks()
        if self.next_token_weight and not denoiser.backbone.clean_is_causal:
            raise ValueError(
                f"objective.next_token_weight {self.next_token_weight:g} must be 0: the clean "
                f"stream of {type(backbone).__name__} sees whole "
                "blocks, and would copy the next token; set it to 0, or use backbone=caduceus"
            )
        return denoiser

    def rows(self, x: Tensor, fill: float = 0) -> Tensor:
        return block_rows(x, min(self.block_size, x.shape[1]), fill)

    def corrupt(self, x0: Tensor, maskable: Tensor, draws: Draws) -> MaskedBatch:
        length = x0.shape[1]
        rows = self.rows(x0, self.process.vocab.pad_id)
        allowed = self.rows(maskable)
        masked = self.masking(self.process, rows, allowed, draws.for_blocks(len(rows) // len(x0)))
        weight = masked.weight[:, None].expand(rows.shape)
        return MaskedBatch(
            sequence_rows(masked.xt, length), masked.t, sequence_rows(weight, length)
        )

    def compute(self, denoiser: BlockDenoiser, batch: TrainingBatch) -> Loss:
        if self.next_token_weight == 0:
            return super().compute(denoiser, batch)
        masked, chosen = self.masked_positions(batch)
        following = batch.weight > 0
        following[:, 0] = False  # no token before it
        positions = Positions(chosen)
        counted = batch.weight[following]
        query = batch.query(masked.xt, None, chosen)
        nll, next_nll = denoiser.nll_with_next(batch.x0, query, following)
        found = self.reduced(nll, batch.weight, masked, positions)
        added = self.next_token_weight * mean_over(next_nll * counted, counted.sum())
        return found._replace(loss=found.loss + added)

    def evaluation(self) -> BlockMDLM:
        found = super().evaluation()
        found.next_token_weight = 0.0
        return found
