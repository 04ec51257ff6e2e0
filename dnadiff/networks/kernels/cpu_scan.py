"""The selective scan in C++ as a custom operator that autograd and torch.compile understand.

States are (..., N, E) here, and blocks count in the order of the walk: of a reverse scan the first
block is the last one of the sequence. The states that are kept for the backward pass are also those
that a scan returns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dnadiff.networks.kernels.backend import ScanInputs, ScanStates
from dnadiff.networks.kernels.native import cpu_operator, library, pointers, rows

PLAIN = (
    None,
    0,
    False,
    False,
)  # no initial state, one block, which does not restart, and no last state
CHUNK = 32  # positions between two stored states
_WIDEST = 16  # channels of the widest vector, the unit in which work is divided


def carried_scan(
    inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int | None
) -> ScanStates:
    """See `Backend.carried_scan`."""
    start = None if initial is None else initial.mT
    y, kept, last = scan_operator(
        *inputs,
        reverse,
        block is not None or _has_gradient(*inputs, initial),
        start,
        block or 0,
        False,
        True,
    )
    if block is None:
        return ScanStates(y, None, last.mT)
    return ScanStates(y, (kept if block <= CHUNK else kept[:, :: -(-block // CHUNK)]).mT, last.mT)


def restarted_scan(inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int) -> Tensor:
    """See `Backend.restarted_scan`."""
    if initial is not None:
        initial = (initial.flip(1) if reverse else initial).mT
    keep = block > CHUNK and _has_gradient(
        *inputs, initial
    )  # otherwise the kept states would be the initial ones
    return scan_operator(*inputs, reverse, keep, initial, block, True, False)[0]


def plain_scan(inputs: ScanInputs, reverse: bool) -> Tensor:
    """See `Backend.selective_scan`."""
    return scan_operator(*inputs, reverse, _has_gradient(*inputs), *PLAIN)[0]


def _has_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def channel_groups(batch: int, E: int, threads: int) -> int:
    """The number of groups of channels of each sequence, so that there is work for all threads.

    Each group has its own sums of dB and dC, so there are no more groups than load balance needs.
    """
    blocks = -(-E // _WIDEST)
    load = {}  # work of the busiest thread, relative to perfect balance
    for groups in range(1, blocks + 1):
        tasks, largest = batch * groups, -(-blocks // groups) / blocks
        load[groups] = -(-tasks // threads) * largest * threads / batch
    return next(groups for groups, work in load.items() if work <= 1.1 * min(load.values()))


def _kept_shape(batch: int, L: int, E: int, N: int, block: int) -> tuple[int, ...]:
    block = block or L
    return batch, -(-L // block) * -(-block // CHUNK), N, E


def scan_forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, delta_bias: Tensor | None,
    reverse: bool, keep: bool,
    initial: Tensor | None, block: int, restart: bool, last: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The scan's output; the states (Bt, chunks, N, E) that its backward pass reads (empty unless
    `keep`); the last state (empty unless `last`).

    `block` is the number of positions of a block, 0 for the whole sequence. `initial` is (Bt, N,
    E), or (Bt, blocks, N, E) if `restart`.
    """
    (u, u_row), (delta, delta_row), (B, B_row), (C, C_row) = rows(u), rows(delta), rows(B), rows(C)
    A, D, delta_bias = (
        A.contiguous(),
        D.contiguous(),
        None if delta_bias is None else delta_bias.contiguous(),
    )
    initial = None if initial is None else initial.contiguous()
    (Bt, L, E), N, threads = u.shape, A.shape[1], torch.get_num_threads()
    y = u.new_empty(Bt, L, E)
    kept = u.new_empty(_kept_shape(Bt, L, E, N, block) if keep else (0,))
    end = u.new_empty((Bt, N, E) if last else (0,))
    arrays = pointers(
        u, delta, A, B, C, D, delta_bias, initial, y, kept if keep else None, end if last else None
    )
    sizes = (Bt, L, E, N, block or L, u_row, delta_row, B_row, C_row)
    library().dnadiff_scan_forward(
        *arrays, *sizes, reverse, restart, channel_groups(Bt, E, threads), threads
    )
    return y, kept, end


scan_operator = cpu_operator("selective_scan")(scan_forward)


@scan_operator.register_fake
def _(
    u: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any,
    delta_bias: Any,
    reverse: Any,
    keep: Any,
    initial: Any,
    block: Any,
    restart: Any,
    last: Any,
) -> Any:
    Bt, L, E = u.shape
    kept = u.new_empty(_kept_shape(Bt, L, E, A.shape[1], block) if keep else (0,))
    return (
        u.new_empty(u.shape),
        kept,
        u.new_empty((u.shape[0], A.shape[1], u.shape[2]) if last else (0,)),
    )


def scan_backward(
    dy: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor,
    bias: Tensor | None, kept: Tensor, reverse: bool,
    initial: Tensor | None, block: int, restart: bool, dkept: Tensor | None, dlast: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    """The gradients of u, delta, A, B, C, D, the bias and, if there is one, the initial state."""
    (dy, dy_row), (u, u_row), (delta, delta_row), (B, B_row), (C, C_row) = (
        rows(dy),
        rows(u),
        rows(delta),
        rows(B),
        rows(C),
    )
    A, D, bias = A.contiguous(), D.contiguous(), None if bias is None else bias.contiguous()
    (Bt, L, E), N, threads = u.shape, A.shape[1], torch.get_num_threads()
    groups = channel_groups(Bt, E, threads)
    before = (
        kept if kept.numel() else initial
    )  # blocks of one chunk restart from the initial states
    before, dkept, dlast = (None if x is None else x.contiguous() for x in (before, dkept, dlast))
    du, ddelta, dA = u.new_empty(Bt, L, E), u.new_empty(Bt, L, E), u.new_empty(Bt, N, E)
    dB, dC, dD, dbias = (
        u.new_empty(groups, Bt, L, N),
        u.new_empty(groups, Bt, L, N),
        u.new_empty(Bt, E),
        u.new_empty(Bt, E),
    )
    dinitial = [] if initial is None else [u.new_empty(initial.shape)]
    arrays = pointers(
        dy,
        u,
        delta,
        A,
        B,
        C,
        D,
        bias,
        before,
        dkept,
        dlast,
        du,
        ddelta,
        dA,
        dB,
        dC,
        dD,
        dbias,
        dinitial[0] if dinitial else None,
    )
    sizes = (Bt, L, E, N, block or L, dy_row, u_row, delta_row, B_row, C_row)
    library().dnadiff_scan_backward(*arrays, *sizes, reverse, restart, groups, threads)
    dB, dC = (x.sum(0) if groups > 1 else x.view(Bt, L, N) for x in (dB, dC))
    return [du, ddelta, dA.sum(0).T.contiguous(), dB, dC, dD.sum(0), dbias.sum(0), *dinitial]


_scan_backward = cpu_operator("selective_scan_backward")(scan_backward)


@_scan_backward.register_fake
def _(
    dy: Any,
    u: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any,
    bias: Any,
    kept: Any,
    reverse: Any,
    initial: Any,
    block: Any,
    restart: Any,
    dkept: Any,
    dlast: Any,
) -> Any:
    return [
        x.new_empty(x.shape)
        for x in (u, delta, A, B, C, D, D, *([] if initial is None else [initial]))
    ]


def _scan_save(ctx: Any, inputs: Any, output: Any) -> Any:
    *tensors, ctx.reverse, keep, initial, ctx.block, ctx.restart, ctx.last = inputs
    if keep or (ctx.restart and ctx.block <= CHUNK):
        ctx.save_for_backward(*tensors, initial, output[1])
    ctx.set_materialize_grads(False)


def _scan_grad(ctx: Any, dy: Any, dkept: Any, dlast: Any) -> Any:
    if dy is None and dkept is None and dlast is None:
        return (None,) * 13
    *tensors, initial, kept = ctx.saved_tensors
    dy = torch.zeros_like(tensors[0]) if dy is None else dy
    out = _scan_backward(
        dy,
        *tensors,
        kept,
        ctx.reverse,
        initial,
        ctx.block,
        ctx.restart,
        dkept if kept.numel() else None,
        dlast if ctx.last else None,
    )
    *found, dbias = out[:7]
    return (
        *found,
        None if tensors[6] is None else dbias,
        None,
        None,
        None if initial is None else out[7],
        None,
        None,
        None,
    )


scan_operator.register_autograd(_scan_grad, setup_context=_scan_save)
