"""Schedules defined by the total noise sigma(t), alpha = exp(-sigma), or by the mask probability;
truncated if sigma(0) > 0."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff import checks
from dnadiff.noise.base import NoiseSchedule


class TotalNoise(NoiseSchedule):
    """alpha = exp(-sigma(t)), with sigma growing from sigma_min to sigma_max: truncated at both
    ends unless sigma_min is 0.

    Args:
        sigma_min: total noise at t = 0, where the fraction 1 - exp(-sigma_min) of the tokens is
            already masked.
        sigma_max: total noise at t = 1, where the fraction exp(-sigma_max) is still visible.
    """

    def __init__(self, sigma_min: float, sigma_max: float) -> None:
        if (
            not 0
            <= checks.number("noise.sigma_min", sigma_min)
            < checks.number("noise.sigma_max", sigma_max)
        ):
            raise ValueError(
                f"noise.sigma_min {sigma_min} and noise.sigma_max {sigma_max} must satisfy 0 <= "
                "sigma_min < sigma_max"
            )
        self.sigma_min, self.sigma_max = sigma_min, sigma_max

    @abstractmethod
    def sigma(self, t: Tensor) -> Tensor:
        """The total noise."""

    @abstractmethod
    def dsigma(self, t: Tensor) -> Tensor:
        """d sigma / dt, positive."""

    @abstractmethod
    def time(self, sigma: Tensor) -> Tensor:
        """The t with the given sigma in [sigma_min, sigma_max]."""

    @override
    def alpha(self, t: Tensor) -> Tensor:
        return torch.exp(-self.sigma(t))

    @override
    def dalpha(self, t: Tensor) -> Tensor:
        return -self.dsigma(t) * self.alpha(t)

    @override
    def weight(self, t: Tensor) -> Tensor:
        return self.dsigma(t) / torch.expm1(self.sigma(t))

    @override
    def inverse(self, alpha: Tensor) -> Tensor:
        return self.time(
            -torch.log(alpha.clamp(math.exp(-self.sigma_max), math.exp(-self.sigma_min)))
        ).clamp(0, 1)


class Linear(TotalNoise):
    """sigma = sigma_min + (sigma_max - sigma_min) t: a constant masking rate, `linear` in MDLM's
    code (sigma from 0 to 10)."""

    def __init__(self, sigma_min: float = 0.0, sigma_max: float = 10.0) -> None:
        super().__init__(sigma_min, sigma_max)

    @override
    def sigma(self, t: Tensor) -> Tensor:
        return self.sigma_min + (self.sigma_max - self.sigma_min) * t

    @override
    def dsigma(self, t: Tensor) -> Tensor:
        return torch.full_like(t, self.sigma_max - self.sigma_min)

    @override
    def time(self, sigma: Tensor) -> Tensor:
        return (sigma - self.sigma_min) / (self.sigma_max - self.sigma_min)


class Geometric(TotalNoise):
    """sigma = sigma_min^(1-t) sigma_max^t, `geometric` in SEDD's and MDLM's code; SEDD's
    configuration runs from 1e-4 to 20.

    1 - alpha(0) is sigma_min, not 0: an integral over t omits this much of the mask probability.
    """

    def __init__(self, sigma_min: float = 1e-4, sigma_max: float = 20.0) -> None:
        super().__init__(sigma_min, sigma_max)
        if sigma_min <= 0:
            raise ValueError(
                f"noise.sigma_min {sigma_min} must be positive for a geometric schedule; SEDD's "
                "value is 1e-4"
            )
        self.ratio = math.log(sigma_max / sigma_min)

    @override
    def sigma(self, t: Tensor) -> Tensor:
        return self.sigma_min * torch.exp(self.ratio * t)

    @override
    def dsigma(self, t: Tensor) -> Tensor:
        return self.ratio * self.sigma(t)

    @override
    def time(self, sigma: Tensor) -> Tensor:
        return torch.log(sigma / self.sigma_min) / self.ratio


class LogMask(NoiseSchedule):
    """1 - alpha = p_min^(1-t) p_max^t: time is the logarithm of the mask probability, so the weight
    is constant.

    MDLM's change of variables (arXiv 2406.07524: the NELBO as an integral over log(1 - alpha))
    written as a schedule. Uniform times here are the times that
    `dnadiff.objective.masking.Importance` draws under any other schedule.

    Args:
        p_min: mask probability at t = 0.
        p_max: mask probability at t = 1.
    """

    def __init__(self, p_min: float = 1e-3, p_max: float = 0.999) -> None:
        if not 0 < checks.number("noise.p_min", p_min) < checks.number("noise.p_max", p_max) <= 1:
            raise ValueError(
                f"noise.p_min {p_min} and noise.p_max {p_max} must satisfy 0 < p_min < p_max <= 1"
            )
        self.p_min, self.p_max = p_min, p_max
        self.range = math.log(p_max / p_min)

    @override
    def alpha(self, t: Tensor) -> Tensor:
        return 1 - self.p_min * torch.exp(self.range * t)

    @override
    def dalpha(self, t: Tensor) -> Tensor:
        return -self.range * self.p_min * torch.exp(self.range * t)

    @override
    def weight(self, t: Tensor) -> Tensor:
        return torch.full_like(t, self.range)

    @override
    def inverse(self, alpha: Tensor) -> Tensor:
        return (
            torch.log((1 - alpha).clamp(self.p_min, self.p_max) / self.p_min) / self.range
        ).clamp(0, 1)
