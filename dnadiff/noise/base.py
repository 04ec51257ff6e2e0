"""The contract of a noise schedule: the probability alpha(t) that a token is still visible at time
t."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

_SMALLEST = torch.finfo(torch.float32).tiny
# The published convention (t from 1e-3, eps = 1e-3 of the log-linear schedule) omits 1e-3 of the
# mask probability at each end.
LARGEST_CUT = 2e-3


class NoiseSchedule(ABC):
    """alpha(t) with its derivative and inverse; every argument and result is `(B,)`, t in [0,
    1]."""

    buildable: ClassVar[bool] = (
        True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)
    )

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
