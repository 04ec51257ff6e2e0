"""The C++ back end, and the convolution as a custom operator that autograd and torch.compile
understand.

Computes in float32. The scan is in `cpu_scan`, whole mixers are in `cpu_mixer`,
operators on single positions are in `cpu_rowwise`, matrix products in `cpu_linear`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from typing_extensions import override

from dnadiff.networks.kernels import cpu_mixer, cpu_scan
from dnadiff.networks.kernels.backend import MixerWay, ScanInputs, ScanStates
from dnadiff.networks.kernels.native import (
    constant_in_graphs,
    cpu_operator,
    library,
    pointers,
    rows,
    save_inputs,
)
from dnadiff.networks.kernels.portable import TorchOperations

MAX_RANK = (
    16  # of a narrow linear map: a matrix product with more columns is efficient in libraries
)


@cpu_operator("gated_sum")
def gated_sum(y: Tensor, y_rev: Tensor | None, z: Tensor) -> Tensor:
    """(y + y_rev) silu(z), (Bt, L, E)."""
    (y, y_row), (y_rev, y_rev_row), (z, z_row) = (
        rows(y),
        (None, 0) if y_rev is None else rows(y_rev),
        rows(z),
    )
    out = y.new_empty(y.shape)
    sizes = (y.shape[0] * y.shape[1], y.shape[2], y_row, y_rev_row, z_row)
    library().dnadiff_gate_forward(*pointers(y, y_rev, z, out), *sizes, torch.get_num_threads())
    return out


gated_sum.register_fake(lambda y, y_rev, z: y.new_empty(y.shape))


@cpu_operator("gated_sum_backward")
def _gate_backward(
    dout: Tensor, y: Tensor, y_rev: Tensor | None, z: Tensor
) -> tuple[Tensor, Tensor]:
    (y, y_row), (y_rev, y_rev_row), (z, z_row) = (
        rows(y),
        (None, 0) if y_rev is None else rows(y_rev),
        rows(z),
    )
    dout, dout_row = rows(dout)
    dy, dz = y.new_empty(y.shape), y.new_empty(y.shape)
    sizes = (y.shape[0] * y.shape[1], y.shape[2], dout_row, y_row, y_rev_row, z_row)
    library().dnadiff_gate_backward(
        *pointers(dout, y, y_rev, z, dy, dz), *sizes, torch.get_num_threads()
    )
    return dy, dz


_gate_backward.register_fake(lambda dout, y, y_rev, z: (y.new_empty(y.shape), y.new_empty(y.shape)))


def _gate_grad(ctx: Any, dout: Any) -> Any:
    y, y_rev, z = ctx.saved_tensors
    dy, dz = _gate_backward(dout, y, y_rev, z)
    return dy, None if y_rev is None else dy, dz


gated_sum.register_autograd(_gate_grad, setup_context=save_inputs)


@cpu_operator("rms_norm")
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x / rms(x) * weight of x (Bt, L, E), and 1 / rms(x) (Bt, L) for the backward pass."""
    (x, x_row), weight = rows(x), weight.contiguous()
    out, scale = x.new_empty(x.shape), x.new_empty(x.shape[:2])
    sizes = (x.shape[0] * x.shape[1], x.shape[2], x_row)
    library().dnadiff_norm_forward(
        *pointers(x, None, weight, None, out, scale), *sizes, eps, torch.get_num_threads()
    )
    return out, scale


rms_norm.register_fake(lambda x, weight, eps: (x.new_empty(x.shape), x.new_empty(x.shape[:2])))


@cpu_operator("rms_norm_backward")
def _norm_backward(dout: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return _norm_gradients(dout, None, x, weight, scale)


def _norm_gradients(
    dout: Tensor, dtotal: Tensor | None, x: Tensor, weight: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of x and weight; `dtotal`, contiguous, is added to the first."""
    (dout, dout_row), (x, x_row), weight, threads = (
        rows(dout),
        rows(x),
        weight.contiguous(),
        torch.get_num_threads(),
    )
    dx, sums = x.new_empty(x.shape), x.new_zeros(threads, x.shape[2])
    sizes = (x.shape[0] * x.shape[1], x.shape[2], dout_row, x_row)
    library().dnadiff_norm_backward(
        *pointers(dout, dtotal, x, weight, scale.contiguous(), dx, sums), *sizes, threads
    )
    return dx, sums.sum(0)


_norm_backward.register_fake(
    lambda dout, x, weight, scale: (x.new_empty(x.shape), weight.new_empty(weight.shape))
)


def _norm_save(ctx: Any, inputs: Any, output: Any) -> Any:
    ctx.save_for_backward(*inputs[:2], output[1])
    ctx.set_materialize_grads(False)


def _norm_grad(ctx: Any, dout: Any, _: Any) -> Any:
    return (None,) * 3 if dout is None else (*_norm_backward(dout, *ctx.saved_tensors), None)


rms_norm.register_autograd(_norm_grad, setup_context=_norm_save)


class AddNorm(torch.autograd.Function):
    """x + added and its norm of (Bt, L, E), in one pass over memory each way."""

    @staticmethod
    @override
    def forward(
        ctx: Any, x: Tensor, added: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        x, added, weight = x.contiguous(), added.contiguous(), weight.contiguous()
        (Bt, L, E), total, out, scale = (
            x.shape,
            torch.empty_like(x),
            torch.empty_like(x),
            x.new_empty(x.shape[:2]),
        )
        library().dnadiff_norm_forward(
            *pointers(x, added, weight, total, out, scale),
            Bt * L,
            E,
            E,
            eps,
            torch.get_num_threads(),
        )
        ctx.save_for_backward(total, weight, scale)
        ctx.set_materialize_grads(False)
        return total, out

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, dtotal: Tensor | None, dout: Tensor | None) -> tuple[Tensor | None, ...]:
        if dout is None:
            return dtotal, dtotal, None, None
        dx, dweight = _norm_gradients(
            dout, None if dtotal is None else dtotal.contiguous(), *ctx.saved_tensors
        )
        return dx, dx, dweight, None


@cpu_operator("narrow_linear")
def narrow_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T, (Bt, L, E), of x (Bt, L, R) and weight (E, R); R at most `MAX_RANK`."""
    (x, x_row), weight, (Bt, L, R), E = rows(x), weight.contiguous(), x.shape, weight.shape[0]
    out = x.new_empty(Bt, L, E)
    library().dnadiff_product(
        *pointers(x, weight, out), Bt * L, R, E, x_row, 1, R, E, False, torch.get_num_threads()
    )
    return out


narrow_linear.register_fake(lambda x, weight: x.new_empty(*x.shape[:2], weight.shape[0]))


@cpu_operator("narrow_linear_backward")
def _narrow_backward(dout: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    (dout, dout_row), (x, x_row), weight, (Bt, L, R), E = (
        rows(dout),
        rows(x),
        weight.contiguous(),
        x.shape,
        weight.shape[0],
    )
    threads = torch.get_num_threads()
    dx, sums = x.new_empty(x.shape), x.new_zeros(threads, R, E)
    library().dnadiff_product(
        *pointers(dout, weight, dx), Bt * L, E, R, dout_row, R, 1, R, False, threads
    )
    library().dnadiff_outer_sum(*pointers(x, dout, sums), Bt * L, R, E, x_row, dout_row, threads)
    return dx, sums.sum(0).T.contiguous()


_narrow_backward.register_fake(
    lambda dout, x, weight: (x.new_empty(x.shape), weight.new_empty(weight.shape))
)


narrow_linear.register_autograd(
    lambda ctx, dout: _narrow_backward(dout, *ctx.saved_tensors), setup_context=save_inputs
)


SMALL = 2**17  # entries of a weight whose panels fit into a core's cache
_SUMS = 2**18  # up to this size the gradient of a weight fits into one core's cache


@constant_in_graphs
def onednn_wins() -> bool:
    """Whether oneDNN is known to be faster on this processor, and works. Not decided by timing:
    every run on a machine makes the same choice."""
    return _onednn_wins()


@cache
def _onednn_wins() -> bool:
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or "AuthenticAMD" not in _processor():
        return False
    try:
        a, b = (
            torch.ones(75, 47, device="cpu"),
            torch.full((75, 47), 0.5, device="cpu").cumsum(1),
        )  # small sums, exact in float32
        products = (_product(a, b), b.sum(1)), (_outer_sum(a, b, 2), b.sum(0).expand(47, 47))
        return all(bool((ours == expected).all()) for ours, expected in products)
    except Exception:
        # The operator is not part of PyTorch's public API; PyTorch's choice is good enough.
        return False


def _processor() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()[:4096]
    except OSError:
        return ""


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a b^T of two matrices."""
    return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")


def is_small(weight: Tensor) -> bool:
    """Whether the C++ kernel multiplies by this weight."""
    return weight.numel() <= SMALL


def _small_product(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T, (..., E), of x (..., R) and weight (E, R) of any strides."""
    (E, R), (flat, row) = weight.shape, rows(x.reshape(1, -1, x.shape[-1]))
    out = x.new_empty(*x.shape[:-1], E)
    sizes = (flat.shape[1], R, E, row, weight.stride(1), weight.stride(0), E)
    library().dnadiff_product(*pointers(flat, weight, out), *sizes, False, torch.get_num_threads())
    return out


def _outer_sum(a: Tensor, b: Tensor, threads: int) -> Tensor:
    """a^T b of two matrices with the same number of rows."""
    (a, a_row), (b, b_row) = rows(a[None]), rows(b[None])
    sums = a.new_zeros(threads, a.shape[2], b.shape[2])
    library().dnadiff_outer_sum(
        *pointers(a, b, sums), a.shape[1], a.shape[2], b.shape[2], a_row, b_row, threads
    )
    return sums.sum(0)


@cpu_operator("linear")
def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T, (..., E), of x (..., R) and weight (E, R); by oneDNN if the weight is large."""
    if is_small(weight):
        return _small_product(x, weight)
    return _product(x.flatten(0, -2), weight).view(*x.shape[:-1], weight.shape[0])


linear.register_fake(lambda x, weight: x.new_empty(*x.shape[:-1], weight.shape[0]))


@cpu_operator("linear_backward")
def _linear_backward(dout: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    dx = (
        _small_product(dout, weight.t())
        if is_small(weight)
        else _product(dout.flatten(0, -2), weight.t()).view(x.shape)
    )
    dout, x_rows = dout.flatten(0, -2), x.flatten(0, -2)
    threads = torch.get_num_threads()
    if weight.numel() > _SUMS or (
        len(dout) < 64 * threads**2 and onednn_wins()
    ):  # each thread has its own sums, which one more pass adds
        return dx, _product(dout.t(), x_rows.t())
    return dx, _outer_sum(dout, x_rows, threads)


_linear_backward.register_fake(
    lambda dout, x, weight: (x.new_empty(x.shape), weight.new_empty(weight.shape))
)


linear.register_autograd(
    lambda ctx, dout: _linear_backward(dout, *ctx.saved_tensors), setup_context=save_inputs
)


_MAX_TAPS = 8  # of a filter in C++


class CppBackend(TorchOperations):
    """float32 tensors on the CPU, in C++ compiled for this processor."""

    device_type = "cpu"
    supports_float64 = False
    fused_add_norm = True
    fused_two_streams = True

    @override
    def description(self) -> str:
        """The vector instructions in use, and the library of matrix products if it is not PyTorch's
        choice."""
        return library().dnadiff_vectors().decode() + (
            ", products by oneDNN" if onednn_wins() else ""
        )

    @override
    def compiler(self) -> str:
        return library().dnadiff_compiler().decode()

    @override
    def selective_scan(self, inputs: ScanInputs, reverse: bool) -> Tensor:
        _refuse_forward_mode()
        return cpu_scan.plain_scan(inputs, reverse)

    @override
    def carried_scan(
        self, inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int | None
    ) -> ScanStates:
        _refuse_forward_mode()
        return cpu_scan.carried_scan(inputs, reverse, initial, block)

    @override
    def restarted_scan(
        self, inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int
    ) -> Tensor:
        _refuse_forward_mode()
        return cpu_scan.restarted_scan(inputs, reverse, initial, block)

    @override
    def short_conv(self, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Tensor:
        return (
            _conv(x, weight, bias, reverse, None, 0)
            if weight.shape[1] <= _MAX_TAPS
            else super().short_conv(x, weight, bias, reverse)
        )

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
        if weight.shape[1] > _MAX_TAPS:
            return super().block_conv(x, weight, bias, reverse, initial, block)
        if initial is not None and reverse:  # the operator counts in the order of the walk
            initial = initial.flip(1, 2)
        return _conv(x, weight, bias, reverse, initial if weight.shape[1] > 1 else None, block)

    @override
    def gated_sum(self, y: Tensor, y_rev: Tensor | None, z: Tensor) -> Tensor:
        return gated_sum(y, y_rev, z)

    @override
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x.reshape(1, -1, x.shape[-1]), weight, eps)[0].view(x.shape)

    @override
    def add_norm(
        self, x: Tensor, added: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        if added is None or torch.compiler.is_compiling() or forward_ad._current_level >= 0:
            return super().add_norm(x, added, weight, eps)
        width = x.shape[-1]
        total, out = AddNorm.apply(
            x.reshape(1, -1, width), added.reshape(1, -1, width), weight, eps
        )
        return total.view(x.shape), out.view(x.shape)

    @override
    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return linear(x, weight) if is_small(weight) or onednn_wins() else F.linear(x, weight)

    @override
    def linear_halves(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        if not (is_small(weight) or onednn_wins()):
            return super().linear_halves(x, weight)
        first, second = weight.chunk(
            2
        )  # two products, so that their gradients need not be copied into one array
        return linear(x, first), linear(x, second)

    @override
    def fuses_mixer(self, hidden: Tensor, in_proj: Tensor, ways: Sequence[MixerWay]) -> bool:
        return (
            cpu_mixer.fits(in_proj, ways)
            and forward_ad._current_level < 0
            and not torch.compiler.is_compiling()
        )

    @override
    def mixer(
        self,
        hidden: Tensor,
        in_proj: Tensor,
        out_proj: Tensor,
        ways: Sequence[MixerWay],
        valid: Tensor | None,
    ) -> Tensor:
        run = cpu_mixer.mixer if self.fuses_mixer(hidden, in_proj, ways) else super().mixer
        return run(hidden, in_proj, out_proj, ways, valid)

    @override
    def continued_mixer(
        self,
        hidden: Tensor,
        in_proj: Tensor,
        out_proj: Tensor,
        ways: Sequence[MixerWay],
        past: Tensor | None,
        state: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        fused = not torch.is_grad_enabled() and self.fuses_mixer(hidden, in_proj, ways)
        return (cpu_mixer.continued_mixer if fused else super().continued_mixer)(
            hidden, in_proj, out_proj, ways, past, state
        )

    @override
    def two_stream_mixer(
        self, noised: Tensor, clean: Tensor, in_proj: Tensor, out_proj: Tensor,
        ways: Sequence[MixerWay], block: int, valid: Tensor | None,
        clean_output: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        run = (
            cpu_mixer.two_stream_mixer
            if self.fuses_mixer(noised, in_proj, ways)
            else super().two_stream_mixer
        )
        return run(noised, clean, in_proj, out_proj, ways, block, valid, clean_output)

    @override
    def narrow_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return narrow_linear(x, weight) if weight.shape[1] <= MAX_RANK else F.linear(x, weight)


def _refuse_forward_mode() -> None:
    if forward_ad._current_level >= 0:  # a custom operator would silently count as a constant
        raise NotImplementedError(
            "the C++ scan has no forward-mode derivative (jvp); set scan=reference"
        )


@cpu_operator("short_conv")
def _conv(
    x: Tensor, weight: Tensor, bias: Tensor, reverse: bool, near: Tensor | None, block: int
) -> Tensor:
    """`near` (Bt, blocks, K - 1, E) are the inputs before each block of `block` positions, 0 for
    the whole sequence."""
    (x, row), weight, bias = rows(x), weight.contiguous(), bias.contiguous()
    y, near = x.new_empty(x.shape), None if near is None else near.contiguous()
    arrays = pointers(x, weight, bias, near, y)
    library().dnadiff_conv_forward(
        *arrays, *x.shape, weight.shape[1], block, row, reverse, torch.get_num_threads()
    )
    return y


_conv.register_fake(lambda x, weight, bias, reverse, near, block: x.new_empty(x.shape))


@cpu_operator("short_conv_backward")
def _conv_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool, near: Tensor | None,
    block: int
) -> list[Tensor]:  # fmt: skip
    (dy, dy_row), (x, row), weight, bias = rows(dy), rows(x), weight.contiguous(), bias.contiguous()
    (E, K), threads, near = (
        weight.shape,
        torch.get_num_threads(),
        None if near is None else near.contiguous(),
    )
    dx, sums, dnear = (
        x.new_empty(x.shape),
        x.new_zeros(threads, K + 1, E),
        None if near is None else x.new_empty(near.shape),
    )
    arrays = pointers(dy, x, weight, bias, near, dx, dnear, sums)
    library().dnadiff_conv_backward(*arrays, *x.shape, K, block, dy_row, row, reverse, threads)
    sums = sums.sum(0)
    return [dx, sums[:K].T.contiguous(), sums[K].clone(), *([] if dnear is None else [dnear])]


@_conv_backward.register_fake
def _(dy: Any, x: Any, weight: Any, bias: Any, reverse: Any, near: Any, block: Any) -> Any:
    return [
        tensor.new_empty(tensor.shape) for tensor in (x, weight, bias, near) if tensor is not None
    ]


def _conv_save(ctx: Any, inputs: Any, output: Any) -> Any:
    *tensors, ctx.reverse, near, ctx.block = inputs
    ctx.save_for_backward(*tensors, near)


def _conv_grad(ctx: Any, dy: Any) -> Any:
    *tensors, near = ctx.saved_tensors
    dx, dweight, dbias, *dnear = _conv_backward(dy, *tensors, ctx.reverse, near, ctx.block)
    return dx, dweight, dbias, None, *(dnear or [None]), None


_conv.register_autograd(_conv_grad, setup_context=_conv_save)
