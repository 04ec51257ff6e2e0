"""Corrections between reverse steps (arXiv 2205.14987), for noise that replaces tokens."""

import math
from dataclasses import field

from torch import Tensor

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.process import MixtureProcess
from dnadiff.diffusion.sampler.base import CountedDenoiser, redrawn
from dnadiff.diffusion.sampler.reverse import Reverse
from dnadiff.fields import NonNegative, checked_dataclass


@checked_dataclass
class PredictorCorrector(Reverse):
    """`Reverse`, with a second network call after each step that draws some tokens again at the
    same noise level.

    A token is drawn again from alpha_s p(x0 | the noisy tokens at the other positions) + (1 -
    alpha_s) pi_s, its distribution given the others. So one redrawn token leaves the distribution
    at time s unchanged, and brings sequences closer to it that have left it. Tokens that are
    redrawn in the same call see each other's old values; their number per call falls with
    `num_steps`, and with it this error. Deviation from the paper (section 4.4), whose corrector
    makes small steps of the forward and the reverse process together.

    With exact predictions twice as many steps of `Reverse` are closer to the model for the same
    number of calls. Corrections repair errors that steps of the network made.

    Args:
        num_steps, noise_removal, temperature, top_k, nucleus: as for `Reverse`; `argmax` has no
            correction after it.
        sweeps: how often each token is redrawn in all steps together, on average; 0 is `Reverse`.

    Examples:
        >>> PredictorCorrector(num_steps=64, sweeps=0.5).num_steps_for(length=512)
        128
    """

    sweeps: NonNegative = field(default=1.0, kw_only=True)

    process_type = MixtureProcess

    def num_steps_for(self, length: int) -> int:
        return 2 * self.num_steps

    def corrected(  # type: ignore[override]
        self,
        x: Tensor,
        masked: Tensor,
        step: int,
        s: Tensor,
        calls: CountedDenoiser,
        process: MixtureProcess,
        draws: Draws,
    ) -> Tensor:
        """x (B, L) after step number `step`, at time `s ()`."""
        chosen = draws.uniform("correct", x.shape[1]) < -math.expm1(-self.sweeps / self.num_steps)
        now = masked & chosen.to(x.device)
        if not now.any():
            return x
        log_probs = self.adjust(calls.log_probs(x, s.expand(len(x)).float(), now))
        noisy = process.marginal(s, log_probs.dtype).of(log_probs.exp()).log()
        if step == self.num_steps - 1:
            noisy = noisy.masked_fill(~process.vocab.is_emitted(x.device), -math.inf)
        return redrawn(x, now, noisy, draws.uniform("again", x.shape[1]))
