"""How many tokens of each training sequence are masked: independently at a random time, or an exact
count.

Independent masks at uniform times, at importance-sampled times, and exact counts estimate the NELBO
(arXiv 2406.07524 and 2310.01334), with decreasing variance. For a network without time conditioning
all three have the same mean, whatever the schedule. Discrete time has the NELBO of T steps as its
mean, which is larger for the exact posterior.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff import checks
from dnadiff.draws import Draws, hash64
from dnadiff.noise import NoiseSchedule, refuse_cut
from dnadiff.noise.base import LARGEST_CUT
from dnadiff.process import AbsorbingProcess


class MaskedBatch(NamedTuple):
    """A corrupted batch.

    Attributes:
        xt: (B, L).
        t: (B,) the time, for networks that are conditioned on it.
        weight: (B,) factor of each row's summed cross-entropy that makes it an estimate of the
            row's NELBO; (B, L) if it depends on the position.
    """

    xt: Tensor
    t: Tensor
    weight: Tensor


def strata(draws: Draws, stratified: bool, device: torch.device) -> Tensor:
    """One uniform per row, `(B,)` float64 in (0, 1); stratified: one of the N rows in each interval
    (i/N, (i + 1)/N).

    The variance of their mean is then 1/(12 N^3) instead of 1/(12 N), as with MDLM's
    low-discrepancy times (arXiv 2107.00630, appendix I.1). N is the size of the global batch. The
    stratum of row 0 depends on (seed, step), so that over the seeds every row gets all times, even
    if rows come in a fixed order.
    """
    u = draws.uniform("time")
    if stratified:
        first = hash64(draws.seed, "stratum", draws.step) % draws.global_batch_size
        place = draws.rows if draws.place is None else draws.place
        u = (u + (place.to(u.device) + first) % draws.global_batch_size) / draws.global_batch_size
    return u.to(
        device, torch.float32 if device.type == "mps" else torch.float64
    )  # Apple GPUs have no float64


class Masking(ABC):
    """Draws xt and the weight of each row."""

    buildable: ClassVar[bool] = (
        True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)
    )

    @abstractmethod
    def __call__(
        self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws
    ) -> MaskedBatch:
        """Corrupt `x0 (B, L)` where `maskable (B, L)` bool."""

    def ends(self, noise: NoiseSchedule) -> tuple[float, float]:
        """Lowest and highest mask probability that the weights integrate over; the bound is the
        integral from 0 to 1."""
        return 0.0, 1.0

    def check(self, noise: NoiseSchedule) -> None:
        """Raise a ValueError for a schedule with which the weights do not give the bound; it names
        what the bound would leave out."""
        low, high = self.ends(noise)
        refuse_cut(noise, low, high, self.cut_by(), self.remedy(high >= 1 - LARGEST_CUT))

    def remedy(self, reaches_all: bool) -> str:
        """What to set instead, for the message, depending on whether the schedule ends with
        everything masked."""
        return (
            "set objective/masking=importance or count"
            if reaches_all
            else "set objective/masking=count, or another noise"
        )

    def cut_by(self) -> str:
        """The setting that determines where the integral begins, for the message."""
        return type(self).__name__

    def notes(self, trains_bound: bool) -> list[str]:
        """What the log of a training says about it; `trains_bound`: the bound is differentiated,
        not the plain mean over masked tokens."""
        return []

    def evaluation(self) -> Masking:
        """The masking of lowest variance; without time conditioning its mean is the same."""
        return ExactCount()


class Bernoulli(Masking):
    """Each position is masked independently with probability 1 - alpha_t; the weight is -alpha'/(1
    - alpha).

    Args:
        stratified: spread the times over the global batch.
        t_min: times are uniform in [t_min, 1]. As published, with 1e-3, their mean is taken as the
            integral over [0, 1]: it is 1/(1 - t_min) times the integral over [t_min, 1].
    """

    def __init__(self, stratified: bool = True, t_min: float = 1e-3) -> None:
        if not 0 <= checks.number("objective.masking.t_min", t_min) <= LARGEST_CUT:
            raise ValueError(
                f"objective.masking.t_min {t_min} must be from 0 to {LARGEST_CUT}, or the bound "
                "leaves out too much; 1e-3 is published"
            )
        self.stratified, self.t_min = stratified, t_min

    @override
    def __call__(
        self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws
    ) -> MaskedBatch:
        t = self.t_min + (1 - self.t_min) * strata(draws, self.stratified, x0.device)
        return MaskedBatch(process.corrupt(x0, t, maskable, draws), t, process.noise.weight(t))

    @override
    def ends(self, noise: NoiseSchedule) -> tuple[float, float]:
        return noise.mask_probability(self.t_min), noise.mask_probability(1.0)

    @override
    def cut_by(self) -> str:
        return f"t_min {self.t_min}"


class Importance(Masking):
    """Independent masks at times drawn in proportion to the NELBO's weight: log(1 - alpha_t) is
    uniform, and all rows have equal weight.

    This is MDLM's importance sampling and also its change of variables (arXiv 2406.07524): both
    integrate over log(1 - alpha). The weight is log(p_max / p_min); MDLM's code uses -log(p_min),
    which differs by 2e-4 for log-linear.

    Args:
        stratified: spread the times over the global batch.
        p_min: the smallest mask probability, or 1 - alpha(0) where that is larger.
    """

    def __init__(self, stratified: bool = True, p_min: float = 1e-3) -> None:
        checks.fraction("objective.masking.p_min", p_min, inclusive=False)
        self.stratified, self.p_min = stratified, p_min

    @override
    def __call__(
        self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws
    ) -> MaskedBatch:
        u = strata(draws, self.stratified, x0.device)
        low, high = map(math.log, self.ends(process.noise))
        t = process.noise.inverse(1 - torch.exp(low + (high - low) * u))
        return MaskedBatch(
            process.corrupt(x0, t, maskable, draws), t, torch.full_like(t, high - low)
        )

    @override
    def ends(self, noise: NoiseSchedule) -> tuple[float, float]:
        return max(noise.mask_probability(0.0), self.p_min), noise.mask_probability(1.0)

    @override
    def cut_by(self) -> str:
        return f"p_min {self.p_min}"


class DiscreteTime(Masking):
    """Independent masks at one of T discrete times i/T; the weight is T times the unmasking
    probability, (alpha_s - alpha_t)/(1 - alpha_t).

    The bound of MDLM (arXiv 2406.07524) with T steps. At t = 1/T the step unmasks everything: its
    term is -log p(x0) before the factor T, where the published code has 0/0. This holds for
    schedules with alpha(0) below 1 too, as in samplers.

    Args:
        num_steps: T.
        stratified: spread the steps over the global batch.
    """

    def __init__(self, num_steps: int = 1000, stratified: bool = True) -> None:
        if not checks.is_integer(num_steps, 1):
            raise ValueError(
                f"objective.masking.num_steps {num_steps!r} must be an integer of at least 1: "
                "discrete time has T steps; "
                "for continuous time set objective=mdlm objective/masking=bernoulli"
            )
        self.num_steps, self.stratified = int(num_steps), stratified

    @override
    def __call__(
        self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws
    ) -> MaskedBatch:
        u = strata(draws, self.stratified, x0.device)
        t = ((u * self.num_steps).floor() + 1).clamp(max=self.num_steps) / self.num_steps
        alpha_t, alpha_s = self.alphas(process.noise, t)
        # Where alpha_t is 1 in floating point, nothing is masked.
        weight = torch.where(alpha_t < 1, self.num_steps * (alpha_s - alpha_t) / (1 - alpha_t), 0.0)
        return MaskedBatch(process.corrupt(x0, t, maskable, draws), t, weight)

    def alphas(self, noise: NoiseSchedule, t: Tensor) -> tuple[Tensor, Tensor]:
        """alpha at t and at the step before it, t - 1/T; before the first step it is 1."""
        s = (t * self.num_steps).round() - 1
        return noise.alpha(t), torch.where(s > 0, noise.alpha(s.clamp(min=0) / self.num_steps), 1.0)

    @override
    def ends(self, noise: NoiseSchedule) -> tuple[float, float]:
        return 0.0, noise.mask_probability(
            1.0
        )  # the first step unmasks everything, so nothing is missing below

    @override
    def remedy(self, reaches_all: bool) -> str:
        return "set another noise"  # d3pm accepts no other masking, and counts give another bound

    @override
    def evaluation(self) -> DiscreteTime:
        return ImportanceDiscreteTime(self.num_steps)


class ImportanceDiscreteTime(DiscreteTime):
    """The same T steps and the same mean, each step drawn in proportion to the tokens that it
    unmasks, alpha_s - alpha_t.

    The weight of a row is then (1 - alpha(1))/(1 - alpha_t), as under the log-linear schedule.
    Uniform draws would rarely hit the few steps in which a fast schedule unmasks most tokens: of
    1,000 steps of ShiftedLogOdds the one at t = 1/1000 unmasks 96 %.
    """

    @override
    def __call__(
        self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws
    ) -> MaskedBatch:
        u = strata(draws, self.stratified, x0.device)
        times = torch.arange(1, self.num_steps + 1, device=u.device, dtype=u.dtype) / self.num_steps
        masked = 1 - process.noise.alpha(
            times
        )  # increases; each increment is what one step unmasks
        step = torch.searchsorted(masked, u * masked[-1]).clamp(max=self.num_steps - 1)
        return MaskedBatch(
            process.corrupt(x0, times[step], maskable, draws),
            times[step],
            masked[-1] / masked[step],
        )


class ExactCount(Masking):
    """k is uniform on 1..L_i and exactly k of a row's L_i maskable positions are masked; the weight
    is L_i/k.

    The time is the one at which k masks are expected. The schedule has no other influence, and with
    a uniform predictor the loss has no variance.

    Args:
        stratified: spread k/L_i over the global batch.
    """

    def __init__(self, stratified: bool = True) -> None:
        self.stratified = stratified

    @override
    def __call__(
        self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws
    ) -> MaskedBatch:
        available = maskable.sum(-1)
        u = strata(draws, self.stratified, x0.device)
        count = torch.minimum((u * available).floor().long() + 1, available)
        t = process.time_at(count, available)
        return MaskedBatch(
            process.corrupt_count(x0, count, maskable, draws),
            t,
            available.to(u) / count.clamp(min=1),
        )
