"""Conditioning of a network on the noise level and on labels by adaptive layer norm.

adaLN (arXiv 2212.09748, section 3.2) shifts, scales and gates each layer by linear functions of one
vector per sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from dnadiff.backbone.layers import sinusoid


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """x (1 + scale) + shift, with shift and scale (B, 1, D)."""
    return x * (1 + scale) + shift


class SigmaMap(nn.Module):
    """An embedding of the noise level: (B,) -> (B, cond_dim)."""

    def __init__(self, cond_dim: int, frequencies: int = 256) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.mlp = nn.Sequential(
            nn.Linear(frequencies, cond_dim), nn.SiLU(), nn.Linear(cond_dim, cond_dim)
        )

    def forward(self, sigma: Tensor) -> Tensor:
        """(B,) -> (B, cond_dim)."""
        return self.mlp(sinusoid(sigma, self.frequencies).to(next(self.mlp.parameters()).dtype))


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

    def forward(self, sigma: Tensor | None, cond: Tensor | None) -> Tensor | None:
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
        shift, scale, gate = linear(condition, self.weight)[:, None].chunk(3, dim=-1)
        return shift, scale, gate
