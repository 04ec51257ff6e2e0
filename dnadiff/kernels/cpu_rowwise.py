"""The gated sum, the norm and the narrow linear map in C++, as custom operators of the C++ back
end.

In PyTorch these are bound by memory: the gate alone is five passes over arrays larger than the
caches. Each operator here reads its inputs once, forward and backward, without copying them, and
saves nothing but its inputs for the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from dnadiff.kernels.native import library, pointers, rows, save_inputs
from dnadiff.kernels.operator import cpu_operator

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


def _gate_grad(ctx, dout):
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


def _norm_save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2], output[1])
    ctx.set_materialize_grads(False)


def _norm_grad(ctx, dout, _):
    return (None,) * 3 if dout is None else (*_norm_backward(dout, *ctx.saved_tensors), None)


rms_norm.register_autograd(_norm_grad, setup_context=_norm_save)


class AddNorm(torch.autograd.Function):
    """x + added and its norm of (Bt, L, E), in one pass over memory each way."""

    @staticmethod
    @override
    def forward(ctx, x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
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
    def backward(ctx, dtotal: Tensor | None, dout: Tensor | None) -> tuple[Tensor | None, ...]:
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
