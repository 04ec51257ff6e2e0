"""The bound of any process, in continuous time or in T steps."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.objective.base import Loss, Objective, TrainingBatch, mean_over
from dnadiff.diffusion.objective.masking import strata
from dnadiff.diffusion.process import AbsorbingProcess, MixtureProcess, Process
from dnadiff.fields import PositiveInt, checked_dataclass

_LARGEST = 2.0  # weight of a token, under `dynamic`


@checked_dataclass
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
            the last one. `nll` is the bound either way; in training with dynamic weights it has
            their uniform times, at which rare terms are large.
    """

    process_type = Process
    time_conditioning = True

    process: Process  # type: ignore[assignment]
    stratified: bool = True
    num_steps: PositiveInt | None = None
    weighting: Literal["nelbo", "dynamic"] = "nelbo"

    def __post_init__(self) -> None:
        super().__post_init__()
        is_mixture = isinstance(self.process, MixtureProcess)
        self.own_bound = not isinstance(self.process, AbsorbingProcess)
        self.bound = self.weighting == "nelbo"
        if not self.bound and (self.num_steps is not None or not is_mixture):
            given = "discrete time" if self.num_steps is not None else self.process.described
            raise ValueError(
                f"objective.weighting=dynamic does not fit {given}: it weighs the terms of noise "
                "that replaces tokens, in continuous time; set objective.weighting=nelbo"
            )

    def compute(self, denoiser: MaskedDenoiser, batch: TrainingBatch) -> Loss:
        u = strata(batch.draws, self.stratified, batch.x0.device)
        num_tokens = batch.weight.sum()
        if self.bound:
            nats = self.token_bound(denoiser, batch, u).float()
            return Loss.mean((nats * batch.weight).sum(), num_tokens)
        bound, loss = self._predicted(denoiser, batch, u, self._weighted)
        bound = (bound + self._ends(denoiser, batch, u)).detach()
        nll = mean_over(bound * batch.weight, num_tokens)
        return Loss(mean_over(loss * batch.weight, num_tokens), nll, num_tokens)

    def token_bound(self, denoiser: MaskedDenoiser, batch: TrainingBatch, u: Tensor) -> Tensor:
        process = self.process
        power = self.process.time_power
        if self.num_steps is None:
            density = power * u[:, None] ** (power - 1)
            nats = density * self._predicted(denoiser, batch, u**power, process.integrand)[0]
        else:
            t = ((u * self.num_steps).floor() + 1).clamp(max=self.num_steps) / self.num_steps
            nats = self.num_steps * self._predicted(denoiser, batch, t, self._step)[0]
        return nats + self._ends(denoiser, batch, u)

    def _predicted(
        self, denoiser: MaskedDenoiser, batch: TrainingBatch, t: Tensor, cost: Callable[..., Tensor]
    ) -> Tensor:
        """`cost(log_probs, x0, xt, t)`, (M,) or (K, M), of the predictions at times `t (B,)`:
        (1, B, L) or (K, B, L), 0 where nothing is predicted."""
        x0 = batch.x0
        counted = batch.weight > 0
        process = self.process
        xt = process.corrupt(x0, t, counted, batch.draws)
        where = counted & process.changes(xt)
        log_probs = denoiser.x0_log_probs(*batch.query(xt, t.float(), where))
        times = t[:, None].expand(x0.shape)[where]
        nats = torch.atleast_2d(cost(log_probs, x0[where], xt[where], times))
        return nats.new_zeros(len(nats), *x0.shape).masked_scatter(where, nats)

    def _ends(self, denoiser: MaskedDenoiser, batch: TrainingBatch, u: Tensor) -> Tensor:
        """What the schedule leaves out at t = 1 and, in continuous time, at t = 0: (B, L)."""
        process = self.process
        ends = torch.where(batch.weight > 0, process.ends(batch.x0), 0.0)
        if self.num_steps is None and process.noise.mask_probability(0.0) > 0:
            start = torch.zeros_like(u)
            ends = ends + self._predicted(denoiser, batch, start, process.reconstruction)[0]
        return ends

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
