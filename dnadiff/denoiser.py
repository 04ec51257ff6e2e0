"""A backbone with a parameterization: what objectives and samplers call.

The backbone gives raw logits; the parameterization turns them into log-probabilities of x0. Positions that
nobody asks about never meet the head: with a large vocabulary that is most of the memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from dnadiff.backbone.base import Backbone
from dnadiff.noise import NoiseSchedule
from dnadiff.vocab import Vocab


class Parameterization(ABC):
    """Turns raw logits at some positions into log-probabilities of x0 there."""

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab

    @abstractmethod
    def log_probs(self, logits: Tensor, xt: Tensor) -> Tensor:
        """`logits (..., V)` and the tokens `xt (...)` at the same positions -> `(..., V)`, float32 or better."""


class SUBS(Parameterization):
    """MDLM's substitution parameterization (arXiv 2406.07524v2, section 3.2.3).

    Zero masking: ids in `vocab.never_emitted` have probability 0. Carry-over: a visible token is known.
    """

    def log_probs(self, logits: Tensor, xt: Tensor) -> Tensor:
        """See the class; -inf stands for probability 0, with finite gradients."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        banned = ~self.vocab.is_emitted(logits.device)
        log_probs = torch.log_softmax(logits.masked_fill(banned, -torch.inf), dim=-1)
        ids = torch.arange(logits.shape[-1], device=logits.device)
        known = torch.where(ids == xt[..., None], 0.0, -torch.inf).to(log_probs)
        return torch.where((xt == self.vocab.mask_id)[..., None], log_probs, known)


class Denoiser(nn.Module):
    """Backbone + parameterization -> the law of x0 given xt.

    Args:
        backbone: the network; must not be causal.
        parameterization: defaults to SUBS.
        noise: the schedule that turns t into sigma; needed only with time conditioning.
        time_conditioning: tell the network the noise level. Off by default: SUBS does not need it, and
            features of a sequence that did not change stay valid.
    """

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
        sigma = None
        if self.time_conditioning:
            if t is None:
                raise ValueError("this denoiser is conditioned on time: pass t (B,)")
            sigma = self.noise.sigma(t)
        features = self.backbone.features(xt.long(), sigma, cond, valid)
        if positions is not None:
            features = features[positions]
        return self.backbone.head(features)[..., : self.vocab.size]

    def log_probs(
        self, xt: Tensor, t: Tensor | None = None, cond: Tensor | None = None, positions: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """Log-probabilities of x0, shaped as `logits`."""
        at = xt if positions is None else xt[positions]
        return self.parameterization.log_probs(self.logits(xt, t, cond, positions, valid), at)
