"""The contract of a kernel back end: what every implementation of the mixer's operations computes.

`facade` lists the back ends, chooses one, checks arguments and calls it. To add one, derive a class
here and add it to `SCANS`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

OptionalTensor: TypeAlias = Tensor | None
_NO_STEP = -1e4  # softplus of this is exactly 0 in float32: a step of size zero keeps the state


class ScanInputs(NamedTuple):
    """The arguments of `dnadiff.networks.kernels.facade.selective_scan`, as one value."""

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor
    delta_bias: OptionalTensor = None


class Walk(NamedTuple):
    """How a scan passes over the positions, and which of its states are given or returned.

    Attributes:
        reverse: from the last position to the first.
        initial: (Bt, E, N) state before the first position or, if blocks restart, (Bt, blocks, E,
            N) states before all blocks (in reverse: after them); zero if None.
        block: positions of a block; None if there are no blocks.
        restart: every block is a sequence of its own.
        states: the states are results.
    """

    reverse: bool = False
    initial: OptionalTensor = None
    block: int | None = None
    restart: bool = False
    states: bool = False

    def given(self) -> OptionalTensor:
        """The given states in memory's order (..., N, E); those of blocks in the order of the
        walk."""
        if self.initial is None:
            return None
        return (self.initial.flip(1) if self.restart and self.reverse else self.initial).mT


class ScanStates(NamedTuple):
    """The output of a scan and, if they are wanted, states that other scans may start from."""

    y: Tensor  # (Bt, L, E)
    # (Bt, blocks, E, N), the states before every block; None if there are no blocks
    starts: OptionalTensor = None
    # (Bt, E, N), the state after the last position; of a reverse scan, that after the first; None
    # if the states are not wanted
    last: Any = None


class MixerWay(NamedTuple):
    """The weights of one direction of a mixer, with E channels, K taps, N states and step sizes of
    rank R."""

    conv_weight: Tensor  # (E, K)
    conv_bias: Tensor  # (E,)
    x_proj: Tensor  # (R + 2 N, E)
    dt_weight: Tensor  # (E, R)
    dt_bias: Tensor  # (E,)
    A_log: Tensor  # (E, N)
    D: Tensor  # (E,)


class MixerWeights(NamedTuple):
    """The weights of a mixer with D inputs and outputs."""

    in_proj: Tensor  # (2 E, D), the scan's input and the gate
    out_proj: Tensor  # (D, E)
    # the direction from the first position to the last, and perhaps that in reverse
    ways: Sequence[MixerWay]
    in_proj_rev: OptionalTensor = None  # projections of the second direction, if it has its own
    out_proj_rev: OptionalTensor = None
    combine: Callable[[Tensor, Tensor], Tensor] = torch.add  # the outputs of both directions

    @property
    def one_projection(self) -> bool:
        """Whether both directions share a gate, and their outputs one product."""
        return self.in_proj_rev is None and self.combine is torch.add

    def tensors(self) -> list[Tensor]:
        """All weights of a mixer with one projection."""
        return [self.in_proj, self.out_proj, *(weight for way in self.ways for weight in way)]


class Piece(Protocol):
    """One piece of a sequence whose other pieces are in other processes."""

    def edges(self, x: Tensor, x_rev: Tensor, num_taps: int) -> tuple[OptionalTensor, ...]:
        """The inputs (Bt, K - 1, E) of a convolution of K taps before x (Bt, n, E), and those after
        x_rev of one in reverse."""

    def scans(self, ways: Sequence[ScanInputs]) -> Sequence[Tensor]:
        """The scan over whole sequences, at the positions of this process (Bt, n, E); of the second
        way in reverse."""


class Backend(ABC):
    """One implementation ("scan") of the operations in `dnadiff.networks.kernels.facade`, which
    documents arguments and results. All but the scan have a default: plain PyTorch, or a
    combination of others.

    Shapes are checked by the facade. All operations are differentiable.

    States are (..., E, N) in shape and (..., N, E) in memory where a back end returns them, because
    the kernels compute neighboring channels together: a state that one scan returns is read by the
    next one without a copy. Any other layout is copied.

    Attributes:
        device_type: the device that it needs, on which it computes in float32 and is compared with
            the portable back end before its first use; None for any device and type.
        keeps_dtype: half-precision inputs are passed unchanged; otherwise the facade converts them
            to float32.
        max_states: the largest number of states per channel.
        lacks_states: why it can neither start from states nor return them; empty if it can.
    """

    device_type: str | None = None
    keeps_dtype = False
    max_states: float = math.inf
    lacks_states = ""

    @abstractmethod
    def description(self) -> str:
        """What the log reports after the name."""

    def compiler(self) -> str:
        """What compiled the kernels on this machine and with which flags; `none` if nothing was
        compiled here."""
        return "none"

    def unsupported(self, device_type: str, dtype: torch.dtype) -> str:
        """Why tensors of this device and type cannot be computed; an empty string if they can."""
        if self.device_type is None:
            return ""
        if self.device_type != device_type:
            needed = self.device_type.upper()
            return f"the tensors are on {device_type}, this kernel needs a {needed} device"
        wide = dtype == torch.float64
        return "it computes in float32; float64 needs scan=portable" if wide else ""

    @abstractmethod
    def scan(self, inputs: ScanInputs, walk: Walk) -> ScanStates:
        """The selective scan (Bt, L, E) on a walk, and its states. Blocks that do not restart are
        never in reverse."""

    def scans(self, forward: ScanInputs, backward: ScanInputs) -> tuple[Tensor, Tensor]:
        """The scan in both directions, each with its inputs."""
        return self.scan(forward, Walk()).y, self.scan(backward, Walk(reverse=True)).y

    def gated_scan(self, inputs: ScanInputs, z: Tensor) -> Tensor:
        """The scan from the first position to the last, times silu(z)."""
        return self.gated_sum(self.scan(inputs, Walk()).y, None, z)

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Tensor:
        """`short_conv` of whole sequences."""
        L = x.shape[1]
        K = weight.shape[1]
        x = F.pad(x, (0, 0, 0, K - 1) if reverse else (0, 0, K - 1, 0))
        a = bias
        for k in range(K):  # a sum of K shifted copies is faster on a CPU than a depthwise conv1d
            first = K - 1 - k if reverse else k
            a = torch.addcmul(a, x[:, first : first + L], weight[:, k])
        return F.silu(a)

    def short_conv(
        self, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool = False,
        near: OptionalTensor = None, block: int = 0,
    ) -> Tensor:  # fmt: skip
        """(Bt, L, E) from x (Bt, L, E), weight (E, K) and bias (E,); if `block` is not 0, of every
        `block` positions alone, with `near` (Bt, blocks, K - 1, E) inputs before each block, after
        it in reverse."""
        if not block:
            return self.conv(x, weight, bias, reverse)

        def conv(near: OptionalTensor, x: Tensor) -> Tensor:
            if near is None:
                return self.conv(x, weight, bias, reverse)
            longer = torch.cat([x, near] if reverse else [near, x], dim=1)
            y = self.conv(longer, weight, bias, reverse)
            return y[:, : x.shape[1]] if reverse else y[:, near.shape[1] :]

        return by_block(conv, block, near, x)

    def short_convs(
        self, x: Tensor, forward: Sequence[Tensor], backward: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """`short_conv` of one x in both directions, each with its weight and bias."""
        (weight, bias), (weight_rev, bias_rev) = forward, backward
        return self.short_conv(x, weight, bias), self.short_conv(x, weight_rev, bias_rev, True)

    def gated_sum(self, y: Tensor, y_rev: OptionalTensor, z: Tensor) -> Tensor:
        """(y + y_rev) silu(z), (Bt, L, E): the input of a mixer's output projection."""
        return (y if y_rev is None else y + y_rev) * F.silu(z)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight of x (..., D) over the last axis, weight (D,) (arXiv
        1910.07467, equation 4)."""
        return F.rms_norm(x, weight.shape, weight, eps)  # on accelerators this is one kernel

    def add_norm(
        self, x: Tensor, added: OptionalTensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """The residual stream x (..., D) after a branch is added, perhaps in a narrower type, in
        the wider type of the two, and its `rms_norm`, which is the input of the next branch, in
        weight's type, or in autocast's type if there is one kernel for both steps."""
        total = x if added is None else x + added
        return total, self.rms_norm(total, weight.to(total.dtype), eps).to(weight.dtype)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x weight^T, (..., E), of x (..., R) and weight (E, R)."""
        return F.linear(x, weight)

    def narrow_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x weight^T, (Bt, L, E), for a small R: step sizes from their low-rank form."""
        return self.linear(x, weight)

    def linear_halves(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Both halves of the columns of x weight^T: a mixer's input and its gate."""
        first, second = self.linear(x, weight).chunk(2, dim=-1)
        return first, second

    def fuses_mixer(self, weights: MixerWeights) -> bool:
        """Whether the mixers below are kernels for weights of this size, and for gradients that
        PyTorch can ask for here."""
        return False

    def mixer(
        self, hidden: Tensor, weights: MixerWeights, valid: OptionalTensor,
        piece: Piece | None = None,
    ) -> Tensor:  # fmt: skip
        """As `dnadiff.networks.kernels.facade.AnyType.mixer`."""
        (x, z), (x_rev, z_rev) = self._inputs(hidden, weights, valid)
        ways = weights.ways
        if piece is None and len(ways) == 2 and x is x_rev:
            us: Sequence[Tensor] = self.short_convs(x, *(way[:2] for way in ways))
        else:
            num_taps = ways[0].conv_weight.shape[1]
            near = (None, None) if piece is None else piece.edges(x, x_rev, num_taps)
            us = [
                self._near_conv(each, way, before, number == 1)
                for number, (each, way, before) in enumerate(zip((x, x_rev), ways, near))
            ]
        inputs = [self._scan_inputs(u, way, valid) for u, way in zip(us, ways, strict=True)]
        if piece is None and len(ways) == 1:
            return self.linear(self.gated_scan(inputs[0], z), weights.out_proj)
        y, *y_rev = self.scans(*inputs) if piece is None else piece.scans(inputs)
        return self._combined(weights, y, y_rev[0] if y_rev else None, z, z_rev)

    def continued_mixer(
        self, hidden: Tensor, weights: MixerWeights, past: OptionalTensor, state: OptionalTensor,
        valid: OptionalTensor = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """As `dnadiff.networks.kernels.facade.AnyType.continued_mixer`; the inputs returned may be
        more than K - 1."""
        (x, z), (x_rev, z_rev) = self._inputs(hidden, weights, valid)
        way, *reverse = weights.ways
        y_rev = None
        u = self._near_conv(x, way, past)
        walk = Walk(initial=state, states=True)
        y, _, last = self.scan(self._scan_inputs(u, way, valid), walk)
        for way in reverse:
            u = self._near_conv(x_rev, way, None, True)
            y_rev = self.scan(self._scan_inputs(u, way, valid), Walk(reverse=True)).y
        out = self._combined(weights, y, y_rev, z, z_rev)
        return out, x if past is None else torch.cat([past, x], 1), last

    def two_stream_mixer(
        self, noised: Tensor, clean: Tensor, weights: MixerWeights, block: int,
        valid: OptionalTensor, clean_output: bool,
    ) -> tuple[Tensor, OptionalTensor]:  # fmt: skip
        """As `dnadiff.networks.kernels.facade.AnyType.two_stream_mixer`."""
        way, way_rev = weights.ways
        z_clean = None
        if clean_output:
            x_clean, z_clean = self._projected(clean, weights.in_proj, valid)
        else:
            x_clean = _only(self.linear(clean, weights.in_proj[: len(way.D)]), valid)
        inputs = self._scan_inputs(self.short_conv(x_clean, *way[:2]), way, valid)
        y_clean, starts, _ = self.scan(inputs, Walk(block=block, states=True))
        (x, z), (x_rev, z_rev) = self._inputs(noised, weights, valid)
        before = taps_before_blocks(x_clean, way.conv_weight.shape[1], block)
        u = self.short_conv(x, *way[:2], False, before, block)
        walk = Walk(False, starts, block, restart=True)
        y = self.scan(self._scan_inputs(u, way, valid), walk).y
        u = self.short_conv(x_rev, *way_rev[:2], True, None, block)
        walk = Walk(True, None, block, restart=True)
        y_rev = self.scan(self._scan_inputs(u, way_rev, valid), walk).y
        mixed = self._combined(weights, y, y_rev, z, z_rev)
        if z_clean is None:
            return mixed, None
        return mixed, self._combined(weights, y_clean, None, z_clean, z_clean)

    def _inputs(
        self, hidden: Tensor, weights: MixerWeights, valid: OptionalTensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The input of the convolution and the gate of each direction."""
        forward = self._projected(hidden, weights.in_proj, valid)
        if weights.in_proj_rev is None:
            return forward, forward
        return forward, self._projected(hidden, weights.in_proj_rev, valid)

    def _projected(
        self, hidden: Tensor, in_proj: Tensor, valid: OptionalTensor
    ) -> tuple[Tensor, Tensor]:
        x, z = self.linear_halves(hidden, in_proj)
        return _only(x, valid), z

    def _near_conv(
        self, x: Tensor, way: MixerWay, near: OptionalTensor, reverse: bool = False
    ) -> Tensor:
        """The convolution of one direction, with the inputs before x, after it in reverse."""
        if near is None:
            return self.short_conv(x, *way[:2], reverse)
        return self.short_conv(x, *way[:2], reverse, near[:, None], x.shape[1])

    def _scan_inputs(self, u: Tensor, way: MixerWay, valid: OptionalTensor) -> ScanInputs:
        """The inputs of a mixer's scan, from the output of its convolution."""
        u = _only(u, valid)
        rank = way.dt_weight.shape[1]
        states = way.A_log.shape[1]
        low, B, C = self.linear(u, way.x_proj).split([rank, states, states], dim=-1)
        delta = _only(self.narrow_linear(low, way.dt_weight), valid, _NO_STEP)
        A = -torch.exp(way.A_log.to(torch.promote_types(way.A_log.dtype, torch.float32)))
        return ScanInputs(u, delta, A, B, C, way.D, way.dt_bias)

    def _combined(
        self, weights: MixerWeights, y: Tensor, y_rev: OptionalTensor, z: Tensor, z_rev: Tensor
    ) -> Tensor:
        """The outputs of one or two scans and their gates, each (Bt, L, E) -> (Bt, L, D)."""
        if y_rev is None or weights.one_projection:
            return self.linear(self.gated_sum(y, y_rev, z), weights.out_proj)
        out_proj = weights.out_proj if weights.out_proj_rev is None else weights.out_proj_rev
        backward = self.linear(self.gated_sum(y_rev, None, z_rev), out_proj)
        return weights.combine(self._combined(weights, y, None, z, z), backward)


def _only(x: Tensor, valid: OptionalTensor, other: float = 0.0) -> Tensor:
    """x (Bt, L, X) with another value on padding."""
    return x if valid is None else x.masked_fill(~valid[..., None], other)


def needs_gradient(*tensors: OptionalTensor) -> bool:
    """Whether autograd records what is computed from these tensors."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def gate_gradient(backward: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    """The derivative of a gated sum, from the operator that computes those of y and z."""

    def gradient(ctx: Any, dout: Tensor) -> tuple[OptionalTensor, ...]:
        y, y_rev, z = ctx.saved_tensors
        dy, dz = backward(dout, y, y_rev, z)
        return dy, None if y_rev is None else dy.to(y_rev.dtype), dz

    return gradient


def taps_before_blocks(x: Tensor, num_taps: int, block: int) -> Tensor:
    """The K - 1 inputs before each block of x (Bt, L, E), (Bt, blocks, K - 1, E); zero before the
    first position."""
    blocks = -(-x.shape[1] // block)
    K = num_taps
    if K == 1:
        return x.new_zeros(x.shape[0], blocks, 0, x.shape[2])
    return F.pad(x, (0, 0, K - 1, 0)).unfold(1, K - 1, block)[:, :blocks].mT


def by_block(
    f: Callable[..., Tensor], block: int, initial: OptionalTensor, *tensors: Tensor
) -> Tensor:
    """`f(initial, *tensors)` of every block of `tensors` (Bt, L, X) as a sequence of its own; the
    last block may be shorter."""
    Bt, L, _ = tensors[0].shape
    full = L // block
    whole = [x[:, : full * block].reshape(-1, block, x.shape[2]) for x in tensors]
    first = None if initial is None else initial[:, :full].flatten(0, 1)
    y = f(first, *whole).reshape(Bt, full * block, -1)
    if full * block == L:
        return y
    rest = [x[:, full * block :] for x in tensors]
    return torch.cat([y, f(None if initial is None else initial[:, full], *rest)], dim=1)
