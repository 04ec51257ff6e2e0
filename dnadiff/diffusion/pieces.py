"""A denoiser whose network reads one piece of every sequence, while the peers of this process read
the others (context parallelism)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import BaseDenoiser, DenoiserWrapper, Kind, OptTensor, Query
from dnadiff.networks.backbone.base import Peers


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
        self.peers = peers
        self.fused_head = denoiser.fused_head
        self.banned = getattr(denoiser, "banned", self.banned)

    def cost(self, x0: Tensor, query: Query) -> Tensor:
        places, own = self._own(query)
        return self._joined(self.denoiser.nll(self._piece(x0), *own), places)

    def predict(self, kind: Kind, query: Query) -> Tensor:
        places, own = self._own(query)
        return query.shaped(self._joined(getattr(self.denoiser, kind)(*own), places))

    def log_sum_and_logits(
        self, ids: Tensor, banned: Sequence[int], query: Query
    ) -> tuple[Tensor, Tensor]:
        places, own = self._own(query)
        ids = ids[places[self.peers.rank]]
        log_sum, logits = self.denoiser.log_sum_and_logits(ids, banned, own)
        return self._joined(log_sum, places), self._joined(logits, places)

    def _piece(self, x: Tensor) -> Tensor:
        """The columns of this process."""
        return x.chunk(self.peers.size, 1)[self.peers.rank]

    def _own(self, query: Query) -> tuple[list[Tensor], Query]:
        """For each process, the places of its positions in the row-major order of all requested
        ones (call it before the network); and the part of this process."""
        positions = query.requested
        numbers = (positions.flatten().cumsum(0) - 1).view(positions.shape)
        chunks = (x.chunk(self.peers.size, 1) for x in (numbers, positions))
        places = [number[own] for number, own in zip(*chunks, strict=True)]
        valid, cond = (
            x if x is None or x.ndim < ndim else self._piece(x)  # labels are of whole sequences
            for x, ndim in ((query.valid, 2), (query.cond, 3))
        )
        return places, Query(self._piece(query.xt), query.t, cond, self._piece(positions), valid)

    def _joined(self, found: Tensor, places: list[Tensor]) -> Tensor:
        """What all processes found (m, ...) at their positions, in row-major order of all
        positions: (M, ...)."""
        return _Join.apply(found, places, self.peers)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, found: Tensor, places: list[Tensor], peers: Peers) -> Tensor:
        ctx.save_for_backward(places[peers.rank])
        sent = found.new_zeros(max(len(place) for place in places), *found.shape[1:])
        sent[: len(found)] = found
        joined = found.new_empty(sum(len(place) for place in places), *found.shape[1:])
        for place, received in zip(places, peers.gather(sent), strict=True):
            joined[place] = received[: len(place)]
        return joined

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[OptTensor, ...]:
        return gradient[ctx.saved_tensors[0]], None, None
