"""Constraints on samples, position by position: a wrapper around any denoiser, and the importance weight that corrects for it.

A token is drawn from p(x0 | xt) restricted to the allowed tokens and normalized. An early token does not account for what it costs later
ones. The weight corrects this: it is the product over all draws of the allowed mass Z, and leads to the model's distribution given the
constraint. With a tilt, Z is the tilted mass, and the distribution is the model's times exp(tilt) of every token.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.backbone.base import BidirectionalBackbone, State
from dnadiff.blocks import block_rows, sequence_rows
from dnadiff.denoiser import BaseDenoiser, DenoiserWrapper, OptTensor


class Constrained(DenoiserWrapper):
    """A denoiser whose distribution at each masked position is restricted to the allowed tokens and tilted.

    It serves one batch. Each call records the log of the allowed mass at its positions; of several calls about one position, the last
    one before it is unmasked counts, because its token is drawn from that one. For some rows or columns of the batch use `for_rows`.
    Where every token is allowed and there is no tilt, the predictions of the denoiser pass unchanged.

    Args:
        denoiser: the denoiser to constrain, guided or not.
        kind: (B, L) int64, the row of `allowed` that applies at each position.
        allowed: (K, V) bool, tokens allowed at positions of each kind.
        tilt: (V,) added to the log-probabilities before they are normalized; None is 0.
    """

    same_for_all_rows = False

    def __init__(self, denoiser: BaseDenoiser, kind: Tensor, allowed: Tensor, tilt: OptTensor = None) -> None:
        super().__init__(denoiser)
        allowed, self.kind = allowed.to(kind.device), kind
        emitted, zero = self.vocab.is_emitted(kind.device), torch.zeros(self.vocab.size, device=kind.device)
        self.added = torch.where(allowed & emitted, zero if tilt is None else tilt.to(zero), -torch.inf)  # (K, V)
        self.changes = (allowed != emitted).any(-1) if tilt is None else torch.ones_like(allowed[:, 0])
        self.log_mass = torch.zeros(kind.shape, dtype=torch.float64, device="cpu" if kind.device.type == "mps" else kind.device)
        self.rows, self.start = torch.arange(len(kind), device=kind.device), 0
        self.recording = True

    @override
    def for_rows(self, rows: OptTensor = None, columns: slice | None = None) -> Constrained:
        part = copy.copy(self)  # records into the same `log_mass`
        if columns is not None:  # first, so that only these are copied
            part.kind, part.start = self.kind[:, columns], self.start + (columns.start or 0)
        if rows is not None:
            part.kind, part.rows = part.kind[rows], self.rows[rows]
        return part

    @override
    def without_recording(self) -> Constrained:
        part = copy.copy(self)
        part.recording = False
        return part

    @override
    def log_probs(
        self, xt: Tensor, t: OptTensor = None, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None
    ) -> Tensor:
        log_probs = self.denoiser.log_probs(xt, t, cond, positions, valid)
        return self._constrain(log_probs, xt, positions, self._restrict)

    @override
    def log_score(self, xt: Tensor, t: Tensor, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None) -> Tensor:
        log_score = self.denoiser.log_score(xt, t, cond, positions, valid)
        emitted = self.vocab.is_emitted(log_score.device)

        def restrict(ratios: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
            # The sum of the ratios is kept, and with it the rate at which tokens are unmasked.
            letters = ratios.masked_fill(~emitted, -torch.inf)
            total = letters.logsumexp(-1, keepdim=True)
            restricted, mass = self._restrict(letters - total, kind)
            return torch.where(emitted, restricted + total, ratios), mass

        return self._constrain(log_score, xt, positions, restrict)

    @override
    def next_log_probs(self, x: Tensor, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None) -> Tensor:
        return self.denoiser.next_log_probs(x, cond, positions, valid)

    @override
    def step(self, token: Tensor, state: State | None = None, cond: OptTensor = None) -> tuple[Tensor, State]:
        # Called on `for_rows` of the one column that is predicted. Nothing is recorded: `log_weight` computes the mass afterwards.
        log_probs, state = self.denoiser.step(token, state, cond)
        return self._restrict(log_probs, self.kind[:, 0])[0], state

    @override
    def step_block(
        self, xt: Tensor, state: State | None = None, cond: OptTensor = None, positions: OptTensor = None, valid: OptTensor = None
    ) -> Tensor:
        # Called on `for_rows` of the columns of the block.
        return self._constrain(self.denoiser.step_block(xt, state, cond, positions, valid), xt, positions, self._restrict)

    @override
    def advance(self, x0: Tensor, state: State | None = None, cond: OptTensor = None, valid: OptTensor = None) -> State:
        return self.denoiser.advance(x0, state, cond, valid)

    @override
    def around(self, xt: Tensor, columns: slice, cond: OptTensor = None, valid: OptTensor = None) -> State:
        return self.denoiser.around(xt, columns, cond, valid)

    def log_weight(self, x_init: Tensor, tokens: Tensor, cond: OptTensor = None) -> Tensor:
        """The log importance weight of each sample, (B,) float64, in nats.

        For an autoregressive model a fixed token to the right of a mask is a constraint as well, which its draws could not see. One more
        pass of the network computes the mass of these tokens and of the restricted draws. The same holds for a block model and fixed
        tokens in later blocks. Their mass is that of the chain rule from left to right among the fixed tokens of a
        block, before its masks: one pass for each of them, for all blocks at once.

        Args:
            x_init: (B, L) the template that was filled.
            tokens: (B, L) the samples.
            cond: (B, C) labels that the network was conditioned on.
        """
        if self.reads is BidirectionalBackbone:
            return self.log_mass.sum(-1)
        if not self.autoregressive:
            return self.log_mass.sum(-1) + self._given_log_mass(x_init, tokens, cond)
        masked = x_init == self.vocab.mask_id
        given = ~masked & (masked.cumsum(-1) > 0) & (x_init != self.vocab.pad_id)
        counted = given | (masked & self.changes[self.kind])
        if not counted.any():
            return self.log_mass.sum(-1)
        with torch.no_grad():
            log_probs = self.denoiser.next_log_probs(tokens, cond, counted).to(self.log_mass)
        mass = self._restrict(log_probs, self.kind[counted])[1]
        mass = torch.where(given[counted], log_probs.gather(-1, tokens[counted][:, None])[:, 0], mass)
        return self.log_mass.masked_scatter(counted.to(self.log_mass.device), mass).sum(-1)

    def _given_log_mass(self, x_init: Tensor, tokens: Tensor, cond: OptTensor) -> Tensor:
        """log p of the fixed tokens in blocks after the first one with a mask, each given the earlier blocks and fixed ones: (B,)."""
        size, length, pad_id = min(self.block_size or 1, x_init.shape[1]), x_init.shape[1], self.vocab.pad_id
        masked = x_init == self.vocab.mask_id
        blocks = block_rows(masked, size, 0).view(len(x_init), -1, size)
        after = (blocks.any(-1).cumsum(-1) > 0).roll(1, 1)
        after[:, 0] = False
        given = sequence_rows(after[..., None].expand(blocks.shape).reshape(-1, size), length) & ~masked & (x_init != pad_id)
        given &= self.vocab.is_emitted(tokens.device)[tokens]
        rank = sequence_rows(block_rows(given, size, 0).cumsum(-1) - 1, length)  # from left to right inside a block
        total = torch.zeros(len(x_init), dtype=torch.float64, device=self.log_mass.device)
        with torch.no_grad():
            for now in range(int(rank[given].max()) + 1 if given.any() else 0):
                chosen = given & (rank == now)
                xt = torch.where(masked | (given & (rank >= now)), self.vocab.mask_id, tokens)
                nll = self.denoiser.unwrapped.nll(tokens, xt, None, cond, chosen)
                total.index_add_(0, chosen.nonzero()[:, 0].to(total.device), -nll.to(total))
        return total

    def _constrain(
        self, predicted: Tensor, xt: Tensor, positions: OptTensor, restrict: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Predictions (..., V) at `positions`, restricted at constrained masks; records their mass."""
        requested = torch.ones_like(xt, dtype=torch.bool) if positions is None else positions
        flat = predicted.reshape(-1, predicted.shape[-1])
        row, column = requested.nonzero().unbind(-1)
        kind = self.kind[row, column]
        chosen = (self.changes[kind] & (xt[row, column] == self.vocab.mask_id)).nonzero()[:, 0]
        if not len(chosen):
            return predicted
        restricted, mass = restrict(flat[chosen], kind[chosen])
        if self.recording:
            self.log_mass[self.rows[row[chosen]], column[chosen] + self.start] = mass.to(self.log_mass)
        return flat.index_copy(0, chosen, restricted.to(flat)).view(predicted.shape)

    def _restrict(self, log_probs: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        """`log_probs (M, V)` restricted and normalized, and the log of the allowed mass (M,); 0 where nothing changes."""
        added = self.added[kind].to(log_probs)
        scored = log_probs + added
        mass = scored.logsumexp(-1)
        # If the model gives no allowed token any mass, draw from the constraint alone; such a sample gets weight 0.
        normalized = torch.where(mass.isneginf()[:, None], torch.log_softmax(added, -1), scored - mass[:, None])
        changes = self.changes[kind]
        return torch.where(changes[:, None], normalized, log_probs), mass.masked_fill(~changes, 0.0)
