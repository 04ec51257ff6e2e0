"""What the network calls of one batch of designs share: templates, noise, rewards and counts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dnadiff.design.generate import ConditionalSampler, Prepared, SampleBatch
from dnadiff.design.method.base import Goal, rewards
from dnadiff.design.request import Target
from dnadiff.draws import Draws, float64_device
from dnadiff.sampler.base import draw_in_chunks
from dnadiff.sampler.counted import CountedDenoiser


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
        self.generator, self.goal, self.targets, self.target = (
            generator,
            goal,
            list(targets),
            targets[0],
        )
        self.prepared: Prepared = generator.prepared(targets)
        self.template, self.device = self.prepared.x_init, self.prepared.x_init.device
        self.draws = Draws(seed, torch.tensor(numbers, device=self.device))
        self.exact_device = float64_device(self.device)
        self.generation = 0
        self.calls = CountedDenoiser(
            self.prepared.denoiser, self.prepared.cond, self.prepared.valid
        )

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

    def rewards(self, x0: Tensor) -> Tensor:
        """Rewards (B,) float64 of complete sequences `x0 (B, L)`."""
        return rewards(self.generator, self.goal, self.target, x0).to(self.exact_device)

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
