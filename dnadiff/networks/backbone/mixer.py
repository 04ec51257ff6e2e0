"""Mamba-1's selective state space mixer (arXiv 2312.00752), unidirectional and bidirectional.

Here are the parameters; what is computed with them is in `dnadiff.networks.kernels`.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from dnadiff.networks.backbone.base import OptTensor
from dnadiff.networks.kernels.backend import MixerWay, MixerWeights, Piece
from dnadiff.networks.kernels.facade import for_mixer

_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "ew_multiply": torch.mul,
}


class Direction(nn.Module):
    """The parameters of one direction: convolution, step size, B, C, A and skip.

    Args:
        d_inner: E, width inside the mixer.
        d_state, d_conv, dt_rank: as in `UniMamba`.
    """

    # read by `dnadiff.training.optim`
    no_weight_decay: ClassVar[tuple[str, ...]] = ("A_log", "D", "dt_bias")

    def __init__(self, d_inner: int, d_state: int, d_conv: int, dt_rank: int) -> None:
        super().__init__()
        self.d_state = d_state
        self.dt_rank = dt_rank
        bound = 1 / math.sqrt(d_conv)
        self.conv_weight = nn.Parameter(torch.empty(d_inner, d_conv).uniform_(-bound, bound))
        self.conv_bias = nn.Parameter(torch.empty(d_inner).uniform_(-bound, bound))
        self.x_proj = nn.Linear(d_inner, dt_rank + 2 * d_state, bias=False)
        self.dt_weight = nn.Parameter(
            torch.empty(d_inner, dt_rank).uniform_(-(dt_rank**-0.5), dt_rank**-0.5)
        )
        self.dt_bias = nn.Parameter(torch.empty(d_inner))
        self.A_log = nn.Parameter(torch.empty(d_inner, d_state))
        self.D = nn.Parameter(torch.ones(d_inner))
        # without memory there is nothing to fill, and PyTorch imports its compiler for arithmetic
        if not self.D.is_meta:
            self._fill()

    @torch.no_grad()
    def _fill(self) -> None:
        # Steps start log-uniform in [1e-3, 1e-1] (arXiv 2312.00752, section 3.6): the bias is the
        # inverse softplus of one.
        step = torch.exp(
            torch.rand(self.dt_bias.shape) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)
        ).clamp(min=1e-4)
        self.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
        self.A_log.copy_(torch.arange(1, self.d_state + 1, dtype=torch.float32).log())

    def weights(self) -> MixerWay:
        """The parameters for `dnadiff.networks.kernels`."""
        taps = self.conv_weight, self.conv_bias
        return MixerWay(*taps, self.x_proj.weight, self.dt_weight, self.dt_bias, self.A_log, self.D)


class UniMamba(nn.Module):
    """The mixer of the published Mamba: one scan from the first position to the last, between two
    projections.

    Args:
        d_model: D.
        d_state: N, states per channel.
        d_conv: K, taps of the convolution.
        expand: inner width E over D.
        dt_rank: rank of the step-size projection; None is D/16, rounded up.
    """

    both_ways = False
    rev: Direction

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
    ) -> None:
        super().__init__()
        d_inner = expand * d_model
        sizes = d_inner, d_state, d_conv, dt_rank or math.ceil(d_model / 16)
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.fwd = Direction(*sizes)
        if self.both_ways:
            self.rev = Direction(*sizes)
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    def weights(self) -> MixerWeights:
        """All parameters for `dnadiff.networks.kernels`."""
        return MixerWeights(self.in_proj.weight, self.out_proj.weight, [self.fwd.weights()])

    def forward(
        self,
        hidden: Tensor,
        valid: OptTensor = None,
        scan: str = "auto",
        piece: Piece | None = None,
    ) -> Tensor:
        """(B, L, D) -> (B, L, D), of whole sequences or of one piece of each."""
        weights = self.weights()
        return for_mixer(hidden, weights, valid, scan).mixer(hidden, weights, valid, piece)

    def carry(
        self, piece: Tensor, past: OptTensor, h: OptTensor, valid: OptTensor, scan: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(B, n, D) -> (B, n, D) in the forward direction, the last K - 1 inputs of the convolution
        and the last state, from those before it (None at the first)."""
        weights = UniMamba.weights(self)
        kernels = for_mixer(piece, weights, valid, scan, states=True)
        return kernels.continued_mixer(piece, weights, past, h, valid)


class BiMamba(UniMamba):
    """Two scans, one in each direction, as in Caduceus (arXiv 2403.03234, section 4.1).

    The published network projects the sequence and its reversal separately and combines two
    outputs. Projections act on each position alone, so they need no reversed input. With tied
    projections and the strategy `add` one call of each projection gives the same result, and the
    two directions share one gate. Every other choice has two output projections.

    Args:
        d_model, *sizes, **named_sizes: as in `UniMamba`.
        bidirectional_strategy: how the two outputs are combined, `add` or `ew_multiply`.
        bidirectional_weight_tie: the two directions share their input and their output projection.
    """

    both_ways = True

    def __init__(
        self,
        d_model: int,
        *sizes: Any,
        bidirectional_strategy: Literal["add", "ew_multiply"] = "add",
        bidirectional_weight_tie: bool = True,
        **named_sizes: Any,
    ) -> None:
        super().__init__(d_model, *sizes, **named_sizes)
        d_inner = self.out_proj.in_features
        tied = bidirectional_weight_tie
        self.in_proj_rev = None if tied else nn.Linear(d_model, 2 * d_inner, bias=False)
        self.out_proj_rev = None if tied else nn.Linear(d_inner, d_model, bias=False)
        self.strategy = bidirectional_strategy

    def weights(self) -> MixerWeights:
        ways = [self.fwd.weights(), self.rev.weights()]
        found = MixerWeights(self.in_proj.weight, self.out_proj.weight, ways)
        found = found._replace(combine=_COMBINE[self.strategy])
        if self.in_proj_rev is None or self.out_proj_rev is None:
            return found
        return found._replace(
            in_proj_rev=self.in_proj_rev.weight, out_proj_rev=self.out_proj_rev.weight
        )

    def two_streams(
        self,
        noised: Tensor,
        clean: Tensor,
        block_size: int,
        valid: OptTensor,
        scan: str,
        clean_output: bool = True,
    ) -> tuple[Tensor, OptTensor]:
        """A noised and a clean stream (B, L, D) in blocks; see `AnyType.two_stream_mixer`."""
        weights = self.weights()
        kernels = for_mixer(noised, weights, valid, scan, states=True)
        return kernels.two_stream_mixer(noised, clean, weights, block_size, valid, clean_output)

    def block(
        self, noised: Tensor, past: OptTensor, h: OptTensor, valid: OptTensor, scan: str
    ) -> Tensor:
        """One noised block (B, n, D) after the state of `carry`: (B, n, D), as `two_streams`
        computes it."""
        weights = self.weights()
        kernels = for_mixer(noised, weights, valid, scan, states=True)
        return kernels.continued_mixer(noised, weights, past, h, valid)[0]
