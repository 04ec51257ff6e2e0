"""The contract of a noise schedule: the probability alpha(t) that a token is still visible at time t."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

_SMALLEST = torch.finfo(torch.float32).tiny


class NoiseSchedule(ABC):
    """alpha(t) with its derivative and inverse; every argument and result is `(B,)`, t in [0, 1]."""

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor:
        """Probability that a token is not masked at time t, decreasing from (almost) 1 to (almost) 0."""

    @abstractmethod
    def dalpha(self, t: Tensor) -> Tensor:
        """d alpha / dt, negative."""

    @abstractmethod
    def inverse(self, alpha: Tensor) -> Tensor:
        """The t at which alpha(t) has the given value; the nearer end where no t has it."""

    def weight(self, t: Tensor) -> Tensor:
        """-dalpha / (1 - alpha): the factor of the cross-entropy in the continuous NELBO (arXiv 2406.07524v2, eq. 10)."""
        return -self.dalpha(t) / (1 - self.alpha(t))

    def sigma(self, t: Tensor) -> Tensor:
        """-log alpha(t), the total noise that networks with a time input are told; finite (87.3) where alpha is 0."""
        return -torch.log(self.alpha(t).clamp(min=_SMALLEST))
