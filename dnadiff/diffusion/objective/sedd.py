"""Score entropy for the absorbing process (SEDD, arXiv 2310.16834)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.diffusion.denoiser import OptTensor
from dnadiff.diffusion.objective.base import MaskedObjective
from dnadiff.diffusion.objective.masking import MaskedBatch
from dnadiff.diffusion.parameterization import Parameterization, Score, log_expm1
from dnadiff.diffusion.positions import Positions


class SEDD(MaskedObjective):
    """Denoising score entropy in continuous time for the absorbing process (arXiv 2310.16834).

    With ratios s_y and q = alpha/(1 - alpha), the true ratio of the hidden token x0, a masked
    position costs sigma' [sum_y s_y - q log s_x0 + q (log q - 1)]. Divided by q that is sum_y r_y -
    1 - log r_x0 with r = s/q, times MDLM's weight sigma' q = -alpha'/(1 - alpha). So every masking
    works, and ratios that sum to q cost as much as MDLM's cross-entropy. Others cost more:
    normalizing them, as `log_probs` does, never loosens the bound.

    Args:
        masking: how xt is drawn; independent masks at stratified times by default.
        protocol: see `MaskedObjective`.
    """

    time_conditioning = True

    @override
    def parameterization(self) -> Parameterization:
        return Score(self.process.vocab)

    @override
    def where(self, chosen: Tensor) -> Positions:
        return Positions(chosen)

    @override
    def token_nll(
        self,
        denoiser: Any,  # has `log_score`
        x0: Tensor,
        masked: MaskedBatch,
        positions: Positions,
        cond: OptTensor,
        valid: OptTensor,
    ) -> Tensor:
        # Score entropy divided by sigma' q.
        if denoiser.fused_head:
            scale = math.log(len(self.process.vocab.emitted))  # as `Score` scales its logits
            target, banned = positions.at(x0)[:, None], self.process.vocab.never_emitted
            log_sum, at = denoiser.log_sum_and_logits(
                target, banned, masked.xt, masked.t.float(), cond, positions.chosen, valid
            )
            return (log_sum - scale).exp() - 1 - (at[:, 0] - scale)
        log_score = denoiser.log_score(
            masked.xt, masked.t.float(), cond, positions.chosen, valid
        )  # (M, V)
        log_odds = log_expm1(self.process.noise.sigma(masked.t)).to(log_score)  # -log q
        log_ratio = log_score + log_odds[positions.index[0], None]
        # The ratio of the mask to itself is left out: score entropy sums over the tokens that a
        # sample may contain.
        total = (
            log_ratio.masked_fill(~self.process.vocab.is_emitted(log_ratio.device), -torch.inf)
            .exp()
            .sum(-1)
        )
        return total - 1 - log_ratio.gather(-1, positions.at(x0)[:, None])[:, 0]

    @override
    def evaluation(self) -> SEDD:
        return SEDD(self.process, self.masking.evaluation(), self.protocol)
