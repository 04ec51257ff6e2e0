"""The Triton scan as a custom operator for one or two directions, forward and backward.

States are float32 for all input types. The forward pass keeps the state before every 64 positions; the backward pass recomputes every 8th
from those. A bidirectional layer is one launch. Its gate is a separate kernel (`triton_rowwise`): gating inside the scan would need both
directions of a position in one program, so half as many programs, to save 4 of some 40 bytes per layer.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dnadiff.kernels import triton_support
from dnadiff.kernels.backend import ScanInputs
from dnadiff.kernels.triton_support import device_of, no_second_derivative

if TYPE_CHECKING:
    from triton import JITFunction

Tensors = list[Tensor]  # one tensor per direction

_KEPT, _SPAN, _PART = 64, 8, 4  # positions between saved states, between those of the backward pass, and in registers at once
_UNROLL = 2
_FORWARD_TILE, _BACKWARD_TILE = 2048, 512  # states per program: 64 and 16 per thread
_SHORTEST = 128  # minimum positions in a chunk
_WARPS = 12  # programs of one warp that fill a multiprocessor
_LOG2E, _LN2 = 1.4426950408889634, 0.6931471805599453
_FORWARD, _BACKWARD = "triton_kernels", "triton_gradients"


def scan(directions: list[ScanInputs], z: Tensor | None, reverse: bool) -> list[Tensor]:
    """One output per direction, gated by z if it is not None; two directions are forward and backward, one is as `reverse` says."""
    u, delta, A, B, C, D = (list(x) for x in zip(*(inputs[:6] for inputs in directions), strict=True))
    bias = [torch.zeros_like(inputs.D) if inputs.delta_bias is None else inputs.delta_bias for inputs in directions]
    decay = torch.stack(A).float().mT.contiguous() * _LOG2E  # (directions, N, E)
    small = [decay, torch.stack(D).float(), torch.stack(bias).float()]
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (*u, *delta, *B, *C, *small, z))
    return scans(u, delta, B, C, *small, z, reverse, keep)[: len(directions)]


def _rows(tensors: list[Tensor]) -> tuple[list[Tensor], int, int]:
    """One tensor per direction, the same twice for a single one, and their strides of batch and position."""
    strides = {x.stride()[:2] for x in tensors}
    if len(strides) > 1 or any(x.stride(2) != 1 and x.shape[2] > 1 for x in tensors):
        tensors = [x.contiguous() for x in tensors]
    batch_stride, row_stride, _ = tensors[0].stride()
    return [tensors[0], tensors[-1]], batch_stride, row_stride


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _block(tile: int, N: int, E: int) -> int:
    """Channels per program: as many as fit the tile of states, but at most what a warp reads in 16-byte vectors, and at most E."""
    return max(8, min(tile // _power(N), 128, _power(E)))


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _cut(programs: int, L: int, device: torch.device) -> tuple[int, int]:
    """The number of chunks of a sequence and their length, a multiple of the distance of saved states.

    Chunks cost one more pass over the inputs. There is one chunk if that already occupies a third of the GPU; otherwise there are enough
    to fill every multiprocessor twice.
    """
    full = _WARPS * _multiprocessors(device)
    if 3 * programs >= full:
        return 1, L
    chunk = max(-(-L * programs // (2 * full)), _SHORTEST)
    chunk = -(-chunk // _KEPT) * _KEPT
    return -(-L // chunk), chunk


class _Launch:
    """Sizes and grids of one call."""

    def __init__(self, u: list[Tensor], N: int, tile: int, reverse: bool) -> None:
        (Bt, L, E), self.device = u[0].shape, u[0].device
        self.rows, self.block = len(u) * Bt, _block(tile, N, E)
        self.blocks = -(-E // self.block)
        self.chunks, self.chunk = _cut(self.rows * self.blocks, L, self.device)
        self.common = (int(reverse), Bt, L, E, N)
        self.tile = {"NP": _power(N), "BE": self.block, "num_warps": 1}

    def grid(self, chunks: int) -> tuple[int]:
        return (self.blocks * chunks * self.rows,)

    def float32(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.device)


def _carried(
    kernel: JITFunction, run: _Launch, tensors: Tensors, strides: list[int], A: Tensor, bias: Tensor, from_last: bool, **flags: bool
) -> Tensor:
    """The state (or gradient) that enters each chunk, (rows, chunks, N, E): one pass for each chunk alone, and one over chunks."""
    _, Bt, _, E, N = run.common
    ends, sums = run.float32(run.rows, run.chunks, N, E), run.float32(run.rows, run.chunks, E)

    def launch(block: int, chunks: int) -> tuple[tuple[int], dict[str, int]]:
        return (-(-E // block) * chunks * run.rows,), {**run.tile, "BE": block}

    grid, tile = launch(_block(_FORWARD_TILE, N, E), run.chunks)
    kernel[grid](*tensors, A, bias, ends, sums, *run.common, run.chunks, run.chunk, *strides, **tile, UNROLL=_UNROLL, **flags)
    grid, tile = launch(min(run.block, 32), 1)
    triton_support.load_kernels(_FORWARD).carry[grid](ends, sums, A, Bt, E, N, run.chunks, int(from_last), **tile, UNROLL=4)
    return ends


@torch.library.custom_op("dnadiff::scans", mutates_args=())
def scans(
    u: Tensors, delta: Tensors, B: Tensors, C: Tensors, A: Tensor, D: Tensor, bias: Tensor, z: Tensor | None, reverse: bool, keep: bool
) -> Tensors:
    """Outputs of each direction, and the saved states if `keep`."""
    N, module = A.shape[1], triton_support.load_kernels(_FORWARD)
    (u2, *u_), (delta2, *delta_), (B2, *B_), (C2, *C_) = (_rows(x) for x in (u, delta, B, C))
    gate, *z_ = _rows([u[0] if z is None else z])
    run = _Launch(u, N, _FORWARD_TILE, reverse)
    spans = -(-u[0].shape[1] // _KEPT)
    y = [x.new_empty(x.shape) for x in u]
    states = run.float32(*_states_shape(u, N, keep))
    with device_of(u[0]):
        entering = states
        if run.chunks > 1:
            entering = _carried(module.chunk_ends, run, [*u2, *delta2, *B2], [*u_, *delta_, *B_], A, bias, False)
        module.outputs[run.grid(run.chunks)](
            *u2, *delta2, *B2, *C2, gate[0], A, D, bias, entering, y[0], y[-1], states, *run.common, run.chunks, run.chunk, spans,
            *u_, *delta_, *B_, *C_, *z_, **run.tile, SPAN=_KEPT, UNROLL=_UNROLL, CARRIED=run.chunks > 1, KEEP=keep, WRITE=True,
            GATED=z is not None,
        )  # fmt: skip
    return [*y, states]


def _states_shape(u: list[Tensor], N: int, keep: bool) -> tuple[int, ...]:
    Bt, L, E = u[0].shape
    return (len(u) * Bt, -(-L // _KEPT), N, E) if keep else (0,)


@scans.register_fake
def _(u, delta, B, C, A, D, bias, z, reverse, keep):
    return [*(x.new_empty(x.shape) for x in u), A.new_empty(_states_shape(u, A.shape[1], keep))]


@torch.library.custom_op("dnadiff::scans_backward", mutates_args=())
def _scans_backward(
    dy: Tensors, u: Tensors, delta: Tensors, B: Tensors, C: Tensors, A: Tensor, D: Tensor, bias: Tensor, z: Tensor | None, kept: Tensor,
    reverse: bool,
) -> Tensors:  # fmt: skip
    (Bt, L, E), N, module, ways = u[0].shape, A.shape[1], triton_support.load_kernels(_BACKWARD), len(u)
    (u2, *u_), (delta2, *delta_), (B2, *B_), (C2, *C_), (dy2, *dy_) = (_rows(x) for x in (u, delta, B, C, dy))
    gate, *z_ = _rows([u[0] if z is None else z])
    run, gated = _Launch(u, N, _BACKWARD_TILE, reverse), z is not None
    du, ddelta = [x.new_empty(x.shape) for x in u], [x.new_empty(x.shape) for x in delta]
    dz = u[0] if z is None else z.new_empty(z.shape)
    dB, dC = run.float32(run.blocks, run.rows, L, N), run.float32(run.blocks, run.rows, L, N)
    dA, dD, dbias = (run.float32(run.rows, run.chunks, *shape) for shape in ((N, E), (E,), (E,)))
    with device_of(u[0]):
        states, spans = _refine(kept, [u2, delta2, B2, C2], [A, D, bias], [*u_, *delta_, *B_, *C_], u, reverse)
        passed = states
        if run.chunks > 1:
            tensors, strides = [*delta2, *C2, *dy2, gate[0]], [*delta_, *C_, *dy_, *z_]
            passed = _carried(module.chunk_starts, run, tensors, strides, A, bias, True, GATED=gated)
        module.gradients[run.grid(run.chunks)](
            *u2, *delta2, *B2, *C2, *dy2, gate[0], A, D, bias, states, passed, du[0], du[-1], ddelta[0], ddelta[-1], dB, dC, dz, dA, dD, dbias,
            *run.common, run.chunks, run.chunk, spans, *u_, *delta_, *B_, *C_, *dy_, *z_, 1.0, **run.tile, SPAN=_SPAN, PART=_PART,
            CARRIED=run.chunks > 1, GATED=gated,
        )  # fmt: skip
    dBs, dCs = ([x[:, i * Bt : (i + 1) * Bt].sum(0).to(like[i].dtype) for i in range(ways)] for x, like in ((dB, B), (dC, C)))
    dA, dD, dbias = (x.view(ways, -1, *x.shape[2:]).sum(1) for x in (dA, dD, dbias))
    return [*du, *ddelta, *dBs, *dCs, dA * _LN2, dD, dbias, *([dz] if gated else [])]


def _refine(kept: Tensor, pairs: list[Tensors], small: list[Tensor], strides: list[int], u: Tensors, reverse: bool) -> tuple[Tensor, int]:
    """The state before every 8 positions, from the saved ones before every 64, and their number per sequence."""
    (_, L, E), N, (u2, delta2, B2, C2), (A, D, bias) = u[0].shape, small[0].shape[1], pairs, small
    run = _Launch(u, N, _FORWARD_TILE, reverse)
    long, spans = -(-L // _KEPT), -(-L // _SPAN)
    states = run.float32(run.rows, spans, N, E)
    triton_support.load_kernels(_FORWARD).outputs[run.grid(long)](
        *u2, *delta2, *B2, *C2, u2[0], A, D, bias, kept, u2[0], u2[0], states, *run.common, long, _KEPT, spans, *strides, 0, 0,
        **run.tile, SPAN=_SPAN, UNROLL=_UNROLL, CARRIED=True, KEEP=True, WRITE=False, GATED=False,
    )  # fmt: skip
    return states, spans


@_scans_backward.register_fake
def _(dy, u, delta, B, C, A, D, bias, z, kept, reverse):
    return [x.new_empty(x.shape) for x in (*u, *delta, *B, *C, A, D, bias, *([] if z is None else [z]))]


def _save(ctx, inputs, output):
    u, delta, B, C, A, D, bias, z, ctx.reverse, keep = inputs
    ctx.ways, ctx.gated = len(u), z is not None
    if keep:
        ctx.save_for_backward(*u, *delta, *B, *C, A, D, bias, *([z] if ctx.gated else []), output[-1])
    ctx.set_materialize_grads(False)


def _grad(ctx, grads):
    *tensors, kept = ctx.saved_tensors
    ways = ctx.ways
    u, delta, B, C = (tensors[i * ways : (i + 1) * ways] for i in range(4))
    A, D, bias, *z = tensors[4 * ways :]
    dy = [torch.zeros_like(x) if g is None else g for g, x in zip(grads[:ways], u, strict=True)]
    out = _scans_backward(dy, u, delta, B, C, A, D, bias, z[0] if z else None, kept, ctx.reverse)
    lists = [out[i * ways : (i + 1) * ways] for i in range(4)]
    return (*lists, *out[4 * ways : 4 * ways + 3], out[-1] if z else None, None, None)


scans.register_autograd(_grad, setup_context=_save)
_scans_backward.register_autograd(no_second_derivative)
