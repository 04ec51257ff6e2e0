"""Next-token prediction: the control that diffusion is measured against."""

from __future__ import annotations

from torch import Tensor, nn

from dnadiff.denoiser import CausalDenoiser, next_nll
from dnadiff.draws import Draws
from dnadiff.objective.base import FEW, Loss, Objective, check_fit, refuse_unemittable


class AR(Objective):
    """-log p of each token given those before it, the first one included: exact, so loss and `nll` are the same number.

    Tokens of weight 0 are read and not counted. There is no noise: the process is asked for its vocabulary alone.
    """

    causal = True

    def denoiser(self, backbone: nn.Module, time_conditioning: bool | None = None) -> CausalDenoiser:
        """See `Objective.denoiser`; there is no time to be told."""
        check_fit(type(self), backbone)
        if time_conditioning:
            raise ValueError("time_conditioning=true, but objective AR has no time; leave it out")
        return CausalDenoiser(backbone)

    def __call__(
        self, denoiser: nn.Module, x0: Tensor, weight: Tensor, draws: Draws, cond: Tensor | None = None, valid: Tensor | None = None
    ) -> Loss:
        """See `Objective`."""
        x0, weight = x0.long(), weight.float()
        refuse_unemittable(x0, weight, self.process.vocab)
        counted = weight > 0
        nll = next_nll(denoiser, x0, cond, counted, valid) * weight[counted]  # (M,)
        loss = nll.sum() / weight.sum().clamp(min=FEW)
        return Loss(loss, loss.detach(), weight.sum())
