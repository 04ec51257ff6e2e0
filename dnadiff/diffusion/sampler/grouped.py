"""K random groups: every masked position is unmasked in one of K network calls, in uniformly random
order."""

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Literal

import torch
from torch import Tensor

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.sampler.base import Plan, PlannedSampler
from dnadiff.fields import PositiveInt, checked_dataclass

_GROUPS = 64


@checked_dataclass
class Grouped(PlannedSampler):
    """Unmask random groups of positions in `num_groups` network calls.

    The expected code length of its samples is sum_k s_k h(n_k), with s_k the size of group k, n_k
    the number of tokens visible before it and h the cross-entropy curve
    (`dnadiff.diffusion.likelihood`). With K = L it samples like `FirstHitting`.

    Args:
        num_groups: K; a sequence with fewer masked positions is filled one by one. None is 64, or
            the length if that is less.
        sizes: sizes of the groups in order of unmasking, which add up to the length
            (`dnadiff.diffusion.likelihood.curve.optimal_sizes`); a template starts at the group
            where as many tokens are visible. None is (almost) equal sizes, whatever is masked.

    Examples:
        >>> Grouped().num_steps_for(length=512), Grouped(num_groups=32).num_steps_for(length=512)
        (64, 32)
    """

    num_groups: PositiveInt | None = None
    _: KW_ONLY
    # the command line replaces the word
    sizes: Sequence[PositiveInt] | Literal["optimal"] | None = None

    exact = True
    has_weights = True

    def __post_init__(self) -> None:
        if self.sizes is None:
            return
        if isinstance(self.sizes, str) or not self.sizes:
            raise ValueError(
                f"sizes {self.sizes!r} must be integers of at least 1; leave it out for equal "
                "groups"
            )
        if self.num_groups not in (None, len(self.sizes)):
            raise ValueError(
                f"num_groups {self.num_groups} is not the number of sizes, {len(self.sizes)}; "
                "leave one of them out"
            )
        self.num_groups, self.sizes = len(self.sizes), list(self.sizes)

    def check_length(self, length: int) -> None:
        total = length if self.sizes is None else sum(map(int, self.sizes))
        if total != length:
            raise ValueError(
                f"sizes add up to {total}, not to the length {length}; set sampler.sizes "
                "for this length"
            )
        if self.num_groups is not None and self.num_groups > length:
            raise ValueError(
                f"num_groups {self.num_groups} is larger than the length {length}; set "
                f"sampler.num_groups to at most {length}"
            )

    def draws_one_by_one(self, length: int) -> bool:
        return self.num_steps_for(length) >= length and self.sizes is None

    def num_steps_for(self, length: int) -> int:
        return min(_GROUPS, length) if self.num_groups is None else self.num_groups

    def plan(self, masked: Tensor, process: AbsorbingProcess, draws: Draws) -> Plan:
        u = draws.uniform("reveal", masked.shape[1])
        local = masked.to(u.device)
        rank = (
            u.masked_fill(~local, 2.0).argsort(-1).argsort(-1)
        )  # masked positions hold 0 .. count-1
        count = local.sum(-1, keepdim=True)
        if self.sizes is not None:  # ranks continue after the tokens that are visible already
            ends = torch.tensor(self.sizes, device=rank.device).cumsum(0)
            step = torch.searchsorted(ends, rank + rank.shape[1] - count, right=True).clamp(
                max=len(ends) - 1
            )
        else:
            groups = count.clamp(min=1, max=self.num_steps_for(rank.shape[1]))
            step = rank * groups // count.clamp(min=1)
        return Plan(step.to(masked.device))
