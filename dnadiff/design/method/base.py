"""What all design methods share: the interface, the batch of designs, and the rewards of a
batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dnadiff.design.generate import ConditionalSampler, SampleBatch
from dnadiff.design.request import Target
from dnadiff.design.reward import CountedReward
from dnadiff.process import AbsorbingProcess, Process
from dnadiff.sampler.base import Configurable, Sampler


@dataclass(frozen=True)
class Goal:
    """What is optimized: `reward`, and `beta`, the inverse temperature of the target distribution
    p(x) exp(beta reward(x))."""

    reward: CountedReward
    beta: float


class DesignMethod(Configurable, ABC):
    """Designs sequences with a high reward from a generator.

    Attributes:
        process_type: the process of the models that it designs with.
        has_weights: whether its designs have importance weights. Weighted designs have the
            distribution p(x) exp(beta reward(x)), and the mean weight is an unbiased estimate of
            its normalizing constant.
        changes_given: whether it can change given sequences (`Target.start`).
        reads_whole: whether it calls the network on whole sequences, whatever the sampler does.
        uses_beta: whether it has a temperature.
    """

    process_type: ClassVar[type[Process]] = AbsorbingProcess
    has_weights: ClassVar[bool] = False
    changes_given: ClassVar[bool] = False
    reads_whole: ClassVar[bool] = False
    uses_beta: ClassVar[bool] = True

    @property
    def resamples(self) -> bool:
        """Whether the designs of a batch are one population, in which some are copied in place of
        others."""
        return False

    def check_population(self, smallest: int, largest: int) -> None:
        """Raise ValueError if populations of these sizes are too small for this method, or warn."""

    def check(self, generator: ConditionalSampler, goal: Goal) -> None:
        """Raise ValueError if the sampler, the kind of model or the reward does not fit this
        method."""

    def check_length(self, generator: ConditionalSampler, length: int) -> None:
        """Raise ValueError for sequences of a length that this method cannot design."""
        longest = generator.denoiser.max_length
        if self.reads_whole and longest is not None and length > longest:
            raise ValueError(
                f"method {type(self).__name__} reads whole sequences, and {length} tokens are more "
                f"than the {longest} that this network takes; "
                f"use sequences of at most {longest}, or method=best_of_n sampler=semi_ar"
            )

    def supports_weights(self, sampler: Sampler, length: int) -> bool:
        """Whether designs of `length` tokens have importance weights with this sampler."""
        return self.has_weights and sampler.supports_weights(length)

    @abstractmethod
    def run(
        self,
        generator: ConditionalSampler,
        goal: Goal,
        targets: Sequence[Target],
        numbers: Sequence[int],
        seed: int,
    ) -> SampleBatch:
        """Design one sequence for each target; all targets have the same pattern, and design i
        depends on (seed, numbers).

        Raises:
            ValueError: if the reward fails (`CountedReward`).
        """


def texts(generator: ConditionalSampler, target: Target, tokens: Tensor) -> list[str]:
    """The sequences that a reward reads of `tokens (B, L)`: what is written, DNA in upper case."""
    written = [generator.text(target, row) for row in tokens.cpu().numpy()]
    return written if target.pattern.letters is None else [text.upper() for text in written]


def rewards(generator: ConditionalSampler, goal: Goal, target: Target, tokens: Tensor) -> Tensor:
    """Rewards (B,) float64 of complete sequences `tokens (B, L)`."""
    return torch.from_numpy(goal.reward(texts(generator, target, tokens)))
