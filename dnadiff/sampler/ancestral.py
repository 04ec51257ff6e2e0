"""MDLM's ancestral sampler (arXiv 2406.07524v2, section 3.2.2) on a uniform grid of times."""

from __future__ import annotations

import torch
from torch import Tensor

from dnadiff.draws import Draws
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.base import GridSampler, Plan, PlannedSampler


class Ancestral(GridSampler, PlannedSampler):
    """`num_steps` steps from t = 1 to t = 0; at each a masked position opens with (alpha_s - alpha_t)/(1 - alpha_t).

    These coins do not look at tokens, so each position's step is drawn at once from the same law: the chance
    of being masked after step i is (1 - alpha_i)/(1 - alpha(1)). Network calls happen only at steps that
    open something: the published sampler's cache, kept for each sequence by itself. As steps grow the law tends to
    the model's, two positions meeting in a step with 1/T. The arguments are those of `GridSampler`.
    """

    def plan(self, masked: Tensor, process: AbsorbingProcess, draws: Draws) -> Plan:
        """See `PlannedSampler.plan`."""
        u = draws.uniform("reveal", masked.shape[1])
        time = self.times(u.device)
        still = (1 - process.noise.alpha(time)) / (1 - process.noise.alpha(time[:1]))  # 1 ... 0, chance of being masked after step i
        # Opens at the first step i with still_i <= u: count the later grid points that are above u.
        step = torch.searchsorted(still[1:].flip(0).contiguous(), u, right=True)
        step = (self.num_steps - step).clamp(0, self.num_steps - 1)
        if self.noise_removal == "none":
            step = step.masked_fill(step == self.num_steps - 1, -1)
        return Plan(step.to(masked.device), still[:-1].float().expand(len(masked), -1).to(masked.device))
