"""What all design methods share: the interface, the batch of designs, and the rewards of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dnadiff.design.generate import ConditionalSampler, effective_size
from dnadiff.design.request import Target
from dnadiff.design.reward import CountedReward, Values
from dnadiff.sampler.base import Configurable


@dataclass(frozen=True)
class Objective:
    """What is optimized: `reward`, and `beta`, the inverse temperature of the target distribution p(x) exp(beta reward(x))."""

    reward: CountedReward
    beta: float


class DesignBatch(NamedTuple):
    """Designs of one target.

    Attributes:
        targets: their templates.
        tokens: of each design, (L,).
        rewards: (B,).
        nfe: network calls.
        rows: sequences evaluated in them.
        log_weight: (B,) log importance weights in nats; None if the method has none. Weighted designs have the distribution
            p(x) exp(beta reward(x)), and the mean weight is an unbiased estimate of its normalizing constant.
        effective_size: of this batch; None without weights.
    """

    targets: list[Target]
    tokens: list[NDArray[np.int64]]
    rewards: Values
    nfe: int
    rows: int
    log_weight: NDArray[np.float64] | None = None
    effective_size: float | None = None


class DesignMethod(Configurable, ABC):
    """Designs sequences with a high reward from a generator.

    Attributes:
        has_weights: whether its designs have importance weights that lead to p(x) exp(beta reward(x)).
        is_population: whether the designs of a batch depend on each other.
    """

    has_weights: ClassVar[bool] = False
    is_population: ClassVar[bool] = False

    def check(self, generator: ConditionalSampler, objective: Objective) -> None:
        """Raise ValueError if the sampler, the kind of model or the reward does not fit this method."""

    @abstractmethod
    def run(
        self, generator: ConditionalSampler, objective: Objective, targets: Sequence[Target], numbers: Sequence[int], seed: int
    ) -> DesignBatch:
        """Design one sequence for each target; all targets have the same pattern, and design i depends on (seed, numbers).

        Raises:
            ValueError: if the reward fails (`CountedReward`).
        """


def texts(generator: ConditionalSampler, target: Target, tokens: Tensor) -> list[str]:
    """The sequences that a reward reads, in upper case, of `tokens (B, L)`."""
    return [generator.text(target, row).upper() for row in tokens.cpu().numpy()]


def rewards(generator: ConditionalSampler, objective: Objective, target: Target, tokens: Tensor) -> Tensor:
    """Rewards (B,) float64 of complete sequences `tokens (B, L)`."""
    return torch.from_numpy(objective.reward(texts(generator, target, tokens)))


def weighted_batch(
    targets: Sequence[Target], tokens: Tensor, values: Tensor, nfe: int, rows: int, log_weight: Tensor | None
) -> DesignBatch:
    """A batch of designs from tensors."""
    weights = None if log_weight is None else log_weight.double().cpu().numpy()
    size = None if weights is None else effective_size(weights)
    return DesignBatch(list(targets), list(tokens.cpu().numpy()), values.numpy(), nfe, rows, weights, size)
