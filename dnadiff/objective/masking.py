"""How many tokens of each training sequence are masked: by independent coins at a random time, or by an exact count.

Both give the same NELBO in expectation (facts of arXiv 2406.07524 and 2310.01334); the count has less variance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from dnadiff.draws import Draws
from dnadiff.process import AbsorbingProcess


class Masked(NamedTuple):
    """A corrupted batch.

    Attributes:
        xt: (B, L).
        t: (B,) the time the network is told if it asks.
        weight: (B,) factor of each row's summed cross-entropy that makes it an estimate of the row's NELBO.
    """

    xt: Tensor
    t: Tensor
    weight: Tensor


def strata(draws: Draws, stratified: bool, device: torch.device) -> Tensor:
    """One uniform per row, `(B,)` float64 in (0, 1); stratified: row i of N lies in ((i, i+1)/N).

    The variance of their mean is then 1/(12 N^3) instead of 1/(12 N), as MDLM's low-discrepancy times
    (arXiv 2107.00630, appendix I.1). N counts the global batch.
    """
    u = draws.uniform("time")
    if stratified:
        u = (u + draws.rows.to(u.device)) / draws.world
    return u.to(device, torch.float32 if device.type == "mps" else torch.float64)  # Apple GPUs have no float64


class Masking(ABC):
    """Draws xt and the weight that belongs to it."""

    @abstractmethod
    def __call__(self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws) -> Masked:
        """Corrupt `x0 (B, L)` where `maskable (B, L)`."""


class Coins(Masking):
    """Each position is masked independently with probability 1 - alpha_t; the weight is -alpha'/(1 - alpha).

    Args:
        stratified: spread the times over the global batch.
        t_min: times are uniform in [t_min, 1]; published MDLM uses 1e-3 and so omits the first 1e-3 of the integral.
    """

    def __init__(self, stratified: bool = True, t_min: float = 1e-3) -> None:
        if not 0 <= t_min < 1:
            raise ValueError(f"t_min {t_min} must lie in [0, 1); the published value is 1e-3")
        self.stratified, self.t_min = stratified, t_min

    def __call__(self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws) -> Masked:
        """See `Masking`."""
        t = self.t_min + (1 - self.t_min) * strata(draws, self.stratified, x0.device)
        return Masked(process.corrupt(x0, t, maskable, draws), t, process.noise.weight(t))


class ExactCount(Masking):
    """k is uniform on 1..L_i and exactly k of a row's L_i maskable positions are masked; the weight is L_i/k.

    The time told is the one at which k masks are expected. Schedules do not matter here: with a uniform
    predictor the loss has no variance at all.

    Args:
        stratified: spread k/L_i over the global batch.
    """

    def __init__(self, stratified: bool = True) -> None:
        self.stratified = stratified

    def __call__(self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws) -> Masked:
        """See `Masking`."""
        available = maskable.sum(-1)
        u = strata(draws, self.stratified, x0.device)
        count = torch.minimum((u * available).floor().long() + 1, available)
        t = process.noise.inverse(1 - count.to(u) / available.clamp(min=1)).clamp(max=1.0)
        return Masked(process.corrupt_count(x0, count, maskable, draws), t, available.to(u) / count.clamp(min=1))
