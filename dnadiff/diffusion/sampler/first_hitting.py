"""The first-hitting sampler (arXiv 2409.02908, section 4.1): one token at a time, at the times the
process would choose."""

from torch import Tensor

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.base import Plan, PlannedSampler


class FirstHitting(PlannedSampler):
    """One network call for each masked token, in uniformly random order: the model's distribution
    without step error.

    Times matter only for denoisers that are conditioned on time. Each position's hitting time is
    that of the continuous process, alpha(t) = 1 - u (1 - alpha(1)), and positions are unmasked in
    the order of these times. A template with the fraction m masked starts at the time of that
    fraction, with m u in place of u.

    Examples:
        >>> FirstHitting(temperature=0.9).num_steps_for(length=512)
        512
    """

    exact = True
    has_weights = True

    def draws_one_by_one(self, length: int) -> bool:
        return True

    def plan(self, masked: Tensor, process: AbsorbingProcess, draws: Draws) -> Plan:
        u = draws.uniform("reveal", masked.shape[1])
        u = u.masked_fill(~masked.to(u.device), -1.0)
        ordered, order = u.sort(
            dim=-1, descending=True
        )  # the latest times come first, visible positions last
        step = order.argsort(-1)
        return Plan(step.to(masked.device), ordered.clamp(min=0).float().to(masked.device))
