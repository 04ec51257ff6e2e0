"""Design sequences with a high reward: a generator, a method and a reward, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.design.generate import ConditionalSampler, SampleBatch, effective_size
from dnadiff.design.method.base import DesignMethod, Goal
from dnadiff.design.request import Request, Target, dna_tokenizer
from dnadiff.design.reward import CountedReward, Reward
from dnadiff.diffusion.categorical import NoMassError
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.process import require
from dnadiff.fields import Json, check_value

_DIGITS = {
    "reward": 6,
    "reward_calls": 1,
    "ess": 1,
    "log_prob": 3,
}  # after the decimal point, in headers
LongestMatch = Callable[
    [Iterable[np.ndarray]], np.ndarray
]  # bases of sequences -> longest match of each with the training data


class Designer(ConditionalSampler):
    """A generator whose samples are designs.

    Args:
        generator: the model with its sampler and constraints.
        method: how designs are found.
        reward: what is optimized.
        beta: inverse temperature, 0 or more: weighted designs have the distribution p(x) exp(beta
            reward(x)).
        num_draws: network calls for the bound on the log-probability of each design in `about`; 0
            leaves it out.
        longest_match: searches each design in the training data; None leaves it out.

    Raises:
        ValueError: if `beta` is negative, or model, sampler and reward do not fit the method.
    """

    is_design: ClassVar[bool] = True

    def __init__(
        self,
        generator: ConditionalSampler,
        method: DesignMethod,
        reward: Reward,
        beta: float = 1.0,
        num_draws: int = 0,
        longest_match: LongestMatch | None = None,
    ) -> None:
        super().__init__(
            generator.denoiser,
            generator.process,
            generator.tokenizer,
            generator.sampler,
            generator.labels,
            generator.tilt,
        )
        if not isinstance(method, DesignMethod):
            raise ValueError(
                f"method {method!r} is not a design method; give an object such as SMC() "
                "(dnadiff.design.method)"
            )
        if check_value("beta", beta, float) < 0:
            raise ValueError(
                f"beta {beta} must be 0 or more; larger values weight the reward more, and target= "
                "approaches a value"
            )
        self.method, self.goal = method, Goal(CountedReward(reward), beta)
        self.num_draws, self.longest_match = num_draws, longest_match
        require(f"method {type(method).__name__}", generator.denoiser, method.process_type)
        method.check(self, self.goal)

    @property
    def reward_calls(self) -> int:
        """Sequences that the reward evaluated so far; a gradient counts twice, and the checks of
        `CountedReward` do not count."""
        return self.goal.reward.calls

    @override
    def has_weights(self, request: Request) -> bool | None:
        """True, or None if the method has no weights or the sampler does not support them."""
        return True if self.method.supports_weights(self.sampler, request.lengths[1]) else None

    def check_request(self, request: Request, batch_size: int | None = None) -> None:
        """Raise ValueError for several lengths of one template, and for lengths that the method,
        the reward or the bounds do not take.

        With `batch_size` also raise ValueError, or warn, if batches are too small for the method.
        """
        (low, high), longest = request.lengths, self.denoiser.max_length
        if low < high and request.num_groups == 1:
            raise ValueError(
                f"designs are compared at one length, and this request has {low} to {high}; set "
                "length to a number"
            )
        if self.num_draws and longest is not None and high > longest:
            problem = (
                f"bounds need whole sequences, and {high} tokens are more than the "
                f"{longest} "
                "that this network takes"
            )
            raise ValueError(f"num_draws {self.num_draws}: {problem}; set num_draws=0")
        self.method.check_length(self, high)
        for length in sorted(
            {end - start for start, end in (target.shown for target in request.first_of_groups())}
        ):
            self.goal.reward.reward.check_length(length)
        if batch_size is not None:
            count = num_batches(request, batch_size)
            self.method.check_population(request.each // count, -(-request.each // count))

    @override
    def batch_starts(self, request: Request, batch_size: int, first: int = 0) -> Iterator[int]:
        """As in the base class; a batch has one template, and the populations of a template have
        sizes that differ by at most one."""
        count = num_batches(request, batch_size)
        while first < len(request):
            yield first
            group, place = divmod(first, request.each)
            # Other methods keep their batches: designs depend on the shape of a batch to the last
            # bit.
            end = (
                -(-request.each * (place * count // request.each + 1) // count)
                if self.method.resamples
                else place + batch_size
            )
            first = group * request.each + min(end, request.each)

    @override
    def batches(
        self, request: Request, seed: int, batch_size: int, first: int = 0
    ) -> Iterator[SampleBatch]:
        """The designs from number `first` on. Design i depends on (seed, i), and with `SMC` and
        `ResampleMove` on its batch.

        Raises:
            ValueError: if the reward fails, or no design of a batch has a probability above 0.
        """
        self.check_request(request)
        for start, end in pairwise((*self.batch_starts(request, batch_size, first), len(request))):
            before = self.reward_calls
            targets = [request[i] for i in range(start, end)]
            batch = self._run(targets, range(start, end), seed)
            yield batch._replace(reward_calls=self.reward_calls - before)

    def _run(self, targets: Sequence[Target], numbers: Sequence[int], seed: int) -> SampleBatch:
        problem = (
            f"no design of the batch that begins with {targets[0].name} has a probability above 0 "
            "under the model and its template; change the "
            "letters, motif= or label=, or set a larger batch_size"
        )
        try:
            batch = self.method.run(self, self.goal, targets, numbers, hash64(seed, "design"))
        except NoMassError as error:
            raise ValueError(problem) from error
        if batch.log_weight is not None and not np.isfinite(np.logaddexp.reduce(batch.log_weight)):
            raise ValueError(problem)
        return batch

    @override
    def facts(self, batch: SampleBatch) -> list[dict[str, Json]]:
        assert batch.rewards is not None
        number = len(batch.targets)
        columns: dict[str, Sequence[Json]] = {
            "reward": batch.rewards.tolist(),
            "reward_calls": [batch.reward_calls / number] * number,
        }
        if batch.log_weight is not None:
            columns["ess"] = [effective_size(batch.log_weight)] * number
        if batch.targets[0].start is not None:
            columns["changes"] = changes(batch)
        if self.longest_match is not None:
            tokenizer, (start, end) = dna_tokenizer(self.tokenizer), batch.targets[0].designed
            columns["longest_match"] = self.longest_match(
                tokenizer.bases(tokens[start:end]) for tokens in batch.tokens
            ).tolist()
        return [{name: values[row] for name, values in columns.items()} for row in range(number)]

    @override
    def about(self, batch: SampleBatch, numbers: Sequence[int], seed: int) -> list[dict[str, Json]]:
        """What `facts` says of each design and the bound on its log-probability, rounded."""
        found = self.facts(batch)
        if self.num_draws:
            bounds = self.bounds(batch, numbers, self.num_draws, seed).tolist()
            found = [{**facts, "log_prob": bound} for facts, bound in zip(found, bounds)]
        return [
            {
                name: round(value, _DIGITS[name]) if name in _DIGITS else value
                for name, value in facts.items()
            }
            for facts in found
        ]


def num_batches(request: Request, batch_size: int) -> int:
    """The number of batches of each template."""
    return -(-request.each // batch_size)


def changes(batch: SampleBatch) -> list[int]:
    """The number of positions at which each design differs from the sequence that it started
    from."""
    return [
        int((start_of(target) != tokens).sum())
        for target, tokens in zip(batch.targets, batch.tokens)
    ]


def start_of(target: Target) -> NDArray[np.int64]:
    """The sequence (L,) that a design starts from."""
    assert target.start is not None
    return target.start
