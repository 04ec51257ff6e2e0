"""The selective scan in C++ as a custom operator that autograd and torch.compile understand."""

from __future__ import annotations

import torch
from torch import Tensor

from dnadiff.kernels.native import library, pointers, rows, vector_width

_CHUNK, _WIDEST = 32, 16  # positions between two stored states; channels of the widest vector, the unit in which work is divided
_ALIGNMENT = 64  # bytes, as vectors are read


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


def scan_forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, delta_bias: Tensor | None, reverse: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    """The scan's output, and the states that its backward pass reads (empty unless `keep`)."""
    (u, u_row), (delta, delta_row), (B, B_row), (C, C_row) = rows(u), rows(delta), rows(B), rows(C)
    A, D, delta_bias = A.contiguous(), D.contiguous(), None if delta_bias is None else delta_bias.contiguous()
    (Bt, L, E), N, threads = u.shape, A.shape[1], torch.get_num_threads()
    y = u.new_empty(Bt, L, E)
    states = u.new_empty(_states_shape(Bt, L, E, N) if keep else (0,))
    arrays = pointers(u, delta, A, B, C, D, delta_bias, y, states if keep else None)
    sizes = (Bt, L, E, N, u_row, delta_row, B_row, C_row)
    library().dnadiff_scan_forward(*arrays, *sizes, reverse, _groups(Bt, E, threads), threads)
    return y, states


scan_operator = torch.library.custom_op("dnadiff::selective_scan", scan_forward, mutates_args=(), device_types="cpu")


@scan_operator.register_fake
def _(u, delta, A, B, C, D, delta_bias, reverse, keep):
    return u.new_empty(u.shape), u.new_empty(_states_shape(*u.shape, A.shape[1]) if keep else (0,))


def scan_backward(
    dy: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, bias: Tensor | None, states: Tensor, reverse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of u, delta, A, B, C, D and the bias."""
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


_scan_backward = torch.library.custom_op("dnadiff::selective_scan_backward", scan_backward, mutates_args=(), device_types="cpu")


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


scan_operator.register_autograd(_scan_grad, setup_context=_scan_save)
