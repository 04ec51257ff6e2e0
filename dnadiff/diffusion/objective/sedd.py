"""Score entropy for the absorbing process (SEDD, arXiv 2310.16834)."""

import math

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.objective.base import MaskedObjective, TrainingBatch
from dnadiff.diffusion.objective.masking import MaskedBatch, Positions
from dnadiff.diffusion.process import Parameterization, Score, log_expm1


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
    everywhere = False

    def parameterization(self) -> Parameterization:
        return Score(self.process.vocab)

    def token_nll(
        self,
        denoiser: MaskedDenoiser,
        batch: TrainingBatch,
        masked: MaskedBatch,
        positions: Positions,
    ) -> Tensor:
        # Score entropy divided by sigma' q.
        vocab = self.process.vocab
        target = positions.at(batch.x0)[:, None]
        query = batch.query(masked.xt, masked.t.float(), positions.chosen)
        if denoiser.fused_head:
            scale = math.log(len(vocab.emitted))  # as `Score` scales its logits
            log_sum, at = denoiser.log_sum_and_logits(target, vocab.never_emitted, query)
            return (log_sum - scale).exp() - 1 - (at[:, 0] - scale)
        log_score = denoiser.log_score(*query)  # (M, V)
        log_odds = log_expm1(self.process.noise.sigma(masked.t)).to(log_score)  # -log q
        log_ratio = log_score + log_odds[positions.index[0], None]
        # The ratio of the mask to itself is left out: score entropy sums over the tokens that a
        # sample may contain.
        emitted = vocab.is_emitted(log_ratio.device)
        total = log_ratio.masked_fill(~emitted, -torch.inf).exp().sum(-1)
        return total - 1 - log_ratio.gather(-1, target)[:, 0]
