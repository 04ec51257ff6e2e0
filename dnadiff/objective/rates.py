"""Mask rates that are not uniform in training: more of the loss where a model will be used, such as
single sites with everything else visible."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff import checks
from dnadiff.draws import Draws
from dnadiff.noise import NoiseSchedule
from dnadiff.objective.masking import MaskedBatch, Masking, strata
from dnadiff.process import AbsorbingProcess

_BINS = 4096  # of equal probability


class BetaRates(Masking):
    """Each position is masked independently at a rate that is uniform on [0, 1] in a share of the
    rows, and Beta(alpha, beta) in the others.

    With `objective.weighting=cross_entropy` the network is trained on the plain mean over masked
    tokens, so the distribution of rates decides what it learns best. The weight of a row is 1/(rate
    density(rate)), so that its mean is the NELBO whatever the distribution (importance sampling):
    `train_nll` stays a bound, with more variance the smaller `uniform` is. Validation and
    evaluation use exact counts.

    Masked language modeling at 15 % (arXiv 1810.04805) is close to Beta(3, 17), whose mean is 0.15.

    Quantiles of the Beta distribution are interpolated linearly between 4,097 exact ones, which are
    computed once and kept on the device, so that no step waits for it. `density` is that of the
    interpolated distribution, so the mean is exact.

    Args:
        alpha, beta: parameters of the Beta distribution, 1 or more. (1, 1) is uniform.
        uniform: the share of rows with uniform rates, in (0, 1], so that every rate has a density.
        stratified: spread the rates over the global batch.
    """

    def __init__(
        self, alpha: float = 3.0, beta: float = 17.0, uniform: float = 0.5, stratified: bool = True
    ) -> None:
        self.alpha, self.beta = (
            checks.number("objective.masking.alpha", alpha),
            checks.number("objective.masking.beta", beta),
        )
        for key, value in (("alpha", self.alpha), ("beta", self.beta)):
            if value < 1:
                raise ValueError(
                    f"objective.masking.{key} {value:g} must be 1 or more, so that the density of "
                    "the mask rates is bounded"
                )
        if not 0 < checks.number("objective.masking.uniform", uniform) <= 1:
            raise ValueError(
                f"objective.masking.uniform {uniform} must be above 0 and at most 1: the share of "
                "rows with uniform mask rates"
            )
        self.uniform, self.stratified = (
            float(uniform),
            checks.boolean("objective.masking.stratified", stratified),
        )
        self._quantiles: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    @override
    def __call__(
        self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws
    ) -> MaskedBatch:
        rate = self.rates(strata(draws, self.stratified, x0.device))
        xt = process.corrupt_rate(x0, rate, maskable, draws)
        return MaskedBatch(xt, process.noise.inverse(1 - rate), 1 / (rate * self.density(rate)))

    def rates(self, u: Tensor) -> Tensor:
        """Mask rates (B,) from uniforms u (B,): those below `uniform` are stretched to [0, 1], the
        others go through the Beta quantiles."""
        quantiles = self._quantiles_like(u)
        place = ((u - self.uniform) / max(1 - self.uniform, 1e-12)).clamp(0, 1) * _BINS
        index = place.long().clamp(max=_BINS - 1)
        drawn = torch.lerp(quantiles[index], quantiles[index + 1], place - index)
        return torch.where(u < self.uniform, u / self.uniform, drawn).clamp(
            min=1e-12, max=1
        )  # the density of 0 is no rate

    def density(self, rate: Tensor) -> Tensor:
        """The density of the mask rates, (B,) -> (B,)."""
        quantiles = self._quantiles_like(rate)
        index = (torch.searchsorted(quantiles, rate) - 1).clamp(0, _BINS - 1)
        return self.uniform + (1 - self.uniform) / (
            _BINS * (quantiles[index + 1] - quantiles[index])
        )

    def _quantiles_like(self, x: Tensor) -> Tensor:
        """The exact quantiles 0, 1/4096, ..., 1 of the Beta distribution, on the device of `x`."""
        kind = (x.device, x.dtype)
        if kind not in self._quantiles:
            from scipy.special import betaincinv

            levels = torch.linspace(0, 1, _BINS + 1, dtype=torch.float64)
            self._quantiles[kind] = torch.from_numpy(
                betaincinv(self.alpha, self.beta, levels.numpy())
            ).to(x)
        return self._quantiles[kind]

    @override
    def ends(self, noise: NoiseSchedule) -> tuple[float, float]:
        return 0.0, 1.0

    @override
    def check(self, noise: NoiseSchedule) -> None:
        """Any schedule will do: the rates are drawn without it."""

    @override
    def notes(self, trains_bound: bool) -> list[str]:
        if not trains_bound:
            return []
        return [
            "objective/masking=beta changes only the variance of a loss that is the bound itself "
            "(weighting=nelbo, objective=sedd); "
            "with objective.weighting=cross_entropy of mdlm and block_mdlm it changes what is "
            "learned"
        ]
