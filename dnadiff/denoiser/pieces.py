"""A denoiser of sequences that several processes hold in pieces (context parallelism)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.backbone.peers import Peers
from dnadiff.denoiser.base import BaseDenoiser, OptTensor
from dnadiff.denoiser.wrapper import DenoiserWrapper


class PiecewiseDenoiser(DenoiserWrapper):
    """Takes whole sequences, as an objective gives them, and returns predictions for all requested
    positions in every process.

    Each process computes the positions of its own piece and receives the other predictions without
    their gradients. So the objective is the same in all processes, and the gradient of each
    parameter is the sum over the processes.

    Args:
        denoiser: its network reads pieces (`Backbone.spread`).
        peers: the processes that hold the pieces.
    """

    def __init__(self, denoiser: BaseDenoiser, peers: Peers) -> None:
        super().__init__(denoiser)
        self.peers, self.banned = peers, denoiser.banned

    @property
    @override
    def fused_head(self) -> bool:
        return self.denoiser.fused_head

    @override
    def nll(
        self,
        x0: Tensor,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        positions = torch.ones_like(x0, dtype=torch.bool) if positions is None else positions
        places = self._places(positions)
        found = self.denoiser.nll(
            self._own(x0), self._own(xt), t, cond, self._own(positions), self._own_valid(valid)
        )
        return self._joined(found, places)

    @override
    def log_probs(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        return self._predicted(self.denoiser.log_probs, xt, t, cond, positions, valid)

    @override
    def x0_log_probs(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        return self._predicted(self.denoiser.x0_log_probs, xt, t, cond, positions, valid)

    @override
    def log_score(
        self,
        xt: Tensor,
        t: Tensor,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        return self._predicted(self.denoiser.log_score, xt, t, cond, positions, valid)

    @override
    def log_sum_and_logits(
        self,
        ids: Tensor,
        banned: Sequence[int],
        xt: Tensor,
        t: OptTensor,
        cond: OptTensor,
        positions: Tensor,
        valid: OptTensor,
    ) -> tuple[Tensor, Tensor]:
        places = self._places(positions)
        ids = ids[places[self.peers.rank]]
        log_sum, logits = self.denoiser.log_sum_and_logits(
            ids, banned, self._own(xt), t, cond, self._own(positions), self._own_valid(valid)
        )
        return self._joined(log_sum, places), self._joined(logits, places)

    def _predicted(
        self,
        predict: Callable[..., Tensor],
        xt: Tensor,
        t: OptTensor,
        cond: OptTensor,
        positions: OptTensor,
        valid: OptTensor,
    ) -> Tensor:
        requested = torch.ones_like(xt, dtype=torch.bool) if positions is None else positions
        places = self._places(requested)
        found = predict(self._own(xt), t, cond, self._own(requested), self._own_valid(valid))
        joined = self._joined(found, places)
        return joined if positions is not None else joined.view(*xt.shape, -1)

    def _own(self, x: Tensor) -> Tensor:
        """The columns of this process."""
        return x.chunk(self.peers.size, 1)[self.peers.rank]

    def _own_valid(self, valid: OptTensor) -> OptTensor:
        return None if valid is None else self._own(valid)

    def _places(self, positions: Tensor) -> list[Tensor]:
        """For each process, the places of its positions in the row-major order of all `positions`
        (B, L); call it before the network."""
        size = self.peers.size
        numbers = (positions.flatten().cumsum(0) - 1).view(positions.shape)
        return [
            number[own]
            for number, own in zip(numbers.chunk(size, 1), positions.chunk(size, 1), strict=True)
        ]

    def _joined(self, found: Tensor, places: list[Tensor]) -> Tensor:
        """What all processes found (m, ...) at their positions, in row-major order of all
        positions: (M, ...)."""
        return _Join.apply(found, places, self.peers)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx, found: Tensor, places: list[Tensor], peers: Peers) -> Tensor:
        ctx.save_for_backward(places[peers.rank])
        sent = found.new_zeros(max(len(place) for place in places), *found.shape[1:])
        sent[: len(found)] = found
        joined = found.new_empty(sum(len(place) for place in places), *found.shape[1:])
        for place, received in zip(places, peers.gather(sent), strict=True):
            joined[place] = received[: len(place)]
        return joined

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient[ctx.saved_tensors[0]], None, None
