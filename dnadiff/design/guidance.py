"""Classifier-free guidance, and the base class of denoisers that change the predictions of another one."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff import checks
from dnadiff.backbone.base import Backbone
from dnadiff.denoiser import BaseDenoiser, OptTensor


class DenoiserWrapper(BaseDenoiser):
    """A denoiser that changes the predictions of another one. Its properties are those of the wrapped denoiser."""

    def __init__(self, denoiser: BaseDenoiser) -> None:
        super().__init__(denoiser.vocab)
        self.denoiser, self.causal, self.time_conditioning = denoiser, denoiser.causal, denoiser.time_conditioning
        self.rows_per_sequence, self.max_length, self.num_labels = denoiser.rows_per_sequence, denoiser.max_length, denoiser.num_labels

    @property
    def backbone(self) -> Backbone:  # type: ignore[override]  # the wrapped denoiser's submodule; assigning it here would register it twice
        """The network of the wrapped denoiser."""
        return self.denoiser.backbone

    @property
    @override
    def unwrapped(self) -> BaseDenoiser:
        return self.denoiser.unwrapped


class Guided(DenoiserWrapper):
    """Classifier-free guidance of a denoiser trained with labels: p proportional to p(x0 | xt, label)^w p(x0 | xt)^(1 - w).

    Both distributions come from one network call on twice the sequences; an unlabeled one has a row of zeros (arXiv 2207.12598; for
    discrete diffusion 2412.10193). Guidance changes which tokens are drawn, not how many a step unmasks, and ratios (`log_score`) are
    not available. With w = 1 or 0 only one of the distributions is computed.

    Args:
        denoiser: the denoiser to guide; not autoregressive.
        weight: w; 1 is the distribution given the label, more than 1 exaggerates what the label changes.
    """

    def __init__(self, denoiser: BaseDenoiser, weight: float) -> None:
        super().__init__(denoiser)
        if denoiser.causal:
            raise ValueError("guidance is for models that unmask, and this one is autoregressive; set guidance=1")
        if checks.number("guidance", weight) < 0:
            raise ValueError(f"guidance {weight} must be 0 or more; 1 is the distribution given the label")
        self.weight = weight
        self.rows_per_sequence = 1 if weight in (0, 1) else 2

    @override
    def log_probs(
        self, xt: Tensor, t: OptTensor = None, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None
    ) -> Tensor:
        if cond is None:
            raise ValueError("guidance needs a label: pass cond (B, C)")
        if self.weight == 1:
            return self.denoiser.log_probs(xt, t, cond, positions, valid)
        if self.weight == 0:
            return self.denoiser.log_probs(xt, t, torch.zeros_like(cond), positions, valid)
        t, positions, valid = (None if x is None else torch.cat([x, x]) for x in (t, positions, valid))
        both = self.denoiser.log_probs(torch.cat([xt, xt]), t, torch.cat([cond, torch.zeros_like(cond)]), positions, valid)
        labeled, unlabeled = both.chunk(2)
        mixed = self.weight * labeled + (1 - self.weight) * unlabeled
        impossible = labeled.isneginf() | unlabeled.isneginf()  # both give 0 to ids that are never emitted; inf - inf otherwise
        return torch.log_softmax(mixed.masked_fill(impossible, -torch.inf), dim=-1)
