"""SVDD: one of several candidates at every step, drawn in proportion to exp(beta r)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from typing_extensions import override

from dnadiff.design.method.base import DesignRun
from dnadiff.design.method.stepwise import Particles, Step, Stepwise, weighted
from dnadiff.fields import PositiveInt, checked


@checked
@dataclass(eq=False)
class SVDD(Stepwise):
    """Soft value-based decoding (arXiv 2408.08252): each step draws candidates, and one is chosen
    by the reward of its predicted x0.

    A candidate is chosen with a probability proportional to exp(beta_k r); the paper takes the best
    one, its limit for large `beta`. The weight of the choice is the mean of exp(beta_k r) over the
    candidates, which makes the designs weighted samples of p(x) exp(beta r(x)), as in nested
    sequential Monte Carlo. Designs are independent of each other. Reward calls per design:
    `num_candidates` times steps / `every`; other steps draw one candidate.

    Args:
        num_candidates: at each step.

    Examples:
        >>> SVDD(num_candidates=8, every=4).num_candidates
        8
    """

    num_candidates: PositiveInt = 4

    @override
    def advance(self, run: DesignRun, particles: Particles, step: Step) -> Particles:
        rows, count = (
            step.evaluated.to(run.exact_device),
            self.num_candidates if bool(step.evaluated.any()) else 1,
        )
        candidates, value = [], particles.value[:, None].repeat(1, count)
        for candidate in range(count):
            number = step.index * self.num_candidates + candidate
            uniform = run.uniform("candidate", step.now, number)
            tokens = run.generator.sampler.unmask(
                step.index, step.num_steps, step.log_probs_now, uniform
            )
            candidates.append(run.filled(particles.x, step.now, tokens))
            if count > 1 or bool(rows.any()):
                value[rows, candidate] = run.rewards(step.predict(run, candidates[-1], number))
        # A sequence that is not evaluated keeps its potential, and takes its first candidate.
        log_potential = torch.where(
            rows[:, None], step.beta[:, None] * value, particles.log_potential[:, None]
        )
        uniform = run.draws.at(step.index).uniform("choice", 1).to(value.device)
        ends = log_potential.softmax(-1).cumsum(-1)
        chosen = torch.where(rows, (uniform >= ends).sum(-1).clamp(max=count - 1), 0)[
            :, None
        ]  # (B, 1)
        every = torch.stack(candidates, 1)  # (B, n, L)
        x = every.gather(1, chosen.to(every.device)[..., None].expand(-1, -1, every.shape[-1]))[
            :, 0
        ]
        # What the constraints cost is the same for all candidates: it depends on the tokens that
        # were visible.
        added = log_potential.logsumexp(-1) - math.log(count) - particles.log_potential
        return weighted(
            run,
            particles,
            x,
            value.gather(1, chosen)[:, 0],
            log_potential.gather(1, chosen)[:, 0],
            added,
        )
