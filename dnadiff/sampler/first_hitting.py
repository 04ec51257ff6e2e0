"""The first-hitting sampler (arXiv 2409.02908, section 4.1): one token at a time, at the times the process would choose."""

from __future__ import annotations

from torch import Tensor

from dnadiff.draws import Draws
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.base import Plan, PlannedSampler


class FirstHitting(PlannedSampler):
    """One network call for each masked token, in uniformly random order: the model's law without any step error.

    Times matter only to a denoiser that is told them: each position's hitting time is that of the continuous
    process, alpha(t) = 1 - u (1 - alpha(1)), and the order is the order of these times. A template of which the share m is masked
    starts at the time of that share, with m u for u.
    """

    def num_steps_for(self, length: int) -> int:
        """See `Sampler.num_steps_for`."""
        return length

    def plan(self, masked: Tensor, process: AbsorbingProcess, draws: Draws) -> Plan:
        """See `PlannedSampler.plan`."""
        u = draws.uniform("reveal", masked.shape[1])
        u = u.masked_fill(~masked.to(u.device), -1.0)
        ordered, order = u.sort(dim=-1, descending=True)  # the latest times come first; open positions last
        step = order.argsort(-1)
        return Plan(step.to(masked.device), ordered.clamp(min=0).float().to(masked.device))
