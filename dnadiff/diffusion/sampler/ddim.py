"""Reverse steps of Gaussian noise on vectors, from noise to tokens."""

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.gaussian import GaussianProcess, VectorDenoiser, normal
from dnadiff.diffusion.sampler.base import CountedDenoiser, GridSampler, draws_of_part
from dnadiff.fields import Fraction, NonNegative, checked_dataclass


@checked_dataclass
class DDIM(GridSampler):
    """`num_steps` reverse steps on a grid of times from 1 to `process.t_min` (arXiv 2010.02502, eq.
    12), where every position is rounded to a token.

    With eta = 1 it is ancestral sampling (DDPM, arXiv 2006.11239), whose distribution is that of
    the model's bound if it has as many steps and does not clamp. Given tokens have no noise, as in
    training on pairs, whose bound and samples are of one model. A model that was trained on noise
    everywhere has not seen this: its samples for a template are approximate.

    A network that reads its last estimate gets that of the step before (Analog Bits, arXiv
    2208.04202, algorithm 2). Temperature and truncation apply to the rounding.

    Args:
        eta: noise of a step; 1 is ancestral, 0 is deterministic.
        clamp: replace estimates by the nearest vectors of tokens (the clamping trick of
            Diffusion-LM, arXiv 2205.14217, section 4.2); None is as the model was published.
        time_difference: steps by which each step goes further, while the network gets the time of
            the grid (asymmetric time intervals of Analog Bits).

    Examples:
        >>> DDIM(num_steps=64).num_steps_for(length=512)
        64
    """

    eta: Fraction = 1.0
    clamp: bool | None = None
    time_difference: NonNegative = 0.0

    exact = True
    process_type = GaussianProcess

    def check_model(self, denoiser: BaseDenoiser) -> None:
        super().check_model(denoiser)
        if not isinstance(denoiser, VectorDenoiser):
            raise ValueError(
                "guidance changes probabilities of tokens, and this model predicts vectors; set "
                "guidance=1"
            )

    def fill(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: GaussianProcess,
        draws: Draws,
    ) -> Tensor:
        if calls.start_t is not None and calls.start_t <= process.t_min:
            raise ValueError(
                f"start_t {calls.start_t} must be above {process.t_min} (process.t_min), the time "
                "at which vectors are rounded to tokens; set start_t=0.2 or another higher time"
            )
        rows = masked.any(-1).nonzero()[:, 0]
        if len(rows) and not self.leaves_masks(self.num_steps - 1):
            part = calls.part(x, rows, slice(None))
            noise = draws_of_part(draws, "", 0, rows)
            x[rows] = self._denoised(x[rows], masked[rows], part, process, noise)
            calls.add(part)
        return x

    def _denoised(
        self,
        x: Tensor,
        masked: Tensor,
        calls: CountedDenoiser,
        process: GaussianProcess,
        draws: Draws,
    ) -> Tensor:
        """As `fill`, for sequences with a position to fill."""
        denoiser = calls.denoiser
        size = self.num_steps
        given = denoiser.codes[x]
        drawn = masked[..., None]
        clamp = denoiser.clamps if self.clamp is None else self.clamp
        times = process.times(size, x, calls.start_t or 1.0).flip(0)
        z = normal(draws, "prior", given)
        if calls.start_t is not None:
            z = process.corrupt(given, times[:1], masked, draws)
        further = self.time_difference * (times[0] - times[1])
        estimate = None
        for i in range(size):
            z = torch.where(drawn, z, given)
            estimate = calls.denoise(z, times[i].expand(len(x)), estimate)
            x0 = denoiser.nearest(estimate) if clamp else estimate
            s = (times[i + 1] - further).clamp(process.t_min)
            mean, std = process.reverse(x0, z, times[i], s, self.eta)
            z = mean + std * normal(draws.at(i + 1), "step", z)
        uniform = draws.uniform("token", x.shape[1])
        return self.unmasked(x, masked, size - 1, denoiser.round(z[masked]), uniform)
