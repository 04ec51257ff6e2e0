"""Denoisers: what objectives, samplers and likelihoods call.

A `Denoiser` combines a backbone with a parameterization: the backbone returns raw logits, the parameterization turns them into
log-probabilities of x0. `CausalDenoiser` does the same for autoregressive models. Both derive from `BaseDenoiser`, which declares
everything a caller may ask. The head runs on the requested positions alone, which saves most of the memory with a large vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from dnadiff.backbone.base import Backbone, State
from dnadiff.kernels import linear_log_sum
from dnadiff.noise import NoiseSchedule
from dnadiff.parameterization import SUBS, Parameterization, emitted_log_probs
from dnadiff.vocab import Vocab

OptTensor = Tensor | None
LARGE = 1024  # vocabulary size from which losses avoid materializing the logits; smaller arrays are not worth computing twice


class BaseDenoiser(nn.Module):
    """The interface of every denoiser.

    A subclass implements `log_probs` if it predicts masked tokens, or sets `causal = True` and implements `next_log_probs` and `step`
    if it is autoregressive. Methods that a denoiser does not support raise a ValueError.

    Attributes:
        backbone: the network, for denoisers that have one.
        causal: whether it is autoregressive.
        time_conditioning: whether its predictions depend on t.
        rows_per_sequence: sequences that the network evaluates for each one requested (2 with classifier-free guidance).
        same_for_all_rows: whether equal sequences get equal predictions; False if it stores something for each row of a batch.
        max_length: longest sequence that the network accepts; None for any.
        num_labels: C, the labels that it can be conditioned on.
        normalized: whether the ratios of `log_score` at a masked position sum to what probabilities would; those of SEDD need not.
        banned: ids that have probability 0 in `x0_log_probs`.
    """

    backbone: Backbone
    causal: bool = False
    time_conditioning: bool = False
    rows_per_sequence: int = 1
    same_for_all_rows: bool = True
    max_length: int | None = None
    num_labels: int = 0
    normalized: bool = True

    def __init__(self, vocab: Vocab) -> None:
        super().__init__()
        self.vocab = vocab
        self.banned: tuple[int, ...] = vocab.never_emitted

    @property
    def fused_head(self) -> bool:
        """Whether losses should call `log_sum_and_logits`, which avoids (M, V) logits."""
        return False

    @property
    def unwrapped(self) -> BaseDenoiser:
        """The denoiser without guidance and constraints."""
        return self

    def for_rows(self, rows: OptTensor = None, columns: slice | None = None) -> BaseDenoiser:
        """The denoiser for some sequences of the batch (an index or a mask over B) and some positions; itself if it stores nothing for them."""
        return self

    def without_recording(self) -> BaseDenoiser:
        """The denoiser without side effects of its calls (see `Constrained`); itself if it has none."""
        return self

    def log_probs(
        self, xt: Tensor, t: OptTensor = None, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None
    ) -> Tensor:
        """Log-probabilities of x0 given xt.

        Args:
            xt: (B, L) token ids.
            t: (B,) time; used only with time conditioning.
            cond: (B, C) labels.
            positions: (B, L) bool, where predictions are requested; None is everywhere.
            valid: (B, L) bool, False on padding that must not be read.

        Returns:
            (M, V) in row-major order of the M requested positions, or (B, L, V) for None.
        """
        raise ValueError("an autoregressive model predicts from left to right (next_log_probs); unmasking needs an objective such as mdlm")

    def x0_log_probs(
        self, xt: Tensor, t: OptTensor = None, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None
    ) -> Tensor:
        """The distribution of x0 that D3PM and the masked language model train, shaped as `log_probs`; under SUBS, `log_probs`."""
        return self.log_probs(xt, t, cond, positions, valid)

    def log_score(self, xt: Tensor, t: Tensor, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None) -> Tensor:
        """Log-ratios of probabilities at time t, shaped as `log_probs`; see `Parameterization.log_score`."""
        raise ValueError(f"{type(self).__name__} does not provide log_score")

    def log_sum_and_logits(
        self, ids: Tensor, banned: Sequence[int], xt: Tensor, t: OptTensor, cond: OptTensor, positions: Tensor, valid: OptTensor
    ) -> tuple[Tensor, Tensor]:
        """log sum_v exp(logit_v) over the ids not in `banned`, (M,), and the logits of `ids (M, K)`, at the M requested positions.

        -log p(x0) is the difference of the two. The (M, V) logits are not materialized (`dnadiff.kernels.linear_log_sum`).
        """
        raise ValueError(f"{type(self).__name__} has no fused head; use log_probs")

    def next_log_probs(self, x: Tensor, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None) -> Tensor:
        """Log-probabilities of token l given tokens 0..l-1, in row l; arguments and result are shaped as in `log_probs`."""
        raise ValueError(f"{type(self).__name__} is not autoregressive; use log_probs, or train a model with objective=ar")

    def step(self, token: Tensor, state: State | None = None, cond: OptTensor = None) -> tuple[Tensor, State]:
        """Read one more token and return the distribution of the next one, without reading earlier tokens again.

        Args:
            token: (B,) the token just placed; the mask, which is the start token, in the first call.
            state: the network's state from the previous call; None in the first call. Do not use it again afterwards.
            cond: (B, C) labels, the same in every call.

        Returns:
            Log-probabilities (B, V) as in `next_log_probs`, and the state after `token`.
        """
        raise ValueError(f"{type(self).__name__} is not autoregressive; use log_probs, or train a model with objective=ar")


class NetworkDenoiser(BaseDenoiser):
    """A denoiser computed by one network: what `Denoiser` and `CausalDenoiser` share."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone.vocab)
        self.backbone, self.max_length, self.num_labels = backbone, backbone.max_length, backbone.num_labels

    @property
    @override
    def fused_head(self) -> bool:
        return self.vocab.size >= LARGE and self.backbone.head_matrix() is not None

    def _features(self, xt: Tensor, t: OptTensor, cond: OptTensor, positions: OptTensor, valid: OptTensor) -> Tensor:
        raise NotImplementedError  # (M, D), or (B, L, D) where positions is None

    def logits(
        self, xt: Tensor, t: OptTensor = None, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None
    ) -> Tensor:
        """Raw logits, cut to `vocab.size` columns; arguments and result are shaped as in `log_probs`."""
        return self.backbone.head(self._features(xt, t, cond, positions, valid))[..., : self.vocab.size]

    @override
    def log_sum_and_logits(
        self, ids: Tensor, banned: Sequence[int], xt: Tensor, t: OptTensor, cond: OptTensor, positions: Tensor, valid: OptTensor
    ) -> tuple[Tensor, Tensor]:
        matrix = self.backbone.head_matrix()
        if matrix is None:
            raise ValueError(f"the head of {type(self.backbone).__name__} is not one linear map; use log_probs")
        size, (weight, bias) = self.vocab.size, matrix
        weight, bias = weight[:size], None if bias is None else bias[:size]
        return linear_log_sum(self._features(xt, t, cond, positions, valid), weight, bias, ids, banned)


class Denoiser(NetworkDenoiser):
    """A backbone with a parameterization: the distribution p(x0 | xt) of a masked diffusion model.

    Args:
        backbone: the network; must not be causal.
        parameterization: defaults to SUBS.
        noise: the schedule that turns t into sigma; needed for time conditioning and `log_score`.
        time_conditioning: condition the network on the noise level. Off by default: SUBS does not need it, and without it the
            prediction for a sequence that did not change stays valid. The backbone must have a time input.

    Example:
        >>> import torch
        >>> from dnadiff.backbone.caduceus import Caduceus
        >>> from dnadiff.data.tokenizer import DNATokenizer
        >>> vocab = DNATokenizer().vocab
        >>> denoiser = Denoiser(Caduceus(vocab, d_model=16, n_layers=1))
        >>> xt = torch.tensor([[7, 3, 10, 3]])  # A, mask, T, mask
        >>> log_probs = denoiser.log_probs(xt, positions=xt == vocab.mask_id)
        >>> log_probs.shape  # two masked positions, 12 token ids
        torch.Size([2, 12])
        >>> bool(torch.allclose(log_probs[:, 7:11].exp().sum(-1), torch.ones(2)))  # only A, C, G and T have probability
        True
    """

    def __init__(
        self,
        backbone: Backbone,
        parameterization: Parameterization | None = None,
        noise: NoiseSchedule | None = None,
        time_conditioning: bool = False,
    ) -> None:
        super().__init__(backbone)
        if backbone.causal:
            raise ValueError(f"{type(backbone).__name__} is causal: masked diffusion needs a bidirectional backbone such as caduceus")
        if time_conditioning and noise is None:
            raise ValueError("time_conditioning=True needs the noise schedule: pass noise=")
        if time_conditioning and not backbone.takes_sigma:
            why = f"time_conditioning=true, but this {type(backbone).__name__} has no time input"
            raise ValueError(f"{why}; set time_conditioning=false, or build the backbone with one")
        self.parameterization = parameterization or SUBS(backbone.vocab)
        self.normalized, self.banned = self.parameterization.normalized, self.parameterization.banned
        self.noise, self.time_conditioning = noise, time_conditioning

    @override
    def _features(self, xt: Tensor, t: OptTensor, cond: OptTensor, positions: OptTensor, valid: OptTensor) -> Tensor:
        sigma = self._sigma(t) if self.time_conditioning else None
        return _at(self.backbone.features(xt.long(), sigma, cond, valid), positions)

    def _sigma(self, t: OptTensor) -> Tensor:
        if self.noise is None:
            raise ValueError("log_score needs the noise schedule: build the denoiser with noise=")
        if t is None:
            raise ValueError("this denoiser is conditioned on time: pass t (B,)")
        return self.noise.sigma(t)

    @override
    def log_probs(
        self, xt: Tensor, t: OptTensor = None, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None
    ) -> Tensor:
        return self.parameterization.log_probs(self.logits(xt, t, cond, positions, valid), _at(xt, positions))

    @override
    def x0_log_probs(
        self, xt: Tensor, t: OptTensor = None, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None
    ) -> Tensor:
        return self.parameterization.x0_log_probs(self.logits(xt, t, cond, positions, valid), _at(xt, positions))

    @override
    def log_score(self, xt: Tensor, t: Tensor, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None) -> Tensor:
        sigma = self._sigma(t)[:, None].expand(xt.shape)
        logits = self.logits(xt, t, cond, positions, valid)
        return self.parameterization.log_score(logits, _at(xt, positions), _at(sigma, positions))


class CausalDenoiser(NetworkDenoiser):
    """A causal backbone as an autoregressive model: the distribution of each token given those before it.

    The network reads a start token (the mask, which these models do not use otherwise) and all tokens but the last. So the first token is
    predicted and counted too, and likelihoods compare with a NELBO token by token. A backbone that is not causal is a ValueError.
    """

    causal = True

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        if not backbone.causal:
            raise ValueError(
                f"{type(backbone).__name__} sees both sides: next-token prediction needs a causal backbone such as transformer"
            )

    @override
    def _features(self, xt: Tensor, t: OptTensor, cond: OptTensor, positions: OptTensor, valid: OptTensor) -> Tensor:
        start = torch.full_like(xt[:, :1], self.vocab.mask_id)
        if valid is not None:
            valid = torch.cat([torch.ones_like(valid[:, :1]), valid[:, :-1]], 1)
        return _at(self.backbone.features(torch.cat([start, xt[:, :-1]], 1).long(), None, cond, valid), positions)  # row l predicts token l

    @override
    def next_log_probs(self, x: Tensor, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None) -> Tensor:
        return emitted_log_probs(self.logits(x, None, cond, positions, valid), self.vocab)

    @override
    def step(self, token: Tensor, state: State | None = None, cond: OptTensor = None) -> tuple[Tensor, State]:
        features, state = self.backbone.step(token.long(), state, cond)
        return emitted_log_probs(self.backbone.head(features)[..., : self.vocab.size], self.vocab), state


def nll(denoiser: BaseDenoiser, x0: Tensor, xt: Tensor, t: OptTensor, cond: OptTensor, positions: Tensor, valid: OptTensor) -> Tensor:
    """-log p(x0) at masked positions: (M,) in row-major order of `positions (B, L)` bool, all of which are masked in xt."""
    if denoiser.fused_head and not denoiser.causal:  # `log_probs` refuses a causal model
        return _fused(denoiser, x0, xt, t, cond, positions, valid)
    return -denoiser.log_probs(xt, t, cond, positions, valid).gather(-1, x0[positions].long()[:, None])[:, 0]


def next_nll(denoiser: BaseDenoiser, x: Tensor, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None) -> Tensor:
    """-log p of the tokens at some positions (None is all) given those before each, (M,); the counterpart of `nll` for causal models."""
    positions = torch.ones_like(x, dtype=torch.bool) if positions is None else positions
    if denoiser.fused_head and denoiser.causal:  # `next_log_probs` refuses any other
        return _fused(denoiser, x, x, None, cond, positions, valid)
    return -denoiser.next_log_probs(x, cond, positions, valid).gather(-1, x[positions].long()[:, None])[:, 0]


def _fused(denoiser: BaseDenoiser, x0: Tensor, xt: Tensor, t: OptTensor, cond: OptTensor, positions: Tensor, valid: OptTensor) -> Tensor:
    banned, target = denoiser.vocab.never_emitted, x0[positions].long()[:, None]
    log_sum, at = denoiser.log_sum_and_logits(target, banned, xt, t, cond, positions, valid)  # no (M, V) logits
    return log_sum - at[:, 0]


def _at(x: Tensor, positions: OptTensor) -> Tensor:
    return x if positions is None else x[positions]
