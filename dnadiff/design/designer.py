"""Design sequences with a high reward: a generator, a method and a reward, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dnadiff.checks import number
from dnadiff.design.generate import ConditionalSampler
from dnadiff.design.method.base import DesignBatch, DesignMethod, Objective
from dnadiff.design.request import Request, Target
from dnadiff.design.reward import CountedReward, Reward
from dnadiff.draws import hash64

if TYPE_CHECKING:
    from dnadiff.sampler.base import Sampler


class Designer:
    """Fills requests with designs.

    Args:
        generator: the model with its sampler.
        method: how designs are found.
        reward: what is optimized.
        beta: inverse temperature, 0 or more: weighted designs have the distribution p(x) exp(beta reward(x)).

    Raises:
        ValueError: if `beta` is negative, or model, sampler and reward do not fit the method.
    """

    def __init__(self, generator: ConditionalSampler, method: DesignMethod, reward: Reward, beta: float = 1.0) -> None:
        if number("beta", beta) < 0:
            raise ValueError(f"beta {beta} must be 0 or more; larger values weight the reward more, and target= approaches a value")
        self.generator, self.method, self.objective = generator, method, Objective(CountedReward(reward), beta)
        method.check(generator, self.objective)

    @property
    def sampler(self) -> Sampler:
        """The sampler of the generator."""
        return self.generator.sampler

    @property
    def reward_calls(self) -> int:
        """Sequences that the reward evaluated so far; a gradient counts twice."""
        return self.objective.reward.calls

    def has_weights(self, request: Request) -> bool:
        """Whether the designs of a request have importance weights."""
        return self.method.has_weights and self.sampler.supports_weights(request.lengths[1])

    def batches(self, request: Request, seed: int, batch_size: int, first: int = 0) -> Iterator[DesignBatch]:
        """The designs from number `first` on; a batch has one template. Design i depends on (seed, i) and, if `method.is_population`, on its batch."""
        check_request(request)
        done = first
        while done < len(request):
            end = min(done + batch_size, (done // request.each + 1) * request.each)
            numbers = range(done, end)
            yield self.method.run(self.generator, self.objective, [request[i] for i in numbers], numbers, hash64(seed, "design"))
            done = end


def check_request(request: Request) -> None:
    """Raise ValueError for a request with templates of several lengths in one group."""
    low, high = request.lengths
    if low < high and request.num_groups == 1:
        raise ValueError(f"designs are compared at one length, and this request has {low} to {high}; set length to a number")


def distances(targets: list[Target], tokens: list[NDArray[np.int64]]) -> list[int | None]:
    """The number of positions at which each design differs from the sequence that it started from; None without one."""
    return [None if target.start is None else int((target.start != ids).sum()) for target, ids in zip(targets, tokens)]
