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

from dnadiff.draws import Draws, hash64
from dnadiff.noise import NoiseSchedule, refuse_cut
from dnadiff.noise.base import LARGEST_CUT
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
    """One uniform per row, `(B,)` float64 in (0, 1); stratified: one of the N rows lies in each ((i, i+1)/N).

    The variance of their mean is then 1/(12 N^3) instead of 1/(12 N), as MDLM's low-discrepancy times
    (arXiv 2107.00630, appendix I.1). N counts the global batch. Which stratum is row 0's depends on (seed, step): over the seeds
    every row sees all times, also where rows come in a fixed order.
    """
    u = draws.uniform("time")
    if stratified:
        first = hash64(draws.seed, "stratum", draws.step) % draws.world
        u = (u + (draws.rows.to(u.device) + first) % draws.world) / draws.world
    return u.to(device, torch.float32 if device.type == "mps" else torch.float64)  # Apple GPUs have no float64


class Masking(ABC):
    """Draws xt and the weight that belongs to it."""

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    @abstractmethod
    def __call__(self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws) -> Masked:
        """Corrupt `x0 (B, L)` where `maskable (B, L)`."""

    def ends(self, noise: NoiseSchedule) -> tuple[float, float]:
        """The mask probabilities from and to which the weights integrate; the bound is the integral from 0 to 1."""
        return 0.0, 1.0

    def check(self, noise: NoiseSchedule) -> None:
        """Refuse a schedule with which the weights would not give the bound.

        Raises:
            ValueError: naming what is left out of it.
        """
        low, high = self.ends(noise)
        refuse_cut(noise, low, high, self.cut_by(), self.remedy(high >= 1 - LARGEST_CUT))

    def remedy(self, reaches_all: bool) -> str:
        """What to set instead, for the message: where the schedule masks all in the end, and where it does not."""
        return "set objective/masking=importance or count" if reaches_all else "set objective/masking=count, or another noise"

    def cut_by(self) -> str:
        """The setting that says where the integral begins, for the message."""
        return type(self).__name__

    def evaluation(self) -> Masking:
        """The masking with the least noise and the same mean."""
        return ExactCount()


class Bernoulli(Masking):
    """Each position is masked independently with probability 1 - alpha_t; the weight is -alpha'/(1 - alpha).

    Args:
        stratified: spread the times over the global batch.
        t_min: times are uniform in [t_min, 1]. As published, with 1e-3, the mean over them stands for the integral over [0, 1]: the first
            1e-3 are not omitted but take the mean of the rest, so what is computed is 1/(1 - t_min) times the rest of the integral.
    """

    def __init__(self, stratified: bool = True, t_min: float = 1e-3) -> None:
        if not 0 <= t_min <= LARGEST_CUT:
            raise ValueError(f"t_min {t_min} must lie in [0, {LARGEST_CUT}]: the rest is taken for the whole; the published value is 1e-3")
        self.stratified, self.t_min = stratified, t_min

    def __call__(self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws) -> Masked:
        """See `Masking`."""
        t = self.t_min + (1 - self.t_min) * strata(draws, self.stratified, x0.device)
        return Masked(process.corrupt(x0, t, maskable, draws), t, process.noise.weight(t))

    def ends(self, noise: NoiseSchedule) -> tuple[float, float]:
        """See `Masking`."""
        return noise.mask_probability(self.t_min), noise.mask_probability(1.0)

    def cut_by(self) -> str:
        """See `Masking`."""
        return f"t_min {self.t_min}"


class Importance(Masking):
    """Coins at times drawn in proportion to the NELBO's weight: log(1 - alpha_t) is uniform, and every row's weight the same.

    MDLM's importance sampling, and its change of variables (arXiv 2406.07524) as well: both integrate over log(1 - alpha). The
    constant is log(p_max / p_min); MDLM's code has -log(p_min), which is right to 2e-4 for log-linear.

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
        low, high = map(math.log, self.ends(process.noise))
        t = process.noise.inverse(1 - torch.exp(low + (high - low) * u))
        return Masked(process.corrupt(x0, t, maskable, draws), t, torch.full_like(t, high - low))

    def ends(self, noise: NoiseSchedule) -> tuple[float, float]:
        """See `Masking`."""
        return max(noise.mask_probability(0.0), self.p_min), noise.mask_probability(1.0)

    def cut_by(self) -> str:
        """See `Masking`."""
        return f"p_min {self.p_min}"


class DiscreteTime(Masking):
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
                "or take continuous time: objective=mdlm objective/masking=bernoulli"
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

    def ends(self, noise: NoiseSchedule) -> tuple[float, float]:
        """See `Masking`; the first step reveals everything, so nothing is missing below."""
        return 0.0, noise.mask_probability(1.0)

    def remedy(self, reaches_all: bool) -> str:
        """See `Masking`; d3pm takes no other masking, and counts are another bound."""
        return "set another noise"

    def evaluation(self) -> DiscreteTime:
        """The same steps, stratified by what they reveal."""
        return ImportanceDiscreteTime(self.num_steps)


class ImportanceDiscreteTime(DiscreteTime):
    """The same T steps and the same mean, each step drawn as often as it reveals tokens: in proportion to alpha_s - alpha_t.

    A row then weighs (1 - alpha(1))/(1 - alpha_t), as with coins under the log-linear schedule. Even draws would meet the few steps in which
    a fast schedule does all its work too seldom: of 1,000 steps of ShiftedLogOdds the one at t = 1/1000 reveals 96 %.

    Args:
        num_steps: T.
        stratified: spread the steps over the global batch.
    """

    def __call__(self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws) -> Masked:
        """See `Masking`."""
        u = strata(draws, self.stratified, x0.device)
        times = torch.arange(1, self.num_steps + 1, device=u.device, dtype=u.dtype) / self.num_steps
        masked = 1 - process.noise.alpha(times)  # rises to its last value; its rises are what the steps reveal
        step = torch.searchsorted(masked, u * masked[-1]).clamp(max=self.num_steps - 1)
        return Masked(process.corrupt(x0, times[step], maskable, draws), times[step], masked[-1] / masked[step])


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
