"""The convolutions, the gate and the norm of the Triton back end, as custom operators.

Half precision is read and written unchanged and is float32 inside the kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from typing_extensions import override

from dnadiff.networks.kernels import triton_scan, triton_support
from dnadiff.networks.kernels.backend import ScanInputs, ScanStates
from dnadiff.networks.kernels.native import save_inputs
from dnadiff.networks.kernels.portable import TorchOperations
from dnadiff.networks.kernels.triton_support import (
    alignment,
    device_of,
    interpreted,
    no_second_derivative,
    with_strides,
)

MAX_TAPS, MAX_WIDTH = 8, 8192  # of a filter, and of a normalized row
_TILE, _CONV_TILE = 1024, 256  # elements per program: 32 per thread, 8 where it keeps ten sums
_TILES = 16  # tiles per program where it keeps sums
_KERNELS = "triton_row_kernels"


def _shape(E: int, tile: int = _TILE) -> dict[str, int]:
    """Positions and channels of a tile: half as many if rows do not start at multiples of 16,
    because short vectors need more addresses."""
    tile = tile // 2 if E % 16 else tile
    block = min(256, tile, max(16, 1 << (E - 1).bit_length()))
    return {"TT": tile // block, "BE": block}


def short_convs(
    x: Tensor, forward: tuple[Tensor, Tensor] | None, backward: tuple[Tensor, Tensor] | None
) -> list[Tensor]:
    """`dnadiff.networks.kernels.short_conv` of one x in one or both directions, each with its
    weight (E, K) and bias (E,)."""
    w0, bias0 = (None, None) if forward is None else _filter(*forward)
    w1, bias1 = (None, None) if backward is None else _filter(*backward)
    return convs(x, w0, bias0, w1, bias1, None, 0)


def block_conv(
    x: Tensor, weight: Tensor, bias: Tensor, reverse: bool, initial: Tensor | None, block: int
) -> Tensor:
    """See `Backend.block_conv`."""
    filters = [_filter(weight, bias), (None, None)]
    (w0, bias0), (w1, bias1) = reversed(filters) if reverse else filters
    return convs(x, w0, bias0, w1, bias1, initial if weight.shape[1] > 1 else None, block)[0]


def _first(*tensors: Tensor | None) -> Tensor:
    return next(x for x in tensors if x is not None)


def _filter(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Both as the kernels read them: float32, channels contiguous."""
    return weight.float().mT.contiguous(), bias.float().contiguous()


@torch.library.custom_op("dnadiff::short_convs", mutates_args=())
def convs(
    x: Tensor,
    w0: Tensor | None,
    bias0: Tensor | None,
    w1: Tensor | None,
    bias1: Tensor | None,
    given: Tensor | None,
    block: int,
) -> list[Tensor]:
    """The convolutions of x whose filters (K, E) and biases are given: forward (0), backward (1).

    If `block` is not 0, of every `block` positions alone, one direction with `given` (Bt, blocks, K
    - 1, E) inputs before or after them.
    """
    (x, x_b, x_l), (Bt, L, E), tile = with_strides(x), x.shape, _shape(x.shape[2])
    some, near, near_b = _first(w0, w1), *_given(x, given)
    y = [x.new_empty(Bt, L, E) for w in (w0, w1) if w is not None]
    spans = -(-L // tile["TT"])
    with device_of(x):
        triton_support.load_kernels(_KERNELS).convolve[(-(-E // tile["BE"]) * spans * Bt,)](
            x, *(some if w is None else w for w in (w0, w1, bias0, bias1)), near, y[0], y[-1], L, E,
            spans, x_b, x_l, block, near_b,
            **alignment(E, x_b, x_l, near_b), K=some.shape[0], **tile, AHEAD=w0 is not None,
            BACK=w1 is not None, BLOCKS=block > 0,
            GIVEN=given is not None, num_warps=1,
        )  # fmt: skip
    return y


def _given(x: Tensor, given: Tensor | None) -> tuple[Tensor, int]:
    """The inputs given to blocks, or any tensor, and the distance between sequences."""
    return (
        (x, 0)
        if given is None
        else (given.contiguous(), given.shape[1] * given.shape[2] * given.shape[3])
    )


@convs.register_fake
def _(x: Any, w0: Any, bias0: Any, w1: Any, bias1: Any, given: Any, block: Any) -> Any:
    return [x.new_empty(x.shape) for w in (w0, w1) if w is not None]


@torch.library.custom_op("dnadiff::short_convs_backward", mutates_args=())
def _convs_backward(
    dy: list[Tensor], x: Tensor, w0: Tensor | None, bias0: Tensor | None, w1: Tensor | None,
    bias1: Tensor | None, given: Tensor | None,
    block: int,
) -> list[Tensor]:  # fmt: skip
    """dx, the sums for weights and biases, and the gradient of `given` if there is one."""
    dy = (
        [d.contiguous() for d in dy]
        if len(dy) == 1 or dy[0].stride() != dy[1].stride() or dy[0].stride(2) != 1
        else dy
    )
    (x, x_b, x_l), (Bt, L, E), tile = with_strides(x), x.shape, _shape(x.shape[2], _CONV_TILE)
    some, bias, near, near_b = _first(w0, w1), _first(bias0, bias1), *_given(x, given)
    K, spans, kernels = (
        some.shape[0],
        -(-L // (tile["TT"] * 4 * _TILES)),
        triton_support.load_kernels(_KERNELS),
    )
    dx, partial = (
        x.new_empty(Bt, L, E),
        torch.empty(Bt * spans, 2, K + 1, E, dtype=torch.float32, device=x.device),
    )
    dgiven = [] if given is None else [given.new_empty(given.shape)]
    columns, dy_strides = -(-E // tile["BE"]), dy[0].stride()[:2]
    with device_of(x):
        kernels.convolve_backward[(columns * spans * Bt,)](
            x, *(some if w is None else w for w in (w0, w1, bias0, bias1)), near, dy[0], dy[-1], dx,
            partial, L, E, spans, x_b, x_l,
            *dy_strides, block, near_b, **alignment(E, x_b, x_l, *dy_strides, near_b), K=K, **tile,
            TILES=4 * _TILES,
            AHEAD=w0 is not None, BACK=w1 is not None, BLOCKS=block > 0, GIVEN=given is not None,
            num_warps=1,
        )  # fmt: skip
        if given is not None:
            rows = given.shape[1] * (K - 1)
            spans = -(-rows // tile["TT"])
            kernels.convolve_given[(columns * spans * Bt,)](
                x, some, bias, near, dy[0], dgiven[0], L, E, spans, x_b, x_l, *dy_strides, block,
                rows,
                **alignment(E, x_b, x_l, *dy_strides), K=K, **tile,
                SIGN=1 if w1 is None else -1, num_warps=1,
            )  # fmt: skip
    return [dx, partial.sum(0), *dgiven]


@_convs_backward.register_fake
def _(dy: Any, x: Any, w0: Any, bias0: Any, w1: Any, bias1: Any, given: Any, block: Any) -> Any:
    some = _first(w0, w1)
    return [
        x.new_empty(x.shape),
        some.new_empty(2, some.shape[0] + 1, x.shape[2]),
        *([] if given is None else [given.new_empty(given.shape)]),
    ]


def _convs_save(ctx: Any, inputs: Any, output: Any) -> Any:
    *tensors, ctx.block = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _convs_grad(ctx: Any, grads: Any) -> Any:
    x, w0, bias0, w1, bias1, given = ctx.saved_tensors
    dy = [torch.zeros_like(x) if g is None else g for g in grads]
    dx, sums, *dgiven = _convs_backward(dy, x, w0, bias0, w1, bias1, given, ctx.block)
    found = [
        None if w is None else part
        for i, w in enumerate((w0, w1))
        for part in (sums[i, :-1], sums[i, -1])
    ]
    return (
        dx,
        *(
            None if p is None or w is None else p
            for p, w in zip(found, (w0, bias0, w1, bias1), strict=True)
        ),
        *(dgiven or [None]),
        None,
    )


convs.register_autograd(_convs_grad, setup_context=_convs_save)
_convs_backward.register_autograd(no_second_derivative)


def _gate_inputs(first: Tensor, *others: Tensor | None) -> tuple[list[Tensor], list[int]]:
    found = [with_strides(first if x is None else x) for x in (first, *others)]
    return [x for x, *_ in found], [stride for _, *strides in found for stride in strides]


@torch.library.custom_op("dnadiff::gate", mutates_args=())
def gate(y: Tensor, y_rev: Tensor | None, z: Tensor) -> Tensor:
    """(y + y_rev) silu(z), (Bt, L, E)."""
    (tensors, strides), (Bt, L, E), tile = _gate_inputs(y, y_rev, z), y.shape, _shape(y.shape[2])
    out, spans = y.new_empty(Bt, L, E), -(-L // tile["TT"])
    with device_of(y):
        triton_support.load_kernels(_KERNELS).gate[(-(-E // tile["BE"]) * spans * Bt,)](
            *tensors,
            out,
            L,
            E,
            spans,
            *strides,
            **alignment(E, *strides),
            **tile,
            BOTH=y_rev is not None,
            num_warps=1,
        )
    return out


gate.register_fake(lambda y, y_rev, z: y.new_empty(y.shape))


@torch.library.custom_op("dnadiff::gate_backward", mutates_args=())
def _gate_backward(
    dout: Tensor, y: Tensor, y_rev: Tensor | None, z: Tensor
) -> tuple[Tensor, Tensor]:
    (tensors, strides), (Bt, L, E), tile = (
        _gate_inputs(dout, y, y_rev, z),
        y.shape,
        _shape(y.shape[2]),
    )
    dy, dz, spans = y.new_empty(Bt, L, E), z.new_empty(Bt, L, E), -(-L // tile["TT"])
    with device_of(y):
        triton_support.load_kernels(_KERNELS).gate_backward[(-(-E // tile["BE"]) * spans * Bt,)](
            *tensors,
            dy,
            dz,
            L,
            E,
            spans,
            *strides,
            **alignment(E, *strides),
            **tile,
            BOTH=y_rev is not None,
            num_warps=1,
        )
    return dy, dz


_gate_backward.register_fake(lambda dout, y, y_rev, z: (y.new_empty(y.shape), z.new_empty(z.shape)))


def _gate_grad(ctx: Any, dout: Any) -> Any:
    y, y_rev, z = ctx.saved_tensors
    dy, dz = _gate_backward(dout, y, y_rev, z)
    return dy, None if y_rev is None else dy.to(y_rev.dtype), dz


gate.register_autograd(_gate_grad, setup_context=save_inputs)
_gate_backward.register_autograd(no_second_derivative)


def _norm_tile(D: int) -> dict[str, int]:
    block = 1 << (D - 1).bit_length()
    return {"BD": block, "TT": max(1, _TILE // block), "num_warps": max(1, block // 1024)}


@torch.library.custom_op("dnadiff::add_norm", mutates_args=())
def norm(
    x: Tensor, added: Tensor | None, weight: Tensor, eps: float, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """x + added (empty if `added` is None), its RMS norm times weight in `out_dtype`, and 1 / rms
    of each row."""
    x, D = x.contiguous(), x.shape[-1]
    rows, tile = x.numel() // D, _norm_tile(D)
    wide = x.dtype if added is None else torch.promote_types(x.dtype, added.dtype)
    total = x.new_empty(0 if added is None else x.shape, dtype=wide)
    out, scale = (
        x.new_empty(x.shape, dtype=out_dtype),
        torch.empty(rows, dtype=torch.float32, device=x.device),
    )
    other = x if added is None else added.contiguous()
    with device_of(x):
        triton_support.load_kernels(_KERNELS).add_norm[(-(-rows // tile["TT"]),)](
            x,
            other,
            weight.contiguous(),
            total,
            out,
            scale,
            rows,
            D,
            eps,
            **alignment(D),
            **tile,
            ADD=added is not None,
        )
    return total, out, scale


@norm.register_fake
def _(x: Any, added: Any, weight: Any, eps: Any, out_dtype: Any) -> Any:
    wide = x.dtype if added is None else torch.promote_types(x.dtype, added.dtype)
    total = x.new_empty((0,) if added is None else x.shape, dtype=wide)
    return (
        total,
        x.new_empty(x.shape, dtype=out_dtype),
        x.new_empty(x.numel() // x.shape[-1], dtype=torch.float32),
    )


@torch.library.custom_op("dnadiff::add_norm_backward", mutates_args=())
def _norm_backward(
    dout: Tensor,
    dtotal: Tensor | None,
    total: Tensor,
    weight: Tensor,
    scale: Tensor,
    x_dtype: torch.dtype,
    added_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    dout, total, D = dout.contiguous(), total.contiguous(), total.shape[-1]
    rows, tile = total.numel() // D, _norm_tile(D)
    programs = -(-rows // (tile["TT"] * _TILES))
    dx = total.new_empty(total.shape, dtype=x_dtype)
    dadded = (
        dx.new_empty(0) if added_dtype is None else total.new_empty(total.shape, dtype=added_dtype)
    )
    partial = torch.empty(programs, D, dtype=torch.float32, device=total.device)
    with device_of(total):
        triton_support.load_kernels(_KERNELS).add_norm_backward[(programs,)](
            dout, dout if dtotal is None else dtotal.contiguous(), total, weight.contiguous(),
            scale, dx, dadded, partial, rows, D,
            **alignment(D), **tile, TILES=_TILES, ADD=added_dtype is not None,
            LATER=dtotal is not None,
        )  # fmt: skip
    return dx, dadded, partial.sum(0).to(weight.dtype)


@_norm_backward.register_fake
def _(
    dout: Any, dtotal: Any, total: Any, weight: Any, scale: Any, x_dtype: Any, added_dtype: Any
) -> Any:
    dadded = (
        total.new_empty(0, dtype=x_dtype)
        if added_dtype is None
        else total.new_empty(total.shape, dtype=added_dtype)
    )
    return total.new_empty(total.shape, dtype=x_dtype), dadded, weight.new_empty(weight.shape)


def _norm_save(ctx: Any, inputs: Any, output: Any) -> Any:
    x, added, weight, *_ = inputs
    ctx.save_for_backward(x if added is None else output[0], weight, output[2])
    ctx.dtypes = x.dtype, None if added is None else added.dtype
    ctx.set_materialize_grads(False)


def _norm_grad(ctx: Any, dtotal: Any, dout: Any, _: Any) -> Any:
    total, weight, scale = ctx.saved_tensors
    x_dtype, added_dtype = ctx.dtypes
    if dout is None:
        return (
            None if dtotal is None else dtotal.to(x_dtype),
            None if added_dtype is None else dtotal.to(added_dtype),
            None,
            None,
            None,
        )
    dx, dadded, dw = _norm_backward(
        dout, None if added_dtype is None else dtotal, total, weight, scale, x_dtype, added_dtype
    )
    return dx, None if added_dtype is None else dadded, dw, None, None


norm.register_autograd(_norm_grad, setup_context=_norm_save)
_norm_backward.register_autograd(no_second_derivative)


MAX_STATES = 64


class TritonBackend(TorchOperations):
    """float32, bfloat16 or float16 tensors on a CUDA device. Products are PyTorch's."""

    keeps_dtype = True
    fused_gated_scan = True
    fused_add_norm = True
    device_type = "cuda"
    supports_float64 = False

    @override
    def unsupported(self, device_type: str, dtype: torch.dtype) -> str:
        return super().unsupported(self.device_type if interpreted() else device_type, dtype)

    @override
    def too_many_states(self, num_states: int) -> str:
        return (
            f"{num_states} states a channel; this kernel holds at most {MAX_STATES} in registers"
            if num_states > MAX_STATES
            else ""
        )

    @override
    def description(self) -> str:
        import triton

        return f"Triton {triton.__version__}" + (", interpreted" if interpreted() else "")

    @override
    def selective_scan(self, inputs: ScanInputs, reverse: bool) -> Tensor:
        return _scan([inputs], None, reverse)[0]

    @override
    def carried_scan(
        self, inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int | None
    ) -> ScanStates:
        _refuse_forward_mode()
        return triton_scan.carried_scan(inputs, reverse, initial, block)

    @override
    def restarted_scan(
        self, inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int
    ) -> Tensor:
        _refuse_forward_mode()
        return triton_scan.restarted_scan(inputs, reverse, initial, block)

    @override
    def gated_scan(self, inputs: ScanInputs, z: Tensor) -> Tensor:
        return _scan([inputs], z, False)[0]  # the scan's output is never written without its gate

    @override
    def scans(self, forward: ScanInputs, backward: ScanInputs) -> tuple[Tensor, Tensor]:
        pairs = zip((*forward[:2], *forward[3:5]), (*backward[:2], *backward[3:5]), strict=True)
        if any(
            x.dtype != other.dtype for x, other in pairs
        ):  # one kernel reads the same types in both directions
            return super().scans(forward, backward)
        y, y_rev = _scan([forward, backward], None, False)
        return y, y_rev

    @override
    def short_conv(self, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Tensor:
        if weight.shape[1] > MAX_TAPS:
            return super().short_conv(x, weight.to(x.dtype), bias.to(x.dtype), reverse)
        filters = [(weight, bias), None]
        y = short_convs(x, *(reversed(filters) if reverse else filters))
        return y[0]

    @override
    def block_conv(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        reverse: bool,
        initial: Tensor | None,
        block: int,
    ) -> Tensor:
        if weight.shape[1] > MAX_TAPS:
            return super().block_conv(
                x, weight.to(x.dtype), bias.to(x.dtype), reverse, initial, block
            )
        return block_conv(x, weight, bias, reverse, initial, block)

    @override
    def short_convs(
        self, x: Tensor, forward: tuple[Tensor, Tensor], backward: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        taps, taps_rev = forward[0], backward[0]
        if max(taps.shape[1], taps_rev.shape[1]) > MAX_TAPS or taps.shape != taps_rev.shape:
            return super().short_convs(x, forward, backward)
        y, y_rev = short_convs(x, forward, backward)  # x is read once
        return y, y_rev

    @override
    def gated_sum(self, y: Tensor, y_rev: Tensor | None, z: Tensor) -> Tensor:
        return gate(y, y_rev, z)

    @override
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.shape[-1] > MAX_WIDTH:
            return super().rms_norm(x, weight, eps)
        return norm(x, None, weight, eps, x.dtype)[1]

    @override
    def add_norm(
        self, x: Tensor, added: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        if x.shape[-1] > MAX_WIDTH:
            return super().add_norm(x, added, weight, eps)
        device = (
            x.device.type
        )  # under autocast the norm is written in the type that the product after it reads
        dtype = (
            torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        )
        total, out, _ = norm(x, added, weight, eps, dtype)
        return (x if added is None else total), out


def _scan(directions: list[ScanInputs], z: Tensor | None, reverse: bool) -> list[Tensor]:
    _refuse_forward_mode()
    return triton_scan.scan(directions, z, reverse)


def _refuse_forward_mode() -> None:
    if forward_ad._current_level >= 0:  # a custom operator would silently count as a constant
        raise NotImplementedError(
            "the Triton scan has no forward-mode derivative (jvp); set scan=reference"
        )
