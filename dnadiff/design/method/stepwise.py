"""Methods that steer the unmasking steps, with importance weights that correct for the steering.

A step draws tokens for some masked positions. The reward of an unfinished sequence is that of a predicted x0: its masks are filled from the
same network call, independently of each other. A particle carries the log of its potential,

    log psi = beta_k r(predicted x0) + log mass of the constraints,    beta_k = beta * (fraction unmasked), 0 before the first step

(`anneal=false`: beta_k = beta), and at the end, where x0 is complete, beta r(x0) + log mass. Its log weight is the sum over the steps of

    log p(tokens) - log q(tokens) + log psi_k - log psi_(k-1),

for tokens drawn from q in place of the model's p. Because the last potential is exact, weighted sequences have the distribution
p(x) exp(beta r(x)) given the constraints, whatever the predictions are worth, and the mean weight is an unbiased estimate of its
normalizing constant (Feynman-Kac steering, arXiv 2501.06848; twisted diffusion, arXiv 2306.17775).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff import categorical, checks
from dnadiff.design.generate import ConditionalSampler, Prepared, SampleBatch
from dnadiff.design.method.base import DesignMethod, Goal, batch_of, rewards
from dnadiff.design.request import Target
from dnadiff.draws import Draws
from dnadiff.sampler.base import PlannedSampler, time_left, time_of
from dnadiff.sampler.counted import CountedDenoiser


@dataclass
class Particles:
    """Unfinished sequences.

    Attributes:
        x: (B, L) tokens.
        step: (B, L) the step at which each position is unmasked.
        left: (B, K) for networks conditioned on time, see `dnadiff.sampler.base.Plan`; or None.
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
        index: of the plan; `number` counts the steps made before.
        num_steps: of the sampler.
        now: (B, L) bool, positions to unmask.
        open: (B, L) bool, all masked positions.
        log_probs: (M, V) at `open`, row-major, of the model under the constraints.
        beta: the inverse temperature after this step.
        is_evaluated: whether the reward is evaluated.
        is_last: whether nothing is masked afterwards.
    """

    index: int
    number: int
    num_steps: int
    now: Tensor
    open: Tensor
    log_probs: Tensor
    beta: float
    is_evaluated: bool
    is_last: bool

    @property
    def log_probs_now(self) -> Tensor:
        """(N, V) at the positions to unmask."""
        return self.log_probs[self.now[self.open]]


class Batch:
    """What the steps of one batch share: generator, goal, templates, noise and counts."""

    def __init__(self, generator: ConditionalSampler, goal: Goal, targets: Sequence[Target], numbers: Sequence[int], seed: int) -> None:
        self.generator, self.goal, self.target = generator, goal, targets[0]
        self.prepared: Prepared = generator.prepared(targets)
        self.draws = Draws(seed, torch.tensor(numbers, device=self.prepared.x_init.device))
        self.calls = CountedDenoiser(self.prepared.denoiser, self.prepared.cond, self.prepared.valid)
        self.template = self.prepared.x_init

    def filled(self, x: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        """A copy of `x (B, L)` with `tokens (N,)` at `positions (B, L)`."""
        return x.masked_scatter(positions, tokens.to(x))

    def uniform(self, purpose: str, positions: Tensor, number: int) -> Tensor:
        """Uniforms (N,) for `positions (B, L)`, which depend on the row and `number`."""
        uniform = self.draws.at(number).uniform(purpose, positions.shape[1])
        return uniform[positions.to(uniform.device)]

    def predicted(self, x: Tensor, step: Step, number: int) -> Tensor:
        """x0 (B, L) predicted for `x (B, L)`: what is still masked is drawn from the log-probabilities of this step."""
        masked = x == self.generator.process.vocab.mask_id
        tokens = categorical.draw(step.log_probs[masked[step.open]], self.uniform("predicted", masked, number))
        return self.filled(x, masked, tokens)

    def rewards(self, x0: Tensor) -> Tensor:
        """Rewards (B,) float64, on the device of the tokens."""
        return rewards(self.generator, self.goal, self.target, x0).to(self.draws.rows.device)

    def log_mass(self, x: Tensor) -> Tensor:
        """The log of the mass that the constraints left to the tokens drawn so far, (B,) float64."""
        constrained = self.prepared.constrained
        if constrained is None:
            return torch.zeros(len(x), dtype=torch.float64, device=x.device)
        drawn = (x != self.template).to(constrained.log_mass.device)
        return (constrained.log_mass * drawn).sum(-1).to(x.device)


@dataclass(eq=False)
class Stepwise(DesignMethod):
    """A method that draws the tokens of each unmasking step with a look at the reward.

    Args:
        every: evaluate the reward after every so many steps, and after the last one.
        anneal: the inverse temperature grows in proportion to the unmasked fraction; False uses `beta` from the first evaluation on.
    """

    every: checks.PositiveInt = 1
    anneal: bool = True

    has_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.every, self.anneal = checks.integer("method.every", self.every), checks.boolean("method.anneal", self.anneal)

    @override
    def check(self, generator: ConditionalSampler, goal: Goal) -> None:
        name = type(self).__name__
        if generator.denoiser.left_to_right:
            raise ValueError(f"method {name} steers a model that unmasks in any order, and this one goes from left to right; use best_of_n")
        if not isinstance(generator.sampler, PlannedSampler):
            raise ValueError(
                f"method {name} needs a sampler whose order does not depend on tokens, not {type(generator.sampler).__name__}; set "
                "sampler=grouped, first_hitting or ancestral"
            )

    @override
    def run(self, generator: ConditionalSampler, goal: Goal, targets: Sequence[Target], numbers: Sequence[int], seed: int) -> SampleBatch:
        batch = Batch(generator, goal, targets, numbers, seed)
        with torch.no_grad():
            particles = self._steps(batch)
        weighted = generator.sampler.supports_weights(batch.template.shape[1])
        return batch_of(
            targets, particles.x, particles.value, batch.calls.nfe, batch.calls.rows, particles.log_weight if weighted else None
        )

    def _steps(self, batch: Batch) -> Particles:
        sampler, process, template = batch.generator.sampler, batch.generator.process, batch.template
        assert isinstance(sampler, PlannedSampler)
        frozen = torch.zeros_like(template, dtype=torch.bool) if batch.prepared.frozen is None else batch.prepared.frozen
        masked = sampler.positions(template, process, frozen, batch.prepared.valid)
        zero = torch.zeros(len(template), dtype=torch.float64, device=template.device)
        step, left = sampler.plan(masked, process, batch.draws)
        particles = Particles(template.clone(), step, left, zero, zero, zero, zero)
        order = step[masked & (step >= 0)].unique().tolist()
        for number, index in enumerate(order):
            now, is_last = masked & (particles.step == index), number == len(order) - 1
            if particles.left is None:
                t = time_of(particles.x, process, batch.calls.valid)
            else:
                t = time_left(particles.left[:, index], template, masked, process, batch.calls.valid)
            is_evaluated = is_last or number % self.every == self.every - 1
            open_ = masked & (particles.x == process.vocab.mask_id) if is_evaluated else now
            beta = batch.goal.beta * ((number + 1) / len(order) if self.anneal else 1.0)
            log_probs = batch.calls.log_probs(particles.x, t, open_)
            made = Step(index, number, sampler.num_steps_for(template.shape[1]), now, open_, log_probs, beta, is_evaluated, is_last)
            particles = self.after_step(self.advance(batch, particles, made), batch, made)
        return particles

    @abstractmethod
    def advance(self, batch: Batch, particles: Particles, step: Step) -> Particles:
        """The particles after one step, with their weights."""

    def after_step(self, particles: Particles, batch: Batch, step: Step) -> Particles:
        """What a method does with all particles after a step, such as resampling them."""
        return particles


def moved(batch: Batch, particles: Particles, step: Step, tokens: Tensor, log_ratio: Tensor | None = None) -> Particles:
    """The particles with `tokens (N,)` at the positions of a step, their reward if it is evaluated, and their weights.

    `log_ratio (B,)` is log p(tokens) - log q(tokens); None is 0.
    """
    x = batch.filled(particles.x, step.now, tokens)
    value, log_potential = particles.value, particles.log_potential
    if step.is_evaluated:
        value = batch.rewards(batch.predicted(x, step, step.number))
        log_potential = step.beta * value
    log_mass = batch.log_mass(x)
    added = log_potential - particles.log_potential + log_mass - particles.log_mass + (0.0 if log_ratio is None else log_ratio)
    return replace(particles, x=x, value=value, log_potential=log_potential, log_mass=log_mass, log_weight=particles.log_weight + added)
