"""The Triton scan as a custom operator for one or two directions, forward and backward; and what
all operators of Triton share: loading of the kernels, checks of the GPU, alignment.

States are float32 for all input types. The forward pass keeps the state before every segment of 64
positions; the backward pass recomputes every 4th from those. Segments are the blocks where states
before blocks are read or returned (multiples of 64 are divided): these states are then those that
are kept. Blocks that restart need no pass that carries states from one chunk of time to the next.

A bidirectional layer is one launch. Its gate is a separate kernel (`triton_rowwise`): gating inside
the scan would need both directions of a position in one program, so half as many programs, to save
4 of some 40 bytes per layer.
"""

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from dnadiff.networks.kernels.backend import (
    OptionalTensor,
    ScanInputs,
    ScanStates,
    Walk,
    needs_gradient,
)
from dnadiff.networks.kernels.native import operator

# the version that the tests use, and the oldest GPUs with bfloat16
MIN_TRITON = (3, 6)
MIN_CAPABILITY = (8, 0)
Tensors = list[Tensor]  # one tensor per direction

# Positions between saved states, and between those of the backward pass, which registers hold at
# once (1, 2 or 4).
_KEPT = 64
_SPAN = 4
_UNROLL = 2
# states per program: 64, 32 and 16 per thread
_FORWARD_TILE = 2048
_CHUNK_TILE = 1024
_BACKWARD_TILE = 512
_SHORTEST = 128  # minimum positions in a chunk
_WARPS = 8  # programs of one warp that fill a multiprocessor
_LOG2E = 1.4426950408889634
_LN2 = 0.6931471805599453
_FORWARD = "triton_kernels"
_BACKWARD = "triton_gradients"


@cache
def load_kernels(name: str) -> ModuleType:
    """A module of Triton kernels of this package; RuntimeError if Triton is missing or too old."""
    try:
        import triton
    except ImportError as error:
        raise RuntimeError(
            f"Triton is not installed ({error}); pip install -e '.[triton]' in the checkout adds "
            "it (Linux)"
        ) from error
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < MIN_TRITON:
        raise RuntimeError(
            f"Triton {triton.__version__} is too old, {'.'.join(map(str, MIN_TRITON))} or later is "
            "needed"
        )
    return import_module(f"dnadiff.networks.kernels.{name}")


def interpreted() -> bool:
    """Whether TRITON_INTERPRET=1 runs the kernels in Python, on any device: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def device_of(x: Tensor) -> AbstractContextManager[None]:
    """A context in which kernels are launched on the GPU that holds x; RuntimeError if it is too
    old."""
    if not x.is_cuda:
        return nullcontext()
    check_gpu(x.device)
    return torch.cuda.device(x.device)


@cache
def check_gpu(device: torch.device) -> None:
    """Refuse a GPU that is too old for the kernels, with a RuntimeError."""
    have = torch.cuda.get_device_capability(device)
    if have < MIN_CAPABILITY:
        needed, found = (".".join(map(str, version)) for version in (MIN_CAPABILITY, have))
        raise RuntimeError(
            f"{torch.cuda.get_device_name(device)} has compute capability {found}, the kernels "
            f"need {needed} or later"
        )


def no_second_derivative(*_: Tensor) -> None:
    """The derivative of a backward operator: always NotImplementedError."""
    raise NotImplementedError("the Triton kernels have no second derivative; set scan=portable")


def alignment(*sizes: int) -> dict[str, int]:
    """The option ALIGN of the kernels: the largest power of two up to 8 that divides all sizes; 1
    if 16 does, which Triton detects itself."""
    common = math.gcd(16, *sizes)
    return {"ALIGN": 1 if common == 16 else common}


def scan(directions: list[ScanInputs], z: OptionalTensor, walk: Walk) -> tuple[Tensors, ScanStates]:
    """One output per direction, gated by z if it is not None, and the states of a single direction;
    two directions are forward and backward, one is as `walk` says."""
    u, delta, A, B, C, D = (
        list(x) for x in zip(*(inputs[:6] for inputs in directions), strict=True)
    )
    bias = [torch.zeros_like(x.D) if x.delta_bias is None else x.delta_bias for x in directions]
    decay = torch.stack(A).float().mT.contiguous() * _LOG2E  # (directions, N, E)
    small = [decay, torch.stack(D).float(), torch.stack(bias).float()]
    initial = walk.given()
    block = walk.block or 0
    # blocks restart from states that need not be kept twice
    keep = needs_gradient(*u, *delta, *B, *C, *small, z, initial) or block > 0
    keep = keep and not walk.restart
    initial = initial if initial is None or walk.restart else initial[:, None]
    options = walk.reverse, keep, initial, block, walk.restart, walk.states
    found = scans(u, delta, B, C, *small, z, *options)
    y, (kept, *last) = found[: len(u)], found[len(u) :]
    if not walk.states:
        return y, ScanStates(y[0])
    every = block // _segment(block, False)
    starts = (kept[:, ::every] if every > 1 else kept).mT if block else None
    return y, ScanStates(y[0], starts, last[0].mT)


def _rows(tensors: list[Tensor]) -> tuple[list[Tensor], list[int]]:
    """One tensor per direction, the same twice for a single one, and their strides of batch and
    position."""
    strides = {x.stride()[:2] for x in tensors}
    if len(strides) > 1 or any(x.stride(2) != 1 and x.shape[2] > 1 for x in tensors):
        tensors = [x.contiguous() for x in tensors]
    return [tensors[0], tensors[-1]], [*tensors[0].stride()[:2]]


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _block(tile: int, N: int, E: int) -> int:
    """Channels per program: as many as fit the tile of states, but at most what a warp reads in
    16-byte vectors, and at most E."""
    return max(8, min(tile // _power(N), 128, _power(E)))


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def _segment(block: int, restart: bool) -> int:
    """Positions between kept states: blocks, or equal parts of them."""
    return block if block and (restart or block <= _KEPT or block % _KEPT) else _KEPT


def _cut(
    programs: int, L: int, multiprocessors: int, segment: int = 0, restart: bool = False
) -> tuple[int, int]:
    """The number of chunks of a sequence and their length, a multiple of the distance of saved
    states.

    Chunks cost one more pass over the inputs, unless segments restart. There is one chunk if that
    already occupies a third of the GPU; otherwise there are enough to fill every multiprocessor
    four times: with fewer, programs that start last run alone.
    """
    full = _WARPS * multiprocessors
    segment = segment or _KEPT
    if 3 * programs >= full and not restart:
        return 1, L
    chunk = max(-(-L * programs // (4 * max(full, 1))), _SHORTEST)
    chunk = -(-chunk // segment) * segment
    return -(-L // chunk), chunk


class _Launch:
    """Inputs, sizes and grids of one call. A walk has V positions: L, or those of whole segments if
    they restart."""

    def __init__(
        self, inputs: dict[str, Tensors], N: int, tile: int, reverse: bool, block: int,
        restart: bool,
    ) -> None:  # fmt: skip
        u = inputs["u"]
        (Bt, L, E), self.device = u[0].shape, u[0].device
        self.inputs = {name: _rows(x) for name, x in inputs.items()}
        self.segment = _segment(block, restart)
        self.restart = restart
        self.rows = len(u) * Bt
        self.V = -(-L // block) * block if restart else L
        self.block = _block(tile, N, E)
        self.common = (int(reverse), Bt, L, E, N)
        programs = self.rows * -(-E // self.block)
        processors = _multiprocessors(self.device)
        self.chunks, self.chunk = _cut(programs, self.V, processors, self.segment, restart)
        # A walk enters a segment at its first position. Registers hold the inputs of four positions
        # (two iterations) in half precision only.
        self.unroll = 1 if self.segment % 2 or u[0].element_size() > 2 else _UNROLL

    def exact(self, initial: OptionalTensor, last: bool) -> bool:
        """Whether a state that is read depends on steps that do not exist: before a reverse walk
        over a shorter block, or after any walk."""
        reverse, _, L, _, _ = self.common
        if self.restart:
            return bool(reverse) and initial is not None and self.V > L
        return last and (L % _SPAN > 0 or self.segment % _SPAN > 0)

    def spans(self, distance: int) -> int:
        """The number of states, one before every so many positions of each segment."""
        whole, rest = divmod(self.V, self.segment)
        return whole * -(-self.segment // distance) + -(-rest // distance)

    def new(self, *shape: int) -> Tensor:
        """A float32 tensor."""
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def __call__(
        self, kernel: Any, names: str, tensors: Sequence[Tensor], sizes: Sequence[int], chunks: int,
        block: int, **options: float,
    ) -> None:  # fmt: skip
        """Launch a kernel on the inputs of these names, other tensors, sizes of its own after the
        common ones, and strides."""
        (*_, E, N), given, strides = self.common, [], []
        for name in names.split():
            pair, distances = self.inputs[name]
            given += pair[:1] if name == "z" else pair
            strides += distances
        kernel[(-(-E // block) * chunks * self.rows,)](
            *given, *tensors, *self.common, *sizes, *strides, NP=_power(N), BE=block, num_warps=1,
            **alignment(E, *strides), **options,
        )  # fmt: skip

    def carried(
        self, kernel: Any, names: str, weights: Sequence[Tensor], start: OptionalTensor,
        dkept: OptionalTensor = None, **flags: bool,
    ) -> Tensor:  # fmt: skip
        """The state (or gradient) that enters each chunk, (rows, chunks, N, E): one pass for each
        chunk alone, and one over chunks from `start`.

        Gradients come from the last chunk: they are computed if there are `flags`.
        """
        _, Bt, _, E, N = self.common
        ends = self.new(self.rows, self.chunks, N, E)
        sums = self.new(self.rows, self.chunks, E)
        tensors = [*weights, ends, sums]
        sizes = [self.chunks, self.chunk]
        options = {}
        if flags:
            tensors.insert(2, ends if dkept is None else dkept)
            sizes.append(self.spans(self.segment))
            options = {"SEGMENT": self.segment, "LINKED": dkept is not None, **flags}
        block = _block(_CHUNK_TILE, N, E)
        self(kernel, names, tensors, sizes, self.chunks, block, UNROLL=self.unroll, **options)
        block = min(self.block, 32)
        load_kernels(_FORWARD).carry[(-(-E // block) * self.rows,)](
            ends, sums, weights[0], ends if start is None else start, Bt, E, N, self.chunks,
            int(bool(flags)), NP=_power(N), BE=block, num_warps=1, **alignment(E), UNROLL=4,
            CARRIED=start is not None,
        )  # fmt: skip
        return ends


@operator("scans")
def scans(
    u: Tensors, delta: Tensors, B: Tensors, C: Tensors, A: Tensor, D: Tensor, bias: Tensor,
    z: OptionalTensor, reverse: bool, keep: bool,
    initial: OptionalTensor, block: int, restart: bool, last: bool,
) -> Tensors:  # fmt: skip
    """Outputs of each direction, the saved states if `keep`, and the last state if `last`.

    `initial` (Bt, 1 or blocks, N, E) are the states from which the sequence or, if `restart`, its
    blocks start, in the order of the walk.
    """
    (Bt, L, E), N, y = u[0].shape, A.shape[1], [x.new_empty(x.shape) for x in u]
    rows = len(u) * Bt
    segments = -(-L // _segment(block, False))
    states = A.new_empty((rows, segments, N, E) if keep else (0,))
    ends = [A.new_empty(rows, N, E)] if last else []
    if isinstance(A, FakeTensor):
        return [*y, states, *ends]
    inputs = {"u": u, "delta": delta, "B": B, "C": C, "z": [u[0] if z is None else z]}
    run = _Launch(inputs, N, _FORWARD_TILE, reverse, block, restart)
    module = load_kernels(_FORWARD)
    entering = initial = None if initial is None else initial.contiguous()
    with device_of(A):
        if run.chunks > 1 and not restart:
            entering = run.carried(module.chunk_ends, "u delta B", [A, bias], initial)
        run(
            module.outputs, "u delta B C z",
            [A, D, bias, states if entering is None else entering, y[0], y[-1], states,
             *(ends or [states])],
            [run.V, run.chunks, run.chunk, run.spans(run.segment)], run.chunks, run.block,
            SEGMENT=run.segment, SPAN=run.segment, UNROLL=run.unroll, CARRIED=entering is not None,
            KEEP=keep, WRITE=True, GATED=z is not None, RESTART=restart,
            EXACT=run.exact(initial, last), LAST=last,
        )  # fmt: skip
    return [*y, states, *ends]


@operator("scans_backward")
def _scans_backward(
    dy: Tensors, u: Tensors, delta: Tensors, B: Tensors, C: Tensors, A: Tensor, D: Tensor,
    bias: Tensor, z: OptionalTensor, kept: Tensor,
    reverse: bool, initial: OptionalTensor, block: int, restart: bool, last: bool,
    dkept: OptionalTensor, dlast: OptionalTensor,
) -> Tensors:  # fmt: skip
    (Bt, L, E), N, ways = u[0].shape, A.shape[1], len(u)
    du, ddelta = ([x.new_empty(x.shape) for x in tensors] for tensors in (u, delta))
    dz = [] if z is None else [z.new_empty(z.shape)]
    dinitial = [] if initial is None else [A.new_empty(initial.shape)]
    if isinstance(A, FakeTensor):
        small = [x.new_empty(x.shape) for x in (*B, *C, A, D, bias)]
        return [*du, *ddelta, *small, *dz, *dinitial]
    initial, dkept, dlast = (None if x is None else x.contiguous() for x in (initial, dkept, dlast))
    inputs = {"u": u, "delta": delta, "B": B, "C": C, "dy": dy, "z": [u[0] if z is None else z]}
    run = _Launch(inputs, N, _BACKWARD_TILE, reverse, block, restart)
    dB, dC = (run.new(-(-E // run.block), run.rows, L, N) for _ in range(2))
    dA, dD, dbias = (run.new(run.rows, run.chunks, *shape) for shape in ((N, E), (E,), (E,)))
    span = min(_SPAN, _power(run.segment))
    exact = run.exact(initial, last)
    weights = [A, D, bias]
    module = load_kernels(_BACKWARD)
    passed = dlast
    states = initial if restart else kept
    with device_of(A):
        if span != run.segment:  # the states before spans, from those before segments
            long = -(-run.V // run.segment)
            before = states
            first = run.inputs["u"][0][0]
            states = run.new(run.rows, run.spans(span), N, E)
            run(
                load_kernels(_FORWARD).outputs, "u delta B C",
                [first, *weights, states if before is None else before, first, first, states,
                 states],
                [run.V, long, run.segment, run.spans(span)], long, _block(_FORWARD_TILE, N, E),
                z_b=0, z_l=0, SEGMENT=run.segment, SPAN=span, UNROLL=run.unroll,
                CARRIED=before is not None, KEEP=True, WRITE=False, GATED=False, RESTART=restart,
                EXACT=exact, LAST=False,
            )  # fmt: skip
        if run.chunks > 1 and not restart:
            passed = run.carried(
                module.chunk_starts, "delta C dy z", [A, bias], dlast, dkept, GATED=z is not None,
                EXACT=last and L % run.chunk > 0,
            )  # fmt: skip
        run(
            module.gradients, "u delta B C dy z",
            [*weights, *(A if x is None else x for x in (states, passed, dkept)), du[0], du[-1],
             ddelta[0], ddelta[-1], dB, dC, *(dz or u[:1]), dA, dD, dbias, *(dinitial or [A])],
            [run.V, run.chunks, run.chunk, run.spans(span)], run.chunks, run.block, one=1.0,
            SEGMENT=run.segment, SPAN=span, FIRST=bool(dinitial), CARRIED=passed is not None,
            GATED=z is not None, HELD=states is not None, RESTART=restart, EXACT=exact,
            LINKED=dkept is not None,
        )  # fmt: skip
    dBs, dCs = (
        [x[:, i * Bt : (i + 1) * Bt].sum(0).to(like[i].dtype) for i in range(ways)]
        for x, like in ((dB, B), (dC, C))
    )
    dA, dD, dbias = (x.view(ways, -1, *x.shape[2:]).sum(1) for x in (dA, dD, dbias))
    return [*du, *ddelta, *dBs, *dCs, dA * _LN2, dD, dbias, *dz, *dinitial]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    *lists, A, D, bias, z, ctx.reverse, keep, initial, ctx.block, ctx.restart, ctx.last = inputs
    ctx.ways = len(lists[0])
    if keep or ctx.restart:
        tensors = [x for each in lists for x in each]
        ctx.save_for_backward(*tensors, A, D, bias, z, initial, output[ctx.ways])
    ctx.set_materialize_grads(False)


def _grad(ctx: Any, grads: Sequence[OptionalTensor]) -> tuple[Any, ...]:
    *tensors, A, D, bias, z, initial, kept = ctx.saved_tensors
    ways, (dkept, dlast) = ctx.ways, (*grads[ctx.ways :], None)[:2]
    u, delta, B, C = (tensors[i * ways : (i + 1) * ways] for i in range(4))
    dy = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, u)]
    dkept = dkept if kept.numel() else None
    options = ctx.reverse, initial, ctx.block, ctx.restart, ctx.last, dkept, dlast
    out = _scans_backward(dy, u, delta, B, C, A, D, bias, z, kept, *options)
    lists = [out[i * ways : (i + 1) * ways] for i in range(4)]
    more = out[4 * ways :]
    dz = None if z is None else more[3]
    dinitial = None if initial is None else more[-1]
    return (*lists, *more[:3], dz, None, None, dinitial, None, None, None)


scans.register_autograd(_grad, setup_context=_save)
_scans_backward.register_autograd(no_second_derivative)
