"""Processes: how x0 becomes xt, independently for each token, and what the reverse steps and the
bound of a model are.

`AbsorbingProcess` masks tokens. `MixtureProcess` mixes a token with a distribution of noise:
uniform noise, masks, or both. Nothing here depends on a network: `log_probs` are its predictions of
x0, given as an argument. A `Parameterization` says what the logits of a network mean:
log-probabilities of x0 (MDLM, D3PM, BERT) or log-ratios of probabilities (SEDD).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dnadiff.diffusion.draws import Draws, draw
from dnadiff.diffusion.noise import NoiseSchedule, float64_device
from dnadiff.diffusion.vocab import Vocab

# Below this size of the vocabulary, two copies of log-probabilities on a GPU cost less than waiting
# for it to say which are needed.
COPIED_TOKENS = 1024


class Parameterization(ABC):
    """Turns raw logits at some positions into predictions of x0.

    Every method takes `logits (..., V)` and the tokens `xt (...)` at the same positions, and
    returns `(..., V)` in float32 or better, with -inf for probability 0 and finite gradients.

    Attributes:
        normalized: whether ratios at a masked position always sum to what probabilities would.
        banned: ids that have probability 0 in `x0_log_probs`.
    """

    normalized = True

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        self.banned: tuple[int, ...] = vocab.never_emitted

    @abstractmethod
    def log_probs(self, logits: Tensor, xt: Tensor) -> Tensor:
        """Log-probabilities of x0 for samplers and likelihoods; ids that are never emitted have
        probability 0."""

    def x0_log_probs(self, logits: Tensor, xt: Tensor) -> Tensor:
        """The distribution of x0 that the objective trains; `log_probs` by default."""
        return self.log_probs(logits, xt)

    def log_score(self, logits: Tensor, xt: Tensor, sigma: Tensor) -> Tensor:
        """log p_t(xt with y here) / p_t(xt) for each token y, with `sigma (...)` the total noise at
        each position.

        At a masked position these are the probabilities of x0 times alpha/(1 - alpha) = 1/(e^sigma
        - 1). At a visible one the ratio of the mask is e^sigma - 1 and that of other tokens 0. The
          token itself has ratio 1.
        """
        log_odds = log_expm1(sigma)[..., None]
        log_score = self.log_probs(logits, xt)
        visible = (xt != self.vocab.mask_id)[..., None]
        to_mask = visible & (
            torch.arange(logits.shape[-1], device=logits.device) == self.vocab.mask_id
        )
        log_score = torch.where(to_mask, log_odds.to(log_score), log_score - log_odds.to(log_score))
        return torch.where(_is_token(xt, logits), 0.0, log_score)


def _float(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _is_token(xt: Tensor, logits: Tensor) -> Tensor:
    """(..., V) bool, True at each position's own token."""
    return torch.arange(logits.shape[-1], device=logits.device) == xt[..., None]


def log_expm1(sigma: Tensor) -> Tensor:
    """log(e^sigma - 1), the log-odds of being masked, without overflow or loss of digits near 0."""
    return sigma + torch.log(-torch.expm1(-sigma))


def emitted_log_probs(logits: Tensor, vocab: Vocab) -> Tensor:
    """Log-softmax of `logits (..., V)` over the ids that are emitted, -inf for the others; float32,
    or float64 if they are."""
    return torch.log_softmax(
        _float(logits).masked_fill(~vocab.is_emitted(logits.device), -torch.inf), dim=-1
    )


class Emitted(Parameterization):
    """A softmax over the tokens that a sample may contain, at every position: a visible token may
    be noise."""

    def log_probs(self, logits: Tensor, xt: Tensor) -> Tensor:
        return emitted_log_probs(logits, self.vocab)


class SUBS(Parameterization):
    """MDLM's substitution parameterization (arXiv 2406.07524v2, section 3.2.3).

    Zero masking: ids in `vocab.never_emitted` have probability 0. Carry-over: a visible token is
    known.
    """

    def log_probs(self, logits: Tensor, xt: Tensor) -> Tensor:
        return _carry_over(emitted_log_probs(logits, self.vocab), xt, self.vocab)


def _carry_over(log_probs: Tensor, xt: Tensor, vocab: Vocab) -> Tensor:
    hidden = xt == vocab.mask_id
    copies_are_cheap = log_probs.is_cuda and log_probs.shape[-1] < COPIED_TOKENS
    # losses and samplers often request masked positions alone
    if not copies_are_cheap and hidden.all():
        return log_probs
    known = torch.where(_is_token(xt, log_probs), 0.0, -torch.inf).to(log_probs)
    return torch.where(hidden[..., None], log_probs, known)


class Softmax(SUBS):
    """A plain softmax over all ids as the distribution that is trained (D3PM, BERT), with SUBS's
    two properties as switches.

    `log_probs`, for samplers and likelihoods, is that of SUBS whatever is switched off: a sample
    contains no mask, and a visible token stays. For D3PM's posterior the latter changes nothing;
    the former redistributes the mass on the mask.
    """

    def __init__(self, vocab: Vocab, zero_masking: bool = False, carry_over: bool = False) -> None:
        super().__init__(vocab)
        self.zero_masking = zero_masking
        self.carry_over = carry_over
        self.banned = vocab.never_emitted if zero_masking else ()

    def x0_log_probs(self, logits: Tensor, xt: Tensor) -> Tensor:
        log_probs = (
            emitted_log_probs(logits, self.vocab)
            if self.zero_masking
            else torch.log_softmax(_float(logits), dim=-1)
        )
        return _carry_over(log_probs, xt, self.vocab) if self.carry_over else log_probs


class Score(SUBS):
    """SEDD's parameterization for the absorbing process (arXiv 2310.16834; scaled as in MDLM's
    code).

    The network gives log-ratios up to the known factor 1/(e^sigma - 1), less log of the number of
    letters, so that logits of 0 are the ratios of a uniform guess. Nothing normalizes them: score
    entropy does. Normalized, they are the `log_probs` of SUBS.
    """

    normalized = False

    def log_score(self, logits: Tensor, xt: Tensor, sigma: Tensor) -> Tensor:
        # At visible positions, whose ratios no loss and no sampler uses, these are the network's
        # raw outputs.
        log_ratio = _float(logits) - math.log(len(self.vocab.emitted))
        log_score = log_ratio.masked_fill(
            ~self.vocab.is_emitted(logits.device), -torch.inf
        ) - log_expm1(sigma)[..., None].to(log_ratio)
        return torch.where(_is_token(xt, logits), 0.0, log_score)


@dataclass(eq=False)
class BaseProcess(ABC):
    """Adds noise to each token or to its vector, from none at t = 0 to the prior at t = 1.

    Args:
        vocab: the vocabulary.
        noise: alpha(t), how much of a token is left at time t.

    Attributes:
        described: what it does, for messages.
        example: the word on the command line of a process of this kind.
        sampler: the word of the sampler that is used unless another one is chosen.
        separator: the token after a source, if training is on pairs; None otherwise.
    """

    buildable = True  # a checkpoint's configuration may name it (`dnadiff.store.objects.locate`)
    described: ClassVar[str]
    example: ClassVar[str]
    sampler: ClassVar[str]
    vocab: Vocab
    noise: NoiseSchedule
    separator: int | None = field(default=None, init=False)

    def maskable(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """The positions of `x (B, L)` that the process can change: masks and tokens that a sample
        may contain, (B, L) bool.

        An N of a genome, the special tokens of DNA, positions outside `valid`, and a source with
        its `separator` stay visible at all times.
        """
        found = self.vocab.is_emitted(x.device)[x] | (x == self.vocab.mask_id)
        if self.separator is not None:
            separates = x == self.separator
            before = separates.cumsum(-1) - separates.int()  # separators
            found &= (before > 0) | ~separates.any(-1, keepdim=True)
        return found if valid is None else found & valid

    def observe(self, token_counts: Callable[[], Tensor]) -> None:
        """Take from the training data what the process depends on, before training; nothing by
        default. `token_counts()` is how often each token occurs, (V,)."""

    @abstractmethod
    def corrupt(self, x0: Tensor, t: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        """xt given x0: `x0 (B, L)`, `t (B,)`, `maskable (B, L)` bool (others stay visible) ->
        `(B, L)`; vectors are `(B, L, D)`."""

    def changes(self, xt: Tensor) -> Tensor:
        """Where a reverse step may change xt: bool, of its shape."""
        return torch.ones_like(xt, dtype=torch.bool)

    def ends(self, x0: Tensor) -> Tensor:
        """KL(q_1(. | x0) || prior) of each position, nats: 0 if nothing of x0 is left at t = 1."""
        return torch.zeros(x0.shape, device=x0.device)


class Process(BaseProcess):
    """Noise that leaves tokens: xt are ids (B, L).

    Attributes:
        time_power: k of the times t = u^k, u uniform, at which `integrand` has little variance.
    """

    described = "a process of tokens"
    example = "uniform"
    sampler = "reverse"
    time_power = 1.0

    @abstractmethod
    def parameterization(self) -> Parameterization:
        """What the logits of a network mean, unless the objective says otherwise."""

    @abstractmethod
    def prior(
        self,
        batch_size: int,
        length: int,
        device: torch.device | str = "cpu",
        draws: Draws | None = None,
    ) -> Tensor:
        """x at t = 1, without any x0: `(batch_size, length)`; None are the draws of seed 0."""

    @abstractmethod
    def integrand(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """What each position adds to the bound on -log p(x0), nats per unit of time: (M,).

        Its integral over t from 0 to 1, with xt drawn by `corrupt`, and `ends` are the bound. It is
        0 where xt cannot change (`changes`).

        Args:
            log_probs: (M, V) predictions of x0 from xt at time t.
            x0, xt, t: (M,) each.
        """

    @abstractmethod
    def reverse(self, log_probs: Tensor, xt: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """Log-probabilities of the tokens at time s < t, given xt: (M, V); arguments as in
        `integrand`."""

    def reconstruction(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """-log p(x0 | xt) of each position where one step reverts everything, as at t = 0: nats,
        (M,); arguments as in `integrand`."""
        return F.nll_loss(log_probs, x0, reduction="none")

    def step_cost(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """KL(q(xs | xt, x0) || p(xs | xt)) of each position in the reverse step from t to s: nats,
        (M,); arguments as in `reverse`.

        `reconstruction` where s = 0: the last step leaves no noise. The sum over the steps from 1
        to 0, with xt drawn by `corrupt`, and `ends` are the bound in discrete time (arXiv
        2107.03006, eq. 1).
        """
        certain = F.one_hot(x0, self.vocab.size).log().to(log_probs)
        true, found = (self.reverse(each, xt, t, s) for each in (certain, log_probs))
        gap = torch.where(true > -torch.inf, true - found, 0.0)
        last = self.reconstruction(log_probs, x0, xt, t)
        return torch.where(s > 0, (true.exp() * gap).sum(-1), last)


class Noised(Protocol):
    """A model that was trained to revert a process, such as a denoiser."""

    process_type: type[BaseProcess]


def require(
    user: str, given: BaseProcess | Noised, needed: type[BaseProcess], remedy: str | None = None
) -> None:
    """Raise a ValueError for a process, or a model of a process, whose formulas `user` does not
    have: its results would be numbers of another model. `remedy` None is a model that fits."""
    kind = type(given) if isinstance(given, BaseProcess) else given.process_type
    if not issubclass(kind, needed):
        raise ValueError(
            f"{user} needs {needed.described}, and this model has {kind.described} "
            f"({kind.__name__}), for which its formulas do not hold; "
            f"{remedy or f'use a model of process={needed.example}'}"
        )


def unmask_probability(alpha_t: Tensor, alpha_s: Tensor, remask: Tensor | float = 0.0) -> Tensor:
    """Probability that a masked token is unmasked between t and s, if visible ones are remasked
    with probability `remask`.

    (alpha_s - (1 - r) alpha_t)/(1 - alpha_t), which keeps the marginal alpha_s (arXiv 2503.00307,
    eq. 5); shapes broadcast.
    """
    return (alpha_s - (1 - remask) * alpha_t) / (1 - alpha_t)


class MaskingProcess(Process):
    """Each token turns into `vocab.mask_id` independently, at some time, and stays there."""

    def parameterization(self) -> Parameterization:
        return SUBS(self.vocab)

    def prior(
        self,
        batch_size: int,
        length: int,
        device: torch.device | str = "cpu",
        draws: Draws | None = None,
    ) -> Tensor:
        return torch.full(
            (batch_size, length), self.vocab.mask_id, dtype=torch.int64, device=device
        )

    def changes(self, xt: Tensor) -> Tensor:
        return xt == self.vocab.mask_id

    def masked_at(self, x0: Tensor, rate: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        """`x0 (B, L)` with masks at the `maskable (B, L)` bool positions, with the probability
        `rate` (B, L) or (B, 1)."""
        exact = float64_device(x0.device)
        hit = draws.uniform("mask", x0.shape[1]).to(exact) < rate.to(exact)
        return torch.where(hit.to(x0.device) & maskable, self.vocab.mask_id, x0)

    def stepped(self, token: Tensor, stay: Tensor, xt: Tensor) -> Tensor:
        """The result of `reverse` from what a mask becomes: log-probabilities of each token (M, V)
        and of a mask (M, 1)."""
        is_mask = torch.arange(self.vocab.size, device=xt.device) == self.vocab.mask_id
        visible = F.one_hot(xt, self.vocab.size).log().to(token)
        return torch.where(self.changes(xt)[:, None], torch.where(is_mask, stay, token), visible)


class AbsorbingProcess(MaskingProcess):
    """Each token turns into `vocab.mask_id` independently, with probability 1 - alpha(t) of the
    `noise` schedule, and stays there."""

    described = "an absorbing process (masks)"
    example = "absorbing"
    sampler = "grouped"

    def time_at(self, count: Tensor, total: Tensor) -> Tensor:
        """The time (B,) at which `count` of `total` maskable positions, (B,) both, are masked,
        relative to what is masked at t = 1.

        Samplers and likelihoods give this time to a network with time conditioning, with the
        maskable positions of the whole window as `total`. In training the time determines which
        fraction of a whole window is masked, so the tokens that a template gives count as visible
        ones: with 8 masks among 64 tokens it is the time at which an eighth is masked, not that at
        which everything is. Float64 where the device has it.
        """
        fraction = (count / total.clamp(min=1)).clamp(max=1)
        local = fraction.to(float64_device(fraction.device))
        t = self.noise.inverse(1 - local.double() * self.noise.mask_probability(1.0))
        return t if local is fraction else t.float().to(fraction.device)

    def time_of(
        self,
        xt: Tensor,
        valid: Tensor | None = None,
        masked: Tensor | None = None,
        left: Tensor | float = 1.0,
    ) -> Tensor:
        """`time_at` for the masks of `xt (B, L)`: (B,) float32.

        With `masked (B, L)`, the fraction `left`, a number or (B,), of these is still masked, and
        so are frozen masks of `xt`.
        """
        count = (xt == self.vocab.mask_id).sum(-1)
        if masked is not None:
            count = count - masked.sum(-1) + left * masked.sum(-1)
        return self.time_at(count, self.maskable(xt, valid).sum(-1)).float()

    def corrupt(self, x0: Tensor, t: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        return self.masked_at(x0, 1 - self.noise.alpha(t)[:, None], maskable, draws)

    def integrand(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        nll = self.reconstruction(log_probs, x0, xt, t)
        return torch.where(self.changes(xt), self.noise.weight(t).to(nll) * nll, 0.0)

    def reverse(self, log_probs: Tensor, xt: Tensor, t: Tensor, s: Tensor) -> Tensor:
        unmask = unmask_probability(self.noise.alpha(t), self.noise.alpha(s)).to(log_probs)[:, None]
        return self.stepped(unmask.log() + log_probs, torch.log1p(-unmask), xt)

    def corrupt_count(self, x0: Tensor, count: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        """xt with exactly `count (B,)` masks in each row, uniformly distributed over its maskable
        positions."""
        exact = float64_device(x0.device)
        order = draws.uniform("mask", x0.shape[1]).to(exact).masked_fill(~maskable.to(exact), 2.0)
        rank = (
            order.argsort(-1).argsort(-1).to(x0.device)
        )  # maskable positions have the ranks 0..L_i - 1
        return torch.where((rank < count[:, None]) & maskable, self.vocab.mask_id, x0)


class Marginal(NamedTuple):
    """q_t(. | x0) of a `MixtureProcess` at some times: alpha (..., 1) and b (..., V)."""

    alpha: Tensor
    b: Tensor

    def of(self, probs: Tensor) -> Tensor:
        """alpha p + b for distributions of x0 (..., V): that of xt."""
        return self.alpha * probs + self.b

    def given(self, x0: Tensor) -> Tensor:
        """The distribution of xt for tokens x0 (...): (..., V)."""
        return self.b.scatter_add(-1, x0[..., None], self.alpha)


class MixtureProcess(Process):
    """A token stays with probability alpha(t), and is noise from pi_t otherwise.

    The predictions mu of a network are the distribution of a token given the noisy tokens at the
    other positions: then q^_t(v)/q^_t(z) are the ratios of probabilities that revert the process. A
    subclass implements `pi`, and `dpi` if it is known. `integrand` is GIDD's theorem 1 (arXiv
    2503.04482), which is MDLM's loss for masks and UDLM's for uniform noise; `reverse` and
    `step_cost` are D3PM's (arXiv 2107.03006, eq. 4).
    """

    described = "noise that replaces tokens"
    # Near t = 0 a noisy token has the probability t, the weight 1/t and a cost of log 1/t: the
    # variance is infinite for k = 1, and measured to be least for k near 3.
    time_power = 3.0

    @abstractmethod
    def pi(self, t: Tensor) -> Tensor:
        """The distribution of noise at times `t (...)`: (..., V), differentiable in t."""

    def dpi(self, t: Tensor) -> Tensor:
        """d pi / dt, (..., V)."""
        t = t.contiguous()
        return torch.func.jvp(self.pi, (t,), (torch.ones_like(t),))[1]

    def marginal(self, t: Tensor, dtype: torch.dtype = torch.float64) -> Marginal:
        """q_t(. | x0) at times `t (...)`."""
        alpha = self.noise.alpha(t)[..., None]
        return Marginal(alpha.to(dtype), (1 - alpha).to(dtype) * self.pi(t.to(dtype)))

    def arrival_rate(self, t: Tensor, x: Tensor) -> Tensor:
        """The rate at which tokens turn into the tokens `x (...)` at times `t (...)`: (...)."""
        pi, dpi = (each.gather(-1, x[..., None])[..., 0] for each in (self.pi(t), self.dpi(t)))
        alpha = self.noise.alpha(t)
        return (1 - alpha) * dpi - self.noise.dalpha(t) / alpha * pi

    def noise_tokens(self, t: Tensor, uniform: Tensor) -> Tensor:
        """Tokens of noise at times `t (M,)`, from `uniform (M,)`: (M,)."""
        return draw(self.pi(t).log(), uniform)

    def parameterization(self) -> Parameterization:
        return Emitted(self.vocab)

    def prior(
        self,
        batch_size: int,
        length: int,
        device: torch.device | str = "cpu",
        draws: Draws | None = None,
    ) -> Tensor:
        draws = draws or Draws.for_batch(0, batch_size, device=device)
        uniform = draws.uniform("prior", length)
        last = torch.ones(batch_size * length, dtype=torch.float64, device=uniform.device)
        return self.noise_tokens(last, uniform.flatten()).view(uniform.shape).to(device)

    def corrupt(self, x0: Tensor, t: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        uniform = draws.uniform("noise", x0.shape[1])
        local = float64_device(x0.device)
        times = t.to(local).double()[:, None].expand(x0.shape)
        alpha = self.noise.alpha(times)
        replaced = (uniform.to(local) >= alpha) & maskable.to(local)
        rest = ((uniform.to(local) - alpha) / (1 - alpha))[replaced]  # uniform again
        noise = self.noise_tokens(times[replaced], rest)
        return x0.masked_scatter(replaced.to(x0.device), noise.to(x0))

    def integrand(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        weight, divergence = self.terms(log_probs, x0, xt, t)
        return weight * divergence

    def terms(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of `integrand`: rate/q of the noisy token, and KL(q || q^) + rho - log rho -
        1, where rho = q/q^ of the noisy token; (M,) each."""
        at = self.marginal(t, log_probs.dtype)
        now = xt[:, None]
        q = at.given(x0)
        guess = at.of(log_probs.exp())
        log_ratio = _log(q) - _log(guess)
        q_now, guess_now, log_rho = (each.gather(-1, now)[:, 0] for each in (q, guess, log_ratio))
        rho = q_now / guess_now.clamp(min=torch.finfo(guess.dtype).tiny)
        divergence = (q * log_ratio).sum(-1) + rho - log_rho - 1
        return self.arrival_rate(t, xt).to(q) / q_now, divergence

    def typical_weight(self, t: Tensor) -> Tensor:
        """-alpha'/(alpha (1 - alpha)), the weight (`terms`) of a token that is certainly noise if
        noise has the same distribution at all times."""
        return self.noise.weight(t) / self.noise.alpha(t)

    def reverse(self, log_probs: Tensor, xt: Tensor, t: Tensor, s: Tensor) -> Tensor:
        # q(xt | xs) q^_s(xs) / q^_t(xt) for each xs
        at = self.marginal(t, log_probs.dtype)
        to = self._earlier(s, log_probs.dtype)
        probs = log_probs.exp()
        now = at.of(probs).gather(-1, xt[:, None]).log()
        return _transition(xt, at, to).log() + to.of(probs).log() - now

    def step_cost(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor, s: Tensor) -> Tensor:
        # q(xt | xs) is a factor of both distributions, so their ratio is that of the marginals.
        now = xt[:, None]
        at = self.marginal(t, log_probs.dtype)
        to = self._earlier(s, log_probs.dtype)
        q = at.given(x0).gather(-1, now)
        guess = at.of(log_probs.exp()).gather(-1, now)
        before = to.given(x0)
        log_ratio = _log(before) - _log(to.of(log_probs.exp()))
        step = _transition(xt, at, to) * before / q
        return (step * log_ratio).sum(-1) - (_log(q) - _log(guess))[:, 0]

    def reconstruction(self, log_probs: Tensor, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        return self.step_cost(log_probs, x0, xt, t, torch.zeros_like(t))

    def _earlier(self, s: Tensor, dtype: torch.dtype) -> Marginal:
        """`marginal`, and no noise at s = 0: the last step leaves none, whatever the schedule."""
        to = self.marginal(s, dtype)
        last = (s == 0)[..., None]
        return Marginal(to.alpha.masked_fill(last, 1.0), to.b.masked_fill(last, 0.0))

    def ends(self, x0: Tensor) -> Tensor:
        local = x0.to(float64_device(x0.device))
        last = torch.ones((), dtype=torch.float64, device=local.device)
        q = self.marginal(last)
        prior = self.pi(last)
        rest = 1 - q.alpha  # what is left of the prior, at all tokens but x0
        at = q.alpha + q.b[local]
        expected = prior[local]
        found = torch.xlogy(at, at) - torch.xlogy(at, expected)
        return (found + torch.xlogy(rest, rest) * (1 - expected)).to(x0.device)


def _log(probs: Tensor) -> Tensor:
    """The logarithm, finite at 0: its gradient there would make that of everything NaN."""
    return probs.clamp(min=torch.finfo(probs.dtype).tiny).log()


def _transition(xt: Tensor, at: Marginal, to: Marginal) -> Tensor:
    """q(xt | xs) for each xs: (M, V)."""
    kept = at.alpha / to.alpha
    now = xt[:, None]
    arrived = (at.b - kept * to.b).gather(-1, now).clamp(min=0)  # from any other token
    return arrived.expand_as(at.b).scatter_add(-1, now, kept)


class UniformProcess(MixtureProcess):
    """Noise that is uniform over the tokens that a sample may contain: D3PM-uniform (arXiv
    2107.03006) in discrete time, UDLM (arXiv 2412.10193) in continuous time.

    On DNA it is substitution with equal rates, the model of Jukes and Cantor (1969).
    """

    described = "uniform noise"

    def pi(self, t: Tensor) -> Tensor:
        emitted = self.vocab.is_emitted(t.device).to(t)
        return (emitted / emitted.sum()).expand(*t.shape, -1)

    def dpi(self, t: Tensor) -> Tensor:
        return t.new_zeros(()).expand(*t.shape, self.vocab.size)

    def noise_tokens(self, t: Tensor, uniform: Tensor) -> Tensor:
        return self.vocab.uniform_token(uniform)


def block_rows(x: Tensor, block_size: int, fill: float = 0) -> Tensor:
    """(B, L) -> (B * blocks, b), the blocks of a sequence one after another: block i has its tokens
    i b to (i + 1) b - 1. A shorter last block is filled up with `fill`."""
    missing = -x.shape[1] % block_size
    return (F.pad(x, (0, missing), value=fill) if missing else x).reshape(-1, block_size)


def sequence_rows(rows: Tensor, length: int) -> Tensor:
    """The inverse of `block_rows`: (B * blocks, b) -> (B, L)."""
    blocks = -(-length // rows.shape[1])
    return rows.reshape(-1, blocks * rows.shape[1])[:, :length]


def after_first(chosen: Tensor, block_size: int | None) -> Tensor:
    """The positions in blocks after the first block with a chosen one: (B, L) bool -> (B, L) bool,
    nothing where none is chosen. Without a size, each position is a block."""
    block = torch.arange(chosen.shape[1], device=chosen.device) // (block_size or 1)
    first = torch.where(chosen, block, chosen.shape[1]).amin(-1, keepdim=True)
    return block > first
