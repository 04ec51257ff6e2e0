"""The contract of a kernel back end: what every implementation of the mixer's operations computes.

`facade` lists the back ends, chooses one, checks arguments and calls it. To add one, derive a class
here and add it to `SCANS`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

OptionalTensor: TypeAlias = Tensor | None
_NATIVE_TYPES = (torch.float32, torch.bfloat16, torch.float16)  # read by back ends that keep types
NO_STEP = -1e4  # softplus of this is exactly 0 in float32: a step of size zero keeps the state


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
    # the direction from the first position to the last, and perhaps that in reverse, whose outputs
    # are added
    ways: Sequence[MixerWay]

    def tensors(self) -> list[Tensor]:
        """All weights."""
        return [self.in_proj, self.out_proj, *(weight for way in self.ways for weight in way)]


class Backend(ABC):
    """One implementation ("scan") of the operations in `dnadiff.networks.kernels.facade`, which
    documents arguments and results.

    Shapes are checked by the facade. All operations are differentiable. Operations that combine
    others have a default.

    States are (..., E, N) in shape and (..., N, E) in memory where a back end returns them, because
    the kernels compute neighboring channels together: a state that one scan returns is read by the
    next one without a copy. Any other layout is copied.

    Attributes:
        device_type: the device that it needs, on which it computes in float32 and is compared with
            the portable back end before its first use; None for any device and type.
        keeps_dtype: half-precision inputs are passed unchanged; otherwise the facade converts them
            to float32.
        fused_gated_scan: `gated_scan` is one kernel; otherwise the facade calls scan and gate
            separately.
        max_states: the largest number of states per channel.
        lacks_states: why it can neither start from states nor return them; empty if it can.
    """

    device_type: str | None = None
    keeps_dtype = False
    fused_gated_scan = False
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

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """`x` in the type that this back end reads: `dtype`, or its own type if the back end
        accepts it."""
        return x if self.keeps_dtype and x.dtype in _NATIVE_TYPES else x.to(dtype)

    @abstractmethod
    def scan(self, inputs: ScanInputs, walk: Walk) -> ScanStates:
        """The selective scan (Bt, L, E) on a walk, and its states. Blocks that do not restart are
        never in reverse."""

    @abstractmethod
    def conv(self, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Tensor:
        """`short_conv` of whole sequences."""

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

    @abstractmethod
    def gated_sum(self, y: Tensor, y_rev: OptionalTensor, z: Tensor) -> Tensor:
        """(y + y_rev) silu(z), (Bt, L, E)."""

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight, (..., D)."""

    @abstractmethod
    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x weight^T, (..., E), of x (..., R) and weight (E, R)."""

    def narrow_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x weight^T, (Bt, L, E), for a small R."""
        return self.linear(x, weight)

    def linear_halves(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Both halves of the columns of x weight^T."""
        first, second = self.linear(x, weight).chunk(2, dim=-1)
        return first, second

    def short_convs(
        self, x: Tensor, forward: tuple[Tensor, Tensor], backward: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """`short_conv` of one x in both directions, each with its weight and bias."""
        return self.short_conv(x, *forward), self.short_conv(x, *backward, True)

    def scans(self, forward: ScanInputs, backward: ScanInputs) -> tuple[Tensor, Tensor]:
        """The scan in both directions, each with its inputs."""
        return self.scan(forward, Walk()).y, self.scan(backward, Walk(reverse=True)).y

    def gated_scan(self, inputs: ScanInputs, z: Tensor) -> Tensor:
        """The scan from the first position to the last, times silu(z)."""
        return self.gated_sum(self.scan(inputs, Walk()).y, None, z)

    def add_norm(
        self, x: Tensor, added: OptionalTensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """x + added and its `rms_norm`, in weight's type."""
        total = x if added is None else x + added
        return total, self.rms_norm(total, weight.to(total.dtype), eps).to(weight.dtype)

    def fuses_mixer(self, weights: MixerWeights) -> bool:
        """Whether the mixers below are kernels for weights of this size, and for gradients that
        PyTorch can ask for here."""
        return False

    def mixer(self, hidden: Tensor, weights: MixerWeights, valid: OptionalTensor) -> Tensor:
        """A mixer with its projections, (Bt, L, D), as `dnadiff.networks.kernels.mixer`."""
        return self.continued_mixer(hidden, weights, None, None, valid)[0]

    def continued_mixer(
        self, hidden: Tensor, weights: MixerWeights, past: OptionalTensor, state: OptionalTensor,
        valid: OptionalTensor = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """A mixer of a piece of a sequence after others, as
        `dnadiff.networks.kernels.continued_mixer`; the inputs returned may be more than K - 1."""
        (x, z), ways = self._projected(hidden, weights, valid), weights.ways
        near = None if past is None else past[:, None]
        y_rev = None
        u = self.short_conv(x, *ways[0][:2], False, near, x.shape[1])
        walk = Walk(initial=state, states=not self.lacks_states)
        y, _, last = self.scan(self._scan_inputs(u, ways[0], valid), walk)
        if len(ways) == 2:
            u = self.short_conv(x, *ways[1][:2], True)
            y_rev = self.scan(self._scan_inputs(u, ways[1], valid), Walk(reverse=True)).y
        out = self.linear(self.gated_sum(y, y_rev, z), weights.out_proj)
        return out, x if past is None else torch.cat([past, x], 1), last

    def two_stream_mixer(
        self, noised: Tensor, clean: Tensor, weights: MixerWeights, block: int,
        valid: OptionalTensor, clean_output: bool,
    ) -> tuple[Tensor, OptionalTensor]:  # fmt: skip
        """A mixer of a noised stream in blocks after those of a clean stream, as
        `dnadiff.networks.kernels.two_stream_mixer`."""
        x_clean, z_clean = self._projected(clean, weights, valid)
        (x, z), (way, way_rev) = self._projected(noised, weights, valid), weights.ways
        inputs = self._scan_inputs(self.short_conv(x_clean, *way[:2]), way, valid)
        y_clean, starts, _ = self.scan(inputs, Walk(block=block, states=True))
        before = taps_before_blocks(x_clean, way.conv_weight.shape[1], block)
        u = self.short_conv(x, *way[:2], False, before, block)
        walk = Walk(False, starts, block, restart=True)
        y = self.scan(self._scan_inputs(u, way, valid), walk).y
        u = self.short_conv(x, *way_rev[:2], True, None, block)
        walk = Walk(True, None, block, restart=True)
        y_rev = self.scan(self._scan_inputs(u, way_rev, valid), walk).y
        out = self.linear(self.gated_sum(y, y_rev, z), weights.out_proj)
        if not clean_output:
            return out, None
        return out, self.linear(self.gated_sum(y_clean, None, z_clean), weights.out_proj)

    def _projected(
        self, hidden: Tensor, weights: MixerWeights, valid: OptionalTensor
    ) -> tuple[Tensor, Tensor]:
        """A mixer's input and gate."""
        x, z = self.linear_halves(hidden, weights.in_proj)
        return x if valid is None else x.masked_fill(~valid[..., None], 0.0), z

    def _scan_inputs(self, u: Tensor, way: MixerWay, valid: OptionalTensor) -> ScanInputs:
        """The inputs of a mixer's scan, from the output of its convolution."""
        u = u if valid is None else u.masked_fill(~valid[..., None], 0.0)
        rank = way.dt_weight.shape[1]
        states = way.A_log.shape[1]
        low, B, C = self.linear(u, way.x_proj).split([rank, states, states], dim=-1)
        delta = self.narrow_linear(low, way.dt_weight)
        delta = delta if valid is None else delta.masked_fill(~valid[..., None], NO_STEP)
        return ScanInputs(u, delta, -torch.exp(way.A_log), B, C, way.D, way.dt_bias)


def needs_gradient(*tensors: OptionalTensor) -> bool:
    """Whether autograd records what is computed from these tensors."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


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
