"""A whole mixer in C++ as one function of autograd: projections, convolutions, scans and gate,
forward and backward.

The operators one by one are 14 calls, each of which PyTorch dispatches through Python, and each of
which writes its result to memory. Here a layer of a small network is seven calls of the library
forward and seven backward. `torch.compile` gets the separate operators.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from dnadiff.networks.kernels.backend import MixerWay
from dnadiff.networks.kernels.cpu_scan import (
    CHUNK,
    PLAIN,
    channel_groups,
    scan_backward,
    scan_forward,
)
from dnadiff.networks.kernels.native import library, pointers


class _Way(ctypes.Structure):
    """`Way` in mixer.cpp."""

    _fields_ = [(name, c_void_p) for name in ("conv", "bias", "x_proj", "dt", "u", "p", "delta")]


class Steps(NamedTuple):
    """What the scan of one direction reads: u and delta (Bt, L, E), and p (Bt, L, R + 2 N) with the
    low-rank delta, B and C."""

    u: Tensor
    p: Tensor
    delta: Tensor

    def inputs(self, way: MixerWay) -> tuple[Tensor, Tensor]:
        """B and C (Bt, L, N)."""
        rank, states = way.dt_weight.shape[1], way.A_log.shape[1]
        return self.p[..., rank : rank + states], self.p[..., rank + states :]


def in_rows(tensors: Sequence[Tensor], size: int) -> list[Sequence[Tensor]]:
    """Consecutive groups of `size` tensors."""
    return [tensors[i : i + size] for i in range(0, len(tensors), size)]


def contiguous_ways(weights: Sequence[Tensor]) -> list[MixerWay]:
    """The weights of all directions, from one list."""
    return [
        MixerWay(*row)
        for row in in_rows([weight.contiguous() for weight in weights], len(MixerWay._fields))
    ]


def project_in(hidden: Tensor, in_proj: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The scan's input x, zero at padding, and the gate z, both (Bt, L, E), from hidden (Bt, L,
    D)."""
    z = hidden.new_empty(*hidden.shape[:2], in_proj.shape[0] // 2)
    return scan_input(hidden, in_proj, valid, z), z


def scan_input(
    hidden: Tensor, in_proj: Tensor, valid: Tensor | None, z: Tensor | None = None
) -> Tensor:
    """x of `project_in`; the gate is written into z, or not computed if z is None."""
    (Bt, L, D), E = hidden.shape, in_proj.shape[0] // 2
    x = hidden.new_empty(Bt, L, E)
    library().dnadiff_mixer_input(
        *pointers(hidden, in_proj, valid, x, z), Bt, L, D, E, torch.get_num_threads()
    )
    return x


def make_steps(
    x: Tensor,
    valid: Tensor | None,
    ways: Sequence[MixerWay],
    clean: Tensor | None = None,
    block: int = 0,
) -> list[Steps]:
    """Convolutions and step sizes of all directions."""
    (Bt, L, E), R, N, K = (
        x.shape,
        ways[0].dt_weight.shape[1],
        ways[0].A_log.shape[1],
        ways[0].conv_weight.shape[1],
    )
    made = [
        Steps(torch.empty_like(x), x.new_empty(Bt, L, R + 2 * N), torch.empty_like(x)) for _ in ways
    ]
    rows = [
        (way.conv_weight, way.conv_bias, way.x_proj, way.dt_weight, *steps)
        for way, steps in zip(ways, made, strict=True)
    ]
    table = (_Way * len(ways))(*(_Way(*pointers(*row)) for row in rows))
    arrays = (*pointers(x, clean, valid), ctypes.addressof(table))
    library().dnadiff_mixer_steps(
        *arrays, len(ways), Bt, L, E, K, R, N, block, torch.get_num_threads()
    )
    return made


def project_out(y: Tensor, y_rev: Tensor | None, z: Tensor, out_proj: Tensor) -> Tensor:
    """((y + y_rev) silu(z)) out_proj^T, (Bt, L, D)."""
    (Bt, L, E), D = y.shape, out_proj.shape[0]
    out = y.new_empty(Bt, L, D)
    library().dnadiff_mixer_output(
        *pointers(y, y_rev, z, out_proj, out), Bt, L, D, E, torch.get_num_threads()
    )
    return out


class MixerGradients:
    """The backward passes of these functions; they add the gradients of the weights into one array
    per thread, which `weights` adds up."""

    def __init__(
        self, in_proj: Tensor, out_proj: Tensor, ways: Sequence[MixerWay], valid: Tensor | None
    ) -> None:
        self.in_proj, self.out_proj, self.ways, self.valid = in_proj, out_proj, ways, valid
        (D, E), (R, N), K = (
            out_proj.shape,
            (ways[0].dt_weight.shape[1], ways[0].A_log.shape[1]),
            ways[0].conv_weight.shape[1],
        )
        # out_proj, in_proj (second half, first half), then filter and bias of all directions,
        # x_proj and dt of all directions
        self.sizes = [
            D * E,
            E * D,
            E * D,
            *[(K + 1) * E] * len(ways),
            *[(R + 2 * N + R) * E] * len(ways),
        ]
        self.threads = torch.get_num_threads()
        self.sums = in_proj.new_zeros(self.threads, sum(self.sizes))

    def _address(self, part: int) -> int:
        return self.sums.data_ptr() + 4 * sum(self.sizes[:part])

    def output(
        self, dout: Tensor, y: Tensor, y_rev: Tensor | None, z: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The gradient of y and y_rev, and that of hidden through z alone."""
        (Bt, L, D), E = hidden.shape, y.shape[2]
        dy, dhidden = torch.empty_like(y), torch.empty_like(hidden)
        arrays = pointers(dout, y, y_rev, z, hidden, self.out_proj, self.in_proj[E:], dy, dhidden)
        library().dnadiff_mixer_output_backward(
            *arrays, self._address(0), Bt, L, D, E, self.sums.shape[1], self.threads
        )
        return dy, dhidden

    def steps(
        self, number: int, steps: Steps, du: Tensor, ddelta: Tensor, dB: Tensor, dC: Tensor
    ) -> None:
        """Adds to du, the gradient of u through the scan, that through the step sizes, B and C of
        one direction."""
        way, (Bt, L, E) = self.ways[number], du.shape
        arrays = pointers(
            ddelta, dB, dC, steps.u, steps.p, way.x_proj, way.dt_weight, self.valid, du
        )
        sizes = (Bt, L, E, way.dt_weight.shape[1], way.A_log.shape[1], self.sums.shape[1])
        library().dnadiff_mixer_steps_backward(
            *arrays, self._address(3 + len(self.ways) + number), *sizes, self.threads
        )

    def input(
        self, dus: Sequence[Tensor], x: Tensor, hidden: Tensor, dhidden: Tensor,
        clean: Tensor | None = None, dnear: Tensor | None = None,
        block: int = 0,
    ) -> None:  # fmt: skip
        """Adds to dhidden the gradient through x, from that of u in one or two directions.

        `dnear` (Bt, blocks, K - 1, E) is the gradient of the clean stream's inputs before blocks:
        of the noised stream, which has `clean`, it is written, and of the clean one it is added to
        that of x.
        """
        (Bt, L, D), E, (du, du_rev) = hidden.shape, x.shape[2], (*dus, None)[:2]
        filters = (*self.ways[0][:2], *((None, None) if du_rev is None else self.ways[1][:2]))
        arrays = pointers(
            du, du_rev, x, clean, hidden, self.in_proj[:E], *filters, self.valid, dnear, dhidden
        )
        sizes = (Bt, L, D, E, self.ways[0].conv_weight.shape[1], block, self.sums.shape[1])
        library().dnadiff_mixer_input_backward(*arrays, self._address(2), *sizes, self.threads)

    def weights(self, scans: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[Tensor]:
        """The gradients of in_proj, out_proj and all directions, from those of dt_bias, A_log and D
        of each direction."""
        dout_proj, dz_proj, dx_proj_in, *others = (
            self.sums[0] if self.threads == 1 else self.sums.sum(0)
        ).split(self.sizes)
        grads = [
            torch.cat([dx_proj_in, dz_proj]).view_as(self.in_proj),
            dout_proj.view_as(self.out_proj),
        ]
        for way, taps, products, scan in zip(
            self.ways, others[: len(self.ways)], others[len(self.ways) :], scans, strict=True
        ):
            (E, K), P = way.conv_weight.shape, way.x_proj.shape[0]
            taps, products = taps.view(K + 1, E), products.view(-1, E)
            grads += [
                taps[:K].T.contiguous(),
                taps[K],
                products[:P],
                products[P:].T.contiguous(),
                *scan,
            ]
        return grads


_MAX_TAPS = 4  # of the filters, in C++
_LARGEST = (
    2**17
)  # entries of the input projection: products are written for weights that fit into a core's cache


def mixer(
    hidden: Tensor,
    in_proj: Tensor,
    out_proj: Tensor,
    ways: Sequence[MixerWay],
    valid: Tensor | None,
) -> Tensor:
    """See `Backend.mixer`."""
    return _Mixer.apply(
        hidden, in_proj, out_proj, valid, *(weight for way in ways for weight in way)
    )


def fits(in_proj: Tensor, ways: Sequence[MixerWay]) -> bool:
    """Whether the kernels are written for weights of this size."""
    return in_proj.numel() // 2 <= _LARGEST and all(
        way.conv_weight.shape[1] <= _MAX_TAPS for way in ways
    )


def continued_mixer(
    hidden: Tensor,
    in_proj: Tensor,
    out_proj: Tensor,
    ways: Sequence[MixerWay],
    past: Tensor | None,
    state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `Backend.continued_mixer`; without gradients."""
    hidden, in_proj, out_proj = hidden.contiguous(), in_proj.contiguous(), out_proj.contiguous()
    ways = contiguous_ways([weight for way in ways for weight in way])
    x, z = project_in(hidden, in_proj, None)
    first = 0 if past is None else past.shape[1]
    longer = (
        x if past is None else torch.cat([past, x], 1)
    )  # a filter of K taps then reads what is before x
    ys, last = [], None
    for number, (way, (u, p, delta)) in enumerate(
        zip(ways, make_steps(longer, None, ways), strict=True)
    ):
        step = Steps(
            u[:, first:].contiguous(), p[:, first:].contiguous(), delta[:, first:].contiguous()
        )
        start = None if state is None or number else state.mT
        scan = (step.u, step.delta, -torch.exp(way.A_log), *step.inputs(way), way.D, way.dt_bias)
        y, _, end = scan_forward(*scan, number == 1, False, start, 0, False, number == 0)
        ys.append(y)
        last = end if number == 0 else last
    assert last is not None
    return project_out(ys[0], ys[1] if len(ys) == 2 else None, z, out_proj), longer, last.mT


class _Mixer(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any,
        hidden: Tensor,
        in_proj: Tensor,
        out_proj: Tensor,
        valid: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        hidden, in_proj, out_proj = hidden.contiguous(), in_proj.contiguous(), out_proj.contiguous()
        valid = None if valid is None else valid.contiguous()
        ways, keep = contiguous_ways(weights), any(ctx.needs_input_grad)
        x, z = project_in(hidden, in_proj, valid)
        steps, scans = make_steps(x, valid, ways), []
        for number, (way, step) in enumerate(zip(ways, steps, strict=True)):
            A = -torch.exp(way.A_log)
            scan = (step.u, step.delta, A, *step.inputs(way), way.D, way.dt_bias)
            scans.append((A, *scan_forward(*scan, number == 1, keep, *PLAIN)[:2]))
        out = project_out(scans[0][1], scans[1][1] if len(ways) == 2 else None, z, out_proj)
        if keep:
            kept = [tensor for row in (*ways, *steps, *scans) for tensor in row]
            ctx.count = len(ways)
            ctx.save_for_backward(hidden, in_proj, out_proj, valid, x, z, *kept)
        return out

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        hidden, in_proj, out_proj, valid, x, z, *rest = ctx.saved_tensors
        count, size = ctx.count, len(MixerWay._fields)
        ways, rows = contiguous_ways(rest[: count * size]), in_rows(rest[count * size :], 3)
        steps, scans = [Steps(*row) for row in rows[:count]], rows[count:]
        to = MixerGradients(in_proj, out_proj, ways, valid)
        dy, dhidden = to.output(
            dout.contiguous(), scans[0][1], scans[1][1] if count == 2 else None, z, hidden
        )
        dus, dscans = [], []
        for number, (way, step, (A, _, states)) in enumerate(zip(ways, steps, scans, strict=True)):
            scan = (step.u, step.delta, A, *step.inputs(way), way.D, way.dt_bias)
            du, ddelta, dA, dB, dC, dD, dbias = scan_backward(
                dy, *scan, states, number == 1, *PLAIN[:3], None, None
            )
            to.steps(number, step, du, ddelta, dB, dC)
            dus.append(du)
            dscans.append((dbias, dA * A, dD))
        to.input(dus, x, hidden, dhidden)
        din_proj, dout_proj, *dways = to.weights(dscans)
        return dhidden, din_proj, dout_proj, None, *dways


def two_stream_mixer(
    noised: Tensor, clean: Tensor, in_proj: Tensor, out_proj: Tensor, ways: Sequence[MixerWay],
    block: int, valid: Tensor | None,
    clean_output: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """See `Backend.two_stream_mixer`."""
    return _TwoStreams.apply(
        noised,
        clean,
        in_proj,
        out_proj,
        valid,
        block,
        clean_output,
        *(weight for way in ways for weight in way),
    )


class _Stream(ctypes.Structure):
    """`Stream` in stream_scan.cpp."""

    _fields_ = [
        (name, c_void_p) for name in ("u", "delta", "B", "C", "y", "dy", "du", "ddelta", "dB", "dC")
    ]


class _TwoStreams(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any, noised: Tensor, clean: Tensor, in_proj: Tensor, out_proj: Tensor,
        valid: Tensor | None, block: int, clean_output: bool,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        noised, clean, in_proj, out_proj = (
            tensor.contiguous() for tensor in (noised, clean, in_proj, out_proj)
        )
        valid = None if valid is None else valid.contiguous()
        ways, keep = contiguous_ways(weights), any(ctx.needs_input_grad)
        x, z = project_in(noised, in_proj, valid)
        z_clean = torch.empty_like(z) if clean_output else None
        x_clean = scan_input(clean, in_proj, valid, z_clean)
        steps = [
            *make_steps(x_clean, valid, ways[:1]),
            *make_steps(x, valid, ways, x_clean, block),
        ]  # clean, noised, noised in reverse
        A, A_rev = (-torch.exp(way.A_log) for way in ways)
        y, y_clean, kept = _scan(steps[:2], ways[0], A, block, keep, clean_output)
        y_rev, _, kept_rev = _scan(steps[2:], ways[1], A_rev, block, keep)
        out = project_out(y, y_rev, z, out_proj)
        out_clean = (
            None
            if y_clean is None or z_clean is None
            else project_out(y_clean, None, z_clean, out_proj)
        )
        if keep:
            ctx.block = block
            tensors = (
                noised,
                clean,
                in_proj,
                out_proj,
                valid,
                x_clean,
                z_clean,
                x,
                z,
                y_clean,
                y,
                y_rev,
                A,
                A_rev,
                kept,
                kept_rev,
            )
            ctx.save_for_backward(*tensors, *(tensor for row in (*ways, *steps) for tensor in row))
        return out, out_clean

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, dout_clean: Tensor | None) -> tuple[Tensor | None, ...]:
        (
            noised,
            clean,
            in_proj,
            out_proj,
            valid,
            x_clean,
            z_clean,
            x,
            z,
            y_clean,
            y,
            y_rev,
            A,
            A_rev,
            kept,
            kept_rev,
            *rest,
        ) = ctx.saved_tensors
        size, block = 2 * len(MixerWay._fields), ctx.block
        ways, steps = (
            contiguous_ways(rest[:size]),
            [Steps(*row) for row in in_rows(rest[size:], len(Steps._fields))],
        )
        to = MixerGradients(in_proj, out_proj, ways, valid)
        dy, dnoised = to.output(dout.contiguous(), y, y_rev, z, noised)
        dy_clean, dclean = None, torch.zeros_like(clean)
        if dout_clean is not None:
            dy_clean, dclean = to.output(dout_clean.contiguous(), y_clean, None, z_clean, clean)
        grads, dscan = _scan_backward([dy_clean, dy], steps[:2], ways[0], A, kept, block)
        grads_rev, dscan_rev = _scan_backward([dy], steps[2:], ways[1], A_rev, kept_rev, block)
        for number, step, grad in zip((0, 0, 1), steps, (*grads, *grads_rev), strict=True):
            to.steps(number, step, *grad)
        dnear = x.new_empty(
            x.shape[0], -(-x.shape[1] // block), ways[0].conv_weight.shape[1] - 1, x.shape[2]
        )
        to.input([grads[1][0], grads_rev[0][0]], x, noised, dnoised, x_clean, dnear, block)
        to.input([grads[0][0]], x_clean, clean, dclean, None, dnear, block)
        din_proj, dout_proj, *dways = to.weights([dscan, dscan_rev])
        return dnoised, dclean, din_proj, dout_proj, None, None, None, *dways


def _scan(
    streams: Sequence[Steps],
    way: MixerWay,
    A: Tensor,
    block: int,
    keep: bool,
    clean_output: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The outputs of the noised stream and of the clean one, and the states of all chunks.

    `streams` are the clean and the noised one, or the noised one alone, in reverse.
    """
    u, threads = streams[-1].u, torch.get_num_threads()
    (Bt, L, E), N, groups = u.shape, A.shape[1], channel_groups(u.shape[0], u.shape[2], threads)
    y, y_clean = torch.empty_like(u), torch.empty_like(u) if clean_output else None
    kept = u.new_empty(Bt, len(streams), -(-L // CHUNK), N, E) if keep else None
    table = _table(streams, way, [(x,) for x in (y_clean, y)[-len(streams) :]])
    arrays, sizes = (
        pointers(A, way.D, way.dt_bias, kept),
        (Bt, L, E, N, block, streams[-1].p.shape[2]),
    )
    library().dnadiff_stream_scan_forward(
        *_addresses(table), *arrays, *sizes, len(streams) == 1, groups, threads
    )
    return y, y_clean, kept


def _scan_backward(
    dys: Sequence[Tensor | None],
    streams: Sequence[Steps],
    way: MixerWay,
    A: Tensor,
    kept: Tensor,
    block: int,
) -> tuple[list[tuple[Tensor, Tensor, Tensor, Tensor]], tuple[Tensor, Tensor, Tensor]]:
    """The gradients of u, delta, B and C of each stream, and those of the bias, A_log and D."""
    u, threads = streams[-1].u, torch.get_num_threads()
    (Bt, L, E), N, groups = u.shape, A.shape[1], channel_groups(u.shape[0], u.shape[2], threads)
    rows, states = u.shape, (groups, Bt, L, N)
    grads = [tuple(u.new_empty(shape) for shape in (rows, rows, states, states)) for _ in streams]
    dA, dD, dbias = u.new_empty(Bt, N, E), u.new_empty(Bt, E), u.new_empty(Bt, E)
    table = _table(streams, way, [(None, dy, *grad) for dy, grad in zip(dys, grads, strict=True)])
    arrays, sizes = (
        pointers(A, way.D, way.dt_bias, kept, dA, dD, dbias),
        (Bt, L, E, N, block, streams[-1].p.shape[2]),
    )
    library().dnadiff_stream_scan_backward(
        *_addresses(table), *arrays, *sizes, len(streams) == 1, groups, threads
    )
    summed = [
        (du, ddelta, dB.sum(0) if groups > 1 else dB[0], dC.sum(0) if groups > 1 else dC[0])
        for du, ddelta, dB, dC in grads
    ]
    return summed, (dbias.sum(0), dA.sum(0).T * A, dD.sum(0))


def _table(
    streams: Sequence[Steps], way: MixerWay, outputs: Sequence[tuple[Tensor | None, ...]]
) -> list[_Stream]:
    return [
        _Stream(*pointers(x.u, x.delta, *x.inputs(way), *out))
        for x, out in zip(streams, outputs, strict=True)
    ]


def _addresses(table: list[_Stream]) -> list[int | None]:
    """The clean stream, which may be missing, and the noised one."""
    return (
        [None, ctypes.addressof(table[0])]
        if len(table) == 1
        else [ctypes.addressof(stream) for stream in table]
    )
