"""The scan of the package mamba_ssm (arXiv 2312.00752), CUDA kernels for channels first; the other operations are PyTorch's.

Only `mamba_ssm.ops.selective_scan_interface.selective_scan_fn` is called. It reads forwards: a reverse scan flips its inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dnadiff.kernels.portable import gated_sum, linear, linear_halves, narrow_linear, rms_norm, short_conv

__all__ = ["detail", "gated_sum", "linear", "linear_halves", "narrow_linear", "rms_norm", "selective_scan", "short_conv", "unsupported"]


def unsupported(device_type: str, dtype: torch.dtype) -> str:
    """Why these inputs cannot be computed here, or nothing."""
    if device_type != "cuda":
        return f"the tensors are on {device_type}, this kernel needs a CUDA device"
    return "it computes in float32; float64 needs scan=portable" if dtype == torch.float64 else ""


def detail() -> str:
    """What the log says beside the name."""
    return "CUDA, flipped for the reverse direction"


def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, delta_bias: Tensor | None, reverse: bool
) -> Tensor:
    """See `dnadiff.kernels.selective_scan`; float32 tensors on a CUDA device."""
    try:
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    except ImportError as error:
        raise RuntimeError(f"mamba_ssm is not installed ({error}); pip install 'dnadiff[cuda]' adds it") from error
    u, delta, B, C = ((x.flip(1) if reverse else x).mT for x in (u, delta, B, C))
    y = selective_scan_fn(u, delta, A, B, C, D, delta_bias=delta_bias, delta_softplus=True).mT
    return y.flip(1) if reverse else y
