"""The Triton scan as a custom operator for one or two directions, forward and backward.

States are float32 for all input types. The forward pass keeps the state before every segment of 64
positions; the backward pass recomputes every 4th from those. Segments are the blocks where states
before blocks are read or returned (multiples of 64 are divided): these states are then those that
are kept. Blocks that restart need no pass that carries states from one chunk of time to the next.

A bidirectional layer is one launch. Its gate is a separate kernel (`triton_rowwise`): gating inside
the scan would need both directions of a position in one program, so half as many programs, to save
4 of some 40 bytes per layer.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dnadiff.networks.kernels import triton_support
from dnadiff.networks.kernels.backend import ScanInputs, ScanStates
from dnadiff.networks.kernels.triton_support import alignment, device_of, no_second_derivative

if TYPE_CHECKING:
    from triton import JITFunction

Tensors = list[Tensor]  # one tensor per direction

# Positions between saved states, and between those of the backward pass, which registers hold at
# once (1, 2 or 4).
_KEPT, _SPAN = 64, 4
_UNROLL = 2
_FORWARD_TILE, _CHUNK_TILE, _BACKWARD_TILE = (
    2048,
    1024,
    512,
)  # states per program: 64, 32 and 16 per thread
_SHORTEST = 128  # minimum positions in a chunk
_WARPS = 8  # programs of one warp that fill a multiprocessor
_LOG2E, _LN2 = 1.4426950408889634, 0.6931471805599453
_FORWARD, _BACKWARD = "triton_kernels", "triton_gradients"


def scan(directions: list[ScanInputs], z: Tensor | None, reverse: bool) -> list[Tensor]:
    """One output per direction, gated by z if it is not None; two directions are forward and
    backward, one is as `reverse` says."""
    return _call(directions, z, reverse, None, 0, False, False)[: len(directions)]


def carried_scan(
    inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int | None
) -> ScanStates:
    """See `Backend.carried_scan`."""
    y, kept, last = _call(
        [inputs],
        None,
        reverse,
        None if initial is None else initial[:, None],
        block or 0,
        False,
        True,
    )
    if block is None:
        return ScanStates(y, None, last.mT)
    parts = block // _segment(block, False)
    return ScanStates(y, (kept if parts == 1 else kept[:, ::parts]).mT, last.mT)


def restarted_scan(inputs: ScanInputs, reverse: bool, initial: Tensor | None, block: int) -> Tensor:
    """See `Backend.restarted_scan`."""
    walked = (
        initial.flip(1) if initial is not None and reverse else initial
    )  # the operator counts in the order of the walk
    return _call([inputs], None, reverse, walked, block, True, False)[0]


def _call(
    directions: list[ScanInputs],
    z: Tensor | None,
    reverse: bool,
    initial: Tensor | None,
    block: int,
    restart: bool,
    last: bool,
) -> list[Tensor]:
    u, delta, A, B, C, D = (
        list(x) for x in zip(*(inputs[:6] for inputs in directions), strict=True)
    )
    bias = [
        torch.zeros_like(inputs.D) if inputs.delta_bias is None else inputs.delta_bias
        for inputs in directions
    ]
    decay = torch.stack(A).float().mT.contiguous() * _LOG2E  # (directions, N, E)
    small = [decay, torch.stack(D).float(), torch.stack(bias).float()]
    tensors = (*u, *delta, *B, *C, *small, z, initial)
    grads = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    keep = not restart and (
        grads or block > 0
    )  # blocks restart from states that need not be kept twice
    return scans(
        u,
        delta,
        B,
        C,
        *small,
        z,
        reverse,
        keep,
        None if initial is None else initial.mT,
        block,
        restart,
        last,
    )


def _rows(tensors: list[Tensor]) -> tuple[list[Tensor], int, int]:
    """One tensor per direction, the same twice for a single one, and their strides of batch and
    position."""
    strides = {x.stride()[:2] for x in tensors}
    if len(strides) > 1 or any(x.stride(2) != 1 and x.shape[2] > 1 for x in tensors):
        tensors = [x.contiguous() for x in tensors]
    batch_stride, row_stride, _ = tensors[0].stride()
    return [tensors[0], tensors[-1]], batch_stride, row_stride


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _block(tile: int, N: int, E: int) -> int:
    """Channels per program: as many as fit the tile of states, but at most what a warp reads in
    16-byte vectors, and at most E."""
    return max(8, min(tile // _power(N), 128, _power(E)))


@cache
def _multiprocessors(device: torch.device) -> int:
    return (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else 1
    )


def _segment(block: int, restart: bool) -> int:
    """Positions between kept states: blocks, or equal parts of them."""
    return block if block and (restart or block <= _KEPT or block % _KEPT) else _KEPT


def _cut(
    programs: int, L: int, device: torch.device, segment: int = _KEPT, restart: bool = False
) -> tuple[int, int]:
    """The number of chunks of a sequence and their length, a multiple of the distance of saved
    states.

    Chunks cost one more pass over the inputs, unless segments restart. There is one chunk if that
    already occupies a third of the GPU; otherwise there are enough to fill every multiprocessor
    four times: with fewer, programs that start last run alone.
    """
    full = _WARPS * _multiprocessors(device)
    if 3 * programs >= full and not restart:
        return 1, L
    chunk = max(-(-L * programs // (4 * max(full, 1))), _SHORTEST)
    chunk = -(-chunk // segment) * segment
    return -(-L // chunk), chunk


class _Launch:
    """Sizes and grids of one call. A walk has V positions: L, or those of whole segments if they
    restart."""

    def __init__(
        self,
        u: list[Tensor],
        N: int,
        tile: int,
        reverse: bool,
        block: int = 0,
        restart: bool = False,
    ) -> None:
        (Bt, L, E), self.device = u[0].shape, u[0].device
        self.segment, self.restart = _segment(block, restart), restart
        self.rows, self.block = len(u) * Bt, _block(tile, N, E)
        self.blocks, self.V = -(-E // self.block), -(-L // block) * block if restart else L
        self.chunks, self.chunk = _cut(
            self.rows * self.blocks, self.V, self.device, self.segment, restart
        )
        self.common = (int(reverse), Bt, L, E, N)
        self.tile = {"NP": _power(N), "BE": self.block, "num_warps": 1}
        # A walk enters a segment at its first position. Registers hold the inputs of four positions
        # (two iterations) in half precision only.
        self.unroll = 1 if self.segment % 2 or u[0].element_size() > 2 else _UNROLL

    def exact(self, initial: Tensor | None, last: bool) -> bool:
        """Whether a state that is read depends on steps that do not exist: before a reverse walk
        over a shorter block, or after any walk."""
        reverse, _, L, _, _ = self.common
        if self.restart:
            return bool(reverse) and initial is not None and self.V > L
        return last and (L % _SPAN > 0 or self.segment % _SPAN > 0)

    def spans(self, distance: int) -> int:
        """The number of states, one before every so many positions of each segment."""
        return self.V // self.segment * -(-self.segment // distance) + -(
            -(self.V % self.segment) // distance
        )

    def grid(self, chunks: int) -> tuple[int]:
        return (self.blocks * chunks * self.rows,)

    def float32(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.device)


def _carried(
    kernel: JITFunction, run: _Launch, tensors: Tensors, strides: list[int], A: Tensor,
    bias: Tensor, start: Tensor | None, dkept: Tensor | None,
    **flags: bool,
) -> Tensor:  # fmt: skip
    """The state (or gradient) that enters each chunk, (rows, chunks, N, E): one pass for each chunk
    alone, and one over chunks from `start`.

    Gradients come from the last chunk: they are computed if there are `flags`.
    """
    _, Bt, _, E, N = run.common
    ends, sums = run.float32(run.rows, run.chunks, N, E), run.float32(run.rows, run.chunks, E)
    first = ends if start is None else start
    back = {"SEGMENT": run.segment, "LINKED": dkept is not None, **flags} if flags else {}

    def launch(block: int, chunks: int) -> tuple[tuple[int], dict[str, int]]:
        return (-(-E // block) * chunks * run.rows,), {**run.tile, "BE": block}

    grid, tile = launch(_block(_CHUNK_TILE, N, E), run.chunks)
    linked, spans = (
        ([ends if dkept is None else dkept], [run.spans(run.segment)]) if flags else ([], [])
    )
    kernel[grid](
        *tensors, A, bias, *linked, ends, sums, *run.common, run.chunks, run.chunk, *spans,
        *strides, **tile, **alignment(E, *strides),
        UNROLL=run.unroll, **back,
    )  # fmt: skip
    grid, tile = launch(min(run.block, 32), 1)
    triton_support.load_kernels(_FORWARD).carry[grid](
        ends, sums, A, first, Bt, E, N, run.chunks, int(bool(flags)), **tile, **alignment(E),
        UNROLL=4, CARRIED=start is not None
    )  # fmt: skip
    return ends


@torch.library.custom_op("dnadiff::scans", mutates_args=())
def scans(
    u: Tensors, delta: Tensors, B: Tensors, C: Tensors, A: Tensor, D: Tensor, bias: Tensor,
    z: Tensor | None, reverse: bool, keep: bool,
    initial: Tensor | None, block: int, restart: bool, last: bool,
) -> Tensors:  # fmt: skip
    """Outputs of each direction, the saved states if `keep`, and the last state if `last`.

    `initial` (Bt, 1 or blocks, N, E) are the states from which the sequence or, if `restart`, its
    blocks start, in the order of the walk.
    """
    N, module = A.shape[1], triton_support.load_kernels(_FORWARD)
    (u2, *u_), (delta2, *delta_), (B2, *B_), (C2, *C_) = (_rows(x) for x in (u, delta, B, C))
    gate, *z_ = _rows([u[0] if z is None else z])
    strides = [*u_, *delta_, *B_, *C_, *z_]
    run, initial = (
        _Launch(u, N, _FORWARD_TILE, reverse, block, restart),
        None if initial is None else initial.contiguous(),
    )
    y = [x.new_empty(x.shape) for x in u]
    states, ends = (
        run.float32(*_states_shape(u, N, keep, block)),
        [run.float32(*x) for x in _last_shape(u, N, last)],
    )
    with device_of(u[0]):
        entering, carried = states if initial is None else initial, initial is not None
        if run.chunks > 1 and not restart:
            entering = _carried(
                module.chunk_ends,
                run,
                [*u2, *delta2, *B2],
                [*u_, *delta_, *B_],
                A,
                bias,
                initial,
                None,
            )
            carried = True
        module.outputs[run.grid(run.chunks)](
            *u2, *delta2, *B2, *C2, gate[0], A, D, bias, entering, y[0], y[-1], states,
            *(ends or [states]), *run.common, run.V, run.chunks,
            run.chunk, run.spans(run.segment), *strides, **run.tile,
            **alignment(u[0].shape[2], *strides),
            SEGMENT=run.segment, SPAN=run.segment, UNROLL=run.unroll, CARRIED=carried, KEEP=keep,
            WRITE=True, GATED=z is not None,
            RESTART=restart, EXACT=run.exact(initial, last), LAST=last,
        )  # fmt: skip
    return [*y, states, *ends]


def _states_shape(u: list[Tensor], N: int, keep: bool, block: int) -> tuple[int, ...]:
    Bt, L, E = u[0].shape
    return (len(u) * Bt, -(-L // _segment(block, False)), N, E) if keep else (0,)


def _last_shape(u: list[Tensor], N: int, last: bool) -> list[tuple[int, ...]]:
    return [(len(u) * u[0].shape[0], N, u[0].shape[2])] if last else []


@scans.register_fake
def _(
    u: Any,
    delta: Any,
    B: Any,
    C: Any,
    A: Any,
    D: Any,
    bias: Any,
    z: Any,
    reverse: Any,
    keep: Any,
    initial: Any,
    block: Any,
    restart: Any,
    last: Any,
) -> Any:
    N = A.shape[1]
    return [
        *(x.new_empty(x.shape) for x in u),
        A.new_empty(_states_shape(u, N, keep, block)),
        *(A.new_empty(x) for x in _last_shape(u, N, last)),
    ]


@torch.library.custom_op("dnadiff::scans_backward", mutates_args=())
def _scans_backward(
    dy: Tensors, u: Tensors, delta: Tensors, B: Tensors, C: Tensors, A: Tensor, D: Tensor,
    bias: Tensor, z: Tensor | None, kept: Tensor,
    reverse: bool, initial: Tensor | None, block: int, restart: bool, last: bool,
    dkept: Tensor | None, dlast: Tensor | None,
) -> Tensors:  # fmt: skip
    (Bt, L, E), N, module, ways = (
        u[0].shape,
        A.shape[1],
        triton_support.load_kernels(_BACKWARD),
        len(u),
    )
    (u2, *u_), (delta2, *delta_), (B2, *B_), (C2, *C_), (dy2, *dy_) = (
        _rows(x) for x in (u, delta, B, C, dy)
    )
    gate, *z_ = _rows([u[0] if z is None else z])
    strides = [*u_, *delta_, *B_, *C_, *dy_, *z_]
    initial, dkept, dlast = (None if x is None else x.contiguous() for x in (initial, dkept, dlast))
    run, gated = _Launch(u, N, _BACKWARD_TILE, reverse, block, restart), z is not None
    du, ddelta = [x.new_empty(x.shape) for x in u], [x.new_empty(x.shape) for x in delta]
    dz, dinitial = (
        u[0] if z is None else z.new_empty(z.shape),
        [] if initial is None else [run.float32(*initial.shape)],
    )
    dB, dC = run.float32(run.blocks, run.rows, L, N), run.float32(run.blocks, run.rows, L, N)
    dA, dD, dbias = (run.float32(run.rows, run.chunks, *shape) for shape in ((N, E), (E,), (E,)))
    span, exact = min(_SPAN, _power(run.segment)), run.exact(initial, last)
    with device_of(u[0]):
        states = _refine(
            initial if restart else kept,
            span,
            [u2, delta2, B2, C2],
            [A, D, bias],
            [*u_, *delta_, *B_, *C_],
            run,
            u,
            exact,
        )
        passed, tensors, some = dlast, [*delta2, *C2, *dy2, gate[0]], [*delta_, *C_, *dy_, *z_]
        if run.chunks > 1 and not restart:
            passed = _carried(
                module.chunk_starts,
                run,
                tensors,
                some,
                A,
                bias,
                dlast,
                dkept,
                GATED=gated,
                EXACT=last and L % run.chunk > 0,
            )
        module.gradients[run.grid(run.chunks)](
            *u2, *delta2, *B2, *C2, *dy2, gate[0], A, D, bias,
            *(A if x is None else x for x in (states, passed, dkept)), du[0], du[-1],
            ddelta[0], ddelta[-1], dB, dC, dz, dA, dD, dbias, *(dinitial or [A]), *run.common,
            run.V, run.chunks, run.chunk, run.spans(span),
            *strides, 1.0, **run.tile, **alignment(E, *strides), SEGMENT=run.segment, SPAN=span,
            FIRST=bool(dinitial),
            CARRIED=passed is not None, GATED=gated, HELD=states is not None, RESTART=restart,
            EXACT=exact, LINKED=dkept is not None,
        )  # fmt: skip
    dBs, dCs = (
        [x[:, i * Bt : (i + 1) * Bt].sum(0).to(like[i].dtype) for i in range(ways)]
        for x, like in ((dB, B), (dC, C))
    )
    dA, dD, dbias = (x.view(ways, -1, *x.shape[2:]).sum(1) for x in (dA, dD, dbias))
    return [*du, *ddelta, *dBs, *dCs, dA * _LN2, dD, dbias, *([dz] if gated else []), *dinitial]


def _refine(
    kept: Tensor | None,
    span: int,
    pairs: list[Tensors],
    small: list[Tensor],
    strides: list[int],
    like: _Launch,
    u: Tensors,
    exact: bool,
) -> Tensor | None:
    """The state before every `span` positions of each segment, from those before the segments; None
    if they are all zero."""
    if span == like.segment:
        return kept
    N, (u2, delta2, B2, C2), (A, D, bias), common = small[0].shape[1], pairs, small, like.common
    run = _Launch(u, N, _FORWARD_TILE, bool(common[0]))
    long, states = -(-like.V // like.segment), run.float32(run.rows, like.spans(span), N, common[3])
    triton_support.load_kernels(_FORWARD).outputs[run.grid(long)](
        *u2, *delta2, *B2, *C2, u2[0], A, D, bias, states if kept is None else kept, u2[0], u2[0],
        states, states, *common, like.V, long,
        like.segment, like.spans(span), *strides, 0, 0, **run.tile,
        **alignment(common[3], *strides), SEGMENT=like.segment,
        SPAN=span, UNROLL=like.unroll, CARRIED=kept is not None, KEEP=True, WRITE=False,
        GATED=False, RESTART=like.restart, EXACT=exact, LAST=False,
    )  # fmt: skip
    return states


@_scans_backward.register_fake
def _(
    dy: Any,
    u: Any,
    delta: Any,
    B: Any,
    C: Any,
    A: Any,
    D: Any,
    bias: Any,
    z: Any,
    kept: Any,
    reverse: Any,
    initial: Any,
    block: Any,
    restart: Any,
    last: Any,
    dkept: Any,
    dlast: Any,
) -> Any:
    return [
        x.new_empty(x.shape) for x in (*u, *delta, *B, *C, A, D, bias, z, initial) if x is not None
    ]


def _save(ctx: Any, inputs: Any, output: Any) -> Any:
    u, delta, B, C, A, D, bias, z, ctx.reverse, keep, initial, ctx.block, ctx.restart, ctx.last = (
        inputs
    )
    ctx.ways, ctx.gated, ctx.carried = len(u), z is not None, initial is not None
    if keep or ctx.restart:
        ctx.save_for_backward(
            *u,
            *delta,
            *B,
            *C,
            A,
            D,
            bias,
            *(x for x in (z, initial) if x is not None),
            output[len(u)],
        )
    ctx.set_materialize_grads(False)


def _grad(ctx: Any, grads: Any) -> Any:
    *tensors, kept = ctx.saved_tensors
    ways, gated, carried = ctx.ways, ctx.gated, ctx.carried
    u, delta, B, C = (tensors[i * ways : (i + 1) * ways] for i in range(4))
    A, D, bias, *more = tensors[4 * ways :]
    z, initial = more[0] if gated else None, more[-1] if carried else None
    dy = [torch.zeros_like(x) if g is None else g for g, x in zip(grads[:ways], u, strict=True)]
    dkept, dlast = (
        grads[ways] if kept.numel() else None,
        grads[ways + 1] if len(grads) > ways + 1 else None,
    )
    options = (ctx.reverse, initial, ctx.block, ctx.restart, ctx.last, dkept, dlast)
    out = _scans_backward(dy, u, delta, B, C, A, D, bias, z, kept, *options)
    lists = [out[i * ways : (i + 1) * ways] for i in range(4)]
    dz, dinitial = out[4 * ways + 3] if gated else None, out[-1] if carried else None
    return (*lists, *out[4 * ways : 4 * ways + 3], dz, None, None, dinitial, None, None, None)


scans.register_autograd(_grad, setup_context=_save)
_scans_backward.register_autograd(no_second_derivative)
