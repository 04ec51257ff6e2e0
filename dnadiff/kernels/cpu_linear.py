"""Matrix products in float32 as a custom operator of the C++ back end: small weights in C++, large
ones by the library that is fast here.

The products of a small network have many short rows. The C++ kernel (`products.cpp`) runs at the
rate of a large product on them, where libraries reach half of it to four fifths. For larger weights
PyTorch multiplies float32 matrices with MKL, which uses 256-bit instructions on processors that are
not Intel's. Its other library, oneDNN, uses the widest instructions. On an AMD EPYC with AVX-512
the rates are 110 and 240 GFLOP/s per core. The gradient of a weight, a sum over all positions of
products of short rows, is slow in both: at widths from 64 to 256 two cores reach 200 GFLOP/s with
MKL, 150 to 250 with oneDNN, and 480 with the C++ kernel, which keeps the sums in registers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from dnadiff.kernels.native import library, pointers, rows, save_inputs
from dnadiff.kernels.operator import constant_in_graphs, cpu_operator

SMALL = 2**17  # entries of a weight whose panels fit into a core's cache
_SUMS = 2**18  # up to this size the gradient of a weight fits into one core's cache


@constant_in_graphs
def onednn_wins() -> bool:
    """Whether oneDNN is known to be faster on this processor, and works. Not decided by timing:
    every run on a machine makes the same choice."""
    return _onednn_wins()


@cache
def _onednn_wins() -> bool:
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or "AuthenticAMD" not in _processor():
        return False
    try:
        a, b = (
            torch.ones(75, 47, device="cpu"),
            torch.full((75, 47), 0.5, device="cpu").cumsum(1),
        )  # small sums, exact in float32
        products = (_product(a, b), b.sum(1)), (_outer_sum(a, b, 2), b.sum(0).expand(47, 47))
        return all(bool((ours == expected).all()) for ours, expected in products)
    except Exception:  # the operator is not part of PyTorch's public API; without it PyTorch's choice is good enough
        return False


def _processor() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()[:4096]
    except OSError:
        return ""


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a b^T of two matrices."""
    return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")


def is_small(weight: Tensor) -> bool:
    """Whether the C++ kernel multiplies by this weight."""
    return weight.numel() <= SMALL


def _small_product(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T, (..., E), of x (..., R) and weight (E, R) of any strides."""
    (E, R), (flat, row) = weight.shape, rows(x.reshape(1, -1, x.shape[-1]))
    out = x.new_empty(*x.shape[:-1], E)
    sizes = (flat.shape[1], R, E, row, weight.stride(1), weight.stride(0), E)
    library().dnadiff_product(*pointers(flat, weight, out), *sizes, False, torch.get_num_threads())
    return out


def _outer_sum(a: Tensor, b: Tensor, threads: int) -> Tensor:
    """a^T b of two matrices with the same number of rows."""
    (a, a_row), (b, b_row) = rows(a[None]), rows(b[None])
    sums = a.new_zeros(threads, a.shape[2], b.shape[2])
    library().dnadiff_outer_sum(
        *pointers(a, b, sums), a.shape[1], a.shape[2], b.shape[2], a_row, b_row, threads
    )
    return sums.sum(0)


@cpu_operator("linear")
def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T, (..., E), of x (..., R) and weight (E, R); by oneDNN if the weight is large."""
    if is_small(weight):
        return _small_product(x, weight)
    return _product(x.flatten(0, -2), weight).view(*x.shape[:-1], weight.shape[0])


linear.register_fake(lambda x, weight: x.new_empty(*x.shape[:-1], weight.shape[0]))


@cpu_operator("linear_backward")
def _linear_backward(dout: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    dx = (
        _small_product(dout, weight.t())
        if is_small(weight)
        else _product(dout.flatten(0, -2), weight.t()).view(x.shape)
    )
    dout, x_rows = dout.flatten(0, -2), x.flatten(0, -2)
    threads = torch.get_num_threads()
    if weight.numel() > _SUMS or (
        len(dout) < 64 * threads**2 and onednn_wins()
    ):  # each thread has its own sums, which one more pass adds
        return dx, _product(dout.t(), x_rows.t())
    return dx, _outer_sum(dout, x_rows, threads)


_linear_backward.register_fake(
    lambda dout, x, weight: (x.new_empty(x.shape), weight.new_empty(weight.shape))
)


linear.register_autograd(
    lambda ctx, dout: _linear_backward(dout, *ctx.saved_tensors), setup_context=save_inputs
)
