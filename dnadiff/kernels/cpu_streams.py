"""A mixer of block diffusion in C++ as one function of autograd: a noised stream in blocks that
continue a clean stream (see `blocks`).

As `cpu_mixer`, with both streams in one pass through the scan (`stream_scan.cpp`): the states
before blocks are never written to memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_void_p

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from dnadiff.kernels.backend import MixerWay
from dnadiff.kernels.cpu_scan import CHUNK, channel_groups
from dnadiff.kernels.mixer_parts import (
    MixerGradients,
    Steps,
    contiguous_ways,
    in_rows,
    make_steps,
    project_in,
    project_out,
    scan_input,
)
from dnadiff.kernels.native import library, pointers


def two_stream_mixer(
    noised: Tensor, clean: Tensor, in_proj: Tensor, out_proj: Tensor, ways: Sequence[MixerWay], block: int, valid: Tensor | None,
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
        ctx, noised: Tensor, clean: Tensor, in_proj: Tensor, out_proj: Tensor, valid: Tensor | None, block: int, clean_output: bool,
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
    def backward(ctx, dout: Tensor, dout_clean: Tensor | None) -> tuple[Tensor | None, ...]:
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
