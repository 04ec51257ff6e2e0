"""Schedules defined by the fraction of masked tokens m(t): alpha = 1 - (1 - eps) m(t).

Each has its weight in closed form, because the general quotient loses digits where few tokens are
masked.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff import checks
from dnadiff.noise.base import NoiseSchedule


class MaskFraction(NoiseSchedule):
    """alpha = 1 - (1 - eps) m(t), with m growing from 0 to 1: alpha(0) is exactly 1 and alpha(1) is
    eps.

    Args:
        eps: fraction that stays visible at t = 1; above 0 it keeps sigma small there.
    """

    def __init__(self, eps: float = 1e-3) -> None:
        if not 0 <= checks.number("noise.eps", eps) < 1:
            raise ValueError(f"noise.eps {eps} must be in [0, 1); the published schedule has 1e-3")
        self.eps = eps

    @abstractmethod
    def mask_fraction(self, t: Tensor) -> Tensor:
        """m(t)."""

    @abstractmethod
    def dmask_fraction(self, t: Tensor) -> Tensor:
        """dm / dt."""

    @abstractmethod
    def time(self, fraction: Tensor) -> Tensor:
        """The t with m(t) = fraction, for fraction in [0, 1]."""

    @override
    def alpha(self, t: Tensor) -> Tensor:
        return 1 - (1 - self.eps) * self.mask_fraction(t)

    @override
    def dalpha(self, t: Tensor) -> Tensor:
        return -(1 - self.eps) * self.dmask_fraction(t)

    @override
    def inverse(self, alpha: Tensor) -> Tensor:
        return self.time(((1 - alpha) / (1 - self.eps)).clamp(0, 1)).clamp(0, 1)


class LogLinear(MaskFraction):
    """m = t, so weight(t) = 1/t whatever eps (MDLM's `loglinear`, arXiv 2406.07524v2, appendix E.1;
    MD4's `linear`).

    Args:
        eps: fraction that stays visible at t = 1. The published value is 1e-3.
    """

    @override
    def mask_fraction(self, t: Tensor) -> Tensor:
        return t

    @override
    def dmask_fraction(self, t: Tensor) -> Tensor:
        return torch.ones_like(t)

    @override
    def time(self, fraction: Tensor) -> Tensor:
        return fraction

    @override
    def weight(self, t: Tensor) -> Tensor:
        return (
            1 / t
        )  # the quotient of the general form loses digits as t goes to 0, here and in the schedules below


class Cosine(MaskFraction):
    """m = 1 - cos(pi t / 2): alpha = eps + (1 - eps) cos(pi t / 2), `cosine` in MDLM's code.

    Slow at the clean end: alpha' is 0 at t = 0. MD4's schedule of the same name is `MaskGITCosine`.
    """

    @override
    def mask_fraction(self, t: Tensor) -> Tensor:
        return 2 * torch.sin(math.pi / 4 * t) ** 2  # 1 - cos(pi t / 2) with its digits near t = 0

    @override
    def dmask_fraction(self, t: Tensor) -> Tensor:
        return math.pi / 2 * torch.sin(math.pi / 2 * t)

    @override
    def time(self, fraction: Tensor) -> Tensor:
        return 4 / math.pi * torch.asin((fraction / 2).sqrt())

    @override
    def weight(self, t: Tensor) -> Tensor:
        return math.pi / 2 / torch.tan(math.pi / 4 * t)


class CosineSquared(MaskFraction):
    """m = sin^2(pi t / 2): alpha = eps + (1 - eps) cos^2(pi t / 2), `cosinesqr` in MDLM's code.
    Flat at both ends."""

    @override
    def mask_fraction(self, t: Tensor) -> Tensor:
        return torch.sin(math.pi / 2 * t) ** 2

    @override
    def dmask_fraction(self, t: Tensor) -> Tensor:
        return math.pi / 2 * torch.sin(math.pi * t)

    @override
    def time(self, fraction: Tensor) -> Tensor:
        return 2 / math.pi * torch.asin(fraction.sqrt())

    @override
    def weight(self, t: Tensor) -> Tensor:
        return math.pi / torch.tan(math.pi / 2 * t)


class MaskGITCosine(MaskFraction):
    """m = sin(pi t / 2): alpha = 1 - (1 - eps) cos(pi (1 - t) / 2), `cosine` in MD4's code, from
    MaskGIT (arXiv 2202.04200).

    The mirror image of `Cosine`: slow at the masked end, alpha' is 0 at t = 1. MD4's code keeps eps
    (1e-4) away from both ends; here alpha(0) is 1.
    """

    @override
    def mask_fraction(self, t: Tensor) -> Tensor:
        return torch.sin(math.pi / 2 * t)

    @override
    def dmask_fraction(self, t: Tensor) -> Tensor:
        return math.pi / 2 * torch.cos(math.pi / 2 * t)

    @override
    def time(self, fraction: Tensor) -> Tensor:
        return 2 / math.pi * torch.asin(fraction)

    @override
    def weight(self, t: Tensor) -> Tensor:
        return math.pi / 2 / torch.tan(math.pi / 2 * t)


class Polynomial(MaskFraction):
    """m = t^exponent (MD4's `poly`, arXiv 2406.04329): larger exponents spend more time with few
    masks.

    Args:
        exponent: at least 1, so that alpha' is finite at t = 0; 1 is log-linear.
        eps: fraction that stays visible at t = 1. MD4's code keeps 1e-4 away from both ends.
    """

    def __init__(self, exponent: float = 2.0, eps: float = 1e-3) -> None:
        super().__init__(eps)
        if checks.number("noise.exponent", exponent) < 1:
            raise ValueError(
                f"noise.exponent {exponent} must be at least 1: below, alpha' is infinite at t = 0"
            )
        self.exponent = exponent

    @override
    def mask_fraction(self, t: Tensor) -> Tensor:
        return t**self.exponent

    @override
    def dmask_fraction(self, t: Tensor) -> Tensor:
        return self.exponent * t ** (self.exponent - 1)

    @override
    def time(self, fraction: Tensor) -> Tensor:
        return fraction ** (1 / self.exponent)

    @override
    def weight(self, t: Tensor) -> Tensor:
        return self.exponent / t


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
        checks.number("noise.shift", shift)
        self.shift, self.slope = shift, math.expm1(shift)

    @override
    def mask_fraction(self, t: Tensor) -> Tensor:
        return (self.slope + 1) * t / (1 + self.slope * t)

    @override
    def dmask_fraction(self, t: Tensor) -> Tensor:
        return (self.slope + 1) / (1 + self.slope * t) ** 2

    @override
    def time(self, fraction: Tensor) -> Tensor:
        return fraction / (1 + self.slope * (1 - fraction))

    @override
    def weight(self, t: Tensor) -> Tensor:
        return 1 / (t * (1 + self.slope * t))
