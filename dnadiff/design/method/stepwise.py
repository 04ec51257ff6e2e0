"""Methods that steer the unmasking steps, with importance weights that correct for the steering.

A step draws tokens for some masked positions. The reward of an unfinished sequence is that of a
predicted x0: its masks are filled from the same network call, independently of each other. A
particle carries the log of its potential,

    log psi = beta_k r(predicted x0) + log mass of the constraints,    beta_k = beta * (fraction of
    the masks that is filled),

(`anneal=false`: beta_k = beta), 0 before the first step, and at the end, where x0 is complete, beta
r(x0) + log mass. Its log weight is the sum over the steps of

    log p(tokens) - log q(tokens) + log psi_k - log psi_(k-1),

for tokens drawn from q in place of the model's p. The last potential is exact, so that weighted
sequences have the distribution p(x) exp(beta r(x)) given the constraints, whether or not the
predictions are accurate, and the mean weight is an unbiased estimate of its normalizing constant
(Feynman-Kac steering, arXiv 2501.06848; twisted diffusion, arXiv 2306.17775).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.design.generate import ConditionalSampler, SampleBatch
from dnadiff.design.method.base import BatchMethod, DesignRun, Goal
from dnadiff.diffusion.sampler.base import PlannedSampler, time_left, time_of
from dnadiff.fields import PositiveInt, checked


@dataclass
class Particles:
    """Unfinished sequences.

    Attributes:
        x: (B, L) tokens.
        step: (B, L) the step at which each position is unmasked.
        left: (B, K) for networks conditioned on time, see `dnadiff.diffusion.sampler.base.Plan`; or
            None.
        log_weight: (B,) float64.
        log_potential: (B,) float64, of the reward alone.
        log_mass: (B,) float64, of the constraints.
        value: (B,) float64, the rewards of the last evaluation.
    """

    x: Tensor
    step: Tensor
    left: Tensor | None
    log_weight: Tensor
    log_potential: Tensor
    log_mass: Tensor
    value: Tensor


@dataclass
class Step:
    """One unmasking step of a batch.

    Attributes:
        index: of the sampler's plan.
        num_steps: of the sampler.
        now: (B, L) bool, positions to unmask.
        predicted: (B, L) bool, positions with log-probabilities: all masked ones where the reward
            is evaluated, else `now`.
        log_probs: (M, V) at `predicted`, row-major, of the model under the constraints.
        beta: (B,) the inverse temperature after this step.
        evaluated: (B,) bool, sequences whose reward is evaluated.
        done: (B,) bool, sequences that are complete after this step.
    """

    index: int
    num_steps: int
    now: Tensor
    predicted: Tensor
    log_probs: Tensor
    beta: Tensor
    evaluated: Tensor
    done: Tensor

    @property
    def log_probs_now(self) -> Tensor:
        """(N, V) at the positions to unmask."""
        return self.log_probs[self.now[self.predicted]]

    def predict(self, run: DesignRun, x: Tensor, number: int) -> Tensor:
        """x0 (E, L) predicted for those sequences of `x (B, L)` whose reward is evaluated."""
        masked = (
            (x == run.generator.process.vocab.mask_id) & self.predicted & self.evaluated[:, None]
        )
        return run.predicted(x, masked, self.log_probs[masked[self.predicted]], number)[
            self.evaluated
        ]


@checked
@dataclass(eq=False)
class Stepwise(BatchMethod):
    """A method that draws the tokens of each unmasking step taking the reward into account.

    Args:
        every: evaluate the reward once in this many steps, and when a sequence is complete.
        anneal: the inverse temperature grows in proportion to the filled fraction of the masks;
            False uses `beta` from the first evaluation on.
    """

    every: PositiveInt = 1
    anneal: bool = True

    has_weights: ClassVar[bool] = True

    @override
    def check(self, generator: ConditionalSampler, goal: Goal) -> None:
        name = type(self).__name__
        if generator.denoiser.left_to_right:
            raise ValueError(
                f"method {name} steers a model that unmasks in any order, and this one goes from "
                "left to right; use best_of_n"
            )
        if not isinstance(generator.sampler, PlannedSampler):
            raise ValueError(
                f"method {name} needs a sampler whose order does not depend on tokens, not "
                f"{type(generator.sampler).__name__}; set "
                "sampler=grouped, first_hitting or ancestral"
            )

    @override
    def design(self, run: DesignRun) -> SampleBatch:
        particles = self._steps(run)
        weighted = run.generator.sampler.supports_weights(run.template.shape[1])
        return run.batch(particles.x, particles.value, particles.log_weight if weighted else None)

    def _steps(self, run: DesignRun) -> Particles:
        sampler, process, template = run.generator.sampler, run.generator.process, run.template
        assert isinstance(sampler, PlannedSampler)
        frozen = (
            torch.zeros_like(template, dtype=torch.bool)
            if run.prepared.frozen is None
            else run.prepared.frozen
        )
        masked = sampler.positions(template, process, frozen, run.prepared.valid)
        zero = torch.zeros(len(template), dtype=torch.float64, device=run.exact_device)
        step, left = sampler.plan(masked, process, run.draws)
        particles = Particles(template.clone(), step, left, zero, zero, zero, zero)
        for index in step[masked & (step >= 0)].unique().tolist():
            if bool(
                (masked & (particles.step == index)).any()
            ):  # a plan that has such a step may have been dropped
                made = self._step(run, particles, masked, index)
                particles = self.after_step(self.advance(run, particles, made), run, made)
        return particles

    def _step(self, run: DesignRun, particles: Particles, masked: Tensor, index: int) -> Step:
        sampler, process, x = run.generator.sampler, run.generator.process, particles.x
        now, left = masked & (particles.step == index), masked & (particles.step > index)
        done = now.any(-1) & ~left.any(-1)
        evaluated = now.any(-1) if index % self.every == self.every - 1 else done
        predicted = torch.where(evaluated[:, None], now | left, now)
        if particles.left is None:
            t = time_of(x, process, run.calls.valid)
        else:
            t = time_left(particles.left[:, index], run.template, masked, process, run.calls.valid)
        filled = 1 - left.sum(-1).to(run.exact_device, torch.float64) / masked.sum(-1).to(
            run.exact_device
        )
        beta = run.goal.beta * (filled if self.anneal else torch.ones_like(filled))
        log_probs = run.calls.log_probs(x, t, predicted)
        return Step(
            index,
            sampler.num_steps_for(x.shape[1]),
            now,
            predicted,
            log_probs,
            beta,
            evaluated,
            done,
        )

    @abstractmethod
    def advance(self, run: DesignRun, particles: Particles, step: Step) -> Particles:
        """The particles after one step, with their weights."""

    def after_step(self, particles: Particles, run: DesignRun, step: Step) -> Particles:
        """What a method does with all particles after a step, such as resampling them."""
        return particles


def moved(
    run: DesignRun,
    particles: Particles,
    step: Step,
    tokens: Tensor,
    log_ratio: Tensor | float = 0.0,
) -> Particles:
    """The particles with `tokens (N,)` at the positions of a step, their rewards where they are
    evaluated, and their weights.

    `log_ratio (B,)` is log p(tokens) - log q(tokens).
    """
    x = run.filled(particles.x, step.now, tokens)
    value, log_potential = particles.value.clone(), particles.log_potential.clone()
    rows = step.evaluated.to(value.device)
    if bool(rows.any()):
        value[rows] = run.rewards(step.predict(run, x, step.index))
        log_potential[rows] = step.beta[rows] * value[rows]
    return weighted(
        run, particles, x, value, log_potential, log_potential - particles.log_potential + log_ratio
    )


def weighted(
    run: DesignRun,
    particles: Particles,
    x: Tensor,
    value: Tensor,
    log_potential: Tensor,
    added: Tensor,
) -> Particles:
    """The particles at `x (B, L)`; `added (B,)` and what the constraints cost are added to the log
    weights. A weight of 0 stays 0."""
    log_mass = run.log_mass(x)
    log_weight = particles.log_weight + added + log_mass - particles.log_mass
    log_weight = torch.where(particles.log_weight.isneginf(), -torch.inf, log_weight)
    return replace(
        particles,
        x=x,
        value=value,
        log_potential=log_potential,
        log_mass=log_mass,
        log_weight=log_weight,
    )
