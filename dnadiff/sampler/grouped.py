"""K random groups: every masked position opens in one of K network calls, in uniformly random order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dnadiff.draws import Draws
from dnadiff.process import AbsorbingProcess
from dnadiff.sampler.base import Plan, PlannedSampler, is_whole, whole

_GROUPS = 64


class Grouped(PlannedSampler):
    """Reveal random groups of positions in `num_groups` network calls.

    The expected code length of its samples is sum_k s_k h(n_k), with s_k the size of group k, n_k the tokens visible
    before it and h the cross-entropy curve (`dnadiff.likelihood`); K = L is the first-hitting law.

    Args:
        num_groups: K; a sequence with fewer masked positions is filled one by one. None is 64, or the length if that is less.
        temperature: see `Sampler`.
        top_k: see `Sampler`.
        nucleus: see `Sampler`.
        sizes: of the groups in order of revealing, adding up to the length (`dnadiff.likelihood.code_length.optimal_sizes`); a template
            enters where as many tokens are visible. None is (almost) equal sizes, whatever is masked.
    """

    def __init__(
        self,
        num_groups: int | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        nucleus: float = 1.0,
        sizes: Sequence[int] | None = None,
    ) -> None:
        num_groups = None if num_groups is None else whole("num_groups", num_groups)
        if sizes is not None and (not isinstance(sizes, Iterable) or len(sizes) == 0 or not all(map(is_whole, sizes))):
            raise ValueError(
                f"sizes {sizes!r} must be numbers of tokens, each at least 1 and whole; leave sampler.sizes out for equal groups"
            )
        if sizes is not None and num_groups not in (None, len(sizes)):
            raise ValueError(f"num_groups {num_groups} is not the number of sizes, {len(sizes)}; leave one of them out")
        super().__init__(temperature, top_k, nucleus)
        self.num_groups = len(sizes) if sizes is not None else num_groups
        self.sizes = None if sizes is None else [int(size) for size in sizes]

    def check_length(self, length: int) -> None:
        """There cannot be more groups than positions, and given sizes hold for one length."""
        if self.sizes is not None and sum(self.sizes) != length:
            raise ValueError(f"sizes add up to {sum(self.sizes)}, not to the length {length}; set sampler.sizes for this length")
        if self.num_groups is not None and self.num_groups > length:
            raise ValueError(f"num_groups {self.num_groups} is larger than the length {length}; set sampler.num_groups to at most {length}")

    def num_steps_for(self, length: int) -> int:
        """See `Sampler.num_steps_for`."""
        return min(_GROUPS, length) if self.num_groups is None else self.num_groups

    def plan(self, masked: Tensor, process: AbsorbingProcess, draws: Draws) -> Plan:
        """See `PlannedSampler.plan`."""
        u = draws.uniform("reveal", masked.shape[1])
        hidden = masked.to(u.device)
        rank = u.masked_fill(~hidden, 2.0).argsort(-1).argsort(-1)  # masked positions hold 0 .. count-1
        count = hidden.sum(-1, keepdim=True)
        return Plan((self._equal(rank, count) if self.sizes is None else self._given(rank, count)).to(masked.device))

    def _equal(self, rank: Tensor, count: Tensor) -> Tensor:
        """The group of each rank."""
        groups = count.clamp(min=1, max=self.num_steps_for(rank.shape[1]))
        return rank * groups // count.clamp(min=1)

    def _given(self, rank: Tensor, count: Tensor) -> Tensor:
        """The same where sizes are given: ranks count on from the tokens that are visible already."""
        length, ends = rank.shape[1], torch.tensor(self.sizes, device=rank.device).cumsum(0)
        return torch.searchsorted(ends, rank + length - count, right=True).clamp(max=len(ends) - 1)
