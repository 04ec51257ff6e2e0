"""Schedules given by the share of masked tokens m(t): alpha = 1 - (1 - eps) m(t).

Each writes its weight in closed form, for the general quotient loses digits where few tokens are masked.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from dnadiff.noise.base import NoiseSchedule


class MaskShare(NoiseSchedule):
    """alpha = 1 - (1 - eps) m(t), with m growing from 0 to 1: alpha(0) is exactly 1 and alpha(1) is eps.

    Args:
        eps: what stays visible at t = 1; above 0 it keeps sigma small there.
    """

    def __init__(self, eps: float = 1e-3) -> None:
        if not 0 <= eps < 1:
            raise ValueError(f"eps {eps} must lie in [0, 1); set noise.eps to 1e-3 for the published schedule")
        self.eps = eps

    @abstractmethod
    def share(self, t: Tensor) -> Tensor:
        """m(t)."""

    @abstractmethod
    def dshare(self, t: Tensor) -> Tensor:
        """dm / dt."""

    @abstractmethod
    def time(self, share: Tensor) -> Tensor:
        """The t with m(t) = share, for share in [0, 1]."""

    def alpha(self, t: Tensor) -> Tensor:
        """1 - (1 - eps) m(t)."""
        return 1 - (1 - self.eps) * self.share(t)

    def dalpha(self, t: Tensor) -> Tensor:
        """-(1 - eps) m'(t)."""
        return -(1 - self.eps) * self.dshare(t)

    def inverse(self, alpha: Tensor) -> Tensor:
        """See `NoiseSchedule.inverse`."""
        return self.time(((1 - alpha) / (1 - self.eps)).clamp(0, 1)).clamp(0, 1)


class LogLinear(MaskShare):
    """m = t, so weight(t) = 1/t whatever eps (MDLM's `loglinear`, arXiv 2406.07524v2, appendix E.1; MD4's `linear`).

    Args:
        eps: what stays visible at t = 1. The published value is 1e-3.
    """

    def share(self, t: Tensor) -> Tensor:
        """t itself."""
        return t

    def dshare(self, t: Tensor) -> Tensor:
        """1."""
        return torch.ones_like(t)

    def time(self, share: Tensor) -> Tensor:
        """The share itself."""
        return share

    def weight(self, t: Tensor) -> Tensor:
        """1/t exactly; the quotient of the general form loses digits as t goes to 0, here and in the schedules below."""
        return 1 / t


class Cosine(MaskShare):
    """m = 1 - cos(pi t / 2): alpha = eps + (1 - eps) cos(pi t / 2), `cosine` in MDLM's code.

    Slow at the clean end: alpha' is 0 at t = 0. MD4's schedule of the same name is `MaskGITCosine`.
    """

    def share(self, t: Tensor) -> Tensor:
        """1 - cos(pi t / 2), written as 2 sin^2(pi t / 4) to keep its digits near t = 0."""
        return 2 * torch.sin(math.pi / 4 * t) ** 2

    def dshare(self, t: Tensor) -> Tensor:
        """(pi / 2) sin(pi t / 2)."""
        return math.pi / 2 * torch.sin(math.pi / 2 * t)

    def time(self, share: Tensor) -> Tensor:
        """(4 / pi) asin sqrt(share / 2)."""
        return 4 / math.pi * torch.asin((share / 2).sqrt())

    def weight(self, t: Tensor) -> Tensor:
        """(pi / 2) / tan(pi t / 4)."""
        return math.pi / 2 / torch.tan(math.pi / 4 * t)


class CosineSquared(MaskShare):
    """m = sin^2(pi t / 2): alpha = eps + (1 - eps) cos^2(pi t / 2), `cosinesqr` in MDLM's code. Flat at both ends."""

    def share(self, t: Tensor) -> Tensor:
        """sin^2(pi t / 2)."""
        return torch.sin(math.pi / 2 * t) ** 2

    def dshare(self, t: Tensor) -> Tensor:
        """(pi / 2) sin(pi t)."""
        return math.pi / 2 * torch.sin(math.pi * t)

    def time(self, share: Tensor) -> Tensor:
        """(2 / pi) asin sqrt(share)."""
        return 2 / math.pi * torch.asin(share.sqrt())

    def weight(self, t: Tensor) -> Tensor:
        """pi / tan(pi t / 2)."""
        return math.pi / torch.tan(math.pi / 2 * t)


class MaskGITCosine(MaskShare):
    """m = sin(pi t / 2): alpha = 1 - (1 - eps) cos(pi (1 - t) / 2), `cosine` in MD4's code, from MaskGIT (arXiv 2202.04200).

    The mirror image of `Cosine`: slow at the masked end, alpha' is 0 at t = 1. MD4's code keeps eps (1e-4) away from both ends;
    here alpha(0) is 1.
    """

    def share(self, t: Tensor) -> Tensor:
        """sin(pi t / 2)."""
        return torch.sin(math.pi / 2 * t)

    def dshare(self, t: Tensor) -> Tensor:
        """(pi / 2) cos(pi t / 2)."""
        return math.pi / 2 * torch.cos(math.pi / 2 * t)

    def time(self, share: Tensor) -> Tensor:
        """(2 / pi) asin(share)."""
        return 2 / math.pi * torch.asin(share)

    def weight(self, t: Tensor) -> Tensor:
        """(pi / 2) / tan(pi t / 2)."""
        return math.pi / 2 / torch.tan(math.pi / 2 * t)


class Polynomial(MaskShare):
    """m = t^exponent (MD4's `poly`, arXiv 2406.04329): above 1 it spends more time with few masks.

    Args:
        exponent: at least 1, so that alpha' is finite at t = 0; 1 is log-linear.
        eps: what stays visible at t = 1. MD4's code keeps 1e-4 away from both ends.
    """

    def __init__(self, exponent: float = 2.0, eps: float = 1e-3) -> None:
        super().__init__(eps)
        if exponent < 1:
            raise ValueError(f"exponent {exponent} must be at least 1: below, alpha' is infinite at t = 0; set noise.exponent")
        self.exponent = exponent

    def share(self, t: Tensor) -> Tensor:
        """t^exponent."""
        return t**self.exponent

    def dshare(self, t: Tensor) -> Tensor:
        """exponent t^(exponent - 1)."""
        return self.exponent * t ** (self.exponent - 1)

    def time(self, share: Tensor) -> Tensor:
        """share^(1 / exponent)."""
        return share ** (1 / self.exponent)

    def weight(self, t: Tensor) -> Tensor:
        """exponent / t."""
        return self.exponent / t


class ShiftedLogOdds(MaskShare):
    """alpha = (1 - t) / (1 + (e^k - 1) t): the log-odds of being visible are those of 1 - t, less k.

    One account of MDLM gives it, with k = 10, as that paper's log-linear schedule. Half of the tokens are masked at t = 4.5e-5
    already: with uniform times almost every training batch is all mask.

    Args:
        shift: k; 0 is 1 - t.
    """

    def __init__(self, shift: float = 10.0) -> None:
        super().__init__(eps=0.0)
        self.shift, self.slope = shift, math.expm1(shift)

    def share(self, t: Tensor) -> Tensor:
        """e^k t / (1 + (e^k - 1) t)."""
        return (self.slope + 1) * t / (1 + self.slope * t)

    def dshare(self, t: Tensor) -> Tensor:
        """e^k / (1 + (e^k - 1) t)^2."""
        return (self.slope + 1) / (1 + self.slope * t) ** 2

    def time(self, share: Tensor) -> Tensor:
        """share / (1 + (e^k - 1)(1 - share))."""
        return share / (1 + self.slope * (1 - share))

    def weight(self, t: Tensor) -> Tensor:
        """1 / (t (1 + (e^k - 1) t))."""
        return 1 / (t * (1 + self.slope * t))
