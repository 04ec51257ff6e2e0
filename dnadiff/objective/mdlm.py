"""The masked-diffusion objective of MDLM (arXiv 2406.07524): a weighted average of masked-language-model losses."""

from __future__ import annotations

from torch import Tensor, nn

from dnadiff.draws import Draws
from dnadiff.objective.base import Loss, Objective, refuse_unemittable
from dnadiff.objective.masking import Coins, ExactCount, Masking
from dnadiff.process import AbsorbingProcess

WEIGHTINGS = ("nelbo", "cross_entropy")


class MDLM(Objective):
    """The continuous-time negative evidence lower bound under SUBS (arXiv 2406.07524v2, eq. 10).

    Positions of weight 0 are never masked: an N in a genome stays visible as N.

    Args:
        process: the absorbing process.
        masking: how xt is drawn; coins with stratified times by default, as published.
        weighting: `nelbo` differentiates the bound itself; `cross_entropy` the plain mean over masked tokens,
            which gives rows with many masks more say. `nll` reports the bound either way.
    """

    def __init__(self, process: AbsorbingProcess, masking: Masking | None = None, weighting: str = "nelbo") -> None:
        if weighting not in WEIGHTINGS:
            raise ValueError(f"objective.weighting {weighting!r} is not known; choose one of {', '.join(WEIGHTINGS)}")
        self.process = process
        self.masking = masking or Coins()
        self.bound = weighting == WEIGHTINGS[0]

    def __call__(
        self, denoiser: nn.Module, x0: Tensor, weight: Tensor, draws: Draws, cond: Tensor | None = None, valid: Tensor | None = None
    ) -> Loss:
        """See `Objective`. With all weights 0 the loss is exactly 0 and its gradient too."""
        x0, weight = x0.long(), weight.float()
        refuse_unemittable(x0, weight, self.process.vocab)
        maskable = weight > 0
        xt, t, factor = self.masking(self.process, x0, maskable, draws)
        positions = (xt == self.process.vocab.mask_id) & maskable
        log_probs = denoiser.log_probs(xt, t.float(), cond, positions, valid)  # (M, V)
        nll = -log_probs.gather(-1, x0[positions][:, None])[:, 0] * weight[positions]  # (M,)
        row = positions.nonzero()[:, 0]
        bound = (nll * factor.to(nll)[row]).sum() / weight.sum().clamp(min=1e-12)
        loss = bound if self.bound else nll.sum() / weight[positions].sum().clamp(min=1e-12)
        return Loss(loss, bound.detach(), weight.sum())

    def evaluation(self) -> MDLM:
        """The bound by exact counts, whatever is trained on: the same mean with less noise."""
        return MDLM(self.process, ExactCount())
