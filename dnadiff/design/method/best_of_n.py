"""Best of n: the baseline of all design methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.design.generate import ConditionalSampler, SampleBatch
from dnadiff.design.method.base import DesignMethod, Goal, texts
from dnadiff.design.request import Target
from dnadiff.design.reward import Values
from dnadiff.fields import PositiveInt, checked


@checked
@dataclass(eq=False)
class BestOfN(DesignMethod):
    """For each design, draw `num_candidates` samples of the model and keep the one with the highest
    reward.

    It has no temperature: `beta` is not used, and the distribution of the designs is that of the
    maximum of n rewards. Works with every sampler and every kind of model. Reward calls per design:
    n.

    Args:
        num_candidates: n.

    Examples:
        >>> BestOfN(num_candidates=64)
        BestOfN(num_candidates=64)
    """

    num_candidates: PositiveInt = 16

    uses_beta: ClassVar[bool] = False

    @override
    def run(
        self,
        generator: ConditionalSampler,
        goal: Goal,
        targets: Sequence[Target],
        numbers: Sequence[int],
        seed: int,
    ) -> SampleBatch:
        best: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(targets)
        rewards: Values = np.full(len(targets), -np.inf)
        nfe = rows = 0
        for candidate in range(self.num_candidates):
            # Candidate j of design i has the noise of sample i n + j.
            batch = generator.fill(
                [
                    (number * self.num_candidates + candidate, target)
                    for number, target in zip(numbers, targets)
                ],
                seed,
                weighted=False,
            )
            values = goal.reward(texts(generator, targets[0], np.stack(batch.tokens)))
            for row in np.flatnonzero(values > rewards):
                best[row], rewards[row] = batch.tokens[row], values[row]
            nfe, rows = nfe + batch.nfe, rows + batch.rows
        return SampleBatch(list(targets), best, nfe, rows, None, rewards)
