"""Mamba-1's selective state space mixer (arXiv 2312.00752), unidirectional and bidirectional.

The scan, convolution and gate are in `dnadiff.networks.kernels`; here are the projections around
them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from dnadiff.networks.backbone.base import OptTensor
from dnadiff.networks.backbone.context import SequencePiece
from dnadiff.networks.backbone.layers import Projection, at_least_float32
from dnadiff.networks.kernels.backend import (
    NO_STEP,
    MixerWay,
    MixerWeights,
    ScanInputs,
    taps_before_blocks,
)
from dnadiff.networks.kernels.facade import (
    continued_mixer,
    fuses_mixer,
    gated_scan,
    gated_sum,
    last_inputs,
    linear,
    mixer,
    narrow_linear,
    scan_blocks,
    scan_with_states,
    selective_scan,
    selective_scans,
    short_conv,
    short_convs,
    two_stream_mixer,
)

_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "ew_multiply": torch.mul,
}


class Direction(nn.Module):
    """The parameters of one direction: convolution, step size, B, C, A and skip.

    Args:
        d_inner: E, width inside the mixer.
        d_state, d_conv, dt_rank: as in `UniMamba`.
        reverse: run from the last position to the first.
    """

    # read by `dnadiff.training.optim`
    no_weight_decay: ClassVar[tuple[str, ...]] = ("A_log", "D", "dt_bias")

    def __init__(
        self, d_inner: int, d_state: int, d_conv: int, dt_rank: int, reverse: bool
    ) -> None:
        super().__init__()
        self.d_state = d_state
        self.dt_rank = dt_rank
        self.reverse = reverse
        bound = 1 / math.sqrt(d_conv)
        self.conv_weight = nn.Parameter(torch.empty(d_inner, d_conv).uniform_(-bound, bound))
        self.conv_bias = nn.Parameter(torch.empty(d_inner).uniform_(-bound, bound))
        self.x_proj = Projection(d_inner, dt_rank + 2 * d_state)
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
        """The parameters for `dnadiff.networks.kernels.mixer`."""
        taps = self.conv_weight, self.conv_bias
        return MixerWay(*taps, self.x_proj.weight, self.dt_weight, self.dt_bias, self.A_log, self.D)

    def inputs(
        self,
        x: Tensor,
        valid: OptTensor,
        scan: str,
        initial: OptTensor = None,
        block_size: int | None = None,
    ) -> ScanInputs:
        """The inputs of the scan, from those of the convolution (B, L, E).

        Args:
            initial: (B, K - 1, E) the inputs before x, in reverse after it; None is zero.
            block_size: the convolution restarts at every block, see `short_conv`.
        """
        taps = self.conv_weight, self.conv_bias
        x = short_conv(
            x, *taps, reverse=self.reverse, initial=initial, block_size=block_size, scan=scan
        )
        return self.scan_inputs(x, valid, scan)

    def scan_inputs(self, x: Tensor, valid: OptTensor, scan: str) -> ScanInputs:
        """The inputs of the scan, from the output of the convolution (B, L, E)."""
        if valid is not None:
            x = x * valid[..., None].to(x.dtype)
        rank = self.dt_rank
        state = self.d_state
        low, B, C = self.x_proj(x, scan).split([rank, state, state], dim=-1)
        delta = narrow_linear(low, self.dt_weight, scan=scan)
        if valid is not None:
            delta = delta.masked_fill(~valid[..., None], NO_STEP)
        A = -torch.exp(at_least_float32(self.A_log))
        return ScanInputs(x, delta, A, B, C, self.D, self.dt_bias)


class ForwardMixer(nn.Module, ABC):
    """What `UniMamba` and `BiMamba` share: the forward direction over one piece of a sequence after
    others.

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
        self.in_proj = Projection(d_model, 2 * d_inner)
        self.fwd = Direction(*sizes, reverse=False)
        if self.both_ways:
            self.rev = Direction(*sizes, reverse=True)
        self.out_proj = Projection(d_inner, d_model)

    def weights(self, *ways: Direction) -> MixerWeights:
        """The projections and some directions for `dnadiff.networks.kernels.mixer`."""
        each = [way.weights() for way in ways]
        return MixerWeights(self.in_proj.weight, self.out_proj.weight, each)

    @abstractmethod
    def piece(self, hidden: Tensor, others: SequencePiece, valid: OptTensor, scan: str) -> Tensor:
        """`forward` of one piece (B, n, D) of sequences whose other pieces are in other
        processes."""

    def carry(
        self, piece: Tensor, past: OptTensor, h: OptTensor, valid: OptTensor, scan: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(B, n, D) -> (B, n, D), the last K - 1 inputs of the convolution and the last state, from
        those before it (None at the first)."""
        weights = self.weights(self.fwd)
        is_plain = not torch.is_grad_enabled() and valid is None
        if is_plain and fuses_mixer(piece, weights, scan=scan):
            return continued_mixer(piece, weights, past, h, scan=scan)
        x, z = _split(self.in_proj, piece, valid, scan)
        inputs = self.fwd.inputs(x, valid, scan, past)
        y, h = selective_scan(*inputs, initial_state=h, return_last_state=True, scan=scan)
        past = last_inputs(x, self.fwd.conv_weight.shape[1], past)
        return self._out(y, z, scan), past, h

    def _out(self, y: Tensor, z: Tensor, scan: str) -> Tensor:
        """The output of one scan and its gate, (B, L, E) -> (B, L, D)."""
        return self.out_proj(gated_sum(y, None, z, scan=scan), scan)


class UniMamba(ForwardMixer):
    """The mixer of the published Mamba: one scan from the first position to the last, between two
    projections; arguments as in `ForwardMixer`."""

    def forward(self, hidden: Tensor, valid: OptTensor = None, scan: str = "auto") -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        weights = self.weights(self.fwd)
        if fuses_mixer(hidden, weights, valid, scan=scan):
            return mixer(hidden, weights, valid, scan=scan)
        x, z = _split(self.in_proj, hidden, valid, scan)
        return self.out_proj(gated_scan(self.fwd.inputs(x, valid, scan), z, scan=scan), scan)

    def piece(self, hidden: Tensor, others: SequencePiece, valid: OptTensor, scan: str) -> Tensor:
        x, z = _split(self.in_proj, hidden, valid, scan)
        before, _ = others.edges(x, x, self.fwd.conv_weight.shape[1])
        (y,) = others.scans([self.fwd.inputs(x, valid, scan, before)], scan)
        return self._out(y, z, scan)


class BiMamba(ForwardMixer):
    """Two scans, one in each direction, as in Caduceus (arXiv 2403.03234, section 4.1).

    The published network projects the sequence and its reversal separately and combines two
    outputs. Projections act on each position alone, so they need no reversed input. With tied
    projections and the strategy `add` one call of each projection gives the same result, and the
    two directions share one gate. Every other choice has two output projections.

    Args:
        d_model, *sizes, **named_sizes: as in `ForwardMixer`.
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
        self.in_proj_rev = None if tied else Projection(d_model, 2 * d_inner)
        self.out_proj_rev = None if tied else Projection(d_inner, d_model)
        self.strategy = bidirectional_strategy
        self.one_projection = tied and _COMBINE[bidirectional_strategy] is torch.add

    def forward(self, hidden: Tensor, valid: OptTensor = None, scan: str = "auto") -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        weights = self.weights(self.fwd, self.rev)
        if self.one_projection and fuses_mixer(hidden, weights, valid, scan=scan):
            return mixer(hidden, weights, valid, scan=scan)
        (x, z), (x_rev, z_rev) = self._inputs(hidden, valid, scan)
        ways = self.fwd, self.rev
        if self.in_proj_rev is None:
            taps = ((way.conv_weight, way.conv_bias) for way in ways)
            each = zip(ways, short_convs(x, *taps, scan=scan))
            inputs = [way.scan_inputs(u, valid, scan) for way, u in each]
        else:
            inputs = [way.inputs(u, valid, scan) for way, u in zip(ways, (x, x_rev))]
        return self._combined(*selective_scans(*inputs, scan=scan), z, z_rev, scan)

    def piece(self, hidden: Tensor, others: SequencePiece, valid: OptTensor, scan: str) -> Tensor:
        (x, z), (x_rev, z_rev) = self._inputs(hidden, valid, scan)
        before, after = others.edges(x, x_rev, self.fwd.conv_weight.shape[1])
        inputs = self.fwd.inputs(x, valid, scan, before), self.rev.inputs(x_rev, valid, scan, after)
        y, y_rev = others.scans(inputs, scan)
        return self._combined(y, y_rev, z, z_rev, scan)

    def _combined(self, y: Tensor, y_rev: Tensor, z: Tensor, z_rev: Tensor, scan: str) -> Tensor:
        """The outputs of both scans and their gates, each (B, L, E) -> (B, L, D)."""
        if self.one_projection:
            return self.out_proj(gated_sum(y, y_rev, z, scan=scan), scan)
        out_proj_rev = self.out_proj if self.out_proj_rev is None else self.out_proj_rev
        backward = out_proj_rev(gated_sum(y_rev, None, z_rev, scan=scan), scan)
        return _COMBINE[self.strategy](self._out(y, z, scan), backward)

    def two_streams(
        self,
        noised: Tensor,
        clean: Tensor,
        block_size: int,
        valid: OptTensor,
        scan: str,
        clean_output: bool = True,
    ) -> tuple[Tensor, OptTensor]:
        """A noised and a clean stream (B, L, D) in blocks: both directions in each block of the
        first, the forward one in the second.

        The forward direction of each noised block starts from the state and the last inputs of the
        clean stream before the block. Without `clean_output` the clean stream ends here, and only
        its states are computed.
        """
        weights = self.weights(self.fwd, self.rev)
        if self.one_projection and fuses_mixer(noised, weights, valid, scan=scan):
            return two_stream_mixer(
                noised, clean, weights, block_size, valid, clean_output=clean_output, scan=scan
            )
        z_clean = None
        if clean_output:
            x_clean, z_clean = _split(self.in_proj, clean, valid, scan)
        else:
            width = len(self.fwd.D)
            x_clean = _only(linear(clean, self.in_proj.weight[:width], scan=scan), valid)
        inputs = self.fwd.inputs(x_clean, valid, scan)
        y_clean, starts, _ = scan_with_states(inputs, block_size, scan=scan)
        (x, z), (x_rev, z_rev) = self._inputs(noised, valid, scan)
        before = taps_before_blocks(x_clean, self.fwd.conv_weight.shape[1], block_size)
        inputs = self.fwd.inputs(x, valid, scan, before, block_size)
        y = scan_blocks(inputs, block_size, starts, scan=scan)
        inputs = self.rev.inputs(x_rev, valid, scan, None, block_size)
        y_rev = scan_blocks(inputs, block_size, reverse=True, scan=scan)
        mixed = self._combined(y, y_rev, z, z_rev, scan)
        return mixed, None if z_clean is None else self._out(y_clean, z_clean, scan)

    def block(
        self, noised: Tensor, past: OptTensor, h: OptTensor, valid: OptTensor, scan: str
    ) -> Tensor:
        """One noised block (B, n, D) after the state of `carry`: (B, n, D), as `two_streams`
        computes it."""
        weights = self.weights(self.fwd, self.rev)
        is_plain = not torch.is_grad_enabled() and valid is None and self.one_projection
        if is_plain and fuses_mixer(noised, weights, scan=scan):
            return continued_mixer(noised, weights, past, h, scan=scan)[0]
        (x, z), (x_rev, z_rev) = self._inputs(noised, valid, scan)
        inputs = self.fwd.inputs(x, valid, scan, past)
        inputs_rev = self.rev.inputs(x_rev, valid, scan)
        y = selective_scan(*inputs, initial_state=h, scan=scan)
        y_rev = selective_scan(*inputs_rev, reverse=True, scan=scan)
        return self._combined(y, y_rev, z, z_rev, scan)

    def _inputs(
        self, hidden: Tensor, valid: OptTensor, scan: str
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The input of the convolution and the gate of each direction."""
        forward = _split(self.in_proj, hidden, valid, scan)
        if self.in_proj_rev is None:
            return forward, forward
        return forward, _split(self.in_proj_rev, hidden, valid, scan)


def _split(
    in_proj: Projection, hidden: Tensor, valid: OptTensor, scan: str
) -> tuple[Tensor, Tensor]:
    """The scan's input, zero outside `valid`, and the gate: (B, L, D) -> two of (B, L, E)."""
    x, z = in_proj.halves(hidden, scan)
    return _only(x, valid), z


def _only(x: Tensor, valid: OptTensor) -> Tensor:
    return x if valid is None else x * valid[..., None].to(x.dtype)
