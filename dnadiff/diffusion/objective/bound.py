"""The bound of any process: its integrand at random times."""

from collections.abc import Callable

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.objective.base import Loss, Objective, TrainingBatch
from dnadiff.diffusion.objective.masking import strata
from dnadiff.diffusion.process import Parameterization, Process


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
        self.stratified = stratified

    def parameterization(self) -> Parameterization:
        return self.process.parameterization()

    def compute(self, denoiser: MaskedDenoiser, batch: TrainingBatch) -> Loss:
        x0, weight, draws, *_ = batch
        counted, process = weight > 0, self.process

        def of_predictions(t: Tensor, nll: Callable[..., Tensor]) -> Tensor:
            xt = process.corrupt(x0, t, counted, draws)
            where = counted & process.changes(xt)
            log_probs = denoiser.x0_log_probs(*batch.query(xt, t.float(), where))
            times = t[:, None].expand(x0.shape)[where]
            return (nll(log_probs, x0[where], xt[where], times).float() * weight[where]).sum()

        t = strata(draws, self.stratified, x0.device)
        total = of_predictions(t, process.integrand)
        total = total + (process.ends(x0[counted]).float() * weight[counted]).sum()
        if process.noise.mask_probability(0.0) > 0:
            total = total + of_predictions(torch.zeros_like(t), process.reconstruction)
        return Loss.mean(total, weight.sum())
