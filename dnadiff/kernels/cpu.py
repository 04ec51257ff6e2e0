"""The C++ back end: the scan and the convolution as custom operators that autograd and torch.compile understand.

Computes in float32. Operators on single positions are in `cpu_rowwise`, matrix products in `cpu_linear`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from typing_extensions import override

from dnadiff.kernels.backend import ScanInputs
from dnadiff.kernels.cpu_linear import linear, onednn_wins
from dnadiff.kernels.cpu_rowwise import MAX_RANK, gated_sum, narrow_linear, rms_norm
from dnadiff.kernels.native import library, pointers, rows, vector_width
from dnadiff.kernels.portable import TorchOperations

_CHUNK, _WIDEST = 32, 16  # positions between two stored states; channels of the widest vector, the unit in which work is divided
_MAX_TAPS, _ALIGNMENT = 8, 64  # of a filter in C++; bytes, as vectors are read


class CppBackend(TorchOperations):
    """float32 tensors on the CPU, in C++ compiled for this processor."""

    device_type = "cpu"
    supports_float64 = False

    @override
    def description(self) -> str:
        """The vector instructions in use, and the library of matrix products if it is not PyTorch's choice."""
        return library().dnadiff_vectors().decode() + (", products by oneDNN" if onednn_wins() else "")

    @override
    def compiler(self) -> str:
        return library().dnadiff_compiler().decode()

    @override
    def selective_scan(self, inputs: ScanInputs, reverse: bool) -> Tensor:
        if forward_ad._current_level >= 0:  # a custom operator would silently count as a constant
            raise NotImplementedError("the C++ scan has no forward-mode derivative (jvp); set scan=reference")
        keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
        return _scan(*inputs, reverse, keep)[0]

    @override
    def short_conv(self, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Tensor:
        return _conv(x, weight, bias, reverse) if weight.shape[1] <= _MAX_TAPS else super().short_conv(x, weight, bias, reverse)

    @override
    def gated_sum(self, y: Tensor, y_rev: Tensor | None, z: Tensor) -> Tensor:
        return gated_sum(y, y_rev, z)

    @override
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x.reshape(1, -1, x.shape[-1]), weight, eps)[0].view(x.shape)

    @override
    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return linear(x, weight) if onednn_wins() else F.linear(x, weight)

    @override
    def linear_halves(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        if not onednn_wins():
            return super().linear_halves(x, weight)
        first, second = weight.chunk(2)  # two products, so that their gradients need not be copied into one array
        return linear(x, first), linear(x, second)

    @override
    def narrow_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return narrow_linear(x, weight) if weight.shape[1] <= MAX_RANK else F.linear(x, weight)


def _groups(batch: int, E: int, threads: int) -> int:
    """The number of groups of channels of each sequence, so that there is work for all threads.

    Each group has its own sums of dB and dC, so there are no more groups than load balance needs.
    """
    blocks = -(-E // _WIDEST)
    load = {}  # work of the busiest thread, relative to perfect balance
    for groups in range(1, blocks + 1):
        tasks, largest = batch * groups, -(-blocks // groups) / blocks
        load[groups] = -(-tasks // threads) * largest * threads / batch
    return next(groups for groups, work in load.items() if work <= 1.1 * min(load.values()))


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
    dy: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, bias: Tensor | None, states: Tensor, reverse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    (dy, dy_row), (u, u_row), (delta, delta_row), (B, B_row), (C, C_row) = rows(dy), rows(u), rows(delta), rows(B), rows(C)
    A, D, bias = A.contiguous(), D.contiguous(), None if bias is None else bias.contiguous()
    (Bt, L, E), N, threads = u.shape, A.shape[1], torch.get_num_threads()
    groups = _groups(Bt, E, threads)
    states = states.contiguous()
    if states.data_ptr() % _ALIGNMENT:  # a hook on saved tensors may restore them at any address
        states = states.clone()
    du, ddelta, dA = u.new_empty(Bt, L, E), u.new_empty(Bt, L, E), u.new_empty(Bt, N, E)
    dB, dC, dD, dbias = u.new_empty(groups, Bt, L, N), u.new_empty(groups, Bt, L, N), u.new_empty(Bt, E), u.new_empty(Bt, E)
    arrays = pointers(dy, u, delta, A, B, C, D, bias, states, du, ddelta, dA, dB, dC, dD, dbias)
    sizes = (Bt, L, E, N, dy_row, u_row, delta_row, B_row, C_row)
    library().dnadiff_scan_backward(*arrays, *sizes, reverse, groups, threads)
    dB, dC = (x.sum(0) if groups > 1 else x.view(Bt, L, N) for x in (dB, dC))
    return du, ddelta, dA.sum(0).T.contiguous(), dB, dC, dD.sum(0), dbias.sum(0)


@_scan_backward.register_fake
def _(dy, u, delta, A, B, C, D, bias, states, reverse):
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


_conv.register_fake(lambda x, weight, bias, reverse: x.new_empty(x.shape))


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
