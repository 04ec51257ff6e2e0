"""What all design methods share: the interface, the batch of designs with its templates, noise,
network calls and rewards, the designer that runs a method, and methods that steer the unmasking
steps, with importance weights that correct for the steering.

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

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from dnadiff.design.generate import (
    ConditionalSampler,
    Designs,
    SampleBatch,
    resample_group,
    systematic_resample,
)
from dnadiff.design.pilot import Beta, Choice, refined
from dnadiff.design.request import Request, Target
from dnadiff.design.reward import CountedReward, Reward
from dnadiff.diffusion.draws import Draws, NoMassError, float64_device, hash64
from dnadiff.diffusion.process import AbsorbingProcess, require
from dnadiff.diffusion.sampler.base import (
    Configurable,
    CountedDenoiser,
    PlannedSampler,
    Sampler,
    draw_in_chunks,
)
from dnadiff.fields import PositiveInt, checked_dataclass


@dataclass(frozen=True)
class Goal:
    """What is optimized: `reward`, and `beta`, the inverse temperature of the target distribution
    p(x) exp(beta reward(x)); `level` is the mean reward that an automatic beta is chosen for, or
    None."""

    reward: CountedReward
    beta: float
    level: float | None = None


class DesignMethod(Configurable, ABC):
    """Designs sequences with a high reward from a generator.

    Attributes:
        needs: what it needs of a model that one that goes from left to right has not, for messages;
            empty if it designs with such models too.
        has_weights: whether its designs have importance weights. Weighted designs have the
            distribution p(x) exp(beta reward(x)), and the mean weight is an unbiased estimate of
            its normalizing constant.
        changes_given: whether it can change given sequences (`Target.start`).
        reads_whole: whether it calls the network on whole sequences, whatever the sampler does.
        uses_beta: whether it has a temperature.
        threshold: above 0 the designs of a batch are one population, in which some are copied in
            place of others.
    """

    needs = ""
    has_weights = changes_given = reads_whole = False
    uses_beta = True
    threshold = 0.0

    def check_population(self, smallest: int, largest: int) -> None:
        """Raise ValueError if populations of these sizes are too small for this method, or warn."""

    def check(self, generator: ConditionalSampler, goal: Goal) -> None:
        """Raise ValueError if the sampler, the kind of model or the reward does not fit this
        method."""
        if self.needs and generator.denoiser.left_to_right:
            raise ValueError(
                f"method {type(self).__name__} {self.needs}, and this one goes from left to right; "
                "use best_of_n"
            )

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
    def design(self, run: DesignRun) -> SampleBatch:
        """Design one sequence for each target of a batch; design i depends on (seed, numbers) of
        the run.

        Raises:
            ValueError: if the reward fails (`CountedReward`).
        """


@dataclass(eq=False)
class DesignRun:
    """A batch of designs of one template that is being made.

    Args:
        generator: with the goal of this batch.
        goal: the reward and the inverse temperature.
        targets: one for each design, with the same pattern.
        numbers, seed: key the noise.

    Attributes:
        template: (B, L) tokens, masks to be filled.
        exact_device: of weights and rewards; that of the tokens unless it has no float64.
        generation: how often the sequences were resampled. A copy takes the noise of the row that
            it is copied to; with the same numbers as before, its tokens would depend on why the
            earlier sequence of that row was dropped.
    """

    generator: ConditionalSampler
    goal: Goal
    targets: Sequence[Target]
    numbers: Sequence[int]
    seed: int

    def __post_init__(self) -> None:
        self.prepared = made = self.generator.prepared(self.targets)
        self.template = made.x_init
        device = made.x_init.device
        self.draws = Draws(self.seed, torch.tensor(self.numbers, device=device))
        self.exact_device = float64_device(device)
        self.generation = 0
        self.calls = CountedDenoiser(made.denoiser, made.cond, made.valid)

    def sampled(
        self, weighted: bool = True, numbers: Sequence[int] | None = None
    ) -> tuple[Tensor, ndarray | None]:
        """Samples (B, L) of the model and their log weights (B,), drawn by its sampler; `numbers`
        key their noise, by default those of the designs."""
        numbered = list(zip(self.numbers if numbers is None else numbers, self.targets))
        found = self.generator.fill(numbered, self.seed, weighted)
        self.calls.nfe += found.nfe
        self.calls.rows += found.rows
        return torch.from_numpy(np.stack(found.tokens)).to(self.template), found.log_weight

    def uniform(self, purpose: str, positions: Tensor, number: int) -> Tensor:
        """Uniforms (N,) for `positions (B, L)`, which depend on the row and `number`."""
        uniform = self.draws.at(number).uniform(purpose, positions.shape[1])
        return uniform[positions.to(uniform.device)]

    def texts(self, x0: Tensor) -> list[str]:
        """The sequences that the reward reads of complete sequences `x0 (B, L)`: what is written,
        DNA in upper case."""
        target = self.targets[0]
        written = [self.generator.text(target, row) for row in x0.cpu().numpy()]
        return written if target.pattern.letters is None else [text.upper() for text in written]

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

    def resampled(self, log_weight: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """The row numbers of the sequences that are copied, on the CPU, and their weights, which
        are equal and keep the mean weight (B,); `number` keys the choice.

        Raises:
            NoMassError: if all weights are zero.
        """
        if bool(log_weight.isneginf().all()):
            raise NoMassError("no sequence of the population is possible under the template")
        uniform = float(self.draws.at(number).uniform("resample", 1)[0])
        size = len(log_weight)
        ancestors = torch.from_numpy(systematic_resample(log_weight.cpu().numpy(), size, uniform))
        return ancestors, (log_weight.logsumexp(0) - math.log(size)).expand(size).clone()

    def batch(self, x: Tensor, values: Tensor, log_weight: Tensor | None = None) -> SampleBatch:
        """The finished batch of designs `x (B, L)` with their rewards (B,) and log weights (B,)."""
        weights = None if log_weight is None else log_weight.double().cpu().numpy()
        tokens = list(x.cpu().numpy())
        calls = self.calls
        rewards = values.cpu().numpy()
        return SampleBatch(list(self.targets), tokens, calls.nfe, calls.rows, weights, rewards)


class Designer(ConditionalSampler):
    """A generator whose samples are designs.

    Args:
        generator: the model with its sampler and constraints, whose settings the designs have too.
        method: how designs are found.
        reward: what is optimized.
        beta: inverse temperature: weighted designs have the distribution p(x) exp(beta reward(x)).
            Other forms of `Beta.parse` are chosen by a pilot (`with_choice`).

    Raises:
        ValueError: if `beta` has another form, or model, sampler and reward do not fit the method.
    """

    levels: Mapping[str, float] = {}

    def __init__(
        self,
        generator: ConditionalSampler,
        method: DesignMethod,
        reward: Reward,
        beta: float | str = 1.0,
    ) -> None:
        vars(self).update(vars(generator))
        self.beta = Beta.parse(beta if method.uses_beta else 0.0)
        self.method = method
        self.goal = Goal(CountedReward(reward), 0.0 if self.beta.is_automatic else self.beta.number)
        require(f"method {type(method).__name__}", generator.denoiser, AbsorbingProcess)
        method.check(self, self.goal)

    def with_choice(self, choice: Choice) -> Designer:
        """A copy with the inverse temperature that a pilot chose."""
        other = copy.copy(self)
        other.goal = replace(self.goal, beta=choice.beta)
        other.levels = choice.levels
        return other

    def has_weights(self, request: Request) -> bool | None:
        """True, or None if the method has no weights or the sampler does not support them."""
        return self.method.supports_weights(self.sampler, request.lengths[1]) or None

    def check_request(self, request: Request, batch_size: int) -> None:
        """Raise ValueError for several lengths of one template, and for lengths that the method,
        the reward or the bounds do not take; raise it, or warn, if batches are too small for the
        method."""
        low, high = request.lengths
        if low < high and request.num_groups == 1:
            raise ValueError(
                f"designs are compared at one length, and this request has {low} to {high}; set "
                "length to a number"
            )
        if request[0].start is not None and not self.method.changes_given:
            raise ValueError(
                f"start is for methods that change given sequences, and "
                f"{type(self.method).__name__} does not; use metropolis"
            )
        self.check_bounds(high, self.num_draws)
        self.method.check_length(self, high)
        shown = (target.shown for target in request.first_of_groups())
        for length in sorted({end - start for start, end in shown}):
            self.goal.reward.reward.check_length(length)
            if self.judge is not None:
                self.judge.check_length(length)
        count = -(-request.each // batch_size)
        self.method.check_population(request.each // count, -(-request.each // count))

    def units(self, request: Request, batch_size: int, first: int = 0) -> Iterator[range]:
        """As in the base class; a batch has one template, and the populations of a template have
        sizes that differ by at most one."""
        count = -(-request.each // batch_size)  # of each template
        while first < len(request):
            group, place = divmod(first, request.each)
            # Other methods keep their batches: designs depend on the shape of a batch to the last
            # bit.
            end = (
                -(-request.each * (place * count // request.each + 1) // count)
                if self.method.threshold > 0
                else place + batch_size
            )
            numbers = range(first, group * request.each + min(end, request.each))
            yield numbers
            first = numbers.stop

    def batches(
        self, request: Request, seed: int, batch_size: int, first: int = 0
    ) -> Iterator[SampleBatch]:
        """The designs from number `first` on. Design i depends on (seed, i), and with `SMC` and
        `ResampleMove` on its batch.

        Raises:
            ValueError: if the reward fails, or no design of a batch has a probability above 0.
        """
        key = hash64(seed, "design")
        for numbers in self.units(request, batch_size, first):
            before = self.goal.reward.calls
            goal = replace(self.goal, level=self.levels.get(str(numbers[0] // request.each)))
            targets = [request[i] for i in numbers]
            try:
                with torch.no_grad():
                    run = DesignRun(self, goal, targets, numbers, key)
                    batch = self.method.design(run)
                weight = batch.log_weight
                if weight is not None and not np.isfinite(np.logaddexp.reduce(weight)):
                    raise NoMassError("all weights are 0")
            except NoMassError as error:
                raise ValueError(
                    f"no design of the batch that begins with {targets[0].name} has a probability "
                    "above 0 under the model and its template; change the letters, motif= or "
                    "label=, or set a larger batch_size"
                ) from error
            yield batch._replace(reward_calls=self.goal.reward.calls - before)

    def resampled(self, designs: Designs, count: int, seed: int) -> Designs:
        """`count` of the designs of one template, drawn in proportion to their weights, with beta
        `refined` on them."""
        rewards = np.array([design.reward for design in designs])
        log_weight = np.array([design.log_weight for design in designs])
        beta = self.goal.beta
        more = refined(rewards, log_weight, beta, self.levels.get("0"))
        chosen = resample_group(log_weight + more * rewards, count, seed, 0)
        found = Designs(designs[i] for i in chosen)
        found.beta = beta + more
        return found


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
        run: the batch.
        particles: before the step.
        index: of the sampler's plan.
        now: (B, L) bool, positions to unmask.
        predicted: (B, L) bool, positions with log-probabilities: all masked ones where the reward
            is evaluated, else `now`.
        log_probs: (M, V) at `predicted`, row-major, of the model under the constraints.
        beta: (B,) the inverse temperature after this step.
        evaluated: (B,) bool, sequences whose reward is evaluated.
        done: (B,) bool, sequences that are complete after this step.
    """

    run: DesignRun
    particles: Particles
    index: int
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

    def drawn(self, log_probs: Tensor, purpose: str, number: int) -> Tensor:
        """Tokens (N,) of the positions to unmask, from `log_probs (N, V)`."""
        sampler = self.run.generator.sampler
        uniform = self.run.uniform(purpose, self.now, number)
        return sampler.unmask(self.index, log_probs, uniform)

    def filled(self, tokens: Tensor) -> Tensor:
        """The sequences (B, L) with `tokens (N,)` at the positions to unmask."""
        return self.particles.x.masked_scatter(self.now, tokens.to(self.particles.x))

    def predict(self, x: Tensor, number: int) -> Tensor:
        """x0 (E, L) predicted for those sequences of `x (B, L)` whose reward is evaluated: masks
        are drawn independently of each other."""
        masked = x == self.run.generator.process.vocab.mask_id
        masked &= self.predicted & self.evaluated[:, None]
        uniform = self.run.uniform("predicted", masked, number)
        tokens = draw_in_chunks(self.log_probs[masked[self.predicted]], uniform)
        return x.masked_scatter(masked, tokens.to(x))[self.evaluated]

    def moved(self, tokens: Tensor, log_ratio: Tensor | float = 0.0) -> Particles:
        """The particles with `tokens (N,)` at the positions to unmask, their rewards where they are
        evaluated, and their weights; `log_ratio (B,)` is log p(tokens) - log q(tokens)."""
        x = self.filled(tokens)
        before = self.particles
        value = before.value.clone()
        log_potential = before.log_potential.clone()
        rows = self.evaluated.to(value.device)
        if bool(rows.any()):
            value[rows] = self.run.rewards(self.predict(x, self.index))
            log_potential[rows] = self.beta[rows] * value[rows]
        added = log_potential - before.log_potential + log_ratio
        return self.weighted(x, value, log_potential, added)

    def weighted(self, x: Tensor, value: Tensor, log_potential: Tensor, added: Tensor) -> Particles:
        """The particles at `x (B, L)`; `added (B,)` and what the constraints cost are added to the
        log weights. A weight of 0 stays 0."""
        before = self.particles
        log_mass = self.run.log_mass(x)
        log_weight = before.log_weight + added + log_mass - before.log_mass
        return replace(
            before,
            x=x,
            value=value,
            log_potential=log_potential,
            log_mass=log_mass,
            log_weight=torch.where(before.log_weight.isneginf(), -torch.inf, log_weight),
        )


@checked_dataclass
class Stepwise(DesignMethod):
    """A method that draws the tokens of each unmasking step taking the reward into account.

    Args:
        every: evaluate the reward once in this many steps, and when a sequence is complete.
        anneal: the inverse temperature grows in proportion to the filled fraction of the masks;
            False uses `beta` from the first evaluation on.
    """

    every: PositiveInt = 1
    anneal: bool = True

    has_weights = reads_whole = True
    needs = "steers a model that unmasks in any order"

    def check(self, generator: ConditionalSampler, goal: Goal) -> None:
        super().check(generator, goal)
        if not isinstance(generator.sampler, PlannedSampler):
            raise ValueError(
                f"method {type(self).__name__} needs a sampler whose order does not depend on "
                f"tokens, not {type(generator.sampler).__name__}; set sampler=grouped, "
                "first_hitting or ancestral"
            )

    def design(self, run: DesignRun) -> SampleBatch:
        sampler = run.generator.sampler
        process = run.generator.process
        template = run.template
        assert isinstance(sampler, PlannedSampler)
        valid = run.prepared.valid
        masked = template == process.vocab.mask_id
        zero = torch.zeros(len(template), dtype=torch.float64, device=run.exact_device)
        steps, planned = sampler.plan(masked, process, run.draws)
        particles = Particles(template.clone(), steps, planned, zero, zero, zero, zero)
        for index in steps[masked & (steps >= 0)].unique().tolist():
            x = particles.x
            now = masked & (particles.step == index)
            if not bool(now.any()):  # the plan that has such a step was dropped
                continue
            left = masked & (particles.step > index)
            done = now.any(-1) & ~left.any(-1)
            evaluated = now.any(-1) if index % self.every == self.every - 1 else done
            predicted = torch.where(evaluated[:, None], now | left, now)
            if particles.left is None:
                t = process.time_of(x, valid)
            else:
                t = process.time_of(template, valid, masked, particles.left[:, index])
            beta = torch.full_like(zero, run.goal.beta)
            if self.anneal:
                of_left = left.sum(-1).to(run.exact_device, torch.float64)
                beta = run.goal.beta * (1 - of_left / masked.sum(-1).to(run.exact_device))
            log_probs = run.calls.log_probs(x, t, predicted)
            step = Step(run, particles, index, now, predicted, log_probs, beta, evaluated, done)
            particles = self.advance(step)
        weighted = sampler.supports_weights(template.shape[1])
        return run.batch(particles.x, particles.value, particles.log_weight if weighted else None)

    @abstractmethod
    def advance(self, step: Step) -> Particles:
        """The particles after one step, with their weights."""
