"""Classifier-free guidance."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff import checks
from dnadiff.backbone.base import State
from dnadiff.denoiser import BaseDenoiser, DenoiserWrapper, OptTensor


class Guided(DenoiserWrapper):
    """Classifier-free guidance of a denoiser trained with labels: p proportional to p(x0 | xt,
    label)^w p(x0 | xt)^(1 - w).

    Both distributions come from one network call on twice the sequences; an unlabeled one has a row
    of zeros (arXiv 2207.12598; for discrete diffusion 2412.10193). Guidance changes which tokens
    are drawn, not how many a step unmasks, and ratios (`log_score`) are not available. With w = 1
    or 0 only one of the distributions is computed.

    Args:
        denoiser: the denoiser to guide; not autoregressive.
        weight: w; 1 is the distribution given the label, more than 1 exaggerates what the label
            changes.
    """

    def __init__(self, denoiser: BaseDenoiser, weight: float) -> None:
        super().__init__(denoiser)
        if denoiser.autoregressive:
            raise ValueError(
                "guidance is for models that unmask, and this one is autoregressive; set guidance=1"
            )
        if checks.number("guidance", weight) < 0:
            raise ValueError(
                f"guidance {weight} must be 0 or more; 1 is the distribution given the label"
            )
        self.weight, self.normalized = weight, True
        self.rows_per_sequence = 1 if weight in (0, 1) else 2

    @override
    def log_probs(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        if self._single(cond) is not None:
            return self.denoiser.log_probs(xt, t, self._single(cond), positions, valid)
        t, positions, valid = (
            None if x is None else torch.cat([x, x]) for x in (t, positions, valid)
        )
        return self._mixed(
            self.denoiser.log_probs(torch.cat([xt, xt]), t, _with_unlabeled(cond), positions, valid)
        )

    @override
    def step_block(
        self,
        xt: Tensor,
        state: State | None = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        if self._single(cond) is not None:
            return self.denoiser.step_block(xt, state, self._single(cond), positions, valid)
        positions, valid = (None if x is None else torch.cat([x, x]) for x in (positions, valid))
        return self._mixed(
            self.denoiser.step_block(
                torch.cat([xt, xt]), _joined(state), _with_unlabeled(cond), positions, valid
            )
        )

    @override
    def advance(
        self,
        x0: Tensor,
        state: State | None = None,
        cond: OptTensor = None,
        valid: OptTensor = None,
    ) -> State:
        """The state has the tensors of the labeled sequences, then those of the unlabeled ones."""
        if self._single(cond) is not None:
            return self.denoiser.advance(x0, state, self._single(cond), valid)
        valid = None if valid is None else torch.cat([valid, valid])
        both = self.denoiser.advance(
            torch.cat([x0, x0]), _joined(state), _with_unlabeled(cond), valid
        )
        return State(
            [half for which in (0, 1) for half in (x.chunk(2)[which] for x in both.tensors)],
            both.length,
        )

    def _single(self, cond: OptTensor) -> OptTensor:
        """The labels if one distribution is enough, None if both are needed."""
        if cond is None:
            raise ValueError("guidance needs a label: pass cond (B, C)")
        if self.weight == 1:
            return cond
        return torch.zeros_like(cond) if self.weight == 0 else None

    def _mixed(self, both: Tensor) -> Tensor:
        labeled, unlabeled = both.chunk(2)
        mixed = self.weight * labeled + (1 - self.weight) * unlabeled
        impossible = (
            labeled.isneginf() | unlabeled.isneginf()
        )  # both give 0 to ids that are never emitted; inf - inf otherwise
        return torch.log_softmax(mixed.masked_fill(impossible, -torch.inf), dim=-1)


def _with_unlabeled(cond: OptTensor) -> Tensor:
    assert cond is not None
    return torch.cat([cond, torch.zeros_like(cond)])


def _joined(state: State | None) -> State | None:
    """The state of 2B sequences, the labeled ones first, from that of `Guided.advance`."""
    if state is None:
        return None
    half = len(state.tensors) // 2
    return State(
        [torch.cat(pair) for pair in zip(state.tensors[:half], state.tensors[half:])], state.length
    )
