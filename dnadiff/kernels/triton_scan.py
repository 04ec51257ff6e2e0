"""The scan in Triton for CUDA: one operator for one or two directions, forward and backward; the kernels are in `triton_kernels`.

States are float32 whatever the inputs are (bfloat16, float16 or float32). The forward pass keeps the state in front of every 64
positions; the backward pass computes every 8th again from those, which exist for one layer at a time, and keeps no other. A bidirectional
layer is one launch: its gate, like its convolutions (`triton_rowwise`), is one kernel that reads what both directions share once. To gate
inside the scan would need both directions of a position in one program, half as many programs, for 4 of some 40 bytes a layer moves.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dnadiff.kernels.portable import linear, linear_halves, narrow_linear
from dnadiff.kernels.triton_rowwise import add_norm, gated_sum, kernels, no_second_derivative, rms_norm, short_conv, short_convs, watch

__all__ = [
    "add_norm", "detail", "gated_scan", "gated_sum", "linear", "linear_halves", "narrow_linear", "rms_norm", "scans", "selective_scan",
    "short_conv", "short_convs", "too_many_states", "unsupported",
]  # fmt: skip

KEEPS_DTYPE = True  # half precision is taken as it is, not as float32
STATES = 64
_KEPT, _SPAN, _PART = 64, 8, 4  # positions between kept states, between those of the backward pass, and in registers at once
_UNROLL = 2
_FORWARD_TILE, _BACKWARD_TILE = 2048, 512  # states of a program: 64 and 16 a thread
_SHORTEST = 128  # positions in a chunk at least
_WARPS = 12  # a multiprocessor is full with so many programs, of one warp each
_LOG2E, _LN2 = 1.4426950408889634, 0.6931471805599453


def unsupported(device_type: str, dtype: torch.dtype) -> str:
    """Why these inputs cannot be computed here, or nothing."""
    if device_type != "cuda" and not interpreted():
        return f"the tensors are on {device_type}, this kernel needs a CUDA device"
    return "it computes in float32; float64 needs scan=portable" if dtype == torch.float64 else ""


def too_many_states(N: int) -> str:
    """Why N states a channel cannot be computed here, or nothing."""
    return f"{N} states a channel; this kernel holds at most {STATES} in registers" if N > STATES else ""


def detail() -> str:
    """What the log says beside the name."""
    import triton

    return f"Triton {triton.__version__}" + (", interpreted" if interpreted() else "")


def interpreted() -> bool:
    """Whether TRITON_INTERPRET=1 runs the kernels in Python, on any device: for tests."""
    from os import environ

    return environ.get("TRITON_INTERPRET") == "1"


def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, delta_bias: Tensor | None, reverse: bool
) -> Tensor:
    """See `dnadiff.kernels.selective_scan`; float32, bfloat16 or float16 tensors on a CUDA device."""
    return _launch([(u, delta, A, B, C, D, delta_bias)], None, reverse)[0]


def gated_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, delta_bias: Tensor | None, z: Tensor) -> Tensor:
    """`selective_scan` forwards, times silu(z): the sum never meets memory without its gate."""
    return _launch([(u, delta, A, B, C, D, delta_bias)], z, False)[0]


def scans(ahead: tuple[Tensor | None, ...], back: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor]:
    """Two scans in one launch: `ahead` forwards and `back`, of the same shapes, backwards; each as `selective_scan` takes them."""
    if any(x.dtype != other.dtype for x, other in zip((*ahead[:2], *ahead[3:5]), (*back[:2], *back[3:5]), strict=True)):
        return selective_scan(*ahead, False), selective_scan(*back, True)  # a kernel reads one type in both directions
    y, y_rev = _launch([ahead, back], None, False)
    return y, y_rev


def _launch(directions: list[tuple[Tensor | None, ...]], z: Tensor | None, reverse: bool) -> list[Tensor]:
    if getattr(forward_ad, "_current_level", -1) >= 0:
        raise NotImplementedError("the Triton scan has no forward-mode derivative (jvp); set scan=reference")
    u, delta, A, B, C, D, bias = (list(x) for x in zip(*directions, strict=True))
    bias = [torch.zeros_like(d) if x is None else x for x, d in zip(bias, D, strict=True)]
    decay = torch.stack(A).float().mT.contiguous() * _LOG2E  # (directions, N, E)
    small = [decay, torch.stack(D).float(), torch.stack(bias).float()]
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (*u, *delta, *B, *C, *small, z))
    return _scans(u, delta, B, C, *small, z, reverse, keep)[: len(directions)]


def _rows(tensors: list[Tensor]) -> tuple[list[Tensor], int, int]:
    """One tensor for each direction, twice the same for one, and what batch and position add to their addresses."""
    strides = {x.stride()[:2] for x in tensors}
    if len(strides) > 1 or any(x.stride(2) != 1 and x.shape[2] > 1 for x in tensors):
        tensors = [x.contiguous() for x in tensors]
    return [tensors[0], tensors[-1]], *tensors[0].stride()[:2]


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _block(tile: int, N: int, E: int) -> int:
    """Channels of a program: so many that the tile of states has its size, but no more than a warp reads in 16-byte vectors, or E has."""
    return max(8, min(tile // _power(N), 128, _power(E)))


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _cut(programs: int, L: int, device: torch.device) -> tuple[int, int]:
    """Chunks of the sequence and their length, a multiple of the distance of kept states.

    Chunks cost one more pass over the inputs, so there are none where a third of the card is busy without; otherwise so many that
    every multiprocessor has its fill twice over.
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


def _carried(kernel, run: _Launch, tensors: list[Tensor], strides: list[int], A: Tensor, bias: Tensor, from_last: bool, **flags) -> Tensor:
    """What enters each chunk, (rows, chunks, N, E): what each adds by itself, and one pass over the chunks."""
    module, (_, Bt, _, E, N) = kernels(), run.common
    ends, sums = run.float32(run.rows, run.chunks, N, E), run.float32(run.rows, run.chunks, E)

    def launch(block: int, chunks: int) -> tuple[tuple[int], dict[str, int]]:
        return (-(-E // block) * chunks * run.rows,), {**run.tile, "BE": block}

    grid, tile = launch(_block(_FORWARD_TILE, N, E), run.chunks)
    kernel[grid](*tensors, A, bias, ends, sums, *run.common, run.chunks, run.chunk, *strides, **tile, UNROLL=_UNROLL, **flags)
    grid, tile = launch(min(run.block, 32), 1)
    module.carry[grid](ends, sums, A, Bt, E, N, run.chunks, int(from_last), **tile, UNROLL=4)
    return ends


@torch.library.custom_op("dnadiff::scans", mutates_args=())
def _scans(
    u: list[Tensor],
    delta: list[Tensor],
    B: list[Tensor],
    C: list[Tensor],
    A: Tensor,
    D: Tensor,
    bias: Tensor,
    z: Tensor | None,
    reverse: bool,
    keep: bool,
) -> list[Tensor]:
    N, module = A.shape[1], kernels()
    (u2, *u_), (delta2, *delta_), (B2, *B_), (C2, *C_) = (_rows(x) for x in (u, delta, B, C))
    gate, *z_ = _rows([u[0] if z is None else z])
    run = _Launch(u, N, _FORWARD_TILE, reverse)
    spans = -(-u[0].shape[1] // _KEPT)
    y = [x.new_empty(x.shape) for x in u]
    states = run.float32(*_states_shape(u, N, keep))
    with watch(u[0]):
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


@_scans.register_fake
def _(u, delta, B, C, A, D, bias, z, reverse, keep):
    return [*(x.new_empty(x.shape) for x in u), A.new_empty(_states_shape(u, A.shape[1], keep))]


@torch.library.custom_op("dnadiff::scans_backward", mutates_args=())
def _scans_backward(
    dy: list[Tensor],
    u: list[Tensor],
    delta: list[Tensor],
    B: list[Tensor],
    C: list[Tensor],
    A: Tensor,
    D: Tensor,
    bias: Tensor,
    z: Tensor | None,
    kept: Tensor,
    reverse: bool,
) -> list[Tensor]:
    (Bt, L, E), N, module, ways = u[0].shape, A.shape[1], kernels(), len(u)
    (u2, *u_), (delta2, *delta_), (B2, *B_), (C2, *C_), (dy2, *dy_) = (_rows(x) for x in (u, delta, B, C, dy))
    gate, *z_ = _rows([u[0] if z is None else z])
    run, gated = _Launch(u, N, _BACKWARD_TILE, reverse), z is not None
    du, ddelta = [x.new_empty(x.shape) for x in u], [x.new_empty(x.shape) for x in delta]
    dz = u[0] if z is None else z.new_empty(z.shape)
    dB, dC = run.float32(run.blocks, run.rows, L, N), run.float32(run.blocks, run.rows, L, N)
    dA, dD, dbias = (run.float32(run.rows, run.chunks, *shape) for shape in ((N, E), (E,), (E,)))
    with watch(u[0]):
        states, spans = _refine(kept, u2, delta2, B2, C2, A, D, bias, [*u_, *delta_, *B_, *C_], u, reverse)
        passed = states
        if run.chunks > 1:
            tensors, strides = [*delta2, *C2, *dy2, gate[0]], [*delta_, *C_, *dy_, *z_]
            passed = _carried(module.chunk_starts, run, tensors, strides, A, bias, True, GATED=gated)
        module.gradients[run.grid(run.chunks)](
            *u2, *delta2, *B2, *C2, *dy2, gate[0], A, D, bias, states, passed, du[0], du[-1], ddelta[0], ddelta[-1], dB, dC, dz, dA, dD, dbias,
            *run.common, run.chunks, run.chunk, spans, *u_, *delta_, *B_, *C_, *dy_, *z_, 1.0, **run.tile, SPAN=_SPAN, PART=_PART,
            CARRIED=run.chunks > 1, GATED=gated,
        )  # fmt: skip
    dB, dC = ([x[:, i * Bt : (i + 1) * Bt].sum(0).to(like[i].dtype) for i in range(ways)] for x, like in ((dB, B), (dC, C)))
    dA, dD, dbias = (x.view(ways, -1, *x.shape[2:]).sum(1) for x in (dA, dD, dbias))
    return [*du, *ddelta, *dB, *dC, dA * _LN2, dD, dbias, *([dz] if gated else [])]


def _refine(kept, u2, delta2, B2, C2, A, D, bias, strides, u, reverse) -> tuple[Tensor, int]:
    """The state in front of every 8 positions from the kept ones in front of every 64, and how many there are of a sequence."""
    module, (_, L, E), N = kernels(), u[0].shape, A.shape[1]
    run = _Launch(u, N, _FORWARD_TILE, reverse)
    long, spans = -(-L // _KEPT), -(-L // _SPAN)
    states = run.float32(run.rows, spans, N, E)
    module.outputs[run.grid(long)](
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


_scans.register_autograd(_grad, setup_context=_save)
_scans_backward.register_autograd(no_second_derivative)
