"""The scan and the convolution in C++, as custom operators that autograd and torch.compile understand.

Computes in float32. The operations on single positions are in `cpu_rowwise`, matrix products in `cpu_linear`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dnadiff.kernels import portable
from dnadiff.kernels.cpu_linear import linear, linear_halves, onednn_wins
from dnadiff.kernels.cpu_rowwise import gated_sum, narrow_linear, rms_norm
from dnadiff.kernels.native import library, pointers, rows, vector_width

__all__ = ["detail", "gated_sum", "linear", "linear_halves", "narrow_linear", "rms_norm", "selective_scan", "short_conv", "unsupported"]

_CHUNK, _WIDEST = 32, 16  # positions between two stored states; channels of the widest vector, the unit in which work is divided
_TAPS, _ALIGNED = 8, 64  # of the longest filter; bytes, as vectors are read


def unsupported(device_type: str, dtype: torch.dtype) -> str:
    """Why these inputs cannot be computed here, or nothing."""
    if device_type != "cpu":
        return f"the tensors are on {device_type}, this kernel runs on the cpu"
    return "it computes in float32; float64 needs scan=portable" if dtype == torch.float64 else ""


def detail() -> str:
    """What the log says beside the name: the vector instructions in use, and the library of matrix products if not PyTorch's own."""
    return library().dnadiff_vectors().decode() + (", products by oneDNN" if onednn_wins() else "")


def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, delta_bias: Tensor | None, reverse: bool
) -> Tensor:
    """See `dnadiff.kernels.selective_scan`; float32 tensors.

    Raises:
        NotImplementedError: inside forward-mode differentiation, where a custom operator would silently count as a constant.
    """
    if getattr(forward_ad, "_current_level", -1) >= 0:
        raise NotImplementedError("the C++ scan has no forward-mode derivative (jvp); set scan=reference")
    inputs = (u, delta, A, B, C, D, delta_bias)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    return _scan(*inputs, reverse, keep)[0]


def short_conv(x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Tensor:
    """See `dnadiff.kernels.short_conv`; float32 tensors. A filter of more than 8 taps is left to PyTorch."""
    return (_conv if weight.shape[1] <= _TAPS else portable.short_conv)(x, weight, bias, reverse)


def _groups(batch: int, E: int, threads: int) -> int:
    """Into how many groups of channels each sequence is cut, so that `threads` equal parts of the work exist.

    Each group keeps its own sums of dB and dC, so there are no more of them than balance needs.
    """
    blocks = -(-E // _WIDEST)
    busiest = {}  # the busiest thread's share of the work, in units of the fair share
    for groups in range(1, blocks + 1):
        tasks, largest = batch * groups, -(-blocks // groups) / blocks
        busiest[groups] = -(-tasks // threads) * largest * threads / batch
    return next(groups for groups, share in busiest.items() if share <= 1.1 * min(busiest.values()))


def _states_shape(batch: int, L: int, E: int, N: int) -> tuple[int, ...]:
    """Exactly what the kernel writes, whose vectors have 4, 8 or 16 channels: an operator must not return uninitialized memory."""
    width = vector_width()
    return batch, -(-L // _CHUNK), -(-E // width) * width, N


@torch.library.custom_op("dnadiff::selective_scan", mutates_args=(), device_types="cpu")
def _scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, delta_bias: Tensor | None, reverse: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    (u, u_row), (delta, delta_row), (B, B_row), (C, C_row) = rows(u), rows(delta), rows(B), rows(C)
    A, D, delta_bias = A.contiguous(), D.contiguous(), None if delta_bias is None else delta_bias.contiguous()
    (Bt, L, E), N, threads = u.shape, A.shape[1], torch.get_num_threads()
    y = u.new_empty(Bt, L, E)
    states = u.new_empty(_states_shape(Bt, L, E, N) if keep else (0,))
    arrays = pointers(u, delta, A, B, C, D, delta_bias, y, states if keep else None)
    sizes = (Bt, L, E, N, u_row, delta_row, B_row, C_row)
    library().dnadiff_scan_forward(*arrays, *sizes, reverse, _groups(Bt, E, threads), threads)
    return y, states


@_scan.register_fake
def _(u, delta, A, B, C, D, delta_bias, reverse, keep):
    return u.new_empty(u.shape), u.new_empty(_states_shape(*u.shape, A.shape[1]) if keep else (0,))


@torch.library.custom_op("dnadiff::selective_scan_backward", mutates_args=(), device_types="cpu")
def _scan_backward(
    dy: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    delta_bias: Tensor | None,
    states: Tensor,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    (dy, dy_row), (u, u_row), (delta, delta_row), (B, B_row), (C, C_row) = rows(dy), rows(u), rows(delta), rows(B), rows(C)
    A, D, delta_bias = A.contiguous(), D.contiguous(), None if delta_bias is None else delta_bias.contiguous()
    (Bt, L, E), N, threads = u.shape, A.shape[1], torch.get_num_threads()
    groups = _groups(Bt, E, threads)
    states = states.contiguous()
    if states.data_ptr() % _ALIGNED:  # a hook on saved tensors may bring them back at any address
        states = states.clone()
    du, ddelta, dA = u.new_empty(Bt, L, E), u.new_empty(Bt, L, E), u.new_empty(Bt, N, E)
    dB, dC, dD, dbias = u.new_empty(groups, Bt, L, N), u.new_empty(groups, Bt, L, N), u.new_empty(Bt, E), u.new_empty(Bt, E)
    arrays = pointers(dy, u, delta, A, B, C, D, delta_bias, states, du, ddelta, dA, dB, dC, dD, dbias)
    sizes = (Bt, L, E, N, dy_row, u_row, delta_row, B_row, C_row)
    library().dnadiff_scan_backward(*arrays, *sizes, reverse, groups, threads)
    dB, dC = (x.sum(0) if groups > 1 else x.view(Bt, L, N) for x in (dB, dC))
    return du, ddelta, dA.sum(0).T.contiguous(), dB, dC, dD.sum(0), dbias.sum(0)


@_scan_backward.register_fake
def _(dy, u, delta, A, B, C, D, delta_bias, states, reverse):
    return tuple(x.new_empty(x.shape) for x in (u, delta, A, B, C, D, D))


def _scan_save(ctx, inputs, output):
    *tensors, ctx.reverse, keep = inputs
    if keep:
        ctx.save_for_backward(*tensors, output[1])
    ctx.set_materialize_grads(False)


def _scan_grad(ctx, dy, _):
    nothing = (None, None)
    if dy is None:
        return (None,) * 7 + nothing
    *tensors, states = ctx.saved_tensors
    *grads, dbias = _scan_backward(dy, *tensors, states, ctx.reverse)
    return (*grads, None if tensors[6] is None else dbias, *nothing)


_scan.register_autograd(_scan_grad, setup_context=_scan_save)


@torch.library.custom_op("dnadiff::short_conv", mutates_args=(), device_types="cpu")
def _conv(x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Tensor:
    (x, row), weight, bias = rows(x), weight.contiguous(), bias.contiguous()
    y = x.new_empty(x.shape)
    arrays = pointers(x, weight, bias, y)
    library().dnadiff_conv_forward(*arrays, *x.shape, weight.shape[1], row, reverse, torch.get_num_threads())
    return y


@_conv.register_fake
def _(x, weight, bias, reverse):
    return x.new_empty(x.shape)


@torch.library.custom_op("dnadiff::short_conv_backward", mutates_args=(), device_types="cpu")
def _conv_backward(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    (dy, dy_row), (x, row), weight, bias = rows(dy), rows(x), weight.contiguous(), bias.contiguous()
    (E, K), threads = weight.shape, torch.get_num_threads()
    dx, sums = x.new_empty(x.shape), x.new_zeros(threads, K + 1, E)
    arrays = pointers(dy, x, weight, bias, dx, sums)
    library().dnadiff_conv_backward(*arrays, *x.shape, K, dy_row, row, reverse, threads)
    sums = sums.sum(0)
    return dx, sums[:K].T.contiguous(), sums[K].clone()


@_conv_backward.register_fake
def _(dy, x, weight, bias, reverse):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


def _conv_save(ctx, inputs, output):
    *tensors, ctx.reverse = inputs
    ctx.save_for_backward(*tensors)


def _conv_grad(ctx, dy):
    return (*_conv_backward(dy, *ctx.saved_tensors, ctx.reverse), None)


_conv.register_autograd(_conv_grad, setup_context=_conv_save)
