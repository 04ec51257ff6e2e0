"""Layers that several networks share.

Networks are conditioned on the noise level and on labels by adaptive layer norm. adaLN (arXiv
2212.09748, section 3.2) shifts, scales and gates each layer by linear functions of one vector per
sequence.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention, silu

from dnadiff.networks.backbone.base import OptTensor
from dnadiff.networks.kernels.facade import AUTO, kernels

# cuDNN's gradients with a mask are wrong or NaN at some lengths in half precision (pytorch#196678),
# and PyTorch 2.11 selects it on an H200. Remove this when the oldest PyTorch allowed has the fix.
_MASKED_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: OptTensor) -> Tensor:
    """`scaled_dot_product_attention` with a mask (None: all keys), by kernels whose gradients are
    right.

    Sets PyTorch's choice of kernels for the process while it runs; do not call it from several
    threads on a GPU.

    Args:
        q: (B, heads, queries, head width).
        k: (B, heads, keys, head width).
        v: as k.
        mask: bool, broadcast to (B, heads, queries, keys), True where a query sees a key.
    """
    if mask is None:
        return scaled_dot_product_attention(q, k, v)
    with sdpa_kernel(_MASKED_ATTENTION):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis, computed in float32 and returned in x's type (arXiv
    1910.07467)."""

    def __init__(self, width: int, eps: float = 1e-5, scan: str = "auto") -> None:
        super().__init__()
        self.eps = eps
        self.scan = scan
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return kernels(self.scan, x).rms_norm(x, self.weight.to(x.dtype), self.eps)

    def after(self, x: Tensor, added: OptTensor) -> tuple[Tensor, Tensor]:
        """x + added (..., D), and its norm in the type of the weights (or autocast's, see
        `dnadiff.networks.kernels.backend.Backend.add_norm`)."""
        return kernels(self.scan, x).add_norm(x, added, self.weight, self.eps)


class KernelLinear(nn.Linear):
    """A linear map with an optional gate, computed by the fastest library on this processor
    (`dnadiff.networks.kernels`)."""

    def forward(self, x: Tensor, gate: OptTensor = None) -> Tensor:
        """(..., in) -> (..., out); `gate (out,)` multiplies the result.

        The gate multiplies the weight: D^2 products instead of B L D, and no result of that size to
        save for the gradient.
        """
        weight: Tensor = self.weight
        bias: OptTensor = self.bias
        if gate is not None:
            gate = gate.to(weight.dtype)
            weight = gate[:, None] * weight
            bias = None if bias is None else gate * bias
        autocast = torch.is_autocast_enabled(x.device.type)
        x = x if autocast else x.to(weight.dtype)  # norms return float32 for weights of any type
        if autocast or x.device.type != "cpu" or x.dtype != torch.float32:
            return nn.functional.linear(x, weight, bias)
        y = kernels(AUTO, x).linear(x, weight)
        return y if bias is None else y + bias


class LayerNorm(nn.Module):
    """Layer normalization with a weight, and a bias as in Mamba but not in DiT, in float32 under
    any autocast."""

    def __init__(self, width: int, eps: float = 1e-5, bias: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor, shift: OptTensor = None, scale: OptTensor = None) -> Tensor:
        """(..., D) -> (..., D) float32 (float64 stays); `shift` and `scale`, given together, are
        those of `modulate` for each row (B, D), or (1, D) for all: folded into the weights."""
        x = at_least_float32(x)
        weight = self.weight.to(x.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if shift is None or scale is None:
            return nn.functional.layer_norm(x, self.weight.shape, weight, bias, self.eps)
        if len(scale) > 1:
            return modulate(self(x), shift[:, None], scale[:, None])
        scale = 1 + scale[0].to(x.dtype)
        shift = shift[0].to(x.dtype)
        weight = weight * scale
        bias = shift if bias is None else bias * scale + shift
        return nn.functional.layer_norm(x, self.weight.shape, weight, bias, self.eps)

    def after(self, x: Tensor, added: OptTensor) -> tuple[Tensor, Tensor]:
        """x + added (..., D), and its norm in the type of the weights."""
        x = x if added is None else x + added
        return x, self(x).to(self.weight.dtype)


def at_least_float32(x: Tensor) -> Tensor:
    """float32 if x is narrower: logits and residual streams lose too much in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Rotary(nn.Module):
    """Rotary position embedding over half-split pairs (arXiv 2104.09864)."""

    def __init__(self, head_width: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.head_width = head_width
        self.base = base

    def frequencies(self, device: torch.device | str = "cpu") -> Tensor:
        """Angle per position of each pair, (head_width / 2,), float32."""
        return self.base ** -(
            torch.arange(0, self.head_width, 2, dtype=torch.float32, device=device)
            / self.head_width
        )

    def angles(self, length: int, device: torch.device, first: int = 0) -> tuple[Tensor, Tensor]:
        """cos and sin of positions `first`, `first + 1`, ..., each (length, head_width),
        float32."""
        angle = torch.arange(first, first + length, dtype=torch.float32, device=device)[
            :, None
        ] * self.frequencies(device)
        return torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()


def rotated(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """(..., L, head_width) rotated by the angles of its positions, see `Rotary.angles`."""
    cos, sin = (a.to(x.dtype) for a in angles)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """x (1 + scale) + shift, with shift and scale (B, 1, D)."""
    return x * (1 + scale) + shift


class SigmaMap(nn.Module):
    """An embedding of the noise level: (B,) -> (B, cond_dim), from cosines, then sines, of sigma at
    geometric frequencies, as in GLIDE and DiT (arXiv 2212.09748)."""

    def __init__(self, cond_dim: int, frequencies: int = 256) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.mlp = nn.Sequential(
            nn.Linear(frequencies, cond_dim), nn.SiLU(), nn.Linear(cond_dim, cond_dim)
        )

    def forward(self, sigma: Tensor) -> Tensor:
        """(B,) -> (B, cond_dim)."""
        half = self.frequencies // 2
        step = torch.arange(half, dtype=torch.float32, device=sigma.device)
        angle = sigma[:, None].float() * torch.exp(-math.log(10_000.0) * step / half)
        waves = torch.cat([angle.cos(), angle.sin()], dim=-1)
        return self.mlp(waves.to(next(self.mlp.parameters()).dtype))


class Condition(nn.Module):
    """One vector per sequence from its noise level and its labels, or None if neither is given.

    The constructor restores the global random state, so that the rest of a network draws the same
    initial weights with and without it.

    Args:
        cond_dim: width of the vector.
        num_labels: C, columns of `cond`; 0 for no labels.
        time_conditioning: take the noise level as an input.
    """

    def __init__(self, cond_dim: int, num_labels: int, time_conditioning: bool | None) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=()):
            self.sigma_map = SigmaMap(cond_dim) if time_conditioning else None
            self.label_map = nn.Linear(num_labels, cond_dim, bias=False) if num_labels else None

    def forward(self, sigma: OptTensor, cond: OptTensor) -> OptTensor:
        """sigma (B,) and cond (B, C) -> (B, cond_dim); a row of zeros in `cond` is equivalent to
        None."""
        total = None if sigma is None or self.sigma_map is None else self.sigma_map(sigma)
        if cond is not None and self.label_map is not None:
            labels = self.label_map(cond.to(self.label_map.weight.dtype))
            total = labels if total is None else total + labels
        return None if total is None else silu(total)


class Modulation(nn.Module):
    """shift, scale and gate of one layer: linear in the condition and initialized to zero.

    There is no bias, so an unlabeled sequence is processed exactly as by a network without labels,
    also after training.
    """

    def __init__(self, cond_dim: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3 * d_model, cond_dim))

    def forward(self, condition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, cond_dim) -> three of (B, 1, D)."""
        shift, scale, gate = nn.functional.linear(condition, self.weight)[:, None].chunk(3, dim=-1)
        return shift, scale, gate


def join(streams: Tensor) -> Tensor:
    """Features of both strands at the sequence's positions: (2B, L, D) -> (B, L, 2D)."""
    first, second = streams.chunk(2)
    return torch.cat([first, second.flip(1, 2)], dim=-1)


def strands(features: Tensor) -> tuple[Tensor, Tensor]:
    """The channels of each strand, (..., 2D) -> two of (..., D), with those of the second in the
    order of the first."""
    first, second = features.chunk(2, dim=-1)
    return first, second.flip(-1)


def invariant(features: Tensor) -> Tensor:
    """The mean of both strands' channels, which does not depend on which strand is given: (..., 2D)
    -> (..., D).

    A linear layer that treats the strands alike cannot use any other part of the features.
    """
    first, second = strands(features)
    return (first + second) / 2
