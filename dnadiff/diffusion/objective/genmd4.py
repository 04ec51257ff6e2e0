"""GenMD4 (MD4, arXiv 2406.04329, section 6): the bound with a learned masking rate of each
token."""

from dataclasses import replace

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import MaskedDenoiser
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.objective.base import Loss, TrainingBatch, mean_over
from dnadiff.diffusion.objective.bound import Bound
from dnadiff.diffusion.objective.masking import strata
from dnadiff.diffusion.token_masking import TokenRates


class GenMD4(Bound):
    """The bound of `TokenRates`, with gradients for its exponents too.

    An exponent changes the bound itself and the distribution of the masks. For the second part two
    sets of masks are drawn for each row, at the same time, and each is the baseline of the other
    (REINFORCE with leave-one-out). So a step calls the network on twice the rows.

    Args:
        process: its exponents are trained.
    """

    process_type = TokenRates

    process: TokenRates

    def __init__(self, process: TokenRates) -> None:
        super().__init__(process)

    def __post_init__(self) -> None:
        super().__post_init__()
        noise = self.process.noise
        if (left := noise.mask_probability(0.0)) > 0:
            raise ValueError(
                f"noise {type(noise).__name__} masks a fraction {left:.2g} of the tokens "
                "at t = 0, where GenMD4 needs 0; set noise=loglinear or polynomial"
            )
        self.process.raw.requires_grad_()

    def compute(self, denoiser: MaskedDenoiser, batch: TrainingBatch) -> Loss:
        u = strata(batch.draws, self.stratified, batch.x0.device)
        other = replace(batch.draws, seed=hash64(batch.draws.seed, "leave one out"))
        (first, log_q), (second, other_log_q) = (
            self._of_row(denoiser, batch._replace(draws=draws), u) for draws in (batch.draws, other)
        )
        num_tokens = batch.weight.sum()
        nats = mean_over((first + second) / 2, num_tokens)
        score = (first - second).detach() / 2 * (log_q - other_log_q)  # 0 in the mean
        gradient = mean_over(score - score.detach(), num_tokens)
        return Loss(nats + gradient, nats.detach(), num_tokens)

    def _of_row(
        self, denoiser: MaskedDenoiser, batch: TrainingBatch, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The bound of each row, and log q of its masks: (B,) each."""
        x0 = batch.x0
        weight = batch.weight
        nats = (self.token_bound(denoiser, batch, u).float() * weight).sum(-1)
        t = u**self.process.time_power
        xt = self.process.corrupt(x0, t, weight > 0, batch.draws)  # those of `token_bound`
        hit = self.process.mask_probability(t, x0)
        q = torch.where(self.process.changes(xt), hit, 1 - hit)
        return nats, torch.where(weight > 0, q, 1.0).log().float().sum(-1)
