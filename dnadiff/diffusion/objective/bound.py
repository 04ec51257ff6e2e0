"""The bound of any process, in continuous time or in T steps."""

import copy
from collections.abc import Callable
from typing import Literal, Self

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.objective.base import Loss, Objective, TrainingBatch, mean_over
from dnadiff.diffusion.objective.masking import strata
from dnadiff.diffusion.process import AbsorbingProcess, MixtureProcess, Parameterization, Process
from dnadiff.fields import PositiveInt, checked

_LARGEST = 2.0  # weight of a token, under `dynamic`


@checked
class Bound(Objective):
    """The integral over time of `Process.integrand`, at one time for each row, and what the
    schedule leaves out at both ends; or the sum over T steps of `Process.step_cost`, at one step
    for each row.

    For the absorbing process it is `MDLM` with t_min = 0, or with `DiscreteTime`. For uniform
    noise it is UDLM (arXiv 2412.10193, eq. 18), or D3PM (arXiv 2107.03006) with
    `num_steps`; for hybrid noise GIDD (arXiv 2503.04482). The network predicts every token, also
    visible ones, and is conditioned on time if it has a time input: how many tokens are noise
    cannot be seen.

    Args:
        process: any process.
        stratified: spread the times over the global batch.
        num_steps: T; None is continuous time. `sampler=reverse` with as many steps draws from the
            model of which this is the bound.
        weighting: `nelbo` differentiates the bound itself; `dynamic`, for a `MixtureProcess`,
            weighs a noisy token the same at all times, twice its share of `typical_weight`, at
            most 2: a mask 2, a random token of hybrid noise 1 (with gamma = 1), and an unchanged
            token c/(N a + c), almost 0. These are GIDD's dynamic weights, whose code approximates
            the last one. `nll` is the bound either way.
    """

    process_type = Process
    time_conditioning = True

    def __init__(
        self,
        process: Process,
        stratified: bool = True,
        num_steps: PositiveInt | None = None,
        weighting: Literal["nelbo", "dynamic"] = "nelbo",
    ) -> None:
        super().__init__(process)
        self.stratified, self.own_bound = stratified, not isinstance(process, AbsorbingProcess)
        self.num_steps, self.dynamic = num_steps, weighting == "dynamic"
        if self.dynamic and (num_steps is not None or not isinstance(process, MixtureProcess)):
            given = "discrete time" if num_steps is not None else process.described
            raise ValueError(
                f"objective.weighting=dynamic does not fit {given}: it weighs the terms of noise "
                "that replaces tokens, in continuous time; set objective.weighting=nelbo"
            )

    def parameterization(self) -> Parameterization:
        return self.process.parameterization()

    def evaluation(self) -> Self:
        bound = copy.copy(self)
        bound.dynamic = False
        return bound

    def compute(self, denoiser: MaskedDenoiser, batch: TrainingBatch) -> Loss:
        u, num_tokens = strata(batch.draws, self.stratified, batch.x0.device), batch.weight.sum()
        if not self.dynamic:
            nats = self.token_bound(denoiser, batch, u).float()
            return Loss.mean((nats * batch.weight).sum(), num_tokens)
        bound, loss = self._predicted(denoiser, batch, u, self._weighted)
        nll = mean_over((bound + self._ends(batch)).detach() * batch.weight, num_tokens)
        return Loss(mean_over(loss * batch.weight, num_tokens), nll, num_tokens)

    def token_bound(self, denoiser: MaskedDenoiser, batch: TrainingBatch, u: Tensor) -> Tensor:
        process, ends = self.process, self._ends(batch)
        if self.num_steps is not None:
            t = ((u * self.num_steps).floor() + 1).clamp(max=self.num_steps) / self.num_steps
            return self.num_steps * self._predicted(denoiser, batch, t, self._step)[0] + ends
        power = process.time_power
        density = power * u[:, None] ** (power - 1)
        nats = density * self._predicted(denoiser, batch, u**power, process.integrand)[0] + ends
        if process.noise.mask_probability(0.0) > 0:
            start = torch.zeros_like(u)
            nats = nats + self._predicted(denoiser, batch, start, process.reconstruction)[0]
        return nats

    def _predicted(
        self, denoiser: MaskedDenoiser, batch: TrainingBatch, t: Tensor, cost: Callable[..., Tensor]
    ) -> Tensor:
        """`cost(log_probs, x0, xt, t)`, (M,) or (K, M), of the predictions at times `t (B,)`:
        (1, B, L) or (K, B, L), 0 where nothing is predicted."""
        x0, counted, process = batch.x0, batch.weight > 0, self.process
        xt = process.corrupt(x0, t, counted, batch.draws)
        where = counted & process.changes(xt)
        log_probs = denoiser.x0_log_probs(*batch.query(xt, t.float(), where))
        times = t[:, None].expand(x0.shape)[where]
        nats = torch.atleast_2d(cost(log_probs, x0[where], xt[where], times))
        found = nats.new_zeros(len(nats), *x0.shape)
        return found.masked_scatter(where, nats)

    def _ends(self, batch: TrainingBatch) -> Tensor:
        return torch.where(batch.weight > 0, self.process.ends(batch.x0), 0.0)

    def _step(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """The cost of the step that ends at t."""
        assert self.num_steps is not None
        s = ((t * self.num_steps).round() - 1) / self.num_steps
        return self.process.step_cost(log_probs, x0, xt, t, s)

    def _weighted(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """The integrand, and its divergence with the weight of training: (2, M)."""
        process = self.process
        assert isinstance(process, MixtureProcess)
        weight, divergence = process.terms(log_probs, x0, xt, t)
        trained = _LARGEST * weight / process.typical_weight(t).to(weight)
        return torch.stack([weight, trained.clamp(max=_LARGEST)]) * divergence
