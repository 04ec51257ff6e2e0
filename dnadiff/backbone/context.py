"""Where the tokens of a sequence are: all in this process, or one piece in each of several (context
parallelism).

A Mamba network passes two things from one piece to the next: the inputs that the short convolution
reads across the border, and the states of the scan. Everything else in it acts on each position
alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from dnadiff.backbone.peers import Peers, carried_states, exchanged
from dnadiff.kernels.backend import ScanInputs
from dnadiff.kernels.facade import selective_scan

if TYPE_CHECKING:
    from dnadiff.backbone.mixer import ForwardMixer


class Context(ABC):
    """How a layer mixes positions, and how tokens shift by one position."""

    @abstractmethod
    def mix(self, mixer: ForwardMixer, hidden: Tensor, valid: Tensor | None, scan: str) -> Tensor:
        """A mixer's output (B, n, D) at the positions of this process, `hidden` (B, n, D) and
        `valid` (B, n)."""

    @abstractmethod
    def shifted(self, x: Tensor, first: int | bool) -> Tensor:
        """x (B, n) moved one position to the right; the first position of the sequence gets
        `first`."""


class WholeSequence(Context):
    """All positions are here."""

    @override
    def mix(self, mixer: ForwardMixer, hidden: Tensor, valid: Tensor | None, scan: str) -> Tensor:
        return mixer(hidden, valid, scan)

    @override
    def shifted(self, x: Tensor, first: int | bool) -> Tensor:
        return torch.cat([torch.full_like(x[:, :1], first), x[:, :-1]], 1)


class SequencePiece(Context):
    """This process holds piece `peers.rank` of every sequence, and its peers the other pieces, of
    the same length.

    A scan runs twice: from zero, for the state at the end of the piece, and, after the states were
    exchanged, from the state that the pieces before it reach.

    Args:
        peers: the processes that share the sequences.
        both_strands: the second half of the rows are the same pieces of the other strand, which is
            read from the last piece to the first.
    """

    def __init__(self, peers: Peers, both_strands: bool = False) -> None:
        self.peers, self.both_strands = peers, both_strands
        self._run = torch.compiler.disable(_run_piece)  # here, because it imports the compiler

    @override
    def mix(self, mixer: ForwardMixer, hidden: Tensor, valid: Tensor | None, scan: str) -> Tensor:
        return self._run(mixer, hidden, self, valid, scan)

    @override
    def shifted(self, x: Tensor, first: int | bool) -> Tensor:
        left, is_first = self.peers.gather(x[:, -1:])[self.peers.rank - 1], self.peers.rank == 0
        return torch.cat([torch.full_like(x[:, :1], first) if is_first else left, x[:, :-1]], 1)

    def edges(self, x: Tensor, x_rev: Tensor, num_taps: int) -> tuple[Tensor | None, Tensor | None]:
        """The inputs (B, K - 1, E) of a convolution of K taps before x (B, n, E), and those after
        x_rev of one in reverse."""
        near = num_taps - 1
        if not near:
            return None, None
        return exchanged(x_rev[:, :near], x[:, x.shape[1] - near :], self.peers, self.both_strands)

    def scans(self, ways: Sequence[ScanInputs], scan: str) -> list[Tensor]:
        """`selective_scan` over whole sequences, at the positions of this process (B, n, E); of the
        second way in reverse."""
        ends, totals = [], []
        for number, inputs in enumerate(ways):
            ends.append(
                selective_scan(*inputs, reverse=number == 1, return_last_state=True, scan=scan)[1]
            )
            totals.append(_total_step(inputs, ends[-1].dtype))
        A = torch.stack([inputs.A for inputs in ways]).to(ends[0].dtype)
        starts = carried_states(
            torch.stack(ends), torch.stack(totals), A, self.peers, self.both_strands
        )
        return [
            selective_scan(*inputs, reverse=number == 1, initial_state=start, scan=scan)
            for number, (inputs, start) in enumerate(zip(ways, starts.unbind(0), strict=True))
        ]


def _run_piece(
    mixer: ForwardMixer, hidden: Tensor, piece: SequencePiece, valid: Tensor | None, scan: str
) -> Tensor:
    return mixer.piece(hidden, piece, valid, scan)


def _total_step(inputs: ScanInputs, dtype: torch.dtype) -> Tensor:
    """The sum of the steps of each channel, (Bt, E)."""
    delta = inputs.delta.to(dtype)
    return F.softplus(
        delta if inputs.delta_bias is None else delta + inputs.delta_bias.to(dtype)
    ).sum(1)


WHOLE = WholeSequence()
