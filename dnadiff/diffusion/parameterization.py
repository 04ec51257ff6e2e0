"""What the logits of a network mean: log-probabilities of x0 (MDLM, D3PM, BERT) or log-ratios of
probabilities (SEDD).

Pure functions of tensors; `dnadiff.diffusion.denoiser` calls the network.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.diffusion.positions import copies_are_cheap
from dnadiff.diffusion.vocab import Vocab


class Parameterization(ABC):
    """Turns raw logits at some positions into predictions of x0.

    Every method takes `logits (..., V)` and the tokens `xt (...)` at the same positions, and
    returns `(..., V)` in float32 or better, with -inf for probability 0 and finite gradients.

    Attributes:
        normalized: whether ratios at a masked position always sum to what probabilities would.
        banned: ids that have probability 0 in `x0_log_probs`.
    """

    normalized: bool = True

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

    @override
    def log_probs(self, logits: Tensor, xt: Tensor) -> Tensor:
        return emitted_log_probs(logits, self.vocab)


class SUBS(Parameterization):
    """MDLM's substitution parameterization (arXiv 2406.07524v2, section 3.2.3).

    Zero masking: ids in `vocab.never_emitted` have probability 0. Carry-over: a visible token is
    known.
    """

    @override
    def log_probs(self, logits: Tensor, xt: Tensor) -> Tensor:
        return _carry_over(emitted_log_probs(logits, self.vocab), xt, self.vocab)


def _carry_over(log_probs: Tensor, xt: Tensor, vocab: Vocab) -> Tensor:
    hidden = xt == vocab.mask_id
    # losses and samplers often request masked positions alone
    if not copies_are_cheap(log_probs) and hidden.all():
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
        self.zero_masking, self.carry_over = zero_masking, carry_over
        self.banned = vocab.never_emitted if zero_masking else ()

    @override
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

    @override
    def log_score(self, logits: Tensor, xt: Tensor, sigma: Tensor) -> Tensor:
        # At visible positions, whose ratios no loss and no sampler uses, these are the network's
        # raw outputs.
        log_ratio = _float(logits) - math.log(len(self.vocab.emitted))
        log_score = log_ratio.masked_fill(
            ~self.vocab.is_emitted(logits.device), -torch.inf
        ) - log_expm1(sigma)[..., None].to(log_ratio)
        return torch.where(_is_token(xt, logits), 0.0, log_score)
