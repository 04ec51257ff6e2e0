"""K groups of positions that are far apart, each unmasked in one network call."""

import torch
from torch import Tensor

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.base import Plan, PlannedSampler
from dnadiff.fields import PositiveInt, checked_dataclass


@checked_dataclass
class Spaced(PlannedSampler):
    """Unmask every K-th masked position in one network call, in K calls.

    Tokens of one call are drawn independently, so a call loses what they say about each other. In
    sequences that is mostly said by neighbors, which random groups (`Grouped`) often have in
    common. Here the i-th masked position is in group i mod K, and groups are unmasked in random
    order, another one for each sequence. With K = L this is a uniformly random order.

    Args:
        num_groups: K; a sequence with fewer masked positions is filled one by one.

    Examples:
        >>> Spaced().num_steps_for(length=512), Spaced().num_steps_for(length=8)
        (16, 8)
    """

    num_groups: PositiveInt = 16

    exact = True
    has_weights = True

    def draws_one_by_one(self, length: int) -> bool:
        return self.num_groups >= length

    def num_steps_for(self, length: int) -> int:
        return min(self.num_groups, length)

    def plan(self, masked: Tensor, process: AbsorbingProcess, draws: Draws) -> Plan:
        u = draws.uniform("reveal", masked.shape[1])
        local = masked.to(u.device)
        place = local.cumsum(-1) - local.long()  # among the masked positions
        groups = local.sum(-1, keepdim=True).clamp(min=1, max=self.num_groups)
        unused = torch.arange(u.shape[1], device=u.device) >= groups
        order = u.masked_fill(unused, 2.0).argsort(-1).argsort(-1)  # of the groups
        return Plan(order.gather(-1, place % groups).to(masked.device))
