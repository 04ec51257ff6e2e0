"""A backbone with a parameterization: what objectives and samplers call.

The backbone gives raw logits; the parameterization turns them into log-probabilities of x0. Positions that
nobody asks about never meet the head: with a large vocabulary that is most of the memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dnadiff.backbone.base import Backbone, State
from dnadiff.kernels import linear_log_sum
from dnadiff.noise import NoiseSchedule
from dnadiff.parameterization import SUBS, Parameterization, emitted_log_probs

LARGE = 1024  # ids from which losses do without the logits; fewer are a small array, which is not worth computing twice


class Denoiser(nn.Module):
    """Backbone + parameterization -> the law of x0 given xt.

    Args:
        backbone: the network; must not be causal.
        parameterization: defaults to SUBS.
        noise: the schedule that turns t into sigma; needed only with time conditioning.
        time_conditioning: tell the network the noise level. Off by default: SUBS does not need it, and
            features of a sequence that did not change stay valid.
    """

    causal = False

    def __init__(
        self,
        backbone: Backbone,
        parameterization: Parameterization | None = None,
        noise: NoiseSchedule | None = None,
        time_conditioning: bool = False,
    ) -> None:
        super().__init__()
        if backbone.causal:
            raise ValueError(
                f"{type(backbone).__name__} is causal: masked diffusion needs a bidirectional backbone such as caduceus or dit"
            )
        if time_conditioning and noise is None:
            raise ValueError("time_conditioning=True needs the noise schedule: pass noise=")
        if time_conditioning and not backbone.takes_sigma:
            raise ValueError(
                f"time_conditioning=true, but this {type(backbone).__name__} has no time input; set time_conditioning=false, "
                "or build the backbone with one"
            )
        self.backbone = backbone
        self.vocab = backbone.vocab
        self.parameterization = parameterization or SUBS(backbone.vocab)
        self.noise = noise
        self.time_conditioning = time_conditioning

    def logits(
        self, xt: Tensor, t: Tensor | None = None, cond: Tensor | None = None, positions: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """Raw logits, cut to `vocab.size` columns.

        Args:
            xt: (B, L) token ids.
            t: (B,) time; read only with time conditioning.
            cond: (B, C) labels.
            positions: (B, L) bool; only these meet the head. None is all.
            valid: (B, L) bool, False on padding that must not be read.

        Returns:
            (M, V) in row-major order of the M chosen positions, or (B, L, V) for None.
        """
        return self.backbone.head(self._features(xt, t, cond, positions, valid))[..., : self.vocab.size]

    def _features(self, xt: Tensor, t: Tensor | None, cond: Tensor | None, positions: Tensor | None, valid: Tensor | None) -> Tensor:
        """(M, D) or (B, L, D)."""
        sigma = None
        if self.time_conditioning:
            if t is None:
                raise ValueError("this denoiser is conditioned on time: pass t (B,)")
            sigma = self.noise.sigma(t)
        features = self.backbone.features(xt.long(), sigma, cond, valid)
        return features if positions is None else features[positions]

    @property
    def fused_head(self) -> bool:
        """Whether losses should ask for `log_sum_and_logits`: the vocabulary is large, and the head one matrix."""
        return _fused_head(self.backbone)

    def log_sum_and_logits(
        self,
        ids: Tensor,
        banned: Sequence[int],
        xt: Tensor,
        t: Tensor | None = None,
        cond: Tensor | None = None,
        positions: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """log sum_v exp(logit_v) without the `banned` ids, (M,), and the logits of `ids (M, K)`, at the M chosen positions.

        No logits are held (`dnadiff.kernels.linear_log_sum`); all that objectives need follows: -log p(x0) is the difference of the two.
        """
        return _log_sum_and_logits(self.backbone, self._features(xt, t, cond, positions, valid), ids, banned)

    def log_probs(
        self, xt: Tensor, t: Tensor | None = None, cond: Tensor | None = None, positions: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """Log-probabilities of x0, shaped as `logits`."""
        at = xt if positions is None else xt[positions]
        return self.parameterization.log_probs(self.logits(xt, t, cond, positions, valid), at)

    def x0_log_probs(
        self, xt: Tensor, t: Tensor | None = None, cond: Tensor | None = None, positions: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """The law of x0 that D3PM and the masked language model train, shaped as `logits`; under SUBS, `log_probs`."""
        at = xt if positions is None else xt[positions]
        return self.parameterization.x0_log_probs(self.logits(xt, t, cond, positions, valid), at)

    def log_score(
        self, xt: Tensor, t: Tensor, cond: Tensor | None = None, positions: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """Log-ratios of probabilities at time t, shaped as `logits`; see `Parameterization.log_score`."""
        if self.noise is None:
            raise ValueError("log_score needs the noise schedule: build the denoiser with noise=")
        sigma = self.noise.sigma(t)[:, None].expand(xt.shape)
        at = xt if positions is None else xt[positions]
        return self.parameterization.log_score(
            self.logits(xt, t, cond, positions, valid), at, sigma if positions is None else sigma[positions]
        )


class Guided(nn.Module):
    """Classifier-free guidance around a denoiser trained with labels: p proportional to p(x0 | xt, label)^w p(x0 | xt)^(1 - w).

    Both laws come from one network call on twice the sequences; an unlabelled one has a row of zeros (arXiv 2207.12598; for discrete
    diffusion 2412.10193). Only the law of x0 is guided: how many tokens a step reveals does not change, and ratios
    (`log_score`) are not offered. With w = 1 or 0 one law is asked for alone.

    Args:
        denoiser: what is guided.
        weight: w; 1 is the labelled law, more than 1 exaggerates what the label changes.

    Raises:
        ValueError: if the model cannot be guided.
    """

    causal = False

    def __init__(self, denoiser: nn.Module, weight: float) -> None:
        super().__init__()
        if getattr(denoiser, "causal", False):
            raise ValueError("guidance is for models that unmask, and this one is autoregressive; set guidance=1")
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(f"guidance {weight} must be 0 or more; 1 is the labelled law")
        self.denoiser, self.weight = denoiser, weight
        self.rows_per_sequence = 1 if weight in (0, 1) else 2

    @property
    def backbone(self) -> Backbone:
        """The network of the denoiser inside."""
        return self.denoiser.backbone

    def log_probs(
        self, xt: Tensor, t: Tensor | None = None, cond: Tensor | None = None, positions: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """See `Denoiser.log_probs`; `cond (B, C)` is needed.

        Raises:
            ValueError: if there is no label to guide by.
        """
        if cond is None:
            raise ValueError("guidance needs a label: pass cond (B, C)")
        if self.weight == 1:
            return self.denoiser.log_probs(xt, t, cond, positions, valid)
        if self.weight == 0:
            return self.denoiser.log_probs(xt, t, torch.zeros_like(cond), positions, valid)
        twice = [None if x is None else torch.cat([x, x]) for x in (xt, t, positions, valid)]
        labels = torch.cat([cond, torch.zeros_like(cond)])
        labelled, plain = self.denoiser.log_probs(twice[0], twice[1], labels, twice[2], twice[3]).chunk(2)
        mixed = self.weight * labelled + (1 - self.weight) * plain
        impossible = labelled.isneginf() | plain.isneginf()  # inf - inf otherwise: both laws give 0 to what is never emitted
        return torch.log_softmax(mixed.masked_fill(impossible, -torch.inf), dim=-1)


class CausalDenoiser(nn.Module):
    """A causal backbone -> the law of each token given those before it: the autoregressive control's own protocol.

    The network reads a start token and all tokens but the last. The start token is the mask: every vocabulary has one and
    nothing else here uses it, so that the first token is predicted and counted, and likelihoods compare with a NELBO token by token.

    Args:
        backbone: the network; must be causal.
    """

    causal = True

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        if not backbone.causal:
            raise ValueError(
                f"{type(backbone).__name__} sees both sides: next-token prediction needs a causal backbone such as transformer"
            )
        self.backbone = backbone
        self.vocab = backbone.vocab

    def next_log_probs(self, x: Tensor, cond: Tensor | None = None, positions: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """Row l: log-probabilities of token l given tokens 0..l-1, nothing on ids that are never emitted.

        Args:
            x: (B, L) token ids.
            cond: (B, C) labels.
            positions: (B, L) bool; only these meet the head. None is all.
            valid: (B, L) bool, False on padding that must not be read.

        Returns:
            (M, V) in row-major order of the M chosen positions, or (B, L, V) for None.
        """
        features = self._read(x, cond, valid)
        return self._next(features if positions is None else features[positions])

    def _read(self, x: Tensor, cond: Tensor | None, valid: Tensor | None) -> Tensor:
        """Features (B, L, D) from which row l predicts token l."""
        start = torch.full_like(x[:, :1], self.vocab.mask_id)
        if valid is not None:
            valid = torch.cat([torch.ones_like(valid[:, :1]), valid[:, :-1]], 1)
        return self.backbone.features(torch.cat([start, x[:, :-1]], 1).long(), None, cond, valid)

    @property
    def fused_head(self) -> bool:
        """See `Denoiser.fused_head`."""
        return _fused_head(self.backbone)

    def log_sum_and_logits(
        self,
        ids: Tensor,
        banned: Sequence[int],
        x: Tensor,
        cond: Tensor | None = None,
        positions: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See `Denoiser.log_sum_and_logits`, of the logits behind `next_log_probs`."""
        features = self._read(x, cond, valid)
        return _log_sum_and_logits(self.backbone, features if positions is None else features[positions], ids, banned)

    def step(self, token: Tensor, state: State | None = None, cond: Tensor | None = None) -> tuple[Tensor, State]:
        """One token further: the law of the next token, as `next_log_probs` has it, without reading the earlier ones again.

        Args:
            token: (B,) the token just placed; the mask, which is the start token, at the beginning.
            state: what the network remembers, from the call before; None at the beginning. It is used up: go on with the one returned.
            cond: (B, C) labels, the same in every call.

        Returns:
            Log-probabilities (B, V), and the state after `token`.
        """
        features, state = self.backbone.step(token.long(), state, cond)
        return self._next(features), state

    def _next(self, features: Tensor) -> Tensor:
        """Features (..., D) -> log-probabilities (..., V) of the token that follows each."""
        return emitted_log_probs(self.backbone.head(features)[..., : self.vocab.size], self.vocab)

    def log_probs(self, *args: object, **kwargs: object) -> Tensor:
        """Refused: a causal network knows nothing about a masked position's right side."""
        raise ValueError(
            "an autoregressive model predicts from left to right (next_log_probs); unmasking needs a diffusion objective such as mdlm"
        )


def nll(
    denoiser: nn.Module,
    x0: Tensor,
    xt: Tensor,
    t: Tensor | None = None,
    cond: Tensor | None = None,
    positions: Tensor | None = None,
    valid: Tensor | None = None,
) -> Tensor:
    """-log p(x0) at masked positions: (M,) in row-major order of `positions (B, L)` bool, all of which are masks in xt.

    What losses and likelihoods ask of anything that has `log_probs`; a `Denoiser` over a large vocabulary holds no (M, V) for it.
    """
    target = x0[positions].long()[:, None]
    if not getattr(denoiser, "fused_head", False):
        return -denoiser.log_probs(xt, t, cond, positions, valid).gather(-1, target)[:, 0]
    log_sum, at = denoiser.log_sum_and_logits(target, denoiser.vocab.never_emitted, xt, t, cond, positions, valid)
    return log_sum - at[:, 0]


def next_nll(
    denoiser: nn.Module, x: Tensor, cond: Tensor | None = None, positions: Tensor | None = None, valid: Tensor | None = None
) -> Tensor:
    """-log p of the tokens at the chosen positions given those before each, `(M,)`; all of them for None. As `nll`, for causal models."""
    positions = torch.ones_like(x, dtype=torch.bool) if positions is None else positions
    target = x[positions].long()[:, None]
    if not getattr(denoiser, "fused_head", False):
        return -denoiser.next_log_probs(x, cond, positions, valid).gather(-1, target)[:, 0]
    log_sum, at = denoiser.log_sum_and_logits(target, denoiser.vocab.never_emitted, x, cond, positions, valid)
    return log_sum - at[:, 0]


def _fused_head(backbone: Backbone) -> bool:
    return backbone.vocab.size >= LARGE and backbone.head_matrix() is not None


def _log_sum_and_logits(backbone: Backbone, features: Tensor, ids: Tensor, banned: Sequence[int]) -> tuple[Tensor, Tensor]:
    weight, bias = backbone.head_matrix()
    size = backbone.vocab.size
    return linear_log_sum(features, weight[:size], None if bias is None else bias[:size], ids, banned)
