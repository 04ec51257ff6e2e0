"""What a sample must hold, position by position: a wrapper around any denoiser, and the weight that makes up for it.

A restricted draw takes its letter from p(x0 | xt) cut to the allowed letters and normalised again. Over a whole sequence that is not yet
the model's law given the constraint: an early letter does not know what it costs a later one. The mass Z that was allowed at a draw is
what is left out, and the product of all Z of a sequence is its importance weight. With a tilt, Z is the tilted mass, and the weights
lead to the model's law times exp(tilt) of every letter. How letters are written is the business of `dnadiff.design.template`.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class Constrained(nn.Module):
    """A denoiser whose law at each masked position is cut to the allowed letters and tilted.

    It answers for one batch, and notes the log of the allowed mass at each position whenever that is asked for: of a position that is
    asked several times before it opens, the last one counts, from which the token was drawn. A sampler that asks about some rows or
    columns of the batch takes `part` of it. A position at which every letter is allowed, without a tilt, keeps the very numbers of the denoiser.

    Args:
        denoiser: what is constrained, guided or not, causal or not.
        kind: (B, L) int64, which row of `allowed` holds at each position.
        allowed: (K, V) bool, letters that a position of each kind may hold.
        tilt: (V,) added to the log-probabilities before they are normalised; None is 0.
    """

    def __init__(self, denoiser: nn.Module, kind: Tensor, allowed: Tensor, tilt: Tensor | None = None) -> None:
        super().__init__()
        allowed = allowed.to(kind.device)
        self.denoiser, self.kind = denoiser, kind
        self.vocab = denoiser.vocab if hasattr(denoiser, "vocab") else denoiser.backbone.vocab
        emitted, zero = self.vocab.is_emitted(kind.device), torch.zeros(self.vocab.size, device=kind.device)
        self.added = torch.where(allowed & emitted, zero if tilt is None else tilt.to(zero), -torch.inf)  # (K, V)
        self.changes = (allowed != emitted).any(-1) if tilt is None else torch.ones_like(allowed[:, 0])
        self.log_mass = torch.zeros(kind.shape, dtype=torch.float64, device="cpu" if kind.device.type == "mps" else kind.device)
        self.rows, self.start = torch.arange(len(kind), device=kind.device), 0
        self.noting = True

    def __getattr__(self, name: str) -> Any:
        # Whatever else a sampler asks (backbone, parameterization, causal, rows_per_sequence, ...) is the denoiser's own.
        if name in ("denoiser", "_modules", "_parameters", "_buffers"):
            return super().__getattr__(name)
        return getattr(self._modules["denoiser"], name)

    def part(self, rows: Tensor | None = None, columns: slice | None = None) -> Constrained:
        """The same for some sequences of the batch, or some positions; what is noted is noted for the whole."""
        part = copy.copy(self)
        if rows is not None:
            part.kind, part.rows = self.kind[rows], self.rows[rows]
        if columns is not None:
            part.kind, part.start = part.kind[:, columns], self.start + (columns.start or 0)
        return part

    def unnoted(self) -> Constrained:
        """The same without taking notes, for draws that leave the constrained law as it is (`Gibbs`): weights are of what was before."""
        part = copy.copy(self)
        part.noting = False
        return part

    def log_probs(
        self, xt: Tensor, t: Tensor | None = None, cond: Tensor | None = None, positions: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """See `Denoiser.log_probs`."""
        log_probs = self.denoiser.log_probs(xt, t, cond, positions, valid)
        return self._at(log_probs, xt, positions, lambda plain, kind: self._restrict(plain, kind))

    def log_score(
        self, xt: Tensor, t: Tensor, cond: Tensor | None = None, positions: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """See `Denoiser.log_score`. The letters' ratios keep their sum, and with it the rate at which tokens open."""
        log_score = self.denoiser.log_score(xt, t, cond, positions, valid)
        emitted = self.vocab.is_emitted(log_score.device)

        def restrict(plain: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
            letters = plain.masked_fill(~emitted, -torch.inf)
            total = letters.logsumexp(-1, keepdim=True)
            cut, mass = self._restrict(letters - total, kind)
            return torch.where(emitted, cut + total, plain), mass

        return self._at(log_score, xt, positions, restrict)

    def step(self, token: Tensor, state: Any = None, cond: Tensor | None = None) -> tuple[Tensor, Any]:
        """See `CausalDenoiser.step`; takes the `part` of the one position that the answer is about. Nothing is noted: see `log_weight`."""
        log_probs, state = self.denoiser.step(token, state, cond)
        return self._restrict(log_probs, self.kind[:, 0])[0], state

    def log_weight(self, x_init: Tensor, tokens: Tensor, cond: Tensor | None = None) -> Tensor:
        """The log importance weight of each sample, (B,) float64: what its draws were allowed, in nats.

        For an autoregressive model a fixed token to the right of a mask is a constraint as well, which its draws did not see: one
        more pass of the network finds what these tokens and the restricted draws weigh.

        Args:
            x_init: (B, L) the template that was filled.
            tokens: (B, L) the samples.
            cond: (B, C) labels that the network was told.
        """
        if not getattr(self.denoiser, "causal", False):
            return self.log_mass.sum(-1)
        hidden = x_init == self.vocab.mask_id
        given = ~hidden & (hidden.cumsum(-1) > 0) & (x_init != self.vocab.pad_id)
        weighed = given | (hidden & self.changes[self.kind])
        if not weighed.any():
            return self.log_mass.sum(-1)
        with torch.no_grad():
            log_probs = self.denoiser.next_log_probs(tokens, cond, weighed).to(self.log_mass)
        mass = self._restrict(log_probs, self.kind[weighed])[1]
        mass = torch.where(given[weighed], log_probs.gather(-1, tokens[weighed][:, None])[:, 0], mass)
        return self.log_mass.masked_scatter(weighed.to(self.log_mass.device), mass).sum(-1)

    def _at(self, plain: Tensor, xt: Tensor, positions: Tensor | None, restrict: Any) -> Tensor:
        """Answers (..., V) at `positions` with those at changed masks replaced, and their mass noted."""
        asked = torch.ones_like(xt, dtype=torch.bool) if positions is None else positions
        flat = plain.reshape(-1, plain.shape[-1])
        row, column = asked.nonzero().unbind(-1)
        kind = self.kind[row, column]
        chosen = (self.changes[kind] & (xt[row, column] == self.vocab.mask_id)).nonzero()[:, 0]
        if not len(chosen):
            return plain
        cut, mass = restrict(flat[chosen], kind[chosen])
        if self.noting:
            self.log_mass[self.rows[row[chosen]], column[chosen] + self.start] = mass.to(self.log_mass)
        return flat.index_copy(0, chosen, cut.to(flat)).view(plain.shape)

    def _restrict(self, log_probs: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        """`log_probs (M, V)` cut and normalised, and the log of the mass that was left (M,); 0 where nothing changes."""
        added = self.added[kind].to(log_probs)
        scored = log_probs + added
        mass = scored.logsumexp(-1)
        # A law that gives none of the allowed letters any mass leaves the choice to the constraint alone; such a sample weighs nothing.
        normalised = torch.where(mass.isneginf()[:, None], torch.log_softmax(added, -1), scored - mass[:, None])
        changes = self.changes[kind]
        return torch.where(changes[:, None], normalised, log_probs), mass.masked_fill(~changes, 0.0)
