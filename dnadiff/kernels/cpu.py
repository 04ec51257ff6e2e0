"""The scan and the convolution in C++, as custom operators that autograd and torch.compile understand.

Computes in float32. The library is compiled by `dnadiff.kernels.build` when the first tensor arrives, not on import.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor

from dnadiff.kernels.build import load_library

_CHUNK, _WIDEST = 32, 16  # positions between two stored states, and the widest vector: what sizes `states`
_SIGNATURES = {
    "dnadiff_scan_forward": (9, 8, 3),  # numbers of pointers, sizes and small integers
    "dnadiff_scan_backward": (16, 9, 3),
    "dnadiff_conv_forward": (4, 5, 2),
    "dnadiff_conv_backward": (6, 6, 2),
}


def unsupported(device_type: str, dtype: torch.dtype) -> str:
    """Why these inputs cannot be computed here, or nothing."""
    if device_type != "cpu":
        return f"the tensors are on {device_type}, this kernel runs on the cpu"
    return "it computes in float32; float64 needs scan=portable" if dtype == torch.float64 else ""


def detail() -> str:
    """What the log says beside the name: the vector instructions in use."""
    return _library().dnadiff_vectors().decode()


@cache
def _library() -> ctypes.CDLL:
    library = load_library()
    library.dnadiff_vectors.restype = ctypes.c_char_p
    for name, (pointers, sizes, flags) in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes = [c_void_p] * pointers + [c_int64] * sizes + [c_int] * flags
        function.restype = None
    return library


def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, delta_bias: Tensor | None, reverse: bool
) -> Tensor:
    """See `dnadiff.kernels.selective_scan`; float32 tensors."""
    inputs = (u, delta, A, B, C, D, delta_bias)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    return _scan(*inputs, reverse, keep)[0]


def short_conv(x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Tensor:
    """See `dnadiff.kernels.short_conv`; float32 tensors.

    Raises:
        ValueError: if the filter has more than 8 taps.
    """
    if weight.shape[1] > 8:
        raise ValueError(f"weight has {weight.shape[1]} taps and the C++ convolution at most 8; set scan=portable")
    return _conv(x, weight, bias, reverse)


def _rows(x: Tensor) -> tuple[Tensor, int]:
    """`x (Bt, L, X)` and the distance between its positions; copied only if its rows are not spaced evenly."""
    Bt, L, X = x.shape
    row = x.stride(1) if L > 1 else X
    if (X > 1 and x.stride(2) != 1) or row < X or (Bt > 1 and x.stride(0) != L * row):
        return x.contiguous(), X
    return x, row


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


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
    return batch, -(-L // _CHUNK), -(-E // _WIDEST) * _WIDEST, N


@torch.library.custom_op("dnadiff::selective_scan", mutates_args=(), device_types="cpu")
def _scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, delta_bias: Tensor | None, reverse: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    (u, u_row), (delta, delta_row), (B, B_row), (C, C_row) = _rows(u), _rows(delta), _rows(B), _rows(C)
    A, D, delta_bias = A.contiguous(), D.contiguous(), None if delta_bias is None else delta_bias.contiguous()
    (Bt, L, E), N, threads = u.shape, A.shape[1], torch.get_num_threads()
    y = u.new_empty(Bt, L, E)
    states = u.new_empty(_states_shape(Bt, L, E, N) if keep else (0,))
    pointers = [_pointer(x) for x in (u, delta, A, B, C, D, delta_bias, y, states if keep else None)]
    sizes = (Bt, L, E, N, u_row, delta_row, B_row, C_row)
    _library().dnadiff_scan_forward(*pointers, *sizes, reverse, _groups(Bt, E, threads), threads)
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
    (dy, dy_row), (u, u_row), (delta, delta_row), (B, B_row), (C, C_row) = _rows(dy), _rows(u), _rows(delta), _rows(B), _rows(C)
    A, D, delta_bias = A.contiguous(), D.contiguous(), None if delta_bias is None else delta_bias.contiguous()
    (Bt, L, E), N, threads = u.shape, A.shape[1], torch.get_num_threads()
    groups = _groups(Bt, E, threads)
    du, ddelta, dA = u.new_empty(Bt, L, E), u.new_empty(Bt, L, E), u.new_empty(Bt, N, E)
    dB, dC, dD, dbias = u.new_empty(groups, Bt, L, N), u.new_empty(groups, Bt, L, N), u.new_empty(Bt, E), u.new_empty(Bt, E)
    pointers = [_pointer(x) for x in (dy, u, delta, A, B, C, D, delta_bias, states.contiguous(), du, ddelta, dA, dB, dC, dD, dbias)]
    sizes = (Bt, L, E, N, dy_row, u_row, delta_row, B_row, C_row)
    _library().dnadiff_scan_backward(*pointers, *sizes, reverse, groups, threads)
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
    (x, row), weight, bias = _rows(x), weight.contiguous(), bias.contiguous()
    y = x.new_empty(x.shape)
    pointers = [_pointer(t) for t in (x, weight, bias, y)]
    _library().dnadiff_conv_forward(*pointers, *x.shape, weight.shape[1], row, reverse, torch.get_num_threads())
    return y


@_conv.register_fake
def _(x, weight, bias, reverse):
    return x.new_empty(x.shape)


@torch.library.custom_op("dnadiff::short_conv_backward", mutates_args=(), device_types="cpu")
def _conv_backward(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    (dy, dy_row), (x, row), weight, bias = _rows(dy), _rows(x), weight.contiguous(), bias.contiguous()
    (E, K), threads = weight.shape, torch.get_num_threads()
    dx, sums = x.new_empty(x.shape), x.new_zeros(threads, K + 1, E)
    pointers = [_pointer(t) for t in (dy, x, weight, bias, dx, sums)]
    _library().dnadiff_conv_backward(*pointers, *x.shape, K, dy_row, row, reverse, threads)
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
