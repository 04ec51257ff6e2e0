"""Diffusion-LM (arXiv 2205.14217): Gaussian noise on learned embeddings, which are rounded to
tokens."""

from typing import Literal

import torch
from torch import Tensor, nn

from dnadiff.diffusion.denoiser import Backbone, BaseDenoiser
from dnadiff.diffusion.gaussian import GaussianProcess, VectorDenoiser
from dnadiff.diffusion.objective.base import Loss, Objective, TrainingBatch, mean_over
from dnadiff.diffusion.objective.masking import strata
from dnadiff.fields import PositiveInt, checked_dataclass


@checked_dataclass
class DiffusionLM(Objective):
    """The variational bound of a chain of `num_steps` Gaussian steps, or the simpler loss with
    which Diffusion-LM was trained; the embeddings are learned with the network.

    The bound is the sum of -log p(x0 | z_0), where z_0 are the vectors at `process.t_min`, of the
    divergence of each step, and of KL(q(z_T | x0) || prior). It holds for any embeddings.

    Deviation: z_t given a token has the variance 1 - alpha(t). The published chain adds the noise
    of its first vector to that.

    Args:
        process: Gaussian noise; the published schedule is `noise=sqrt`.
        width: D, of an embedding.
        num_steps: T, of the chain.
        weighting: `simple`: the mean squared error of the estimate at a uniform step, rounding, and
            the mean square of the end of the chain (section 4.1); `nelbo`: the bound. `nll` is the
            bound either way.

    Raises:
        ValueError: if the schedule has no noise at `process.t_min`: the bound would be infinite.
    """

    process_type = GaussianProcess
    time_conditioning = True
    own_bound = True

    process: GaussianProcess  # type: ignore[assignment]
    width: PositiveInt = 16
    num_steps: PositiveInt = 2000
    weighting: Literal["simple", "nelbo"] = "simple"

    def __post_init__(self) -> None:
        super().__post_init__()
        process = self.process
        if process.noise.mask_probability(process.t_min) <= 0:
            raise ValueError(
                f"noise {type(process.noise).__name__} adds nothing at process.t_min "
                f"{process.t_min}, where the bound would be infinite; set process.t_min higher"
            )
        self.bound = self.weighting == "nelbo"

    def make_denoiser(self, backbone: Backbone, time_conditioning: bool) -> BaseDenoiser:
        codes = nn.Parameter(torch.empty(backbone.vocab.size, self.width))
        nn.init.normal_(codes)
        return VectorDenoiser(backbone, self.process, codes, time_conditioning, clamps=True)

    def compute(self, denoiser: VectorDenoiser, batch: TrainingBatch) -> Loss:
        num_tokens = batch.weight.sum()
        u = strata(batch.draws, True, batch.x0.device)
        simple, bound = (
            mean_over((each * batch.weight).sum(), num_tokens)
            for each in self._costs(denoiser, batch, u, self.bound)
        )
        return Loss(bound if self.bound else simple, bound.detach(), num_tokens)

    def token_bound(self, denoiser: VectorDenoiser, batch: TrainingBatch, u: Tensor) -> Tensor:
        return self._costs(denoiser, batch, u, True)[1]

    def _costs(
        self, denoiser: VectorDenoiser, batch: TrainingBatch, u: Tensor, by_snr: bool
    ) -> tuple[Tensor, Tensor]:
        """The simple loss and a draw of the bound, (B, L) each, 0 where the weight is 0.

        u chooses a step: uniform, or in proportion to its change of log(1 + SNR), at which the
        divergence differs less from step to step.
        """
        x0 = batch.x0
        counted = batch.weight > 0
        process = self.process
        times = process.times(self.num_steps, x0)
        place = times - times[0]
        if by_snr:
            place = (1 - process.noise.alpha(times)).log()
            place = place - place[0]
        place = place / place[-1]  # from 0 to 1
        step = torch.searchsorted(place, u.to(place), right=True).clamp(1, self.num_steps)
        t = times[step]
        s = times[step - 1]
        share = place[step] - place[step - 1]
        clean = denoiser.codes[x0]
        zt, z0 = (process.corrupt(clean, at, counted, batch.draws) for at in (t, times[:1]))
        estimate = denoiser.denoise(zt, t, batch.cond, batch.valid)
        rounding = torch.zeros_like(batch.weight, dtype=clean.dtype)
        rounding[counted] = -denoiser.round(z0[counted]).gather(-1, x0[counted][:, None])[:, 0]
        error = (clean - estimate).square().mean(-1)
        last = process.noise.alpha(times[-1])
        simple = error + rounding + last.to(clean) * clean.square().mean(-1)
        divergence = process.step_cost(estimate, clean, t[:, None], s[:, None])
        divergence = divergence / share.to(clean)[:, None]
        bound = rounding + divergence + process.ends(clean)
        return simple * counted, torch.where(counted, bound, 0.0)
