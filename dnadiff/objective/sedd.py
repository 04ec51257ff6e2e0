"""Score entropy for the absorbing process (SEDD, arXiv 2310.16834)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dnadiff.objective.base import MaskedObjective
from dnadiff.objective.masking import Masked
from dnadiff.parameterization import Parameterization, Score, log_expm1


class SEDD(MaskedObjective):
    """Denoising score entropy in continuous time (arXiv 2310.16834, the denoising score entropy for the absorbing process).

    With ratios s_y and q = alpha/(1 - alpha), the true one of the hidden token x0, a masked position costs
    sigma' [sum_y s_y - q log s_x0 + q (log q - 1)]. Divided by q that is sum_y r_y - 1 - log r_x0 with r = s/q, times MDLM's weight
    sigma' q = -alpha'/(1 - alpha): so every masking serves, and ratios that sum to q cost what MDLM's cross-entropy costs. Others
    cost more: normalising them, as `log_probs` does, never loosens the bound.

    Args:
        process: the absorbing process.
        masking: how xt is drawn; coins with stratified times by default.
        protocol: see `MaskedObjective`.
    """

    time_conditioning = True

    def parameterization(self) -> Parameterization:
        """Unnormalized ratios."""
        return Score(self.process.vocab)

    def token_nll(
        self, denoiser: nn.Module, x0: Tensor, masked: Masked, positions: Tensor, cond: Tensor | None, valid: Tensor | None
    ) -> Tensor:
        """Score entropy over sigma' q: see `MaskedObjective.token_nll`."""
        if denoiser.fused_head:
            few = math.log(len(self.process.vocab.emitted))  # as `Score` scales its logits
            target, banned = x0[positions][:, None], self.process.vocab.never_emitted
            log_sum, at = denoiser.log_sum_and_logits(target, banned, masked.xt, masked.t.float(), cond, positions, valid)
            return (log_sum - few).exp() - 1 - (at[:, 0] - few)
        log_score = denoiser.log_score(masked.xt, masked.t.float(), cond, positions, valid)  # (M, V)
        log_odds = log_expm1(self.process.noise.sigma(masked.t)).to(log_score)[:, None].expand(x0.shape)[positions]  # -log q
        log_ratio = log_score + log_odds[:, None]
        # A masked position's own ratio is that of the mask to itself; score entropy sums over the letters.
        total = log_ratio.masked_fill(~self.process.vocab.is_emitted(log_ratio.device), -torch.inf).exp().sum(-1)
        return total - 1 - log_ratio.gather(-1, x0[positions][:, None])[:, 0]

    def evaluation(self) -> SEDD:
        """The same bound by exact counts."""
        return SEDD(self.process, self.masking.evaluation(), self.protocol)
