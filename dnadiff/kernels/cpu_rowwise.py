"""The gated sum, the norm and the narrow linear map in C++, as custom operators; the part of `cpu` that looks at single positions.

PyTorch spends its time here on memory: the gate alone is five passes over arrays larger than the caches. Each operator
reads its inputs once, forward and backward, where they lie, and keeps nothing but its inputs for the backward pass.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dnadiff.kernels.native import library, pointers, rows

_NARROW = 16  # more columns than this are a matrix product that libraries do well


def gated_sum(y: Tensor, y_rev: Tensor | None, z: Tensor) -> Tensor:
    """See `dnadiff.kernels.gated_sum`; float32 tensors."""
    return _gate(y, y_rev, z)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `dnadiff.kernels.rms_norm`; float32 tensors."""
    return _norm(x.reshape(1, -1, x.shape[-1]), weight, eps)[0].view(x.shape)


def narrow_linear(x: Tensor, weight: Tensor) -> Tensor:
    """See `dnadiff.kernels.narrow_linear`; float32 tensors."""
    return _narrow(x, weight) if weight.shape[1] <= _NARROW else F.linear(x, weight)


@torch.library.custom_op("dnadiff::gated_sum", mutates_args=(), device_types="cpu")
def _gate(y: Tensor, y_rev: Tensor | None, z: Tensor) -> Tensor:
    (y, y_row), (y_rev, y_rev_row), (z, z_row) = rows(y), (None, 0) if y_rev is None else rows(y_rev), rows(z)
    out = y.new_empty(y.shape)
    sizes = (y.shape[0] * y.shape[1], y.shape[2], y_row, y_rev_row, z_row)
    library().dnadiff_gate_forward(*pointers(y, y_rev, z, out), *sizes, torch.get_num_threads())
    return out


@_gate.register_fake
def _(y, y_rev, z):
    return y.new_empty(y.shape)


@torch.library.custom_op("dnadiff::gated_sum_backward", mutates_args=(), device_types="cpu")
def _gate_backward(dout: Tensor, y: Tensor, y_rev: Tensor | None, z: Tensor) -> tuple[Tensor, Tensor]:
    (y, y_row), (y_rev, y_rev_row), (z, z_row) = rows(y), (None, 0) if y_rev is None else rows(y_rev), rows(z)
    dout, dout_row = rows(dout)
    dy, dz = y.new_empty(y.shape), y.new_empty(y.shape)
    sizes = (y.shape[0] * y.shape[1], y.shape[2], dout_row, y_row, y_rev_row, z_row)
    library().dnadiff_gate_backward(*pointers(dout, y, y_rev, z, dy, dz), *sizes, torch.get_num_threads())
    return dy, dz


@_gate_backward.register_fake
def _(dout, y, y_rev, z):
    return y.new_empty(y.shape), y.new_empty(y.shape)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _gate_grad(ctx, dout):
    y, y_rev, z = ctx.saved_tensors
    dy, dz = _gate_backward(dout, y, y_rev, z)
    return dy, None if y_rev is None else dy, dz


_gate.register_autograd(_gate_grad, setup_context=_save)


@torch.library.custom_op("dnadiff::rms_norm", mutates_args=(), device_types="cpu")
def _norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    (x, x_row), weight = rows(x), weight.contiguous()
    out, scale = x.new_empty(x.shape), x.new_empty(x.shape[:2])
    sizes = (x.shape[0] * x.shape[1], x.shape[2], x_row)
    library().dnadiff_norm_forward(*pointers(x, weight, out, scale), *sizes, eps, torch.get_num_threads())
    return out, scale


@_norm.register_fake
def _(x, weight, eps):
    return x.new_empty(x.shape), x.new_empty(x.shape[:2])


@torch.library.custom_op("dnadiff::rms_norm_backward", mutates_args=(), device_types="cpu")
def _norm_backward(dout: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    (dout, dout_row), (x, x_row), weight, threads = rows(dout), rows(x), weight.contiguous(), torch.get_num_threads()
    dx, sums = x.new_empty(x.shape), x.new_zeros(threads, x.shape[2])
    sizes = (x.shape[0] * x.shape[1], x.shape[2], dout_row, x_row)
    library().dnadiff_norm_backward(*pointers(dout, x, weight, scale.contiguous(), dx, sums), *sizes, threads)
    return dx, sums.sum(0)


@_norm_backward.register_fake
def _(dout, x, weight, scale):
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _norm_save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2], output[1])
    ctx.set_materialize_grads(False)


def _norm_grad(ctx, dout, _):
    return (None,) * 3 if dout is None else (*_norm_backward(dout, *ctx.saved_tensors), None)


_norm.register_autograd(_norm_grad, setup_context=_norm_save)


@torch.library.custom_op("dnadiff::narrow_linear", mutates_args=(), device_types="cpu")
def _narrow(x: Tensor, weight: Tensor) -> Tensor:
    (x, x_row), weight, (Bt, L, R), E = rows(x), weight.contiguous(), x.shape, weight.shape[0]
    out = x.new_empty(Bt, L, E)
    library().dnadiff_narrow_forward(*pointers(x, weight, out), Bt * L, E, R, x_row, torch.get_num_threads())
    return out


@_narrow.register_fake
def _(x, weight):
    return x.new_empty(*x.shape[:2], weight.shape[0])


@torch.library.custom_op("dnadiff::narrow_linear_backward", mutates_args=(), device_types="cpu")
def _narrow_backward(dout: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    (dout, dout_row), (x, x_row), weight, (Bt, L, R), E = rows(dout), rows(x), weight.contiguous(), x.shape, weight.shape[0]
    threads = torch.get_num_threads()
    dx, sums = x.new_empty(x.shape), x.new_zeros(threads, R, E)
    library().dnadiff_narrow_backward(*pointers(dout, x, weight, dx, sums), Bt * L, E, R, dout_row, x_row, threads)
    return dx, sums.sum(0).T.contiguous()


@_narrow_backward.register_fake
def _(dout, x, weight):
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _narrow_grad(ctx, dout):
    return _narrow_backward(dout, *ctx.saved_tensors)


_narrow.register_autograd(_narrow_grad, setup_context=_save)
