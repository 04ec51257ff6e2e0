"""A whole mixer in C++ (`mixer.cpp`) as one function of autograd: projections, convolutions, scans and gate, forward and backward.

The operators one by one are 14 calls, each of which PyTorch dispatches through Python, and each of which writes its result to memory. Here
a layer of a small network is seven calls of the library forward and seven backward. `torch.compile` gets the separate operators.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_void_p
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from dnadiff.kernels.backend import MixerWay
from dnadiff.kernels.cpu_scan import PLAIN, scan_backward, scan_forward
from dnadiff.kernels.native import library, pointers

_MAX_TAPS = 4  # of the filters, in C++
_LARGEST = 2**17  # entries of the input projection: products are written for weights that fit into a core's cache


class _Way(ctypes.Structure):
    """`Way` in mixer.cpp."""

    _fields_ = [(name, c_void_p) for name in ("conv", "bias", "x_proj", "dt", "u", "p", "delta")]


class _Steps(NamedTuple):
    """What the scan of one direction reads: u, p (Bt, L, R + 2 N), delta, its decay rates A; and what it wrote."""

    u: Tensor
    p: Tensor
    delta: Tensor
    A: Tensor
    y: Tensor
    states: Tensor


def mixer(hidden: Tensor, in_proj: Tensor, out_proj: Tensor, ways: Sequence[MixerWay], valid: Tensor | None) -> Tensor:
    """See `Backend.mixer`."""
    return _Mixer.apply(hidden, in_proj, out_proj, valid, *(weight for way in ways for weight in way))


def fits(in_proj: Tensor, ways: Sequence[MixerWay]) -> bool:
    """Whether the kernels are written for weights of this size."""
    return in_proj.numel() // 2 <= _LARGEST and all(way.conv_weight.shape[1] <= _MAX_TAPS for way in ways)


class _Mixer(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx, hidden: Tensor, in_proj: Tensor, out_proj: Tensor, valid: Tensor | None, *weights: Tensor) -> Tensor:
        hidden, in_proj, out_proj = hidden.contiguous(), in_proj.contiguous(), out_proj.contiguous()
        valid = None if valid is None else valid.contiguous()
        ways = _ways([weight.contiguous() for weight in weights])
        (Bt, L, D), E, threads, keep = hidden.shape, out_proj.shape[1], torch.get_num_threads(), any(ctx.needs_input_grad)
        x, z, out = hidden.new_empty(Bt, L, E), hidden.new_empty(Bt, L, E), hidden.new_empty(Bt, L, D)
        library().dnadiff_mixer_input(*pointers(hidden, in_proj, valid, x, z), Bt, L, D, E, threads)
        steps = _steps(x, valid, ways, keep)
        ys = [step.y for step in steps]
        arrays = pointers(ys[0], ys[1] if len(ys) == 2 else None, z, out_proj, out)
        library().dnadiff_mixer_output(*arrays, Bt, L, D, E, threads)
        if keep:
            kept = [tensor for step in steps for tensor in step]
            ctx.save_for_backward(hidden, in_proj, out_proj, valid, x, z, *(weight for way in ways for weight in way), *kept)
        return out

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx, dout: Tensor) -> tuple[Tensor | None, ...]:
        hidden, in_proj, out_proj, valid, x, z, *rest = ctx.saved_tensors
        count = len(rest) // (len(MixerWay._fields) + len(_Steps._fields))
        ways = _ways(rest[: count * len(MixerWay._fields)])
        steps = [_Steps(*rest[-size:][: len(_Steps._fields)]) for size in range(count * len(_Steps._fields), 0, -len(_Steps._fields))]
        return _gradients(dout.contiguous(), hidden, in_proj, out_proj, valid, x, z, ways, steps)


def _ways(weights: Sequence[Tensor]) -> list[MixerWay]:
    size = len(MixerWay._fields)
    return [MixerWay(*weights[i : i + size]) for i in range(0, len(weights), size)]


def _steps(x: Tensor, valid: Tensor | None, ways: list[MixerWay], keep: bool) -> list[_Steps]:
    """Convolutions, step sizes and scans of all directions, from x (Bt, L, E)."""
    (Bt, L, E), R, N, K, threads = x.shape, ways[0].dt_weight.shape[1], ways[0].A_log.shape[1], ways[0].conv_weight.shape[1], 0
    threads = torch.get_num_threads()
    made = [(torch.empty_like(x), x.new_empty(Bt, L, R + 2 * N), torch.empty_like(x)) for _ in ways]
    rows = [(way.conv_weight, way.conv_bias, way.x_proj, way.dt_weight, *out) for way, out in zip(ways, made, strict=True)]
    table = (_Way * len(ways))(*(_Way(*pointers(*row)) for row in rows))
    library().dnadiff_mixer_steps(*pointers(x, valid), ctypes.addressof(table), len(ways), Bt, L, E, K, R, N, threads)
    steps = []
    for number, (way, (u, p, delta)) in enumerate(zip(ways, made, strict=True)):
        A = -torch.exp(way.A_log)
        y, states, _ = scan_forward(u, delta, A, p[..., R : R + N], p[..., R + N :], way.D, way.dt_bias, number == 1, keep, *PLAIN)
        steps.append(_Steps(u, p, delta, A, y, states))
    return steps


def _gradients(
    dout: Tensor, hidden: Tensor, in_proj: Tensor, out_proj: Tensor, valid: Tensor | None, x: Tensor, z: Tensor,
    ways: list[MixerWay], steps: list[_Steps],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of all inputs of `_Mixer.forward`."""
    (Bt, L, D), E, threads = hidden.shape, out_proj.shape[1], torch.get_num_threads()
    (R, N), K = (ways[0].dt_weight.shape[1], ways[0].A_log.shape[1]), ways[0].conv_weight.shape[1]
    # One array of sums per thread, added at the end: out_proj, in_proj (second half, first half), then filter and bias, x_proj and dt.
    sizes = [D * E, E * D, E * D, *[(K + 1) * E] * len(ways), *[(R + 2 * N + R) * E] * len(ways)]
    sums = hidden.new_zeros(threads, sum(sizes))
    starts = [sums.data_ptr() + 4 * sum(sizes[:i]) for i in range(len(sizes))]
    dy, dhidden, y_rev = torch.empty_like(x), torch.empty_like(hidden), steps[1].y if len(steps) == 2 else None
    w_x, w_z = in_proj[:E], in_proj[E:]
    arrays = pointers(dout, steps[0].y, y_rev, z, hidden, out_proj, w_z, dy, dhidden)
    library().dnadiff_mixer_output_backward(*arrays, starts[0], Bt, L, D, E, sums.shape[1], threads)
    dus, dscan = [], []
    for number, (way, (u, p, delta, A, _, states)) in enumerate(zip(ways, steps, strict=True)):
        B, C = p[..., R : R + N], p[..., R + N :]
        du, ddelta, dA, dB, dC, dD, dbias = scan_backward(
            dy, u, delta, A, B, C, way.D, way.dt_bias, states, number == 1, *PLAIN[:3], None, None
        )
        arrays = pointers(ddelta, dB, dC, u, p, way.x_proj, way.dt_weight, valid, du)
        library().dnadiff_mixer_steps_backward(*arrays, starts[3 + len(ways) + number], Bt, L, E, R, N, sums.shape[1], threads)
        dus.append(du)
        dscan.append((dbias, dA * A, dD))
    du_rev, back = (dus[1], ways[1]) if len(ways) == 2 else (None, None)
    filters = (*ways[0][:2], *(back[:2] if back else (None, None)))
    arrays = pointers(dus[0], du_rev, x, hidden, w_x, *filters, valid, dhidden)
    library().dnadiff_mixer_input_backward(*arrays, starts[2], Bt, L, D, E, K, sums.shape[1], threads)
    dout_proj, dz_proj, dx_proj_in, *others = (sums[0] if threads == 1 else sums.sum(0)).split(sizes)
    grads: list[Tensor] = []
    for taps, products, scan in zip(others[: len(ways)], others[len(ways) :], dscan, strict=True):
        taps, products = taps.view(K + 1, E), products.view(-1, E)
        grads += [taps[:K].T.contiguous(), taps[K], products[: R + 2 * N], products[R + 2 * N :].T.contiguous(), *scan]
    din_proj = torch.cat([dx_proj_in, dz_proj]).view_as(in_proj)
    return dhidden, din_proj, dout_proj.view_as(out_proj), None, *grads
