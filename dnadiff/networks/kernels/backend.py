"""The contract of a kernel back end: what every implementation of the mixer's operations computes.

`select` lists the back ends and chooses one; `facade` checks arguments and calls it. To add one,
derive a class here and add it to `SCANS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_NATIVE_TYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
)  # what a back end with `keeps_dtype` reads without conversion
NO_STEP = (
    -1e4
)  # softplus of this is exactly 0 in float32: a step of size zero leaves the state unchanged


class ScanInputs(NamedTuple):
    """The arguments of `dnadiff.networks.kernels.facade.selective_scan`, as one value."""

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor
    delta_bias: Tensor | None = None


class ScanStates(NamedTuple):
    """The output of a scan, and states that other scans may start from."""

    y: Tensor  # (Bt, L, E)
    starts: (
        Tensor | None
    )  # (Bt, blocks, E, N), the states before every block; None if there are no blocks
    # (Bt, E, N), the state after the last position; of a reverse scan, that after the first
    last: Tensor


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


class Backend(ABC):
    """One implementation ("scan") of the operations in `dnadiff.networks.kernels.facade`, which
    documents arguments and results.

    Shapes are checked by the facade. All operations are differentiable. Operations that combine
    others have a default.

    States are (..., E, N) in shape and (..., N, E) in memory where a back end returns them, because
    the kernels compute neighboring channels together: a state that one scan returns is read by the
    next one without a copy. Any other layout is copied.

    Attributes:
        keeps_dtype: half-precision inputs are passed unchanged; otherwise the facade converts them
            to float32.
        fused_gated_scan: `gated_scan` is one kernel; otherwise the facade calls scan and gate
            separately.
        fused_add_norm: `add_norm` is one kernel; otherwise the facade adds and normalizes
            separately.
        fused_two_streams: `two_stream_mixer` is faster than separate operations for all that
            `fuses_mixer` allows.
        needs_probe: compare it with the portable back end before its first use on a machine.
        device_type: the device that it needs; None for any.
        supports_float64: whether it can compute in float64.
    """

    keeps_dtype: bool = False
    fused_gated_scan: bool = False
    fused_add_norm: bool = False
    fused_two_streams: bool = False
    needs_probe: bool = True
    device_type: str | None = None
    supports_float64: bool = True

    @abstractmethod
    def description(self) -> str:
        """What the log reports after the name."""

    def compiler(self) -> str:
        """What compiled the kernels on this machine and with which flags; `none` if nothing was
        compiled here."""
        return "none"

    def unsupported(self, device_type: str, dtype: torch.dtype) -> str:
        """Why tensors of this device and type cannot be computed; an empty string if they can."""
        if self.device_type not in (None, device_type):
            return (
                f"the tensors are on {device_type}, this kernel needs a "
                f"{str(self.device_type).upper()} device"
            )
        return (
            ""
            if self.supports_float64 or dtype != torch.float64
            else "it computes in float32; float64 needs scan=portable"
        )

    def too_many_states(self, num_states: int) -> str:
        """Why this many states per channel cannot be computed; an empty string if they can."""
        return ""

    def lacks_states(self) -> str:
        """Why `carried_scan` and `restarted_scan` cannot be computed; an empty string if they
        can."""
        return ""

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """`x` in the type that this back end reads: `dtype`, or its own type if the back end
        accepts it."""
        return x if self.keeps_dtype and x.dtype in _NATIVE_TYPES else x.to(dtype)

    @abstractmethod
    def selective_scan(self, inputs: ScanInputs, reverse: bool) -> Tensor:
        """(Bt, L, E), as `dnadiff.networks.kernels.facade.selective_scan`."""

    def carried_scan(
        self, inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int | None
    ) -> ScanStates:
        """`selective_scan` from the state `initial` (Bt, E, N), zero if None, and the states before
        every `block` positions.

        `block` is None in reverse.
        """
        raise NotImplementedError(self.lacks_states())

    def restarted_scan(
        self, inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int
    ) -> Tensor:
        """(Bt, L, E): every `block` positions are a sequence that starts from its own state,
        `initial` (Bt, blocks, E, N) or zero."""

        def scan(state: Tensor | None, u: Tensor, delta: Tensor, B: Tensor, C: Tensor) -> Tensor:
            rows = ScanInputs(u, delta, inputs.A, B, C, inputs.D, inputs.delta_bias)
            return self.carried_scan(rows, reverse, state, None).y

        return _by_block(scan, block, initial, inputs.u, inputs.delta, inputs.B, inputs.C)

    @abstractmethod
    def short_conv(self, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Tensor:
        """(Bt, L, E) from x (Bt, L, E), weight (E, K) and bias (E,)."""

    def block_conv(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        reverse: bool,
        initial: Tensor | None,
        block: int,
    ) -> Tensor:
        """`short_conv` of every `block` positions; `initial` (Bt, blocks, K - 1, E) are the inputs
        before each block, after it in reverse."""

        def conv(near: Tensor | None, x: Tensor) -> Tensor:
            if near is None:
                return self.short_conv(x, weight, bias, reverse)
            y = self.short_conv(
                torch.cat([x, near] if reverse else [near, x], dim=1), weight, bias, reverse
            )
            return y[:, : x.shape[1]] if reverse else y[:, near.shape[1] :]

        return _by_block(conv, block, initial, x)

    @abstractmethod
    def gated_sum(self, y: Tensor, y_rev: Tensor | None, z: Tensor) -> Tensor:
        """(y + y_rev) silu(z), (Bt, L, E)."""

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight, (..., D)."""

    @abstractmethod
    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x weight^T, (..., E), of x (..., R) and weight (E, R)."""

    @abstractmethod
    def narrow_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x weight^T, (Bt, L, E), for a small R."""

    def linear_halves(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Both halves of the columns of x weight^T."""
        first, second = self.linear(x, weight).chunk(2, dim=-1)
        return first, second

    def short_convs(
        self, x: Tensor, forward: tuple[Tensor, Tensor], backward: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """`short_conv` of one x in both directions, each with its weight and bias."""
        return self.short_conv(x, *forward, False), self.short_conv(x, *backward, True)

    def scans(self, forward: ScanInputs, backward: ScanInputs) -> tuple[Tensor, Tensor]:
        """`selective_scan` in both directions, each with its inputs."""
        return self.selective_scan(forward, False), self.selective_scan(backward, True)

    def gated_scan(self, inputs: ScanInputs, z: Tensor) -> Tensor:
        """`selective_scan` from the first position to the last, times silu(z)."""
        return self.gated_sum(self.selective_scan(inputs, False), None, z)

    def fuses_mixer(self, hidden: Tensor, in_proj: Tensor, ways: Sequence[MixerWay]) -> bool:
        """Whether `mixer` computes weights of this size, for gradients that PyTorch can ask for
        here."""
        return False

    def mixer(
        self,
        hidden: Tensor,
        in_proj: Tensor,
        out_proj: Tensor,
        ways: Sequence[MixerWay],
        valid: Tensor | None,
    ) -> Tensor:
        """A mixer with its projections, (Bt, L, D), as `dnadiff.networks.kernels.mixer`."""
        x, z = self._projected(hidden, in_proj, valid)
        ys = []
        for number, way in enumerate(ways):
            u = self.short_conv(x, way.conv_weight, way.conv_bias, number == 1)
            ys.append(self.selective_scan(self._scan_inputs(u, way, valid), number == 1))
        return self.linear(self.gated_sum(ys[0], ys[1] if len(ys) == 2 else None, z), out_proj)

    def two_stream_mixer(
        self, noised: Tensor, clean: Tensor, in_proj: Tensor, out_proj: Tensor,
        ways: Sequence[MixerWay], block: int, valid: Tensor | None,
        clean_output: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """A mixer of a noised stream in blocks after those of a clean stream, as
        `dnadiff.networks.kernels.two_stream_mixer`."""
        (x_clean, z_clean), (x, z), (way, way_rev) = (
            *(self._projected(hidden, in_proj, valid) for hidden in (clean, noised)),
            ways,
        )
        u = self.short_conv(x_clean, way.conv_weight, way.conv_bias, False)
        y_clean, starts, _ = self.carried_scan(self._scan_inputs(u, way, valid), False, None, block)
        before = taps_before_blocks(x_clean, way.conv_weight.shape[1], block)
        u = self.block_conv(x, way.conv_weight, way.conv_bias, False, before, block)
        y = self.restarted_scan(self._scan_inputs(u, way, valid), False, starts, block)
        u = self.block_conv(x, way_rev.conv_weight, way_rev.conv_bias, True, None, block)
        y_rev = self.restarted_scan(self._scan_inputs(u, way_rev, valid), True, None, block)
        out = self.linear(self.gated_sum(y, y_rev, z), out_proj)
        return out, self.linear(
            self.gated_sum(y_clean, None, z_clean), out_proj
        ) if clean_output else None

    def continued_mixer(
        self,
        hidden: Tensor,
        in_proj: Tensor,
        out_proj: Tensor,
        ways: Sequence[MixerWay],
        past: Tensor | None,
        state: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A mixer of a piece of a sequence after others, as
        `dnadiff.networks.kernels.continued_mixer`; the inputs returned may be more than K - 1."""
        (x, z), way = self._projected(hidden, in_proj, None), ways[0]
        near = None if past is None else past[:, None]
        u = self.block_conv(x, way.conv_weight, way.conv_bias, False, near, x.shape[1])
        y, _, last = self.carried_scan(self._scan_inputs(u, way, None), False, state, None)
        y_rev = None
        if len(ways) == 2:
            u = self.short_conv(x, ways[1].conv_weight, ways[1].conv_bias, True)
            y_rev = self.selective_scan(self._scan_inputs(u, ways[1], None), True)
        return (
            self.linear(self.gated_sum(y, y_rev, z), out_proj),
            x if past is None else torch.cat([past, x], 1),
            last,
        )

    def _projected(
        self, hidden: Tensor, in_proj: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """A mixer's input and gate."""
        x, z = self.linear_halves(hidden, in_proj)
        return x if valid is None else x.masked_fill(~valid[..., None], 0.0), z

    def _scan_inputs(self, u: Tensor, way: MixerWay, valid: Tensor | None) -> ScanInputs:
        """The inputs of a mixer's scan, from the output of its convolution."""
        u = u if valid is None else u.masked_fill(~valid[..., None], 0.0)
        rank, states = way.dt_weight.shape[1], way.A_log.shape[1]
        low, B, C = self.linear(u, way.x_proj).split([rank, states, states], dim=-1)
        delta = self.narrow_linear(low, way.dt_weight)
        delta = delta if valid is None else delta.masked_fill(~valid[..., None], NO_STEP)
        return ScanInputs(u, delta, -torch.exp(way.A_log), B, C, way.D, way.dt_bias)

    def add_norm(
        self, x: Tensor, added: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """x + added and its `rms_norm`, in weight's type."""
        total = x if added is None else x + added
        return total, self.rms_norm(total, weight.to(total.dtype), eps).to(weight.dtype)


def taps_before_blocks(x: Tensor, num_taps: int, block: int) -> Tensor:
    """The K - 1 inputs before each block of x (Bt, L, E), (Bt, blocks, K - 1, E); zero before the
    first position."""
    blocks, K = -(-x.shape[1] // block), num_taps
    if K == 1:
        return x.new_zeros(x.shape[0], blocks, 0, x.shape[2])
    return F.pad(x, (0, 0, K - 1, 0)).unfold(1, K - 1, block)[:, :blocks].mT


def _by_block(
    f: Callable[..., Tensor], block: int, initial: Tensor | None, *tensors: Tensor
) -> Tensor:
    """`f(initial, *tensors)` of every block of `tensors` (Bt, L, X) as a sequence of its own; the
    last block may be shorter."""
    L = tensors[0].shape[1]
    full, parts = L // block, []
    whole = [x[:, : full * block].reshape(-1, block, x.shape[2]) for x in tensors]
    parts.append(
        f(None if initial is None else initial[:, :full].flatten(0, 1), *whole).reshape(
            tensors[0].shape[0], full * block, -1
        )
    )
    if full * block < L:
        parts.append(
            f(
                None if initial is None else initial[:, full],
                *(x[:, full * block :] for x in tensors),
            )
        )
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def check_rows(name: str, x: Tensor) -> torch.Size:
    """The shape of a floating-point (batch, length, channels) tensor."""
    if x.dim() != 3:
        raise ValueError(f"{name} must be (batch, length, channels), got shape {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(
            f"{name} has type {x.dtype}, expected float32, bfloat16, float16 or float64"
        )
    return x.shape


def check_product(x: Tensor, weight: Tensor) -> None:
    """The operands of x weight^T."""
    if weight.dim() != 2 or x.dim() < 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"weight {tuple(weight.shape)} must be (E, R) for x (..., R), which is {tuple(x.shape)}"
        )


def check_filter(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    """The operands of a short convolution."""
    E = check_rows("x", x)[2]
    if weight.dim() != 2 or weight.shape[0] != E or bias.shape != (E,):
        raise ValueError(
            f"weight {tuple(weight.shape)} and bias {tuple(bias.shape)} must be ({E}, K) and "
            f"({E},) for x {tuple(x.shape)}"
        )


def check_norm(x: Tensor, added: Tensor | None, weight: Tensor) -> None:
    """The operands of a norm, perhaps of a sum."""
    if (
        weight.dim() != 1
        or x.shape[-1:] != weight.shape
        or (added is not None and added.shape != x.shape)
    ):
        other = "" if added is None else f", added to {tuple(added.shape)}"
        raise ValueError(
            f"weight {tuple(weight.shape)} must be (D,) for x (..., D), which is "
            f"{tuple(x.shape)}{other}"
        )


def check_mixer(
    hidden: Tensor,
    in_proj: Tensor,
    out_proj: Tensor,
    ways: Sequence[MixerWay],
    valid: Tensor | None,
) -> None:
    """The operands of a whole mixer."""
    (D, E), N = out_proj.shape, ways[0].A_log.shape[1]
    R, K = ways[0].dt_weight.shape[1], ways[0].conv_weight.shape[1]
    expected = ((E, K), (E,), (R + 2 * N, E), (E, R), (E,), (E, N), (E,))
    shapes = [tuple(tuple(weight.shape) for weight in way) for way in ways]
    if (
        check_rows("hidden", hidden)[2] != D
        or in_proj.shape != (2 * E, D)
        or any(shape != expected for shape in shapes)
    ):
        raise ValueError(
            f"hidden {tuple(hidden.shape)}, in_proj {tuple(in_proj.shape)} and ways {shapes} do "
            f"not fit out_proj {(D, E)}"
        )
    if valid is not None and valid.shape != hidden.shape[:2]:
        raise ValueError(
            f"valid has shape {tuple(valid.shape)}, expected {tuple(hidden.shape[:2])} as hidden"
        )


def check_scan_inputs(inputs: ScanInputs) -> None:
    """The inputs of a selective scan."""
    (Bt, L, E), N = check_rows("u", inputs.u), inputs.A.shape[-1]
    expected = {
        "delta": (Bt, L, E),
        "A": (E, N),
        "B": (Bt, L, N),
        "C": (Bt, L, N),
        "D": (E,),
        "delta_bias": (E,),
    }
    for (name, shape), x in zip(expected.items(), inputs[1:], strict=True):
        if x is not None and x.shape != shape:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}, expected {shape} for u of shape {(Bt, L, E)} "
                f"and {N} states"
            )


def check_state(
    name: str, state: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """A state (..., E, N) of exactly this type: half precision would lose what a state adds up over
    many positions."""
    if state is None:
        return
    if state.shape != shape:
        raise ValueError(f"{name} has shape {tuple(state.shape)}, expected {shape}")
    if state.dtype != dtype:
        raise ValueError(
            f"{name} has type {state.dtype}, expected {dtype}, in which this scan computes; "
            f"convert it with .to({dtype})"
        )


def check_inputs_before(initial: Tensor, x: Tensor, shape: tuple[int, ...]) -> None:
    """The K - 1 inputs before a sequence or before each of its blocks."""
    if initial.shape != shape or initial.dtype != x.dtype:
        raise ValueError(
            f"initial has shape {tuple(initial.shape)} and type {initial.dtype}, expected {shape} "
            f"and {x.dtype} as x"
        )


def check_block_size(block_size: int, L: int) -> int:
    """The number of blocks of so many positions."""
    if isinstance(block_size, bool) or not isinstance(block_size, int) or not 1 <= block_size <= L:
        raise ValueError(
            f"block_size {block_size!r} does not fit sequences of {L} positions; expected an "
            f"integer from 1 to {L}"
        )
    return -(-L // block_size)
