"""`add_log_sum` and `logits_gradient` of `log_sum`, on logits in half precision or float32, by
Triton kernels."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from dnadiff.networks.kernels import triton_support
from dnadiff.networks.kernels.triton_support import check_gpu, device_of, interpreted

_TILE, _WARPS = (
    2048,
    8,
)  # columns of a program: 8 for each thread, one vector of 16 bytes in half precision
_KERNELS = "triton_row_kernels"


@cache
def unavailable(device: torch.device) -> str:
    """Why the kernels cannot run on a device; an empty string if they can."""
    if device.type != "cuda" and not interpreted():
        return "it needs a CUDA device"
    try:
        triton_support.load_kernels(_KERNELS)
        if device.type == "cuda":
            check_gpu(device)
    except RuntimeError as error:
        return str(error)
    return ""


def _tile(columns: int) -> int:
    return min(_TILE, max(16, 1 << (columns - 1).bit_length()))


@torch.library.custom_op("dnadiff::add_log_sum", mutates_args=("log_sum", "picked"))
def add_log_sum(
    logits: Tensor, bias: Tensor | None, ids: Tensor, first: int, log_sum: Tensor, picked: Tensor
) -> None:
    """As `_Portable.add_log_sum` of `log_sum`; rows of `logits` need not follow each other."""
    (M, N), K = logits.shape, ids.shape[1]
    with device_of(logits):
        triton_support.load_kernels(_KERNELS).add_log_sum[(M,)](
            logits, logits if bias is None else bias, ids, log_sum, picked, N, logits.stride(0),
            first, K,
            BN=_tile(N), BK=1 << max(0, K - 1).bit_length(), BIAS=bias is not None,
            num_warps=_WARPS,
        )  # fmt: skip


@torch.library.custom_op("dnadiff::logits_gradient", mutates_args=("logits",))
def logits_gradient(
    logits: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    first: int,
    log_sum: Tensor,
    d_log_sum: Tensor,
    d_picked: Tensor,
) -> None:
    """As `_Portable.logits_gradient` of `log_sum`; rows of `logits` need not follow each
    other."""
    (M, N), K = logits.shape, ids.shape[1]
    tile = _tile(N)
    with device_of(logits):
        triton_support.load_kernels(_KERNELS).logits_gradient[(M * -(-N // tile),)](
            logits, logits if bias is None else bias, ids, log_sum, d_log_sum, d_picked, N,
            logits.stride(0), first,
            K=K, BN=tile, BIAS=bias is not None, num_warps=_WARPS,
        )  # fmt: skip


add_log_sum.register_fake(lambda *_: None)
logits_gradient.register_fake(lambda *_: None)
