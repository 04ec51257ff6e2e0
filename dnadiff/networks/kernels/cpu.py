"""The C++ back end: its convolution, and whole mixers as one function of autograd. The other
operators are in `native`.

A mixer's operators one by one are 14 calls, each of which PyTorch dispatches through Python, and
each of which writes its result to memory. Here a layer of a small network is seven calls of the
library forward and seven backward. `torch.compile` gets the separate operators.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_void_p
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from dnadiff.networks.kernels import native
from dnadiff.networks.kernels.backend import (
    Backend,
    MixerWay,
    MixerWeights,
    OptionalTensor,
    Piece,
    ScanInputs,
    ScanStates,
    Walk,
    needs_gradient,
)
from dnadiff.networks.kernels.native import (
    CHUNK,
    PLAIN,
    call,
    channel_groups,
    contiguous,
    scan_backward,
    scan_forward,
    scan_operator,
)


class _Steps(NamedTuple):
    """What the scan of one direction reads: u and delta (Bt, L, E), and p (Bt, L, R + 2 N) with the
    low-rank delta, B and C."""

    u: Tensor
    p: Tensor
    delta: Tensor

    def inputs(self, way: MixerWay, A: Tensor) -> ScanInputs:
        """All inputs of the scan."""
        rank, states = way.dt_weight.shape[1], A.shape[1]  # slices, because `split` is slow
        B = self.p[..., rank : rank + states]
        C = self.p[..., rank + states :]
        return ScanInputs(self.u, self.delta, A, B, C, way.D, way.dt_bias)


def _in_rows(tensors: Sequence[Tensor], size: int) -> list[Sequence[Tensor]]:
    """Consecutive groups of `size` tensors."""
    return [tensors[i : i + size] for i in range(0, len(tensors), size)]


def table_of(structures: Sequence[Sequence[OptionalTensor]]) -> ctypes.Array[c_void_p]:
    """Structures of pointers, one after the other."""
    addresses = [None if x is None else x.data_ptr() for row in structures for x in row]
    return (c_void_p * len(addresses))(*addresses)


class _Kernels:
    """The library's functions of a mixer with these weights, which are kept as `tensors`.

    The backward passes add the gradients of the weights into `sums`, which `weights` adds up.
    """

    def __init__(self, valid: OptionalTensor, *weights: Tensor) -> None:
        self.tensors = contiguous(valid, *weights)
        self.valid, self.in_proj, self.out_proj, *rest = self.tensors
        self.ways = [MixerWay(*row) for row in _in_rows(rest, len(MixerWay._fields))]
        (self.D, self.E), first = self.out_proj.shape, self.ways[0]
        self.K, self.R, self.N = (
            x.shape[1] for x in (first.conv_weight, first.dt_weight, first.A_log)
        )

    def input(self, hidden: Tensor, gate: bool = True) -> tuple[Tensor, OptionalTensor]:
        """The scan's input x, zero at padding, and the gate z, both (Bt, L, E), from hidden (Bt, L,
        D)."""
        x = hidden.new_empty(*hidden.shape[:2], self.E)
        z = torch.empty_like(x) if gate else None
        call("mixer_input", hidden, self.in_proj, self.valid, x, z, *hidden.shape, self.E)
        return x, z

    def steps(
        self, x: Tensor, ways: Sequence[MixerWay], clean: OptionalTensor = None, block: int = 0
    ) -> list[_Steps]:
        """Convolutions and step sizes of some directions."""
        made = [
            _Steps(
                torch.empty_like(x),
                x.new_empty(*x.shape[:2], self.R + 2 * self.N),
                torch.empty_like(x),
            )
            for _ in ways
        ]
        table = table_of([(*way[:4], *steps) for way, steps in zip(ways, made, strict=True)])
        sizes = len(ways), *x.shape, self.K, self.R, self.N, block
        call("mixer_steps", x, clean, self.valid, ctypes.addressof(table), *sizes)
        return made

    def output(self, y: Tensor, y_rev: OptionalTensor, z: OptionalTensor) -> Tensor:
        """((y + y_rev) silu(z)) out_proj^T, (Bt, L, D)."""
        out = y.new_empty(*y.shape[:2], self.D)
        call("mixer_output", y, y_rev, z, self.out_proj, out, *out.shape, self.E)
        return out

    def forward(
        self, hidden: Tensor, keep: bool, past: OptionalTensor = None, state: OptionalTensor = None,
        last: bool = False,
    ) -> tuple[Tensor, Tensor, OptionalTensor, list[_Steps], list[tuple[Tensor, ...]]]:  # fmt: skip
        """The output, the input of the convolution with what is before it, the gate, and of each
        direction the scan's inputs, then A and the results of the scan."""
        x, z = self.input(hidden.contiguous())
        longer = x if past is None else torch.cat([past, x], 1)
        steps = self.steps(longer, self.ways)
        scans: list[tuple[Tensor, ...]] = []
        if past is not None:
            steps = [_Steps(*contiguous(*(x[:, past.shape[1] :] for x in step))) for step in steps]
        for number, (way, step) in enumerate(zip(self.ways, steps, strict=True)):
            A = -torch.exp(way.A_log)
            start = None if state is None or number else state.mT
            inputs = step.inputs(way, A)
            found = scan_forward(*inputs, number == 1, keep, start, 0, False, last)
            scans.append((A, *found))
        y_rev = scans[1][1] if len(scans) == 2 else None
        return self.output(scans[0][1], y_rev, z), longer, z, steps, scans

    @cached_property
    def parts(self) -> list[int]:
        """The sizes of the gradients of out_proj, in_proj (second half, first half), then filter
        and bias of all directions, x_proj and dt of all directions."""
        taps = (self.K + 1) * self.E
        products = (2 * self.R + 2 * self.N) * self.E
        count = len(self.ways)
        return [self.D * self.E] * 3 + [taps] * count + [products] * count

    @cached_property
    def sums(self) -> Tensor:
        """The gradients of the weights, one array per thread."""
        return self.in_proj.new_zeros(torch.get_num_threads(), sum(self.parts))

    def _address(self, part: int) -> int:
        return self.sums.data_ptr() + 4 * sum(self.parts[:part])

    def output_gradient(
        self, dout: Tensor, y: Tensor, y_rev: OptionalTensor, z: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The gradient of y and y_rev, and that of hidden through z alone."""
        dy = torch.empty_like(y)
        dhidden = torch.empty_like(hidden)
        arrays = dout.contiguous(), y, y_rev, z, hidden, self.out_proj, self.in_proj[self.E :]
        sizes = *hidden.shape, self.E, self.sums.shape[1]
        call("mixer_output_backward", *arrays, dy, dhidden, self._address(0), *sizes)
        return dy, dhidden

    def steps_gradient(
        self, number: int, steps: _Steps, du: Tensor, ddelta: Tensor, dB: Tensor, dC: Tensor
    ) -> None:
        """Adds to du, the gradient of u through the scan, that through the step sizes, B and C of
        one direction."""
        way = self.ways[number]
        arrays = ddelta, dB, dC, steps.u, steps.p, way.x_proj, way.dt_weight, self.valid, du
        sums = self._address(3 + len(self.ways) + number)
        sizes = (*du.shape, self.R, self.N)
        call("mixer_steps_backward", *arrays, sums, *sizes, self.sums.shape[1])

    def input_gradient(
        self, dus: Sequence[Tensor], x: Tensor, hidden: Tensor, dhidden: Tensor,
        clean: OptionalTensor = None, dnear: OptionalTensor = None,
        block: int = 0,
    ) -> None:  # fmt: skip
        """Adds to dhidden the gradient through x, from that of u in one or two directions.

        `dnear` (Bt, blocks, K - 1, E) is the gradient of the clean stream's inputs before blocks:
        of the noised stream, which has `clean`, it is written, and of the clean one it is added to
        that of x.
        """
        filters = [taps for way, _ in zip(self.ways, dus) for taps in way[:2]]
        missing = [None] * (2 - len(dus))
        sizes = *hidden.shape, self.E, self.K, block, self.sums.shape[1]
        call(
            "mixer_input_backward", *dus, *missing, x, clean, hidden, self.in_proj[: self.E],
            *filters, *missing * 2, self.valid, dnear, dhidden, self._address(2), *sizes,
        )  # fmt: skip

    def weights(self, scans: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[Tensor]:
        """The gradients of in_proj, out_proj and all directions, from those of dt_bias, A_log and D
        of each direction."""
        total = self.sums[0] if len(self.sums) == 1 else self.sums.sum(0)
        dout_proj, dz_proj, dx_proj_in, *others = total.split(self.parts)
        grads = [torch.cat([dx_proj_in, dz_proj]).view_as(self.in_proj)]
        grads.append(dout_proj.view_as(self.out_proj))
        for taps, products, scan in zip(*_in_rows(others, len(self.ways)), scans, strict=True):
            taps = taps.view(-1, self.E)
            products = products.view(-1, self.E)
            rank = len(products) - self.R
            grads += [taps[:-1].T.contiguous(), taps[-1]]
            grads += [products[:rank], products[rank:].T.contiguous(), *scan]
        return grads


class _Mixer(torch.autograd.Function):
    """The output of a mixer of hidden (Bt, L, D); `tensors` are the arguments of `_Kernels`."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *tensors: Tensor) -> Tensor:
        hidden = hidden.contiguous()
        run = _Kernels(*tensors)
        keep = any(ctx.needs_input_grad)
        out, x, z, steps, scans = run.forward(hidden, keep)
        if keep:
            ctx.count, rest = len(steps), [x for row in (*steps, *scans) for x in row[:3]]
            ctx.save_for_backward(hidden, x, z, *run.tensors, *rest)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[OptionalTensor, ...]:
        hidden, x, z, *rest = ctx.saved_tensors
        weights = 3 + len(MixerWay._fields) * ctx.count
        run = _Kernels(*rest[:weights])
        rows = _in_rows(rest[weights:], 3)
        steps = [_Steps(*row) for row in rows[: ctx.count]]
        scans = rows[ctx.count :]
        y_rev = scans[1][1] if ctx.count == 2 else None
        dy, dhidden = run.output_gradient(dout, scans[0][1], y_rev, z, hidden)
        dus = []
        dscans = []
        for number, (way, step, (A, _, kept)) in enumerate(zip(run.ways, steps, scans)):
            du, ddelta, dA, dB, dC, dD, dbias = scan_backward(
                dy, *step.inputs(way, A), kept, number == 1, *PLAIN[:3], None, None
            )
            run.steps_gradient(number, step, du, ddelta, dB, dC)
            dus.append(du)
            dscans.append((dbias, dA * A, dD))
        run.input_gradient(dus, x, hidden, dhidden)
        return dhidden, None, *run.weights(dscans)


class _TwoStreams(torch.autograd.Function):
    """The outputs of a mixer of two streams (Bt, L, D); `tensors` are the arguments of
    `_Kernels`."""

    @staticmethod
    def forward(
        ctx: Any, noised: Tensor, clean: Tensor, block: int, clean_output: bool, *tensors: Tensor
    ) -> tuple[Tensor, OptionalTensor]:
        (noised, clean), run = contiguous(noised, clean), _Kernels(*tensors)
        keep = any(ctx.needs_input_grad)
        (x, z), (x_clean, z_clean) = run.input(noised), run.input(clean, clean_output)
        # clean, noised, noised in reverse
        steps = [*run.steps(x_clean, run.ways[:1]), *run.steps(x, run.ways, x_clean, block)]
        decays = [-torch.exp(way.A_log) for way in run.ways]
        ys: list[Any] = [
            torch.empty_like(x) if wanted else None for wanted in (clean_output, True, True)
        ]
        sizes = -(-x.shape[1] // CHUNK), run.N, run.E
        kept = [x.new_empty(len(x), count, *sizes) if keep else None for count in (2, 1)]
        outputs = [(y, *[None] * 5) for y in ys]
        _scan_streams("forward", steps, run.ways, decays, outputs, block, [(x,) for x in kept])
        if keep:
            ctx.block = block
            rest = [tensor for step in steps for tensor in step]
            saved = noised, clean, x_clean, z_clean, x, z, *ys, *decays, *kept
            ctx.save_for_backward(*saved, *rest, *run.tensors)
        y_clean, y, y_rev = ys
        out_clean = None if y_clean is None else run.output(y_clean, None, z_clean)
        return run.output(y, y_rev, z), out_clean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, dout_clean: OptionalTensor) -> tuple[OptionalTensor, ...]:
        noised, clean, x_clean, z_clean, x, z, y_clean, y, y_rev, *rest = ctx.saved_tensors
        decays = rest[:2]
        kept = rest[2:4]
        rest = rest[4:]
        block = ctx.block
        steps = [_Steps(*row) for row in _in_rows(rest[:9], 3)]
        run = _Kernels(*rest[9:])
        dy, dnoised = run.output_gradient(dout, y, y_rev, z, noised)
        dy_clean = None
        dclean = torch.zeros_like(clean)
        if dout_clean is not None:
            dy_clean, dclean = run.output_gradient(dout_clean, y_clean, None, z_clean, clean)
        (Bt, L, E), N = x.shape, run.N
        shapes = [x.shape] * 2 + [(channel_groups(x), Bt, L, N)] * 2
        grads = [[x.new_empty(shape) for shape in shapes] for _ in steps]
        sums = [[x.new_empty(Bt, *shape) for shape in ((N, E), (E,), (E,))] for _ in decays]
        outputs = [(None, each, *grad) for each, grad in zip((dy_clean, dy, dy), grads)]
        more = [(states, *each) for states, each in zip(kept, sums)]
        _scan_streams("backward", steps, run.ways, decays, outputs, block, more)
        for number, step, (du, ddelta, *parts) in zip((0, 0, 1), steps, grads, strict=True):
            dB, dC = (x.sum(0) if len(x) > 1 else x[0] for x in parts)
            run.steps_gradient(number, step, du, ddelta, dB, dC)
        dnear = x.new_empty(Bt, -(-L // block), run.K - 1, E)
        dus = [grads[1][0], grads[2][0]]
        run.input_gradient(dus, x, noised, dnoised, x_clean, dnear, block)
        run.input_gradient([grads[0][0]], x_clean, clean, dclean, None, dnear, block)
        dscans = [
            (dbias.sum(0), dA.sum(0).T * A, dD.sum(0)) for A, (dA, dD, dbias) in zip(decays, sums)
        ]
        return dnoised, dclean, None, None, None, *run.weights(dscans)


def _scan_streams(
    direction: str, steps: Sequence[_Steps], ways: Sequence[MixerWay], decays: Sequence[Tensor],
    outputs: Sequence[Sequence[OptionalTensor]], block: int,
    more: Sequence[Sequence[OptionalTensor]],
) -> None:  # fmt: skip
    """Scan the clean and the noised stream, and the noised one in reverse; `outputs` are y, dy, du,
    ddelta, dB and dC of each, and `more` the states of all chunks and the sums of each way."""
    table = table_of(
        [
            (step.u, step.delta, *step.inputs(ways[i // 2], decays[i // 2])[3:5], *out)
            for i, (step, out) in enumerate(zip(steps, outputs, strict=True))
        ]
    )
    u = steps[0].u
    size = ctypes.sizeof(table) // 3
    clean, noised, back = (ctypes.addressof(table) + i * size for i in range(3))
    for number, (way, A, arrays) in enumerate(zip(ways, decays, more, strict=True)):
        places = (None, back) if number else (clean, noised)
        sizes = *u.shape, A.shape[1], block, steps[0].p.shape[2], number == 1, channel_groups(u)
        call(f"stream_scan_{direction}", *places, A, way.D, way.dt_bias, *arrays, *sizes)


# of filters in C++, alone and in whole mixers
_MAX_TAPS = 8
_MIXER_TAPS = 4
_LARGEST = 2**17  # entries of half an input projection: weights that fit into a core's cache


class CppBackend(Backend):
    """float32 tensors on the CPU, in C++ compiled for this processor."""

    device_type = "cpu"

    def description(self) -> str:
        """The vector instructions in use, and the library of matrix products if it is not PyTorch's
        choice."""
        vectors = native.library().dnadiff_vectors().decode()
        return f"{vectors}, products by oneDNN" if native.onednn_wins() else vectors

    def compiler(self) -> str:
        return native.library().dnadiff_compiler().decode()

    def scan(self, inputs: ScanInputs, walk: Walk) -> ScanStates:
        if forward_ad._current_level >= 0:  # a custom operator would silently count as a constant
            raise NotImplementedError(
                "the C++ scan has no forward-mode derivative (jvp); set scan=reference"
            )
        block = walk.block or 0
        keep = needs_gradient(*inputs, walk.initial)
        # of blocks of one chunk that restart, the kept states would be the initial ones
        keep = keep and block > CHUNK if walk.restart else keep or block > 0
        options = walk.reverse, keep, walk.given(), block, walk.restart, walk.states
        y, kept, last = scan_operator(*inputs, *options)
        if not walk.states:
            return ScanStates(y)
        every = -(-block // CHUNK)
        kept = (kept[:, ::every] if every > 1 else kept).mT if block else None
        return ScanStates(y, kept, last.mT)

    def short_conv(
        self, x: Tensor, weight: Tensor, bias: Tensor, reverse: bool = False,
        near: OptionalTensor = None, block: int = 0,
    ) -> Tensor:  # fmt: skip
        if weight.shape[1] > _MAX_TAPS:
            return super().short_conv(x, weight, bias, reverse, near, block)
        if near is not None and reverse:  # the operator counts in the order of the walk
            near = near.flip(1, 2)
        near = near if weight.shape[1] > 1 else None
        return native.short_conv(x, weight, bias, reverse, near, block)

    def gated_sum(self, y: Tensor, y_rev: OptionalTensor, z: Tensor) -> Tensor:
        return native.gated_sum(y, y_rev, z)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.add_norm(x, None, weight, eps)[1]

    def add_norm(
        self, x: Tensor, added: OptionalTensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        flat = (None if t is None else t.reshape(1, -1, t.shape[-1]) for t in (x, added))
        flat_x, flat_added = flat
        out, _, total = native.rms_norm(flat_x, weight, eps, flat_added)
        return x if added is None else total.view(x.shape), out.view(x.shape)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return (native.linear if native.multiplies(weight) else F.linear)(x, weight)

    def linear_halves(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        if not native.multiplies(weight):
            return super().linear_halves(x, weight)
        # two products, so that their gradients need not be copied into one array
        first, second = weight.chunk(2)
        return native.linear(x, first), native.linear(x, second)

    def narrow_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        narrow = weight.shape[1] <= native.MAX_RANK
        return (native.narrow_linear if narrow else F.linear)(x, weight)

    def fuses_mixer(self, weights: MixerWeights) -> bool:
        return (
            weights.one_projection
            and weights.in_proj.numel() // 2 <= _LARGEST
            and all(way.conv_weight.shape[1] <= _MIXER_TAPS for way in weights.ways)
            and forward_ad._current_level < 0
            and not torch.compiler.is_compiling()
        )

    def mixer(
        self, hidden: Tensor, weights: MixerWeights, valid: OptionalTensor,
        piece: Piece | None = None,
    ) -> Tensor:  # fmt: skip
        return _Mixer.apply(hidden, valid, *weights.tensors())

    def continued_mixer(
        self, hidden: Tensor, weights: MixerWeights, past: OptionalTensor, state: OptionalTensor,
        valid: OptionalTensor = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        kernels = _Kernels(None, *weights.tensors())
        out, x, _, _, scans = kernels.forward(hidden, False, past, state, last=True)
        return out, x, scans[0][3].mT

    def two_stream_mixer(
        self, noised: Tensor, clean: Tensor, weights: MixerWeights, block: int,
        valid: OptionalTensor, clean_output: bool,
    ) -> tuple[Tensor, OptionalTensor]:  # fmt: skip
        return _TwoStreams.apply(noised, clean, block, clean_output, valid, *weights.tensors())
