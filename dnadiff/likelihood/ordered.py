"""The exact likelihood of a masked diffusion model that unmasks in a deterministic order (DUEL,
arXiv 2603.01367).

The NELBO is a mean over random orders. If the next position to unmask is a function of the tokens
that are visible, each sequence has one path, and -log p is the sum of its cross-entropies by the
chain rule: exact, and a distribution over sequences. It is the distribution of a sampler that
unmasks one position at a time in this order. It takes a network call for each token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.denoiser import BaseDenoiser
from dnadiff.draws import Draws, float64_device
from dnadiff.likelihood.monte_carlo import (
    Batches,
    Draw,
    ProgressCallback,
    WindowBatch,
    collect,
    per_group,
)
from dnadiff.likelihood.record import EXACT, Likelihood
from dnadiff.process import AbsorbingProcess

_STRIDE = 16  # positions of the strided order whose distance is at first the largest
_EQUAL = (
    1e-6  # scores closer than this count as equal: the first position wins, whatever the rounding
)


class Order(ABC):
    """Which position is unmasked next, given the visible tokens."""

    needs_predictions: bool = False

    @abstractmethod
    def priorities(self, masked: Tensor, largest: Tensor | None) -> Tensor:
        """The position with the smallest value is next: (B, L) float, from `masked (B, L)` bool
        and, if it needs them, predictions.

        Args:
            largest: (B, L) log-probability of the most probable token at each masked position.
        """


class LeftToRight(Order):
    """From the first position to the last."""

    @override
    def priorities(self, masked: Tensor, largest: Tensor | None) -> Tensor:
        return torch.arange(masked.shape[1], device=masked.device, dtype=torch.float32).expand(
            masked.shape
        )


class Strided(Order):
    """Every 16th position first, then those in the middle between two, and so on: 0, 16, 32, ...,
    8, 24, ..., 4, 12, ..."""

    @override
    def priorities(self, masked: Tensor, largest: Tensor | None) -> Tensor:
        at = torch.arange(masked.shape[1], device=masked.device)
        level = torch.full_like(at, 1 + _STRIDE.bit_length())
        for step, stride in enumerate(_STRIDE >> i for i in range(_STRIDE.bit_length())):
            level = torch.where((at % stride == 0) & (level > step), step, level)
        rank = (
            (level * masked.shape[1] + at).argsort().argsort()
        )  # integers: float32 cannot tell neighbors of long windows apart
        return rank.float().expand(masked.shape)


class MostConfident(Order):
    """The position whose most probable token is most probable; the first one of equals.

    It is the likelihood of `sampler=confidence sampler.order=max`, one position per call, except
    that the sampler chooses among equal positions at random.
    """

    needs_predictions = True

    @override
    def priorities(self, masked: Tensor, largest: Tensor | None) -> Tensor:
        assert largest is not None
        return -(largest.to(float64_device(largest.device)).double() / _EQUAL).round()


ORDERS: dict[str, Order] = {
    "left_to_right": LeftToRight(),
    "strided": Strided(),
    "confidence": MostConfident(),
}


def ordered(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    batches: Batches,
    order: Order,
    block_size: int = 16,
    progress: ProgressCallback | None = None,
) -> Likelihood:
    """-log p of each sequence when the counted tokens are unmasked one by one in `order`, exact;
    other tokens are visible.

    Args:
        denoiser: a model that unmasks in any order.
        batches, block_size, progress: as in `dnadiff.likelihood.estimate`.

    Raises:
        ValueError: for a model that goes from left to right.
    """
    check_ordered(denoiser)

    def one_batch(batch: WindowBatch, draws: Draws) -> list[Draw]:
        ids, masked = batch.ids, batch.groups["all"].clone()
        nll = torch.zeros(masked.shape, dtype=torch.float64, device=float64_device(masked.device))
        total = process.maskable(ids, batch.valid).sum(-1)
        while masked.any():
            active = masked.any(-1).nonzero()[:, 0]
            hidden = masked[active]
            xt = torch.where(hidden, process.vocab.mask_id, ids[active])
            t = process.time_at(hidden.sum(-1), total[active]).float()
            cond, valid = (
                None if given is None else given[active] for given in (batch.cond, batch.valid)
            )
            requested = (
                hidden
                if order.needs_predictions
                else _first(order.priorities(hidden, None), hidden)
            )
            found = denoiser.log_probs(xt, t, cond, requested, valid)
            if order.needs_predictions:
                largest = torch.zeros(hidden.shape, dtype=found.dtype, device=found.device)
                largest[hidden] = found.amax(-1)
                requested = _first(order.priorities(hidden, largest), hidden)
                found = found[requested[hidden]]
            chosen = torch.zeros_like(masked)
            chosen[active] = requested
            nll[chosen.to(nll.device)] = -found.gather(-1, ids[chosen][:, None])[:, 0].to(nll)
            masked &= ~chosen
        counted = batch.groups["all"]
        return [Draw(counted.sum(-1), per_group(nll, batch.groups))]

    return collect(denoiser, batches, one_batch, 0, block_size, EXACT, progress)


def check_ordered(denoiser: BaseDenoiser) -> None:
    """Raise ValueError for a model that goes from left to right."""
    if denoiser.left_to_right:
        raise ValueError(
            "order is for models that unmask in any order, and this one goes from left to right; "
            "leave it out"
        )


def _first(priorities: Tensor, masked: Tensor) -> Tensor:
    """The masked position with the smallest value in each row, the first one of equals: (B, L) bool
    with one True per row."""
    at = priorities.masked_fill(~masked.to(priorities.device), torch.inf).argmin(-1, keepdim=True)
    return torch.zeros_like(masked).scatter(1, at.to(masked.device), True)
