"""MDLM's ancestral sampler (arXiv 2406.07524v2, section 3.2.2) on a uniform grid of times."""

from __future__ import annotations

import torch
from torch import Tensor

from dnadiff.draws import Draws
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.base import Plan, PlannedSampler


class Ancestral(PlannedSampler):
    """`num_steps` steps from t = 1 to t = 0; at each a masked position opens with (alpha_s - alpha_t)/(1 - alpha_t).

    These coins do not look at tokens, so each position's step is drawn at once from the same law: the chance
    of being masked after step i is (1 - alpha_i)/(1 - alpha(1)). Network calls happen only at steps that
    open something: the published sampler's cache, kept for each sequence by itself.

    Args:
        num_steps: T; the law tends to the model's as T grows, two positions meeting in a step with 1/T.
        temperature: see `Sampler`.
        top_k: see `Sampler`.
        nucleus: see `Sampler`.
    """

    def __init__(self, num_steps: int = 128, temperature: float = 1.0, top_k: int | None = None, nucleus: float = 1.0) -> None:
        if num_steps < 1:
            raise ValueError(f"num_steps {num_steps} must be at least 1; set sampler.num_steps")
        super().__init__(temperature, top_k, nucleus)
        self.num_steps = num_steps

    def num_steps_for(self, length: int) -> int:
        """See `Sampler.num_steps_for`."""
        return self.num_steps

    def plan(self, masked: Tensor, process: AbsorbingProcess, draws: Draws) -> Plan:
        """See `PlannedSampler.plan`."""
        u = draws.uniform("reveal", masked.shape[1])
        time = torch.linspace(1, 0, self.num_steps + 1, dtype=torch.float64, device=u.device)
        still = (1 - process.noise.alpha(time)) / (1 - process.noise.alpha(time[:1]))  # 1 ... 0, chance of being masked after step i
        # Opens at the first step i with still_i <= u: count the later grid points that are above u.
        step = torch.searchsorted(still[1:].flip(0).contiguous(), u, right=True)
        step = (self.num_steps - step).clamp(0, self.num_steps - 1)
        return Plan(step.to(masked.device), time[:-1].expand(len(masked), -1).to(masked.device))
