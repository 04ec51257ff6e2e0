"""K random groups: every masked position opens in one of K network calls, in uniformly random order."""

from __future__ import annotations

import torch
from torch import Tensor

from dnadiff.draws import Draws
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.base import Plan, PlannedSampler

_GROUPS = 64


class Grouped(PlannedSampler):
    """Reveal random groups of (almost) equal size in `num_groups` network calls.

    The expected code length of its samples is sum_k s_k h(n_k), with s_k the size of group k, n_k the tokens visible
    before it and h the cross-entropy curve (`dnadiff.likelihood`); K = L is the first-hitting law.

    Args:
        num_groups: K; a sequence with fewer masked positions is filled one by one. None is 64, or the length if that is less.
        temperature: see `Sampler`.
        top_k: see `Sampler`.
        nucleus: see `Sampler`.
    """

    def __init__(self, num_groups: int | None = None, temperature: float = 1.0, top_k: int | None = None, nucleus: float = 1.0) -> None:
        if num_groups is not None and num_groups < 1:
            raise ValueError(f"num_groups {num_groups} must be at least 1; set sampler.num_groups")
        super().__init__(temperature, top_k, nucleus)
        self.num_groups = num_groups

    def check_length(self, length: int) -> None:
        """There cannot be more groups than positions."""
        if self.num_groups is not None and self.num_groups > length:
            raise ValueError(f"num_groups {self.num_groups} is larger than the length {length}; set sampler.num_groups to at most {length}")

    def num_steps_for(self, length: int) -> int:
        """See `Sampler.num_steps_for`."""
        return min(_GROUPS, length) if self.num_groups is None else self.num_groups

    def plan(self, masked: Tensor, process: AbsorbingProcess, draws: Draws) -> Plan:
        """See `PlannedSampler.plan`."""
        u = draws.uniform("reveal", masked.shape[1]).to(masked.device).masked_fill(~masked, 2.0)
        rank = u.argsort(-1).argsort(-1)  # masked positions hold 0 .. count-1
        count = masked.sum(-1, keepdim=True)
        most = self.num_steps_for(masked.shape[1])
        groups = count.clamp(min=1, max=most)
        step = rank * groups // count.clamp(min=1)
        k = torch.arange(most, device=masked.device)
        fraction = (1 - k / groups).clamp(min=0).double()  # share still masked before group k
        one = torch.ones(1, dtype=fraction.dtype, device=fraction.device)
        return Plan(step, process.noise.inverse(1 - fraction * (1 - process.noise.alpha(one))))
