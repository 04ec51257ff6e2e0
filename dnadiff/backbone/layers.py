"""Small layers that several networks share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dnadiff.kernels import linear, linear_halves, rms_norm


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis, computed in float32 and returned in x's type (arXiv 1910.07467).

    Args:
        width: D.
        eps: added to the mean square.
        scan: which kernels compute it, as in `dnadiff.kernels`.
    """

    def __init__(self, width: int, eps: float = 1e-5, scan: str = "auto") -> None:
        super().__init__()
        self.eps, self.scan = eps, scan
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return rms_norm(x, self.weight.to(x.dtype), self.eps, scan=self.scan)


class Projection(nn.Linear):
    """A linear map without a bias, by the kernels that the mixer around it uses."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, x: Tensor, scan: str = "auto") -> Tensor:
        """(..., in) -> (..., out)."""
        return linear(x, self.weight, scan=scan)

    def halves(self, x: Tensor, scan: str = "auto") -> tuple[Tensor, Tensor]:
        """(..., in) -> two of (..., out / 2)."""
        return linear_halves(x, self.weight, scan=scan)


class LayerNorm(nn.Module):
    """Layer normalisation with a weight, in float32 under any autocast.

    Args:
        width: D.
        eps: added to the variance.
        bias: add a learned vector, as Mamba's does and DiT's does not.
    """

    def __init__(self, width: int, eps: float = 1e-5, bias: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D) float32 (float64 stays)."""
        x = x if x.dtype == torch.float64 else x.float()
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return nn.functional.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), bias, self.eps)


def widened(x: Tensor) -> Tensor:
    """In float32 where it was narrower: logits and residual streams lose too much in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def sinusoid(sigma: Tensor, width: int, max_period: float = 10_000.0) -> Tensor:
    """Cosines, then sines, of sigma at geometric frequencies: (B,) -> (B, width), as in GLIDE and DiT (arXiv 2212.09748)."""
    half = width // 2
    frequency = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float32, device=sigma.device) / half)
    angle = sigma[:, None].float() * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


class Rotary(nn.Module):
    """Rotary position embedding over half-split pairs (arXiv 2104.09864)."""

    def __init__(self, head_width: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.head_width, self.base = head_width, base

    def frequencies(self, device: torch.device | str = "cpu") -> Tensor:
        """Angle per position of each pair, (head_width / 2,), float32."""
        return self.base ** -(torch.arange(0, self.head_width, 2, dtype=torch.float32, device=device) / self.head_width)

    def angles(self, length: int, device: torch.device, first: int = 0) -> tuple[Tensor, Tensor]:
        """cos and sin of positions `first`, `first + 1`, ..., each (length, head_width), float32."""
        angle = torch.arange(first, first + length, dtype=torch.float32, device=device)[:, None] * self.frequencies(device)
        return torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()

    def forward(self, x: Tensor, first: int = 0) -> Tensor:
        """Rotate (B, heads, L, head_width) by position, the first of which is `first`."""
        cos, sin = (a.to(x.dtype) for a in self.angles(x.shape[-2], x.device, first))
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin
