"""MDLM's ancestral sampler (arXiv 2406.07524v2, section 3.2.2) on a uniform grid of times."""

import torch
from torch import Tensor

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.base import GridSampler, Plan, PlannedSampler


class Ancestral(GridSampler, PlannedSampler):
    """`num_steps` steps from t = 1 to t = 0; in each a masked position is unmasked with probability
    (alpha_s - alpha_t)/(1 - alpha_t).

    This probability does not depend on tokens, so the step of each position is drawn at once from
    the same distribution: the probability of being masked after step i is (1 - alpha_i)/(1 -
    alpha(1)). The network is called only in steps that unmask something: the published sampler's
    cache, for each sequence separately. As steps grow, the distribution converges to the model's;
    two positions are unmasked in the same step with probability 1/T.

    Examples:
        >>> Ancestral(num_steps=64).num_steps_for(length=512)
        64
    """

    exact = True
    has_weights = True

    def plan(self, masked: Tensor, process: AbsorbingProcess, draws: Draws) -> Plan:
        u = draws.uniform("reveal", masked.shape[1])
        time = self.times(u.device)
        still = (1 - process.noise.alpha(time)) / (
            1 - process.noise.alpha(time[:1])
        )  # 1 ... 0, probability of being masked after step i
        # Unmasked in the first step i with still_i <= u: count the later grid points that are above
        # u.
        step = torch.searchsorted(still[1:].flip(0).contiguous(), u, right=True)
        step = (self.num_steps - step).clamp(0, self.num_steps - 1)
        if self.leaves_masks(self.num_steps - 1):
            step = step.masked_fill(step == self.num_steps - 1, -1)
        return Plan(
            step.to(masked.device), still[:-1].float().expand(len(masked), -1).to(masked.device)
        )
