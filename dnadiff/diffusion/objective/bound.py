"""The bound of any process: its integrand at random times."""

from collections.abc import Callable

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.objective.base import Loss, Objective, TrainingBatch
from dnadiff.diffusion.objective.masking import strata
from dnadiff.diffusion.process import AbsorbingProcess, Parameterization, Process


class Bound(Objective):
    """The integral over time of `Process.integrand`, at one time for each row, and what the
    schedule leaves out at both ends.

    For the absorbing process it is `MDLM` with t_min = 0. The network predicts every token, also
    visible ones, and is conditioned on time if it has a time input: how many tokens are noise
    cannot be seen.

    Args:
        process: any process.
        stratified: spread the times over the global batch.
    """

    process_type = Process
    time_conditioning = True

    def __init__(self, process: Process, stratified: bool = True) -> None:
        super().__init__(process)
        self.stratified, self.own_bound = stratified, not isinstance(process, AbsorbingProcess)

    def parameterization(self) -> Parameterization:
        return self.process.parameterization()

    def compute(self, denoiser: MaskedDenoiser, batch: TrainingBatch) -> Loss:
        u = strata(batch.draws, self.stratified, batch.x0.device)
        nats = self.token_bound(denoiser, batch, u).float()
        return Loss.mean((nats * batch.weight).sum(), batch.weight.sum())

    def token_bound(self, denoiser: MaskedDenoiser, batch: TrainingBatch, u: Tensor) -> Tensor:
        x0, counted, process = batch.x0, batch.weight > 0, self.process

        def of_predictions(t: Tensor, nll: Callable[..., Tensor]) -> Tensor:
            xt = process.corrupt(x0, t, counted, batch.draws)
            where = counted & process.changes(xt)
            log_probs = denoiser.x0_log_probs(*batch.query(xt, t.float(), where))
            times = t[:, None].expand(x0.shape)[where]
            nats = nll(log_probs, x0[where], xt[where], times)
            return torch.zeros(x0.shape, dtype=nats.dtype, device=x0.device).masked_scatter(
                where, nats
            )

        total = of_predictions(u, process.integrand)
        total = total + torch.where(counted, process.ends(x0).to(total), 0.0)
        if process.noise.mask_probability(0.0) > 0:
            total = total + of_predictions(torch.zeros_like(u), process.reconstruction)
        return total
