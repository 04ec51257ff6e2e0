"""The convolutions, the gate, the norm and the loss over a vocabulary as custom operators of
Triton, and the Triton back end.

Half precision is read and written unchanged and is float32 inside the kernels.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from dnadiff.networks.kernels import triton_scan
from dnadiff.networks.kernels.backend import (
    Backend,
    OptionalTensor,
    ScanInputs,
    ScanStates,
    Walk,
    gate_gradient,
)
from dnadiff.networks.kernels.native import operator, save_inputs
from dnadiff.networks.kernels.triton_scan import (
    alignment,
    device_of,
    interpreted,
    no_second_derivative,
)

MAX_TAPS, MAX_WIDTH = 8, 8192  # of a filter, and of a normalized row
_TILE, _CONV_TILE = 1024, 256  # elements per program: 32 per thread, 8 where it keeps ten sums
_TILES = 16  # tiles per program where it keeps sums
# columns of a program of the loss: 8 for each thread, one vector of 16 bytes in half precision
_LOSS_TILE = 2048
_LOSS_WARPS = 8


def _kernel(name: str) -> Any:
    return getattr(triton_scan.load_kernels("triton_row_kernels"), name)


def _shape(E: int, tile: int = _TILE) -> dict[str, int]:
    """Positions and channels of a tile: half as many if rows do not start at multiples of 16,
    because short vectors need more addresses."""
    tile = tile // 2 if E % 16 else tile
    block = min(256, tile, max(16, 1 << (E - 1).bit_length()))
    return {"TT": tile // block, "BE": block}


def _launch(
    name: str, x: Tensor, tensors: list[Tensor], strides: dict[str, int], shape: dict[str, int],
    positions: int, **options: int,
) -> None:  # fmt: skip
    """Launch a kernel on `positions` of x (Bt, L, E), in tiles."""
    if isinstance(x, FakeTensor):
        return
    Bt, L, E = x.shape
    spans = -(-positions // (shape["TT"] * options.get("TILES", 1)))
    with device_of(x):
        _kernel(name)[(-(-E // shape["BE"]) * spans * Bt,)](
            *tensors, L, E, spans, **strides, **alignment(E, *strides.values()), **shape,
            **options, num_warps=1,
        )  # fmt: skip


def _strided(**tensors: Tensor) -> tuple[list[Tensor], dict[str, int]]:
    """Tensors (Bt, L, E), copied only if their channels are not contiguous, and by their names the
    strides of batch and position."""
    found = []
    strides = {}
    for name, x in tensors.items():
        x = x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()
        found.append(x)
        strides[f"{name}_b"], strides[f"{name}_l"], _ = x.stride()
    return found, strides


@operator("short_convs")
def convs(
    x: Tensor, w0: OptionalTensor, bias0: OptionalTensor, w1: OptionalTensor, bias1: OptionalTensor,
    given: OptionalTensor, block: int,
) -> list[Tensor]:  # fmt: skip
    """The convolutions of x whose filters (K, E) and biases are given: forward (0), backward (1).

    If `block` is not 0, of every `block` positions alone, one direction with `given` (Bt, blocks, K
    - 1, E) inputs before or after them.
    """
    filters, near, strides, options = _conv_arguments(x, w0, bias0, w1, bias1, given, block)
    y = [x.new_empty(x.shape) for w in (w0, w1) if w is not None]
    tensors = [*filters, near, y[0], y[-1]]
    shape = _shape(x.shape[2])
    _launch("convolve", x, tensors, strides, shape, x.shape[1], **options)
    return y


def _conv_arguments(
    x: Tensor, w0: OptionalTensor, bias0: OptionalTensor, w1: OptionalTensor, bias1: OptionalTensor,
    given: OptionalTensor, block: int,
) -> tuple[list[Tensor], Tensor, dict[str, int], dict[str, int]]:  # fmt: skip
    """x with both filters and biases, of which any may stand for one that is missing; the inputs
    given to blocks; strides; and options."""
    (x,), strides = _strided(x=x)
    some = w1 if w0 is None else w0
    near = x if given is None else given.contiguous()
    assert some is not None
    filters = [some if w is None else w for w in (w0, w1, bias0, bias1)]
    strides["given_b"] = 0 if given is None else near.stride(0)
    options = {"block": block, "K": some.shape[0], "AHEAD": w0 is not None, "BACK": w1 is not None}
    options |= {"BLOCKS": block > 0, "GIVEN": given is not None}
    return [x, *filters], near, strides, options


@operator("short_convs_backward")
def _convs_backward(
    dy: list[Tensor], x: Tensor, w0: OptionalTensor, bias0: OptionalTensor, w1: OptionalTensor,
    bias1: OptionalTensor, given: OptionalTensor,
    block: int,
) -> list[Tensor]:  # fmt: skip
    """dx, the sums for weights and biases, and the gradient of `given` if there is one."""
    if len(dy) == 1 or dy[0].stride() != dy[1].stride() or dy[0].stride(2) != 1:
        dy = [d.contiguous() for d in dy]
    filters, near, strides, options = _conv_arguments(x, w0, bias0, w1, bias1, given, block)
    strides["dy_b"], strides["dy_l"], _ = dy[0].stride()
    (Bt, L, E), K, shape, tiles = x.shape, options["K"], _shape(x.shape[2], _CONV_TILE), 4 * _TILES
    dx = x.new_empty(Bt, L, E)
    spans = -(-L // (shape["TT"] * tiles))
    partial = x.new_empty(Bt * spans, 2, K + 1, E, dtype=torch.float32)
    tensors = [*filters, near, dy[0], dy[-1], dx, partial]
    _launch("convolve_backward", x, tensors, strides, shape, L, TILES=tiles, **options)
    if given is None:
        return [dx, partial.sum(0)]
    dgiven = given.new_empty(given.shape)
    rows = given.shape[1] * (K - 1)
    back = w0 is None
    x_, ahead, behind, bias, bias_rev = filters
    one = (behind, bias_rev) if back else (ahead, bias)
    tensors = [x_, *one, near, dy[0], dgiven]
    del strides["given_b"]
    options = {"block": block, "rows": rows, "K": K, "SIGN": -1 if back else 1}
    _launch("convolve_given", x, tensors, strides, shape, rows, **options)
    return [dx, partial.sum(0), dgiven]


def _convs_grad(ctx: Any, grads: list[OptionalTensor]) -> tuple[OptionalTensor, ...]:
    x, w0, _, w1, _, _ = ctx.saved_tensors
    dy = [torch.zeros_like(x) if g is None else g for g in grads]
    dx, sums, *dgiven = _convs_backward(dy, *ctx.saved_tensors, *ctx.options)
    filters = [
        None if w is None else part
        for w, both in zip((w0, w1), sums, strict=True)
        for part in (both[:-1], both[-1])
    ]
    return dx, *filters, *(dgiven or [None]), None


convs.register_autograd(_convs_grad, setup_context=save_inputs)
_convs_backward.register_autograd(no_second_derivative)


@operator("gate")
def gate(y: Tensor, y_rev: OptionalTensor, z: Tensor) -> Tensor:
    """(y + y_rev) silu(z), (Bt, L, E)."""
    tensors, strides = _strided(y=y, rev=y if y_rev is None else y_rev, z=z)
    out = y.new_empty(y.shape)
    shape = _shape(y.shape[2])
    both = y_rev is not None
    _launch("gate", y, [*tensors, out], strides, shape, y.shape[1], BOTH=both)
    return out


@operator("gate_backward")
def _gate_backward(
    dout: Tensor, y: Tensor, y_rev: OptionalTensor, z: Tensor
) -> tuple[Tensor, Tensor]:
    # dout stands for a missing y_rev
    tensors, strides = _strided(dout=dout, y=y, rev=dout if y_rev is None else y_rev, z=z)
    dy = y.new_empty(y.shape)
    dz = z.new_empty(z.shape)
    shape = _shape(y.shape[2])
    both = y_rev is not None
    _launch("gate_backward", y, [*tensors, dy, dz], strides, shape, y.shape[1], BOTH=both)
    return dy, dz


gate.register_autograd(gate_gradient(_gate_backward), setup_context=save_inputs)
_gate_backward.register_autograd(no_second_derivative)


@operator("add_norm")
def norm(
    x: Tensor, added: OptionalTensor, weight: Tensor, eps: float, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """x + added (empty if `added` is None), its RMS norm times weight in `out_dtype`, and 1 / rms
    of each row."""
    x, D = x.contiguous(), x.shape[-1]
    rows = x.numel() // D
    tile = _norm_tile(D)
    wide = x.dtype if added is None else torch.promote_types(x.dtype, added.dtype)
    total = x.new_empty((0,) if added is None else x.shape, dtype=wide)
    out = x.new_empty(x.shape, dtype=out_dtype)
    scale = x.new_empty(rows, dtype=torch.float32)
    if not isinstance(x, FakeTensor):
        other = x if added is None else added.contiguous()
        with device_of(x):
            _kernel("add_norm")[(-(-rows // tile["TT"]),)](
                x, other, weight.contiguous(), total, out, scale, rows, D, eps, **alignment(D),
                **tile, ADD=added is not None,
            )  # fmt: skip
    return total, out, scale


@operator("add_norm_backward")
def _norm_backward(
    dout: Tensor, dtotal: OptionalTensor, total: Tensor, weight: Tensor, scale: Tensor,
    x_dtype: torch.dtype, added_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dout, total, D = dout.contiguous(), total.contiguous(), total.shape[-1]
    rows = total.numel() // D
    tile = _norm_tile(D)
    programs = -(-rows // (tile["TT"] * _TILES))
    dx = total.new_empty(total.shape, dtype=x_dtype)
    dadded = total.new_empty(
        (0,) if added_dtype is None else total.shape, dtype=added_dtype or x_dtype
    )
    partial = total.new_empty(programs, D, dtype=torch.float32)
    if not isinstance(total, FakeTensor):
        later = dout if dtotal is None else dtotal.contiguous()
        with device_of(total):
            _kernel("add_norm_backward")[(programs,)](
                dout, later, total, weight.contiguous(), scale, dx, dadded, partial, rows, D,
                **alignment(D), **tile, TILES=_TILES, ADD=added_dtype is not None,
                LATER=dtotal is not None,
            )  # fmt: skip
    return dx, dadded, partial.sum(0).to(weight.dtype)


def _norm_tile(D: int) -> dict[str, int]:
    block = 1 << (D - 1).bit_length()
    return {"BD": block, "TT": max(1, _TILE // block), "num_warps": max(1, block // 1024)}


def _norm_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, added, weight, *_ = inputs
    ctx.save_for_backward(x if added is None else output[0], weight, output[2])
    ctx.dtypes = x.dtype, None if added is None else added.dtype
    ctx.set_materialize_grads(False)


def _norm_grad(
    ctx: Any, dtotal: OptionalTensor, dout: OptionalTensor, _: object
) -> tuple[OptionalTensor, ...]:
    x_dtype, added_dtype = ctx.dtypes
    dtotal = None if added_dtype is None else dtotal
    if dout is not None:
        dx, dadded, dw = _norm_backward(dout, dtotal, *ctx.saved_tensors, *ctx.dtypes)
        return dx, None if added_dtype is None else dadded, dw, None, None
    if dtotal is None:
        return (None,) * 5
    return dtotal.to(x_dtype), dtotal.to(added_dtype), None, None, None


norm.register_autograd(_norm_grad, setup_context=_norm_save)
_norm_backward.register_autograd(no_second_derivative)


def _loss_tile(columns: int) -> int:
    return min(_LOSS_TILE, max(16, 1 << (columns - 1).bit_length()))


def add_log_sum(
    logits: Tensor, bias: OptionalTensor, ids: Tensor, first: int, log_sum: Tensor, picked: Tensor
) -> None:
    """As `add_log_sum` of `log_sum`; rows of `logits` need not follow each other."""
    (M, N), K = logits.shape, ids.shape[1]
    with device_of(logits):
        _kernel("add_log_sum")[(M,)](
            logits, logits if bias is None else bias, ids, log_sum, picked, N, logits.stride(0),
            first, K,
            BN=_loss_tile(N), BK=1 << max(0, K - 1).bit_length(), BIAS=bias is not None,
            num_warps=_LOSS_WARPS,
        )  # fmt: skip


def logits_gradient(
    logits: Tensor, bias: OptionalTensor, ids: Tensor, first: int, log_sum: Tensor,
    d_log_sum: Tensor, d_picked: Tensor,
) -> None:  # fmt: skip
    """As `logits_gradient` of `log_sum`; rows of `logits` need not follow each other."""
    (M, N), K, tile = logits.shape, ids.shape[1], _loss_tile(logits.shape[1])
    with device_of(logits):
        _kernel("logits_gradient")[(M * -(-N // tile),)](
            logits, logits if bias is None else bias, ids, log_sum, d_log_sum, d_picked, N,
            logits.stride(0), first,
            K=K, BN=tile, BIAS=bias is not None, num_warps=_LOSS_WARPS,
        )  # fmt: skip


class TritonBackend(Backend):
    """float32, bfloat16 or float16 tensors on a CUDA device. Products are PyTorch's."""

    device_type = "cuda"
    keeps_dtype = True
    max_states = 64

    def unsupported(self, device_type: str, dtype: torch.dtype) -> str:
        return super().unsupported(self.device_type if interpreted() else device_type, dtype)

    def description(self) -> str:
        import triton

        return f"Triton {triton.__version__}" + (", interpreted" if interpreted() else "")

    def _scan(
        self, directions: list[ScanInputs], z: OptionalTensor, walk: Walk
    ) -> tuple[list[Tensor], ScanStates]:
        if forward_ad._current_level >= 0:  # a custom operator would silently count as a constant
            raise NotImplementedError(
                "the Triton scan has no forward-mode derivative (jvp); set scan=reference"
            )
        return triton_scan.scan(directions, z, walk)

    def scan(self, inputs: ScanInputs, walk: Walk) -> ScanStates:
        return self._scan([inputs], None, walk)[1]

    def gated_scan(self, inputs: ScanInputs, z: Tensor) -> Tensor:
        # the scan's output is never written without its gate
        return self._scan([inputs], z, Walk())[1].y

    def scans(self, forward: ScanInputs, backward: ScanInputs) -> tuple[Tensor, Tensor]:
        large = zip((*forward[:2], *forward[3:5]), (*backward[:2], *backward[3:5]), strict=True)
        # one kernel reads the same types in both directions
        if any(x.dtype != other.dtype for x, other in large):
            return super().scans(forward, backward)
        y, y_rev = self._scan([forward, backward], None, Walk())[0]
        return y, y_rev

    def short_conv(
        self, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool = False,
        near: OptionalTensor = None, block: int = 0,
    ) -> Tensor:  # fmt: skip
        if weight.shape[1] > MAX_TAPS:
            filters = weight.to(x.dtype), bias.to(x.dtype)
            return super().short_conv(x, *filters, reverse, near, block)
        taps = _filter(weight, bias)
        none = (None, None)
        both = (*none, *taps) if reverse else (*taps, *none)
        return convs(x, *both, near if weight.shape[1] > 1 else None, block)[0]

    def short_convs(
        self, x: Tensor, forward: Sequence[Tensor], backward: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        if forward[0].shape[1] > MAX_TAPS or forward[0].shape != backward[0].shape:
            return super().short_convs(x, forward, backward)
        y, y_rev = convs(x, *_filter(*forward), *_filter(*backward), None, 0)  # x is read once
        return y, y_rev

    def gated_sum(self, y: Tensor, y_rev: OptionalTensor, z: Tensor) -> Tensor:
        return gate(y, y_rev, z)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.shape[-1] > MAX_WIDTH:
            return super().rms_norm(x, weight, eps)
        return norm(x, None, weight, eps, x.dtype)[1]

    def add_norm(
        self, x: Tensor, added: OptionalTensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        if x.shape[-1] > MAX_WIDTH:
            return super().add_norm(x, added, weight, eps)
        # under autocast the norm is written in the type that the product after it reads
        device = x.device.type
        dtype = weight.dtype
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else dtype
        total, out, _ = norm(x, added, weight, eps, dtype)
        return (x if added is None else total), out


def _filter(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Both as the kernels read them: float32, channels contiguous."""
    return weight.float().mT.contiguous(), bias.float().contiguous()
