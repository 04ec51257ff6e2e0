"""What all design methods share: the interface, and the batch of designs with its templates, noise,
network calls and rewards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from dnadiff.design.generate import ConditionalSampler, Prepared, SampleBatch
from dnadiff.design.request import Target
from dnadiff.design.reward import CountedReward
from dnadiff.diffusion.draws import Draws, float64_device
from dnadiff.diffusion.process import AbsorbingProcess, Process
from dnadiff.diffusion.sampler.base import Configurable, CountedDenoiser, Sampler, draw_in_chunks


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


def texts(generator: ConditionalSampler, target: Target, tokens: np.ndarray) -> list[str]:
    """The sequences that a reward reads of `tokens (B, L)`: what is written, DNA in upper case."""
    written = [generator.text(target, row) for row in tokens]
    return written if target.pattern.letters is None else [text.upper() for text in written]


class DesignRun:
    """A batch of designs of one template that is being made.

    Attributes:
        template: (B, L) tokens, masks to be filled.
        device: of the tokens; weights and rewards are on `exact_device`, the same unless it has no
            float64.
        generation: how often the sequences were resampled. A copy takes the noise of the row that
            it is copied to; with the same numbers as before, its tokens would depend on why the
            earlier sequence of that row was dropped.
    """

    def __init__(
        self,
        generator: ConditionalSampler,
        goal: Goal,
        targets: Sequence[Target],
        numbers: Sequence[int],
        seed: int,
    ) -> None:
        self.generator, self.goal, self.targets = generator, goal, list(targets)
        self.numbers, self.seed, self.target = numbers, seed, targets[0]
        self.prepared: Prepared = generator.prepared(targets)
        self.template, self.device = self.prepared.x_init, self.prepared.x_init.device
        self.draws = Draws(seed, torch.tensor(numbers, device=self.device))
        self.exact_device = float64_device(self.device)
        self.generation = 0
        self.calls = CountedDenoiser(
            self.prepared.denoiser, self.prepared.cond, self.prepared.valid
        )

    def sampled(self, weighted: bool = True) -> tuple[Tensor, NDArray[np.float64] | None]:
        """Samples (B, L) of the model and their log weights (B,), drawn by its sampler."""
        found = self.generator.fill(list(zip(self.numbers, self.targets)), self.seed, weighted)
        self.calls.nfe, self.calls.rows = found.nfe, found.rows
        return torch.from_numpy(np.stack(found.tokens)).to(self.template), found.log_weight

    def filled(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        """A copy of `x (B, L)` with `tokens (N,)` at `positions (B, L)`."""
        return x.masked_scatter(positions, tokens.to(x))

    def uniform(self, purpose: str, positions: Tensor, number: int) -> Tensor:
        """Uniforms (N,) for `positions (B, L)`, which depend on the row and `number`."""
        uniform = self.draws.at(number).uniform(purpose, positions.shape[1])
        return uniform[positions.to(uniform.device)]

    def predicted(self, x: Tensor, masked: Tensor, log_probs: Tensor, number: int) -> Tensor:
        """`x (B, L)` with the positions `masked (B, L)` drawn independently of each other from
        `log_probs (M, V)`."""
        return self.filled(
            x, masked, draw_in_chunks(log_probs, self.uniform("predicted", masked, number))
        )

    def texts(self, x0: Tensor) -> list[str]:
        """The sequences that the reward reads of complete sequences `x0 (B, L)`."""
        return texts(self.generator, self.target, x0.cpu().numpy())

    def rewards(self, x0: Tensor) -> Tensor:
        """Rewards (B,) float64 of complete sequences `x0 (B, L)`."""
        return torch.from_numpy(self.goal.reward(self.texts(x0))).to(self.exact_device)

    def log_mass(self, x: Tensor) -> Tensor:
        """The log of the mass that the constraints left to the tokens drawn so far, (B,)
        float64."""
        constrained = self.prepared.constrained
        if constrained is None:
            return torch.zeros(len(x), dtype=torch.float64, device=self.exact_device)
        drawn = (x != self.template).to(constrained.log_mass.device)
        return torch.where(drawn, constrained.log_mass, 0.0).sum(-1).to(self.exact_device)

    def batch(self, x: Tensor, values: Tensor, log_weight: Tensor | None = None) -> SampleBatch:
        """The finished batch of designs `x (B, L)` with their rewards (B,) and log weights (B,)."""
        weights = None if log_weight is None else log_weight.double().cpu().numpy()
        return SampleBatch(
            self.targets,
            list(x.cpu().numpy()),
            self.calls.nfe,
            self.calls.rows,
            weights,
            values.cpu().numpy(),
        )


class BatchMethod(DesignMethod):
    """A method that calls the network on whole sequences of a `DesignRun`."""

    reads_whole: ClassVar[bool] = True

    @override
    @torch.no_grad()
    def run(
        self,
        generator: ConditionalSampler,
        goal: Goal,
        targets: Sequence[Target],
        numbers: Sequence[int],
        seed: int,
    ) -> SampleBatch:
        return self.design(DesignRun(generator, goal, targets, numbers, seed))

    @abstractmethod
    def design(self, run: DesignRun) -> SampleBatch:
        """Design the sequences of a batch; see `run`."""
