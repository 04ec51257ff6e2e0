"""Processes that hold one piece each of the same sequences, and what they send to each other.

Every process calls the same functions in the same order, in the forward and in the backward pass:
no process waits for a message that another one does not send.
"""

from __future__ import annotations

from typing import Protocol, Self

import torch
import torch.distributed as dist
from torch import Tensor


class Peers(Protocol):
    """The processes of one group, numbered in the order of their pieces.

    Attributes:
        rank: the number of this process, 0 to size - 1.
        size: P, the number of processes.
    """

    rank: int
    size: int

    def gather(self, x: Tensor) -> Tensor:
        """`x` of every process, all of the same shape: (P, *x.shape). No gradient passes."""


class ProcessGroupPeers:
    """The processes of a group of `torch.distributed`; None is all processes of the run."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)

    def gather(self, x: Tensor) -> Tensor:
        """See `Peers.gather`; bytes are sent, because not every back end of `torch.distributed`
        knows every type."""
        x = x.detach().contiguous()
        found = x.new_empty(self.size, *x.shape)
        if x.numel():
            received = found.view(self.size, -1).view(torch.uint8).unbind(0)
            dist.all_gather(list(received), x.view(-1).view(torch.uint8), group=self.group)
        return found

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: a copy of a network, such as its average, has the same neighbors."""
        return self


def exchanged(
    to_left: Tensor, to_right: Tensor, peers: Peers, both_strands: bool
) -> tuple[Tensor, Tensor]:
    """What the left and the right neighbor sent here, of what each process sends: four tensors (Bt,
    ...), zero beyond the ends.

    With `both_strands` the second half of the rows is read from the last piece to the first: their
    left neighbor is the next process. Gradients go back the way the values came.
    """
    return _Exchange.apply(to_left, to_right, peers, both_strands)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, to_left: Tensor, to_right: Tensor, peers: Peers, both_strands: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.peers, ctx.both_strands = peers, both_strands
        return _exchange(to_left, to_right, peers, both_strands)

    @staticmethod
    def backward(ctx, from_left: Tensor, from_right: Tensor) -> tuple[Tensor | None, ...]:
        return *_exchange(from_left, from_right, ctx.peers, ctx.both_strands), None, None


def _exchange(
    to_left: Tensor, to_right: Tensor, peers: Peers, both_strands: bool
) -> tuple[Tensor, Tensor]:
    sent = peers.gather(torch.stack([to_left, to_right]))  # (P, 2, Bt, ...)
    sent = torch.cat([torch.zeros_like(sent[:1]), sent, torch.zeros_like(sent[:1])])
    row = torch.arange(len(to_left), device=to_left.device)
    left = torch.where(
        _turned_rows(len(row), both_strands, row.device), peers.rank + 1, peers.rank - 1
    )
    return sent[left + 1, 1, row], sent[2 * peers.rank - left + 1, 0, row]


def carried_states(
    end: Tensor, total: Tensor, A: Tensor, peers: Peers, both_strands: bool
) -> Tensor:
    """The state that enters each piece, from the states that all pieces reach when they start from
    zero.

    With h the state that enters a piece, D = exp(A total) its decay and `end` the state it reaches
    from zero, the next piece is entered by D h + end. Gradients follow the same recurrence from the
    last piece to the first. Each process sends one (E, N) state for each row and direction in each
    pass, whatever the length of the pieces.

    Args:
        end: (ways, Bt, E, N); the second way is in reverse.
        total: (ways, Bt, E) sums of the steps.
        A: (ways, E, N).
        peers, both_strands: as in `exchanged`.

    Returns:
        (ways, Bt, E, N).
    """
    return _CarriedStates.apply(end, total, A, peers, both_strands)


class _CarriedStates(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, end: Tensor, total: Tensor, A: Tensor, peers: Peers, both_strands: bool
    ) -> Tensor:
        ends, totals = peers.gather(torch.cat([end.flatten(), total.flatten()])).split(
            [end.numel(), total.numel()], 1
        )
        ways, Bt = end.shape[:2]
        turned = _turned_rows(Bt, both_strands, end.device) ^ (
            torch.arange(ways, device=end.device)[:, None] == 1
        )  # (ways, Bt)
        totals = _in_order(totals.view(-1, *total.shape), turned)
        entering = _carried(_decay(totals, A), _in_order(ends.view(-1, *end.shape), turned))
        h = _in_order(entering, turned)[peers.rank]
        ctx.save_for_backward(totals, A, h, total, turned)
        ctx.peers = peers
        return h

    @staticmethod
    def backward(ctx, dh: Tensor) -> tuple[Tensor | None, ...]:
        totals, A, h, total, turned = ctx.saved_tensors
        gradients = _in_order(ctx.peers.gather(dh), turned)
        dends = _carried(_decay(totals, A).flip(0), gradients.flip(0)).flip(
            0
        )  # of the state that leaves each piece
        dend = _in_order(dends, turned)[ctx.peers.rank]
        to_exponent = dend * h * torch.exp(A[:, None] * total[..., None])
        return (
            dend,
            (to_exponent * A[:, None]).sum(-1),
            (to_exponent * total[..., None]).sum(1),
            None,
            None,
        )


def _turned_rows(count: int, both_strands: bool, device: torch.device) -> Tensor:
    """The rows (count,) bool that are read from the last piece to the first: those of the second
    strand."""
    return torch.arange(count, device=device) >= (count // 2 if both_strands else count)


def _in_order(x: Tensor, turned: Tensor) -> Tensor:
    """(P, ways, Bt, ...) by number of process <-> in the order in which the pieces of each row are
    read."""
    return torch.where(turned.view(1, *turned.shape, *[1] * (x.dim() - 3)), x.flip(0), x)


def _decay(totals: Tensor, A: Tensor) -> Tensor:
    return torch.exp(totals[..., None] * A[:, None])


def _carried(decay: Tensor, gain: Tensor) -> Tensor:
    """s_{p+1} = decay_p s_p + gain_p from 0, over axis 0: all s_p, in the shape of `gain`."""
    states = [torch.zeros_like(gain[0])]
    for each, added in zip(decay[:-1], gain[:-1], strict=True):
        states.append(each * states[-1] + added)
    return torch.stack(states)
