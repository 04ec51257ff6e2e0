"""A whole mixer in C++ as one function of autograd: projections, convolutions, scans and gate,
forward and backward.

The operators one by one are 14 calls, each of which PyTorch dispatches through Python, and each of
which writes its result to memory. Here a layer of a small network is seven calls of the library
forward and seven backward. `torch.compile` gets the separate operators.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from dnadiff.kernels.backend import MixerWay
from dnadiff.kernels.cpu_scan import PLAIN, scan_backward, scan_forward
from dnadiff.kernels.mixer_parts import (
    MixerGradients,
    Steps,
    contiguous_ways,
    in_rows,
    make_steps,
    project_in,
    project_out,
)

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
        ctx,
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
    def backward(ctx, dout: Tensor) -> tuple[Tensor | None, ...]:
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
