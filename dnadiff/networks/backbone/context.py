"""Where the tokens of a sequence are: all in this process, or one piece in each of several (context
parallelism).

A Mamba network passes two things from one piece to the next: the inputs that the short convolution
reads across the border, and the states of the scan. Everything else in it acts on each position
alone. Every process calls the same functions in the same order, in the forward and in the backward
pass: no process waits for a message that another one does not send.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from dnadiff.networks.backbone.base import OptTensor, Peers
from dnadiff.networks.kernels.backend import ScanInputs
from dnadiff.networks.kernels.facade import selective_scan

if TYPE_CHECKING:
    from dnadiff.networks.backbone.mixer import UniMamba


class ProcessGroupPeers:
    """The processes of a group of `torch.distributed`; None is all processes of the run."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

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


class _Exchange(torch.autograd.Function):
    """What the left and the right neighbor sent here, of what each process sends: four tensors (Bt,
    ...), zero beyond the ends.

    With `both_strands` the second half of the rows is read from the last piece to the first: their
    left neighbor is the next process. Gradients go back the way the values came.
    """

    @staticmethod
    def forward(
        ctx: Any, to_left: Tensor, to_right: Tensor, peers: Peers, both_strands: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.given = peers, both_strands
        return _exchange(to_left, to_right, peers, both_strands)

    @staticmethod
    def backward(ctx: Any, from_left: Tensor, from_right: Tensor) -> tuple[OptTensor, ...]:
        return *_exchange(from_left, from_right, *ctx.given), None, None


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


class _CarriedStates(torch.autograd.Function):
    """The state that enters each piece, from the states that all pieces reach when they start from
    zero: (ways, Bt, E, N).

    With h the state that enters a piece, D = exp(A total) its decay and `end` the state it reaches
    from zero, the next piece is entered by D h + end. Gradients follow the same recurrence from the
    last piece to the first. Each process sends one (E, N) state for each row and direction in each
    pass, whatever the length of the pieces.

    Args:
        end: (ways, Bt, E, N); the second way is in reverse.
        total: (ways, Bt, E) sums of the steps.
        A: (ways, E, N).
        peers, both_strands: as in `_Exchange`.
    """

    @staticmethod
    def forward(
        ctx: Any, end: Tensor, total: Tensor, A: Tensor, peers: Peers, both_strands: bool
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
    def backward(ctx: Any, dh: Tensor) -> tuple[OptTensor, ...]:
        totals, A, h, total, turned = ctx.saved_tensors
        gradients = _in_order(ctx.peers.gather(dh), turned)
        # of the state that leaves each piece
        dends = _carried(_decay(totals, A).flip(0), gradients.flip(0)).flip(0)
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


class SequencePiece:
    """This process holds piece `peers.rank` of every sequence, and its peers the other pieces, of
    the same length.

    A scan runs twice: from zero, for the state at the end of the piece, and, after the states were
    exchanged, from the state that the pieces before it reach.

    Args:
        peers: the processes that share the sequences.
        both_strands: the second half of the rows are the same pieces of the other strand, which is
            read from the last piece to the first.
        scan: which kernel computes the recurrence.
    """

    def __init__(self, peers: Peers, both_strands: bool = False, scan: str = "auto") -> None:
        self.peers = peers
        self.both_strands = both_strands
        self.scan = scan
        # here, because it imports the compiler
        self._run = torch.compiler.disable(lambda mixer, *inputs: mixer(*inputs))

    def mix(self, mixer: UniMamba, hidden: Tensor, valid: OptTensor) -> Tensor:
        """A mixer's output (B, n, D) at the positions of this process, `hidden` (B, n, D) and
        `valid` (B, n)."""
        return self._run(mixer, hidden, valid, self.scan, self)

    def edges(self, x: Tensor, x_rev: Tensor, num_taps: int) -> tuple[OptTensor, OptTensor]:
        """The inputs (B, K - 1, E) of a convolution of K taps before x (B, n, E), and those after
        x_rev of one in reverse."""
        near = num_taps - 1
        if not near:
            return None, None
        return _Exchange.apply(
            x_rev[:, :near], x[:, x.shape[1] - near :], self.peers, self.both_strands
        )

    def scans(self, ways: Sequence[ScanInputs]) -> list[Tensor]:
        """`selective_scan` over whole sequences, at the positions of this process (B, n, E); of the
        second way in reverse."""
        ends = []
        totals = []
        for way, inputs in enumerate(ways):
            _, end = selective_scan(
                *inputs, reverse=way == 1, return_last_state=True, scan=self.scan
            )
            ends.append(end)
            delta = inputs.delta.to(end.dtype)
            if inputs.delta_bias is not None:
                delta = delta + inputs.delta_bias.to(end.dtype)
            totals.append(F.softplus(delta).sum(1))  # of the steps of each channel, (Bt, E)
        A = torch.stack([inputs.A for inputs in ways]).to(ends[0].dtype)
        starts = _CarriedStates.apply(
            torch.stack(ends), torch.stack(totals), A, self.peers, self.both_strands
        )
        return [
            selective_scan(*inputs, reverse=number == 1, initial_state=start, scan=self.scan)
            for number, (inputs, start) in enumerate(zip(ways, starts.unbind(0), strict=True))
        ]


def spread(network: Any, peers: Peers) -> None:
    """Let a `MambaBackbone` read one piece of every sequence from now on; its peers read the others
    (see `check_pieces`).

    `features` takes the tokens of this piece and returns theirs, and the gradients of the
    parameters are the part of this piece.
    """
    network.peers = peers
    network.piece = SequencePiece(peers, network.reads_both_strands, network.scan)
