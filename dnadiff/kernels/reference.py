"""The operations as they are defined, for tests: plain autograd, the scan one position at a time, slow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def unsupported(device_type: str, dtype: torch.dtype) -> str:
    """Why these inputs cannot be computed here: never."""
    return ""


def detail() -> str:
    """What the log says beside the name."""
    return "plain PyTorch, one position at a time"


def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, delta_bias: Tensor | None, reverse: bool
) -> Tensor:
    """The recurrence of `dnadiff.kernels.selective_scan`, literally. Memory is (Bt, L, E, N)."""
    step = F.softplus(delta if delta_bias is None else delta + delta_bias)  # (Bt, L, E)
    positions = list(zip(*(x.unbind(1) for x in (u, step, B, C)), strict=True))  # slicing in the loop would make the backward pass O(L^2)
    h = u.new_zeros(u.shape[0], *A.shape)  # (Bt, E, N)
    y = []
    for u_l, step_l, B_l, C_l in reversed(positions) if reverse else positions:
        h = torch.exp(step_l[:, :, None] * A) * h + (step_l * u_l)[:, :, None] * B_l[:, None, :]
        y.append((h * C_l[:, None, :]).sum(-1) + D * u_l)  # (Bt, E)
    return torch.stack(y[::-1] if reverse else y, dim=1)


def short_conv(x: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Tensor:
    """The convolution of `dnadiff.kernels.short_conv` by PyTorch's own, channels first."""
    E, K = weight.shape
    if reverse:
        a = F.conv1d(F.pad(x.mT, (0, K - 1)), weight.flip(-1)[:, None], bias, groups=E)
    else:
        a = F.conv1d(F.pad(x.mT, (K - 1, 0)), weight[:, None], bias, groups=E)
    return F.silu(a).mT


def gated_sum(y: Tensor, y_rev: Tensor | None, z: Tensor) -> Tensor:
    """The gate of `dnadiff.kernels.gated_sum`, silu written out."""
    total = y if y_rev is None else y + y_rev
    return total * z * torch.sigmoid(z)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm of `dnadiff.kernels.rms_norm`: arXiv 1910.07467, equation 4, with eps under the root."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """The product of `dnadiff.kernels.linear`."""
    return x @ weight.T


def linear_halves(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """See `dnadiff.kernels.linear_halves`."""
    return linear(x, weight).chunk(2, dim=-1)


def narrow_linear(x: Tensor, weight: Tensor) -> Tensor:
    """The product of `dnadiff.kernels.narrow_linear`."""
    return (x[..., None, :] * weight).sum(-1)
