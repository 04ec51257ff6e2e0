"""How many tokens of each training sequence are masked: by independent coins at a random time, or by an exact count.

Coins at uniform times, coins at importance-sampled times and counts have the same NELBO as their mean (arXiv 2406.07524 and
2310.01334) and less and less variance; steps of a discrete time have that of T steps, which is larger.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from dnadiff.draws import Draws
from dnadiff.noise import NoiseSchedule
from dnadiff.process import AbsorbingProcess

# What the published cut of the times, t >= 1e-3, leaves out of the log-linear schedule is 1e-3 of the mask probability.
_LARGEST_CUT = 2e-3


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

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    @abstractmethod
    def __call__(self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws) -> Masked:
        """Corrupt `x0 (B, L)` where `maskable (B, L)`."""

    def check(self, noise: NoiseSchedule) -> None:
        """Refuse a schedule with which the weights would not give the bound; raises ValueError."""

    def evaluation(self) -> Masking:
        """The masking with the least noise and the same mean."""
        return ExactCount()


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

    def check(self, noise: NoiseSchedule) -> None:
        """The times left out must not hold a noticeable part of the mask probability, over which the bound is an integral."""
        ends = noise.alpha(torch.tensor([0.0, self.t_min], dtype=torch.float64, device="cpu"))
        if ends[0] - ends[1] > _LARGEST_CUT:
            raise ValueError(
                f"t_min {self.t_min} leaves the mask probabilities below {1 - float(ends[1]):.3g} of {type(noise).__name__} out of the bound; "
                "set objective/masking=importance or count, or a smaller objective.masking.t_min"
            )


class Importance(Masking):
    """Coins at times drawn in proportion to the NELBO's weight: log(1 - alpha_t) is uniform, and every row's weight the same.

    MDLM's importance sampling, and its change of variables (arXiv 2406.07524) as well: both integrate over log(1 - alpha). The constant is log(p_max / p_min); MDLM's code has -log(p_min), which is right to 2e-4 for log-linear.

    Args:
        stratified: spread the times over the global batch.
        p_min: the smallest mask probability, or 1 - alpha(0) where that is larger.
    """

    def __init__(self, stratified: bool = True, p_min: float = 1e-3) -> None:
        if not 0 < p_min < 1:
            raise ValueError(f"p_min {p_min} must lie in (0, 1); MDLM's t_min 1e-3 is 1e-3 here")
        self.stratified, self.p_min = stratified, p_min

    def __call__(self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws) -> Masked:
        """See `Masking`."""
        u = strata(draws, self.stratified, x0.device)
        first, last = (1 - process.noise.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64))).tolist()
        low, high = math.log(max(first, self.p_min)), math.log(last)
        t = process.noise.inverse(1 - torch.exp(low + (high - low) * u))
        return Masked(process.corrupt(x0, t, maskable, draws), t, torch.full_like(t, high - low))


class Steps(Masking):
    """Coins at one of T discrete times i/T; the weight is T times the chance of being revealed, (alpha_s - alpha_t)/(1 - alpha_t).

    The bound of MDLM (arXiv 2406.07524) with T steps. At t = 1/T the step reveals everything: its term is
    -log p(x0) before the factor T, where the published code has 0/0. That is so for schedules with alpha(0) below 1 too, as
    samplers have it.

    Args:
        num_steps: T.
        stratified: spread the steps over the global batch.
    """

    def __init__(self, num_steps: int = 1000, stratified: bool = True) -> None:
        if num_steps < 1:
            raise ValueError(
                f"num_steps {num_steps} must be at least 1: discrete time has T steps; set objective.masking.num_steps, "
                "or take continuous time: objective=mdlm objective/masking=coins"
            )
        self.num_steps, self.stratified = num_steps, stratified

    def __call__(self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws) -> Masked:
        """See `Masking`."""
        u = strata(draws, self.stratified, x0.device)
        t = ((u * self.num_steps).floor() + 1).clamp(max=self.num_steps) / self.num_steps
        alpha_t, alpha_s = self.alphas(process.noise, t)
        return Masked(process.corrupt(x0, t, maskable, draws), t, self.num_steps * (alpha_s - alpha_t) / (1 - alpha_t))

    def alphas(self, noise: NoiseSchedule, t: Tensor) -> tuple[Tensor, Tensor]:
        """alpha at t and at the step before it, t - 1/T; before the first step it is 1."""
        s = (t * self.num_steps).round() - 1
        return noise.alpha(t), torch.where(s > 0, noise.alpha(s.clamp(min=0) / self.num_steps), 1.0)

    def evaluation(self) -> Steps:
        """The same steps, stratified."""
        return Steps(self.num_steps)


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
        t = process.noise.inverse(1 - count.to(u) / available.clamp(min=1))
        return Masked(process.corrupt_count(x0, count, maskable, draws), t, available.to(u) / count.clamp(min=1))
