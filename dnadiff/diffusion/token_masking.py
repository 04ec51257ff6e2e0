"""Masks at a rate of each token: alpha depends on the token that is masked.

What is masked then says something about what it was, so formulas for masks of equal rates do not
hold: `TokenMasking` is no `AbsorbingProcess`. Train with `objective=bound` (fixed rates, in
continuous time or in T steps) or `objective=genmd4` (learned rates), and sample with
`sampler=reverse`.

What a process counts or learns is a buffer or a parameter of it. The denoiser holds the process as
a submodule, so that a checkpoint stores it with the weights.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor, nn

from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import NoiseSchedule
from dnadiff.diffusion.process import MaskingProcess
from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import checked

_LARGEST = 1 / math.pi - 1e-9  # above it, some token's mask probability would fall with time


class TokenMasking(nn.Module, MaskingProcess):
    """Token v is a mask at time t with probability g_v(m), where m is the fraction of masks of the
    schedule at t, relative to that at t = 1: everything is masked at t = 1.

    With the rates A_v = g_v'(t)/g_v, the rate at which a mask becomes v is A_v mu_v, where mu are
    the network's predictions of x0. The bound of this reverse process, per masked position, is the
    integral of -A_x log mu_x + sum_v A_v mu_v - A_x. With equal rates the last two terms cancel,
    and MDLM's remains. Without them the loss is no bound (DiffusionBERT, arXiv 2211.15029, uses the
    rate of the true token in the reverse process).

    A subclass gives one number for each token, `values`, and the functions `masked` and
    `elasticity` of m and that number.
    """

    described = "masks at a rate of each token"
    example = "spindle"
    time_power = 2.0  # a mask has a weight of 1/t and, near t = 0, a probability of about t

    def __init__(self, vocab: Vocab, noise: NoiseSchedule) -> None:
        nn.Module.__init__(self)
        MaskingProcess.__init__(self, vocab, noise)

    @property
    @abstractmethod
    def values(self) -> Tensor:
        """The number of each token: (V,)."""

    @abstractmethod
    def masked(self, m: Tensor, value: Tensor) -> Tensor:
        """g(m), the probability of a mask: 0 at m = 0 and 1 at m = 1, increasing; shapes
        broadcast."""

    @abstractmethod
    def elasticity(self, m: Tensor, value: Tensor) -> Tensor:
        """m g'(m) / g(m), positive: the rate of a token relative to that of the schedule."""

    def corrupt(self, x0: Tensor, t: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        return self.masked_at(x0, self.mask_probability(t, x0).detach(), maskable, draws)

    def mask_probability(self, t: Tensor, x0: Tensor | slice = slice(None)) -> Tensor:
        """The probability that each token of `x0 (B, L)`, or of the vocabulary, is a mask at `t
        (B,)`: (B, L) or (B, V)."""
        return self.masked(self._fraction(t), self.values.to(t)[x0])

    def integrand(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        t = t.to(log_probs.dtype)
        relative = self.elasticity(self._fraction(t), self.values.to(t))  # (M, V)
        nll, own = (-each.gather(-1, x0[:, None]) for each in (log_probs, -relative))
        predicted = (relative * log_probs.exp()).sum(-1, keepdim=True)
        nats = self.noise.weight(t)[:, None] * (own * nll + predicted - own)
        return torch.where(self.changes(xt), nats[:, 0], 0.0)

    def reverse(self, log_probs: Tensor, xt: Tensor, t: Tensor, s: Tensor) -> Tensor:
        # the last step leaves no mask, whatever the schedule
        left = torch.where((s > 0)[:, None], self.mask_probability(s), 0.0)
        unmask = 1 - left / self.mask_probability(t)  # of each token
        token = unmask.clamp(0, 1).log().to(log_probs) + log_probs
        stay = 1 - token.exp().sum(-1, keepdim=True)
        smallest = torch.finfo(stay.dtype).tiny  # the gradient of log 0 would be NaN
        return self.stepped(token, stay.clamp(min=smallest).log(), xt)

    def _fraction(self, t: Tensor) -> Tensor:
        """m at times t (B,): (B, 1)."""
        return (1 - self.noise.alpha(t))[:, None] / self.noise.mask_probability(1.0)


@checked
class Spindle(TokenMasking):
    """DiffusionBERT's spindle schedule (arXiv 2211.15029, equations 10 to 12): informative, rare
    tokens are masked first, so frequent ones are generated first.

    g_v = m + strength sin(pi m) h_v, where h_v is the information -log p(v) of the token minus its
    mean, over the largest one. Frequencies p are those of the training data, counted once.

    The paper subtracts the mean of the sentence, which the reverse process does not know; here it
    is the mean over the training data. Its equation 12 divides by the token's own information,
    which is unbounded; its code divides by the largest, as here. With `strength` below 1/pi, g_v
    increases for every token, so nothing is clipped.

    Args:
        strength: lambda of equation 11; 0 is MDLM.
    """

    information: Tensor

    def __init__(
        self,
        vocab: Vocab,
        noise: NoiseSchedule,
        strength: Annotated[float, Interval(ge=0, le=_LARGEST)] = 0.3,
    ) -> None:
        super().__init__(vocab, noise)
        self.strength = strength
        self.register_buffer("information", torch.zeros(vocab.size))

    def observe(self, token_counts: Callable[[], Tensor]) -> None:
        emitted = list(self.vocab.emitted)
        counts = token_counts()[emitted].double() + 1  # a token that does not occur is finite
        probs = counts / counts.sum()
        information = -probs.log()
        mean = (probs * information).sum()
        self.information[emitted] = ((information - mean) / information.max()).float()

    @property
    def values(self) -> Tensor:
        return self.information

    def masked(self, m: Tensor, value: Tensor) -> Tensor:
        return m * self._over_m(m, value)

    def elasticity(self, m: Tensor, value: Tensor) -> Tensor:
        slope = 1 + self.strength * math.pi * value * torch.cos(math.pi * m)
        return slope / self._over_m(m, value)

    def _over_m(self, m: Tensor, value: Tensor) -> Tensor:
        """g / m, with its digits near m = 0."""
        return 1 + self.strength * math.pi * value * torch.sinc(m)


class TokenRates(TokenMasking):
    """GenMD4's schedule (MD4, arXiv 2406.04329, section 6): g_v = m^w_v with a learned exponent
    w_v of each token, 1 at first.

    Larger exponents are masked later and unmasked earlier. The published 1 - alpha = (1 - eps)
    t^w_v leaves eps visible at t = 1, here nothing is. `objective=genmd4` trains the exponents;
    under any other they stay what they are, because a gradient without the distribution of the
    masks would be biased.
    """

    described = "masks at a learned rate of each token"
    example = "token_rates"

    def __init__(self, vocab: Vocab, noise: NoiseSchedule) -> None:
        super().__init__(vocab, noise)
        one = math.log(math.e - 1)  # softplus of it is 1
        self.raw = nn.Parameter(torch.full((vocab.size,), one), requires_grad=False)

    @property
    def values(self) -> Tensor:
        return F.softplus(self.raw)

    @property
    def time_power(self) -> Tensor:  # type: ignore[override]  # a number on the device
        """As of `Process`; a token with a small exponent has large weights at small times."""
        emitted = self.vocab.is_emitted(self.raw.device)
        smallest = self.values.detach().masked_fill(~emitted, torch.inf).min()
        return (2 / smallest).clamp(max=4.0)

    def masked(self, m: Tensor, value: Tensor) -> Tensor:
        return m**value

    def elasticity(self, m: Tensor, value: Tensor) -> Tensor:
        return value.expand(torch.broadcast_shapes(m.shape, value.shape))
