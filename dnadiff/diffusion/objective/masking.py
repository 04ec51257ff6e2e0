"""How many tokens of each training sequence are masked: independently at a random time, or an exact
count.

Independent masks at uniform times, at importance-sampled times, and exact counts estimate the NELBO
(arXiv 2406.07524 and 2310.01334), with decreasing variance. For a network without time conditioning
all three have the same mean, whatever the schedule. Discrete time has the NELBO of T steps as its
mean, which is larger for the exact posterior.
"""

from __future__ import annotations

import math
from dataclasses import field
from functools import cache
from typing import Annotated, NamedTuple

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor

from dnadiff.diffusion.draws import Draws, hash64, widest_dtype
from dnadiff.diffusion.noise import LARGEST_CUT, NoiseSchedule, refuse_cut
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.fields import Fraction, InnerFraction, PositiveFraction, PositiveInt, checked_dataclass

_BINS = 4096  # of equal probability, of a Beta distribution


class Positions:
    """The chosen positions of a batch: a list of them, or all positions, where the others count 0.

    Args:
        chosen: (B, L) bool.
        everywhere: whether values are computed at all positions.

    Attributes:
        requested: what to ask a denoiser for, (B, L) bool; None is everywhere.
        index: row and column of each chosen position, (M,) each.
    """

    def __init__(self, chosen: Tensor, everywhere: bool = False) -> None:
        self.chosen = chosen
        self.everywhere = everywhere
        self.requested = None if everywhere else chosen
        self.index = () if everywhere else chosen.nonzero(as_tuple=True)

    def at(self, x: Tensor) -> Tensor:
        """The values of x (B, L): (M,), or (B L,) with 0 where nothing is chosen."""
        return self.only(x.flatten()) if self.everywhere else x[self.index]

    def only(self, values: Tensor) -> Tensor:
        """Values computed at the `requested` positions, 0 where nothing is chosen: whatever is
        there may be infinite."""
        return torch.where(self.chosen.flatten(), values, 0.0) if self.everywhere else values


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

    def weights(self) -> Tensor:
        """The weight of each position, (B, L)."""
        weight = self.weight[:, None] if self.weight.ndim == 1 else self.weight
        return weight.expand(self.xt.shape)


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
    return u.to(device, widest_dtype(device))


@checked_dataclass
class Masking:
    """Draws xt and the weight of each row.

    Args:
        stratified: spread the uniform numbers of the rows over the global batch.
    """

    # a checkpoint's configuration may name it (`dnadiff.store.objects.locate`)
    buildable = True
    remedy = ""  # what to set instead, for the message of `check`

    stratified: bool = field(default=True, kw_only=True)

    def __call__(
        self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws
    ) -> MaskedBatch:
        """Corrupt `x0 (B, L)` where `maskable (B, L)` bool."""
        u = strata(draws, self.stratified, x0.device)
        rate, t, weight = self.draw(process.noise, u)
        return MaskedBatch(process.masked_at(x0, rate[:, None], maskable, draws), t, weight)

    def draw(self, noise: NoiseSchedule, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The probability of a mask, the time and the weight of each row, (B,) each, from one
        uniform number for each row."""
        raise NotImplementedError

    def ends(self, noise: NoiseSchedule) -> tuple[float, float]:
        """Lowest and highest mask probability that the weights integrate over; the bound is the
        integral from 0 to 1."""
        return 0.0, 1.0

    def check(self, noise: NoiseSchedule) -> None:
        """Raise a ValueError for a schedule with which the weights do not give the bound; it names
        what the bound would leave out."""
        low, high = self.ends(noise)
        complete = high >= 1 - LARGEST_CUT
        masking = "set objective/masking=importance or count"
        remedy = masking if complete else "set objective/masking=count, or another noise"
        refuse_cut(noise, low, high, self.cut_by(), self.remedy or remedy)

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


@checked_dataclass
class Bernoulli(Masking):
    """Each position is masked independently with probability 1 - alpha_t; the weight is -alpha'/(1
    - alpha).

    Args:
        stratified: spread the times over the global batch.
        t_min: times are uniform in [t_min, 1]. As published, with 1e-3, their mean is taken as the
            integral over [0, 1]: it is 1/(1 - t_min) times the integral over [t_min, 1].
    """

    t_min: Annotated[float, Interval(ge=0, le=LARGEST_CUT)] = 1e-3

    def draw(self, noise: NoiseSchedule, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t = self.t_min + (1 - self.t_min) * u
        return 1 - noise.alpha(t), t, noise.weight(t)

    def ends(self, noise: NoiseSchedule) -> tuple[float, float]:
        return noise.mask_probability(self.t_min), noise.mask_probability(1.0)

    def cut_by(self) -> str:
        return f"t_min {self.t_min}"


@checked_dataclass
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

    p_min: InnerFraction = 1e-3

    def draw(self, noise: NoiseSchedule, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        low, high = map(math.log, self.ends(noise))
        t = noise.inverse(1 - torch.exp(low + (high - low) * u))
        return 1 - noise.alpha(t), t, torch.full_like(t, high - low)

    def ends(self, noise: NoiseSchedule) -> tuple[float, float]:
        return max(noise.mask_probability(0.0), self.p_min), noise.mask_probability(1.0)

    def cut_by(self) -> str:
        return f"p_min {self.p_min}"


@checked_dataclass
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

    num_steps: PositiveInt = 1000

    remedy = "set another noise"  # d3pm accepts no other masking, and counts give another bound

    def draw(self, noise: NoiseSchedule, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t = ((u * self.num_steps).floor() + 1).clamp(max=self.num_steps) / self.num_steps
        alpha_t, alpha_s = self.alphas(noise, t)
        # Where alpha_t is 1 in floating point, nothing is masked.
        weight = torch.where(alpha_t < 1, self.num_steps * (alpha_s - alpha_t) / (1 - alpha_t), 0.0)
        return 1 - alpha_t, t, weight

    def alphas(self, noise: NoiseSchedule, t: Tensor) -> tuple[Tensor, Tensor]:
        """alpha at t and at the step before it, t - 1/T; before the first step it is 1."""
        s = (t * self.num_steps).round() - 1
        return noise.alpha(t), torch.where(s > 0, noise.alpha(s.clamp(min=0) / self.num_steps), 1.0)

    def ends(self, noise: NoiseSchedule) -> tuple[float, float]:
        return 0.0, noise.mask_probability(
            1.0
        )  # the first step unmasks everything, so nothing is missing below

    def evaluation(self) -> DiscreteTime:
        return ImportanceDiscreteTime(self.num_steps)


class ImportanceDiscreteTime(DiscreteTime):
    """The same T steps and the same mean, each step drawn in proportion to the tokens that it
    unmasks, alpha_s - alpha_t.

    The weight of a row is then (1 - alpha(1))/(1 - alpha_t), as under the log-linear schedule.
    Uniform draws would rarely hit the few steps in which a fast schedule unmasks most tokens: of
    1,000 steps of ShiftedLogOdds the one at t = 1/1000 unmasks 96 %.
    """

    def draw(self, noise: NoiseSchedule, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        times = torch.arange(1, self.num_steps + 1, device=u.device, dtype=u.dtype) / self.num_steps
        masked = 1 - noise.alpha(times)  # increases; each increment is what one step unmasks
        step = torch.searchsorted(masked, u * masked[-1]).clamp(max=self.num_steps - 1)
        return 1 - noise.alpha(times[step]), times[step], masked[-1] / masked[step]


class ExactCount(Masking):
    """k is uniform on 1..L_i and exactly k of a row's L_i maskable positions are masked; the weight
    is L_i/k.

    The time is the one at which k masks are expected. The schedule has no other influence, and with
    a uniform predictor the loss has no variance.

    Args:
        stratified: spread k/L_i over the global batch.
    """

    def __call__(
        self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws
    ) -> MaskedBatch:
        available = maskable.sum(-1)
        u = strata(draws, self.stratified, x0.device)
        count = torch.minimum((u * available).floor().long() + 1, available)
        t = process.time_at(count, available)
        weight = available.to(u) / count.clamp(min=1)
        return MaskedBatch(process.corrupt_count(x0, count, maskable, draws), t, weight)


@checked_dataclass
class Clipped(Masking):
    """Each position is masked independently at a rate that is uniform on [low, high]; the weight of
    a row is 1/rate.

    With [0, 1] the mean is the NELBO. With any other interval it is the mean of the NELBO's
    integrand over the interval, which is not a bound: it is for training. Validation and evaluation
    are, over all rates, by exact counts. As with exact counts the schedule has no other influence.

    A row without a mask costs 0, which is its term of the NELBO: nothing is drawn again. The
    published code draws the masks of a block until their fraction is inside the interval, which
    also changes the mean of the loss at each rate.

    Args:
        low, high: ends of the interval; `dnadiff.training.clip_search.ClipSearch` chooses them
            during training.
        stratified: spread the rates over the global batch.
    """

    low: Fraction = 0.0
    high: Fraction = 1.0

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} must be below high {self.high}")

    def draw(self, noise: NoiseSchedule, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rate = self.low + (self.high - self.low) * u
        return rate, noise.inverse(1 - rate), 1 / rate

    def moments(self, length: int) -> Tensor:
        """Coefficients (2, length) float64 of the mean and of the second moment of a row's loss,
        nats per token.

        If the masks of a row of `length` tokens cost S, its loss is S/(rate * length). Given k
        masks they are uniformly distributed at every rate, as with exact counts. So E[loss] is the
        sum over k = 1..length of `moments[0, k - 1]` E[S | k], and E[loss^2] that of
        `moments[1, k - 1]` E[S^2 | k]. The integrals over rates are exact. With low = 0 the second
        moment is infinite, by rows with one mask at a small rate.
        """
        return (_integrals(length, self.high) - _integrals(length, self.low)) / (
            self.high - self.low
        )


def _integrals(length: int, rate: float) -> Tensor:
    """Antiderivatives at `rate` of P(k masks) / (rate * length) and of P(k masks) / (rate *
    length)^2, k = 1..length: (2, length).

    With n = length and C(n, k) p^k (1 - p)^(n - k) for P they are, up to constants, P(Binomial(n,
    p) >= k)/k / n and P(Binomial(n - 1, p) >= k - 1) / (k (k - 1)) / n. The second one for k = 1 is
    the integral of (1 - p)^(n - 1)/p, a geometric series.
    """
    from scipy.special import betainc  # P(Binomial(n, p) >= k) = betainc(k, n - k + 1, p)

    k = np.arange(1, length + 1)
    first = betainc(k, length - k + 1, rate) / k
    one_mask = (math.log(rate) if rate else -math.inf) + ((1 - rate) ** k[:-1] / k[:-1]).sum()
    second = betainc(k[:-1], length - k[:-1], rate) / (k[1:] * k[:-1])
    return torch.from_numpy(np.stack([first, [one_mask, *second]])) / length


@checked_dataclass
class BetaRates(Masking):
    """Each position is masked independently at a rate that is uniform on [0, 1] in a share of the
    rows, and Beta(alpha, beta) in the others.

    With `objective.weighting=cross_entropy` the network is trained on the plain mean over masked
    tokens, so the distribution of rates decides what it learns best. The weight of a row is 1/(rate
    density(rate)), so that its mean is the NELBO whatever the distribution (importance sampling):
    `train_nll` stays a bound, with more variance the smaller `uniform` is. Validation and
    evaluation use exact counts.

    Masked language modeling at 15 % (arXiv 1810.04805) is close to Beta(3, 17), whose mean is 0.15.

    Quantiles of the Beta distribution are interpolated linearly between 4,097 exact ones, which are
    computed once and kept on the device, so that no step waits for it. `density` is that of the
    interpolated distribution, so the mean is exact.

    Args:
        alpha, beta: parameters of the Beta distribution; (1, 1) is uniform. Below 1 the density of
            the mask rates would not be bounded.
        uniform: the share of rows with uniform rates, in (0, 1], so that every rate has a density.
        stratified: spread the rates over the global batch.
    """

    alpha: Annotated[float, Interval(ge=1)] = 3.0
    beta: Annotated[float, Interval(ge=1)] = 17.0
    uniform: PositiveFraction = 0.5

    def draw(self, noise: NoiseSchedule, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rate = self.rates(u)
        return rate, noise.inverse(1 - rate), 1 / (rate * self.density(rate))

    def rates(self, u: Tensor) -> Tensor:
        """Mask rates (B,) from uniforms u (B,): those below `uniform` are stretched to [0, 1], the
        others go through the Beta quantiles."""
        quantiles = _quantiles(self.alpha, self.beta, u.device, u.dtype)
        place = ((u - self.uniform) / max(1 - self.uniform, 1e-12)).clamp(0, 1) * _BINS
        index = place.long().clamp(max=_BINS - 1)
        drawn = torch.lerp(quantiles[index], quantiles[index + 1], place - index)
        return torch.where(u < self.uniform, u / self.uniform, drawn).clamp(
            min=1e-12, max=1
        )  # the density of 0 is no rate

    def density(self, rate: Tensor) -> Tensor:
        """The density of the mask rates, (B,) -> (B,)."""
        quantiles = _quantiles(self.alpha, self.beta, rate.device, rate.dtype)
        index = (torch.searchsorted(quantiles, rate) - 1).clamp(0, _BINS - 1)
        return self.uniform + (1 - self.uniform) / (
            _BINS * (quantiles[index + 1] - quantiles[index])
        )

    def notes(self, trains_bound: bool) -> list[str]:
        if not trains_bound:
            return []
        return [
            "objective/masking=beta changes only the variance of a loss that is the bound itself "
            "(weighting=nelbo, objective=sedd); with objective.weighting=cross_entropy of mdlm "
            "and block_mdlm it changes what is learned"
        ]


@cache
def _quantiles(alpha: float, beta: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The exact quantiles 0, 1/4096, ..., 1 of a Beta distribution."""
    from scipy.special import betaincinv

    levels = torch.linspace(0, 1, _BINS + 1, dtype=torch.float64)
    return torch.from_numpy(betaincinv(alpha, beta, levels.numpy())).to(device, dtype)
