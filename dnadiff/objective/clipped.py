"""Clipped mask rates (BD3-LM, arXiv 2503.09573v3, section 5.2): avoid the rates that add most to
the variance of the loss."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff import checks
from dnadiff.draws import Draws
from dnadiff.noise import NoiseSchedule
from dnadiff.objective.masking import MaskedBatch, Masking, strata
from dnadiff.process import AbsorbingProcess


class Clipped(Masking):
    """Each position is masked independently at a rate that is uniform on [low, high]; the weight of
    a row is 1/rate.

    With [0, 1] the mean is the NELBO. With any other interval it is the mean of the NELBO's
    integrand over the interval, which is not a bound: it is for training. Validation and evaluation
    are, over all rates, by exact counts. As with exact counts the schedule has no other influence.

    A row without a mask costs 0, which is its term of the NELBO: nothing is drawn again. The
    published code draws the masks of a block until their fraction is inside the interval, which
    also changes the mean of the loss at each rate.

    Args:
        low, high: ends of the interval; `dnadiff.training.clip_search.ClipSearch` chooses them
            during training.
        stratified: spread the rates over the global batch.
    """

    def __init__(self, low: float = 0.0, high: float = 1.0, stratified: bool = True) -> None:
        low, high = (
            checks.number("objective.masking.low", low),
            checks.number("objective.masking.high", high),
        )
        if not 0 <= low < high <= 1:
            raise ValueError(
                f"objective.masking.low {low} and objective.masking.high {high} must satisfy 0 <= "
                "low < high <= 1"
            )
        self.low, self.high, self.stratified = float(low), float(high), stratified

    @override
    def __call__(
        self, process: AbsorbingProcess, x0: Tensor, maskable: Tensor, draws: Draws
    ) -> MaskedBatch:
        rate = self.low + (self.high - self.low) * strata(draws, self.stratified, x0.device)
        return MaskedBatch(
            process.corrupt_rate(x0, rate, maskable, draws),
            process.noise.inverse(1 - rate),
            1 / rate,
        )

    @override
    def ends(self, noise: NoiseSchedule) -> tuple[float, float]:
        return self.low, self.high

    @override
    def check(self, noise: NoiseSchedule) -> None:
        """Any schedule and any interval will do: the cut is intended, and `evaluation` has none."""

    def moments(self, length: int) -> Tensor:
        """Coefficients (2, length) float64 of the mean and of the second moment of a row's loss,
        nats per token.

        If the masks of a row of `length` tokens cost S, its loss is S/(rate * length). Given k
        masks they are uniformly distributed at every rate, as with exact counts. So E[loss] is the
        sum over k = 1..length of `moments[0, k - 1]` E[S | k], and E[loss^2] that of
        `moments[1, k - 1]` E[S^2 | k]. The integrals over rates are exact. With low = 0 the second
        moment is infinite, by rows with one mask at a small rate.
        """
        return (_integrals(length, self.high) - _integrals(length, self.low)) / (
            self.high - self.low
        )


def _integrals(length: int, rate: float) -> Tensor:
    """Antiderivatives at `rate` of P(k masks) / (rate * length) and of P(k masks) / (rate *
    length)^2, k = 1..length: (2, length).

    With n = length and C(n, k) p^k (1 - p)^(n - k) for P they are, up to constants, P(Binomial(n,
    p) >= k)/k / n and P(Binomial(n - 1, p) >= k - 1) / (k (k - 1)) / n. The second one for k = 1 is
    the integral of (1 - p)^(n - 1)/p, a geometric series.
    """
    k, p = torch.arange(1, length + 1, dtype=torch.float64), torch.tensor(rate, dtype=torch.float64)
    one_mask = p.log() + ((1 - p) ** k[:-1] / k[:-1]).sum()
    second = torch.cat([one_mask[None], _tails(length - 1, p)[1:] / (k * (k - 1))[1:]])
    return torch.stack([_tails(length, p)[1:] / k, second]) / length


def _tails(n: int, p: Tensor) -> Tensor:
    """P(Binomial(n, p) >= k) for k = 0..n: (n + 1,)."""
    k = torch.arange(n + 1, dtype=torch.float64)
    log_choose = (
        torch.lgamma(torch.tensor(n + 1.0, dtype=torch.float64))
        - torch.lgamma(k + 1)
        - torch.lgamma(n - k + 1)
    )
    probs = (log_choose + torch.special.xlogy(k, p) + torch.special.xlog1py(n - k, -p)).exp()
    return probs.flip(0).cumsum(0).flip(0)
