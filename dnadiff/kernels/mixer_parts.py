"""The parts of a mixer between its scans (`mixer.cpp`) as functions of tensors, forward and
backward, for `cpu_mixer` and `cpu_streams`.

All tensors are contiguous. In block diffusion `clean` is the scan's input x of the clean stream,
which the convolutions of the noised stream read before each block of `block` positions; `block` is
0 for whole sequences.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from dnadiff.kernels.backend import MixerWay
from dnadiff.kernels.native import library, pointers


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
        self, dus: Sequence[Tensor], x: Tensor, hidden: Tensor, dhidden: Tensor, clean: Tensor | None = None, dnear: Tensor | None = None,
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
