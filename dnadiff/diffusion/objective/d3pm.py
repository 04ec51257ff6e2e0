"""Absorbing-state D3PM in discrete time (arXiv 2107.03006), in the plug-in form that MDLM (arXiv
2406.07524) compares with."""

from dataclasses import field

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.objective.base import Loss, MaskedObjective, TrainingBatch, mean_over
from dnadiff.diffusion.objective.masking import DiscreteTime, MaskedBatch, Positions
from dnadiff.diffusion.process import Parameterization, Softmax
from dnadiff.fields import checked_dataclass


@checked_dataclass
class D3PM(MaskedObjective):
    """T sum_i KL(q(xs | xt, x0) || plug-in posterior), i = 1..T, plus the reconstruction term -log
    p(x0 | x at t = 0).

    The two properties of SUBS are switches (MDLM's ablation). Without zero masking the network may
    give mass mu to the mask, and a masked position costs more than MDLM's cross-entropy by
    [log(1 + mu alpha_t/(1 - alpha_t)) - stay log(1 + mu alpha_s/(1 - alpha_s))]/unmask, where
    unmask = (alpha_s - alpha_t)/(1 - alpha_t) and stay = 1 - unmask. With both switches on the
    objective is MDLM's with T steps. Without carry-over the network must copy the clean sequence:
    the reconstruction term, one more network call at t = 0 with logits everywhere. It is outside
    the sum over steps, so it counts once and not T times.

    Args:
        masking: `DiscreteTime`, which defines T.
        zero_masking: ids that are never emitted have probability 0.
        carry_over: a visible token is known, and the reconstruction term 0.
        protocol: see `MaskedObjective`.
    """

    everywhere = False

    masking: DiscreteTime = field(default_factory=DiscreteTime)
    zero_masking: bool = False
    carry_over: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.masking, DiscreteTime):
            raise ValueError(
                "d3pm is defined in discrete time and cannot use masking "
                f"{type(self.masking).__name__}; set objective/masking=discrete_time"
            )
        super().__post_init__()

    def parameterization(self) -> Parameterization:
        return Softmax(self.process.vocab, self.zero_masking, self.carry_over)

    def token_nll(
        self,
        denoiser: MaskedDenoiser,
        batch: TrainingBatch,
        masked: MaskedBatch,
        positions: Positions,
    ) -> Tensor:
        # The KL divided by `unmask`.
        query = batch.query(masked.xt, masked.t.float(), positions.chosen)
        if self.zero_masking:
            return -denoiser.x0_log_probs_of(batch.x0, query)[:, 0]
        both = denoiser.x0_log_probs_of(batch.x0, query, self.process.vocab.mask_id)
        log_prob, on_mask = both.unbind(-1)
        on_mask = on_mask.exp()
        alpha_t, alpha_s = self.masking.alphas(self.process.noise, masked.t)
        # The first step unmasks everything (stay = 0); with the odds of t in place of those of s
        # the difference below is 0 there.
        odds_t = alpha_t / (1 - alpha_t)
        odds_s = torch.where(alpha_s < 1, alpha_s / (1 - alpha_s).clamp(min=1e-30), odds_t)
        each = torch.stack(
            [odds_s, odds_s - odds_t, (alpha_s - alpha_t) / (1 - alpha_t)], -1
        )  # differences before rounding to float32
        odds, gain, unmask = each.to(on_mask)[positions.index[0]].unbind(-1)
        # log(1 + mu odds_t) - (1 - unmask) log(1 + mu odds_s), over unmask, without subtracting
        # almost equal logarithms.
        return (
            torch.log1p(on_mask * odds)
            - log_prob
            + torch.log1p(-on_mask * gain / (1 + on_mask * odds)) / unmask
        )

    def compute(self, denoiser: MaskedDenoiser, batch: TrainingBatch) -> Loss:
        diffusion = super().compute(denoiser, batch)
        if self.carry_over:
            return diffusion
        # the reconstruction, -log p(x0 | x0) at t = 0
        x0, weight, *_ = batch
        counted = weight > 0
        query = batch.query(x0, torch.zeros(len(x0), device=x0.device), counted)
        nll = -denoiser.x0_log_probs_of(x0, query)[:, 0]
        clean = mean_over(nll * weight[counted], weight.sum())
        return Loss(diffusion.loss + clean, diffusion.nll + clean.detach(), diffusion.num_tokens)
