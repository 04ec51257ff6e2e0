"""SVDD: the best of several candidates at every step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from typing_extensions import override

from dnadiff import checks
from dnadiff.design.method.stepwise import Batch, Particles, Step, Stepwise


@dataclass(eq=False)
class SVDD(Stepwise):
    """Soft value-based decoding (arXiv 2408.08252): each step draws candidates, and one is chosen by the reward of its predicted x0.

    A candidate is chosen with a probability proportional to exp(beta_k r); the paper takes the best one, its limit for large `beta`. The
    weight of the choice is the mean of exp(beta_k r) over the candidates, which makes the designs weighted samples of
    p(x) exp(beta r(x)), as in nested sequential Monte Carlo. Designs are independent of each other. Reward calls per design:
    `num_candidates` times steps / `every`; other steps draw one candidate.

    Args:
        num_candidates: at each step.

    Example:
        >>> SVDD(num_candidates=8, every=4).num_candidates
        8
    """

    num_candidates: checks.PositiveInt = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.num_candidates = checks.integer("method.num_candidates", self.num_candidates)

    @override
    def advance(self, batch: Batch, particles: Particles, step: Step) -> Particles:
        count = self.num_candidates if step.is_evaluated else 1
        candidates, values = [], []
        for candidate in range(count):
            number = step.number * self.num_candidates + candidate
            uniform = batch.uniform("candidate", step.now, number)
            tokens = batch.generator.sampler.unmask(step.index, step.num_steps, step.log_probs_now, uniform)
            candidates.append(batch.filled(particles.x, step.now, tokens))
            if step.is_evaluated:
                values.append(batch.rewards(batch.predicted(candidates[-1], step, number)))
        if not step.is_evaluated:
            log_mass = batch.log_mass(candidates[0])
            return replace(particles, x=candidates[0], log_mass=log_mass, log_weight=particles.log_weight + log_mass - particles.log_mass)
        value = torch.stack(values, 1)  # (B, n)
        log_potential = step.beta * value
        uniform = batch.draws.at(step.number).uniform("choice", 1).to(value.device)
        ends = log_potential.softmax(-1).cumsum(-1)
        chosen = (uniform >= ends).sum(-1, keepdim=True).clamp(max=count - 1)  # (B, 1)
        x = torch.stack(candidates, 1).gather(1, chosen[..., None].expand(-1, -1, particles.x.shape[1]))[:, 0]
        log_mass = batch.log_mass(x)  # the same for all candidates: it depends on what was visible
        mean = log_potential.logsumexp(-1) - math.log(count)
        log_weight = particles.log_weight + mean - particles.log_potential + log_mass - particles.log_mass
        return Particles(
            x,
            particles.step,
            particles.left,
            log_weight,
            log_potential.gather(1, chosen)[:, 0],
            log_mass,
            value.gather(1, chosen)[:, 0],
        )
