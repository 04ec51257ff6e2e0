"""Noise schedules: the probability alpha(t) that a token is still visible at time t.

t = 0 is clean and t = 1 completely masked. The continuous NELBO is an integral over the mask
probability, so it is the same for every schedule with the same two ends. A schedule changes the
variance of training, the grid of a sampler and every bound in discrete time.
"""

import math
from abc import ABC, abstractmethod
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from dnadiff.fields import (
    NonNegative,
    Positive,
    PositiveFraction,
    Probability,
    checked,
    checked_dataclass,
)

_SMALLEST = torch.finfo(torch.float32).tiny
# The published convention (t from 1e-3, eps = 1e-3 of the log-linear schedule) omits 1e-3 of the
# mask probability at each end.
LARGEST_CUT = 2e-3


def float64_device(device: torch.device) -> torch.device:
    """Where numbers for tensors of this device are computed in float64: the device, or the CPU for
    Apple GPUs, which have no float64."""
    return torch.device("cpu") if device.type == "mps" else device


class NoiseSchedule(ABC):
    """alpha(t) with its derivative and inverse; every argument and result is `(B,)`, t in [0,
    1]."""

    buildable = True  # a checkpoint's configuration may name it (`dnadiff.store.objects.locate`)

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor:
        """Probability that a token is not masked at time t, decreasing from (almost) 1 to (almost)
        0."""

    @abstractmethod
    def dalpha(self, t: Tensor) -> Tensor:
        """d alpha / dt, negative."""

    @abstractmethod
    def inverse(self, alpha: Tensor) -> Tensor:
        """The t at which alpha(t) has this value; the nearest of 0 and 1 if there is none."""

    def weight(self, t: Tensor) -> Tensor:
        """-dalpha / (1 - alpha): the factor of the cross-entropy in the continuous NELBO (arXiv
        2406.07524v2, eq. 10)."""
        return -self.dalpha(t) / (1 - self.alpha(t))

    def sigma(self, t: Tensor) -> Tensor:
        """-log alpha(t), the total noise, which is the time input of networks; finite (87.3) where
        alpha is 0."""
        return -torch.log(self.alpha(t).clamp(min=_SMALLEST))

    def mask_probability(self, t: float) -> float:
        """1 - alpha(t) at one time, in double precision."""
        return 1 - float(self.alpha(torch.tensor(t, dtype=torch.float64, device="cpu")))


def refuse_cut(noise: NoiseSchedule, low: float, high: float, cause: str, remedy: str) -> None:
    """Refuse an integral over the mask probabilities from `low` to `high` as a bound: the bound is
    the integral from 0 to 1.

    Raises a ValueError if more than 2e-3 is missing at either end, which would make any model look
    better than it is. Its message gives `cause`, the setting that determines `low`, and `remedy`,
    what to set instead.
    """
    schedule = type(noise).__name__
    if low > LARGEST_CUT:
        raise ValueError(
            f"{cause} leaves the mask probabilities below {low:.3g} of {schedule} out of the "
            f"bound; {remedy}"
        )
    if high < 1 - LARGEST_CUT:
        raise ValueError(
            f"{schedule} ends with a mask probability of {high:.3g}, and the bound leaves out all "
            f"above; {remedy}"
        )


@checked_dataclass
class MaskFraction(NoiseSchedule):
    """alpha = 1 - (1 - eps) m(t), with m growing from 0 to 1: alpha(0) is exactly 1 and alpha(1) is
    eps.

    Args:
        eps: fraction that stays visible at t = 1; above 0 it keeps sigma small there.
    """

    eps: Probability = 1e-3

    @abstractmethod
    def fraction(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """m(t) and dm / dt."""

    @abstractmethod
    def time(self, fraction: Tensor) -> Tensor:
        """The t with m(t) = fraction, for fraction in [0, 1]."""

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - (1 - self.eps) * self.fraction(t)[0]

    def dalpha(self, t: Tensor) -> Tensor:
        return -(1 - self.eps) * self.fraction(t)[1]

    def inverse(self, alpha: Tensor) -> Tensor:
        return self.time(((1 - alpha) / (1 - self.eps)).clamp(0, 1)).clamp(0, 1)


@checked_dataclass
class LogLinear(MaskFraction):
    """m = t, so weight(t) = 1/t whatever eps (MDLM's `loglinear`, arXiv 2406.07524v2, appendix E.1;
    MD4's `linear`).

    Args:
        eps: fraction that stays visible at t = 1. The published value is 1e-3.
    """

    def fraction(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return t, torch.ones_like(t)

    def time(self, fraction: Tensor) -> Tensor:
        return fraction

    def weight(self, t: Tensor) -> Tensor:
        # The quotient of the general form loses digits as t goes to 0, here and in the schedules
        # below.
        return 1 / t


@checked_dataclass
class Cosine(MaskFraction):
    """m = 1 - cos(pi t / 2): alpha = eps + (1 - eps) cos(pi t / 2), `cosine` in MDLM's code.

    Slow at the clean end: alpha' is 0 at t = 0. MD4's schedule of the same name is `MaskGITCosine`.
    """

    def fraction(self, t: Tensor) -> tuple[Tensor, Tensor]:
        # 1 - cos(pi t / 2) with its digits near t = 0
        return 2 * torch.sin(math.pi / 4 * t) ** 2, math.pi / 2 * torch.sin(math.pi / 2 * t)

    def time(self, fraction: Tensor) -> Tensor:
        return 4 / math.pi * torch.asin((fraction / 2).sqrt())

    def weight(self, t: Tensor) -> Tensor:
        return math.pi / 2 / torch.tan(math.pi / 4 * t)


@checked_dataclass
class CosineSquared(MaskFraction):
    """m = sin^2(pi t / 2): alpha = eps + (1 - eps) cos^2(pi t / 2), `cosinesqr` in MDLM's code.
    Flat at both ends."""

    def fraction(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sin(math.pi / 2 * t) ** 2, math.pi / 2 * torch.sin(math.pi * t)

    def time(self, fraction: Tensor) -> Tensor:
        return 2 / math.pi * torch.asin(fraction.sqrt())

    def weight(self, t: Tensor) -> Tensor:
        return math.pi / torch.tan(math.pi / 2 * t)


@checked_dataclass
class MaskGITCosine(MaskFraction):
    """m = sin(pi t / 2): alpha = 1 - (1 - eps) cos(pi (1 - t) / 2), `cosine` in MD4's code, from
    MaskGIT (arXiv 2202.04200).

    The mirror image of `Cosine`: slow at the masked end, alpha' is 0 at t = 1. MD4's code keeps eps
    (1e-4) away from both ends; here alpha(0) is 1.
    """

    def fraction(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sin(math.pi / 2 * t), math.pi / 2 * torch.cos(math.pi / 2 * t)

    def time(self, fraction: Tensor) -> Tensor:
        return 2 / math.pi * torch.asin(fraction)

    def weight(self, t: Tensor) -> Tensor:
        return math.pi / 2 / torch.tan(math.pi / 2 * t)


@checked
class Polynomial(MaskFraction):
    """m = t^exponent (MD4's `poly`, arXiv 2406.04329): larger exponents spend more time with few
    masks.

    Args:
        exponent: at least 1, so that alpha' is finite at t = 0; 1 is log-linear.
        eps: fraction that stays visible at t = 1. MD4's code keeps 1e-4 away from both ends.
    """

    def __init__(
        self, exponent: Annotated[float, Interval(ge=1)] = 2.0, eps: Probability = 1e-3
    ) -> None:
        super().__init__(eps)
        self.exponent = exponent

    def fraction(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return t**self.exponent, self.exponent * t ** (self.exponent - 1)

    def time(self, fraction: Tensor) -> Tensor:
        return fraction ** (1 / self.exponent)

    def weight(self, t: Tensor) -> Tensor:
        return self.exponent / t


@checked_dataclass
class Sqrt(MaskFraction):
    """m = sqrt(t): alpha = 1 - (1 - eps) sqrt(t), for Gaussian noise on embeddings (Diffusion-LM,
    arXiv 2205.14217, appendix A; its offset of t is `GaussianProcess.t_min`).

    Fast at the clean end: alpha' is infinite at t = 0.
    """

    def fraction(self, t: Tensor) -> tuple[Tensor, Tensor]:
        root = t.sqrt()
        return root, 0.5 / root

    def time(self, fraction: Tensor) -> Tensor:
        return fraction**2


@checked
class ShiftedLogOdds(MaskFraction):
    """alpha = (1 - t) / (1 + (e^k - 1) t): the log-odds of being visible are those of 1 - t, minus
    k.

    One description of MDLM presents it, with k = 10, as that paper's log-linear schedule. At t =
    4.5e-5 half of the tokens are already masked: with uniform times almost every training batch is
    completely masked.

    Args:
        shift: k; 0 is 1 - t.
    """

    def __init__(self, shift: float = 10.0) -> None:
        super().__init__(eps=0.0)
        self.shift = shift
        self.slope = math.expm1(shift)

    def fraction(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return (self.slope + 1) * t / (1 + self.slope * t), (self.slope + 1) / (
            1 + self.slope * t
        ) ** 2

    def time(self, fraction: Tensor) -> Tensor:
        return fraction / (1 + self.slope * (1 - fraction))

    def weight(self, t: Tensor) -> Tensor:
        return 1 / (t * (1 + self.slope * t))


@checked_dataclass
class TotalNoise(NoiseSchedule):
    """alpha = exp(-sigma(t)), with sigma growing from sigma_min to sigma_max: truncated at both
    ends unless sigma_min is 0.

    Args:
        sigma_min: total noise at t = 0, where the fraction 1 - exp(-sigma_min) of the tokens is
            already masked.
        sigma_max: total noise at t = 1, where the fraction exp(-sigma_max) is still visible.
    """

    sigma_min: NonNegative = 0.0
    sigma_max: Positive = 10.0

    def __post_init__(self) -> None:
        _check_order(sigma_min=self.sigma_min, sigma_max=self.sigma_max)

    @abstractmethod
    def sigma(self, t: Tensor) -> Tensor:
        """The total noise."""

    @abstractmethod
    def dsigma(self, t: Tensor) -> Tensor:
        """d sigma / dt, positive."""

    @abstractmethod
    def time(self, sigma: Tensor) -> Tensor:
        """The t with the given sigma in [sigma_min, sigma_max]."""

    def alpha(self, t: Tensor) -> Tensor:
        return torch.exp(-self.sigma(t))

    def dalpha(self, t: Tensor) -> Tensor:
        return -self.dsigma(t) * self.alpha(t)

    def weight(self, t: Tensor) -> Tensor:
        return self.dsigma(t) / torch.expm1(self.sigma(t))

    def inverse(self, alpha: Tensor) -> Tensor:
        return self.time(
            -torch.log(alpha.clamp(math.exp(-self.sigma_max), math.exp(-self.sigma_min)))
        ).clamp(0, 1)


@checked_dataclass
class Linear(TotalNoise):
    """sigma = sigma_min + (sigma_max - sigma_min) t: a constant masking rate, `linear` in MDLM's
    code (sigma from 0 to 10)."""

    def sigma(self, t: Tensor) -> Tensor:
        return self.sigma_min + (self.sigma_max - self.sigma_min) * t

    def dsigma(self, t: Tensor) -> Tensor:
        return torch.full_like(t, self.sigma_max - self.sigma_min)

    def time(self, sigma: Tensor) -> Tensor:
        return (sigma - self.sigma_min) / (self.sigma_max - self.sigma_min)


@checked_dataclass
class Geometric(TotalNoise):
    """sigma = sigma_min^(1-t) sigma_max^t, `geometric` in SEDD's and MDLM's code; SEDD's
    configuration runs from 1e-4 to 20.

    1 - alpha(0) is sigma_min, not 0: an integral over t omits this much of the mask probability.
    """

    sigma_min: Positive = 1e-4
    sigma_max: Positive = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ratio = math.log(self.sigma_max / self.sigma_min)

    def sigma(self, t: Tensor) -> Tensor:
        return self.sigma_min * torch.exp(self.ratio * t)

    def dsigma(self, t: Tensor) -> Tensor:
        return self.ratio * self.sigma(t)

    def time(self, sigma: Tensor) -> Tensor:
        return torch.log(sigma / self.sigma_min) / self.ratio


@checked_dataclass
class LogMask(NoiseSchedule):
    """1 - alpha = p_min^(1-t) p_max^t: time is the logarithm of the mask probability, so the weight
    is constant.

    MDLM's change of variables (arXiv 2406.07524: the NELBO as an integral over log(1 - alpha))
    written as a schedule. Uniform times here are the times that
    `dnadiff.diffusion.objective.masking.Importance` draws under any other schedule.

    Args:
        p_min: mask probability at t = 0.
        p_max: mask probability at t = 1.
    """

    p_min: Positive = 1e-3
    p_max: PositiveFraction = 0.999

    def __post_init__(self) -> None:
        _check_order(p_min=self.p_min, p_max=self.p_max)
        self.range = math.log(self.p_max / self.p_min)

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - self.p_min * torch.exp(self.range * t)

    def dalpha(self, t: Tensor) -> Tensor:
        return -self.range * self.p_min * torch.exp(self.range * t)

    def weight(self, t: Tensor) -> Tensor:
        return torch.full_like(t, self.range)

    def inverse(self, alpha: Tensor) -> Tensor:
        return (
            torch.log((1 - alpha).clamp(self.p_min, self.p_max) / self.p_min) / self.range
        ).clamp(0, 1)


def _check_order(**ends: float) -> None:
    """Raise a ValueError unless the first value is below the second."""
    (low, first), (high, second) = ends.items()
    if first >= second:
        raise ValueError(f"{low} {first} must be below {high} {second}")
