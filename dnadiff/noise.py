"""Noise schedules: the probability alpha(t) that a token is still visible at time t.

t = 0 is clean and t = 1 all mask. A schedule is one small record of functions of t; what is done with
them (corruption, posteriors, losses) belongs to `dnadiff.process` and `dnadiff.objective`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class NoiseSchedule(ABC):
    """alpha(t) with its derivative and inverse; every argument and result is `(B,)`, t in [0, 1]."""

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor:
        """Probability that a token is not masked at time t; alpha(0) = 1, decreasing."""

    @abstractmethod
    def dalpha(self, t: Tensor) -> Tensor:
        """d alpha / dt, negative."""

    @abstractmethod
    def inverse(self, alpha: Tensor) -> Tensor:
        """The t at which alpha(t) has the given value."""

    def weight(self, t: Tensor) -> Tensor:
        """-dalpha / (1 - alpha): the factor of the cross-entropy in the continuous NELBO (arXiv 2406.07524v2, eq. 10)."""
        return -self.dalpha(t) / (1 - self.alpha(t))

    def sigma(self, t: Tensor) -> Tensor:
        """-log alpha(t), the total noise that networks with a time input are told."""
        return -torch.log(self.alpha(t))


class LogLinear(NoiseSchedule):
    """alpha = 1 - (1 - eps) t, so weight(t) = 1/t whatever eps (MDLM's `loglinear`, arXiv 2406.07524v2, appendix E.1).

    Args:
        eps: what stays visible at t = 1. The published value is 1e-3; it keeps sigma finite there.
    """

    def __init__(self, eps: float = 1e-3) -> None:
        if not 0 <= eps < 1:
            raise ValueError(f"eps {eps} must lie in [0, 1); set noise.eps to 1e-3 for the published schedule")
        self.eps = eps

    def alpha(self, t: Tensor) -> Tensor:
        """1 - (1 - eps) t."""
        return 1 - (1 - self.eps) * t

    def dalpha(self, t: Tensor) -> Tensor:
        """-(1 - eps), constant."""
        return torch.full_like(t, -(1 - self.eps))

    def weight(self, t: Tensor) -> Tensor:
        """1/t exactly; the quotient of the general form loses digits as t goes to 0."""
        return 1 / t

    def inverse(self, alpha: Tensor) -> Tensor:
        """(1 - alpha) / (1 - eps)."""
        return (1 - alpha) / (1 - self.eps)
