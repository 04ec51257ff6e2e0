"""Wrappers of a denoiser that condition samples: constraints position by position with the
importance weight that corrects for them, and classifier-free guidance by labels.

Under a constraint a token is drawn from p(x0 | xt) restricted to the allowed tokens and normalized.
An early draw does not take into account how it restricts later ones. The weight corrects this: it
is the product over all draws of the allowed mass Z, and leads to the model's distribution given the
constraint. With a tilt, Z is the tilted mass, and the distribution is the model's times exp(tilt)
of every token. For a model that goes from left to right, a fixed token that a draw could not see is
a constraint as well: its probability is a factor of the weight."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import BaseDenoiser, DenoiserWrapper, Kind, OptTensor, Query
from dnadiff.diffusion.draws import float64_device
from dnadiff.diffusion.process import AbsorbingProcess, after_first, require
from dnadiff.networks.backbone.base import State


class Constrained(DenoiserWrapper):
    """A denoiser whose distribution at each masked position is restricted to the allowed tokens and
    tilted.

    It serves one batch. Each call records the log of the allowed mass at its positions; of several
    calls about one position, the last one before it is unmasked counts, because its token is drawn
    from that one. For some rows or columns of the batch use `for_rows`. Where every token is
    allowed and there is no tilt, the predictions of the denoiser pass unchanged.

    Args:
        denoiser: the denoiser to constrain, guided or not.
        kind: (B, L) int64, the row of `allowed` that applies at each position.
        allowed: (K, V) bool, tokens allowed at positions of each kind.
        tilt: (V,) added to the log-probabilities before they are normalized; None is 0.
        template: (B, L) the tokens to fill, for the weights of a model that goes from left to
            right; other models do not need it, and None makes no such weights.
    """

    same_for_all_rows = False

    def __init__(
        self,
        denoiser: BaseDenoiser,
        kind: Tensor,
        allowed: Tensor,
        tilt: OptTensor = None,
        template: OptTensor = None,
    ) -> None:
        super().__init__(denoiser)
        require("a constraint on samples", denoiser, AbsorbingProcess)
        allowed = allowed.to(kind.device)
        self.kind = kind
        emitted = self.vocab.is_emitted(kind.device)
        added = torch.zeros(self.vocab.size, device=kind.device)
        if tilt is not None:
            added += tilt.to(added)
        self.added = torch.where(allowed & emitted, added, -torch.inf)  # (K, V)
        self.changes = (
            (allowed != emitted).any(-1) if tilt is None else torch.ones_like(allowed[:, 0])
        )
        exact = float64_device(kind.device)
        self.log_mass = torch.zeros(kind.shape, dtype=torch.float64, device=exact)
        self.rows = torch.arange(len(kind), device=kind.device)
        self.start = 0
        self.recording = True
        self.template = self.given = None
        if template is not None and self.left_to_right:
            # The fixed tokens (B, L) bool that not every draw can see are `given`.
            masked = template == self.vocab.mask_id
            later = after_first(masked, self.block_size)
            self.template = template
            self.given = later & ~masked & emitted[template]

    def for_rows(self, rows: OptTensor = None, columns: slice | None = None) -> Constrained:
        part = copy.copy(self)  # records into the same `log_mass`
        if columns is not None:
            part.start = self.start + (columns.start or 0)
        if rows is not None:
            part.rows = self.rows[rows]
        for name in ("kind", "template", "given"):
            whole = getattr(self, name)
            if whole is not None and columns is not None:  # first, so that only these are copied
                whole = whole[:, columns]
            setattr(part, name, whole if whole is None or rows is None else whole[rows])
        return part

    def without_recording(self) -> Constrained:
        part = copy.copy(self)
        part.recording = False
        return part

    def predict(self, kind: Kind, query: Query) -> Tensor:
        predicted = getattr(self.denoiser, kind)(*query)
        return self._constrain(
            predicted, query, self._restrict_ratios if kind == "log_score" else self._restrict
        )

    def _restrict_ratios(self, ratios: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the ratios is kept, and with it the rate at which tokens are unmasked."""
        emitted = self.vocab.is_emitted(ratios.device)
        letters = ratios.masked_fill(~emitted, -torch.inf)
        total = letters.logsumexp(-1, keepdim=True)
        restricted, mass = self._restrict(letters - total, kind)
        return torch.where(emitted, restricted + total, ratios), mass

    def step(
        self, token: Tensor, state: State | None = None, cond: OptTensor = None
    ) -> tuple[Tensor, State]:
        """See `CausalDenoiser.step`; called on `for_rows` of the column that is predicted."""
        log_probs, state = self.denoiser.step(token, state, cond)
        return self._next(log_probs[:, None])[:, 0], state

    def read(
        self, tokens: Tensor, state: State | None = None, cond: OptTensor = None
    ) -> tuple[Tensor, State]:
        """See `CausalDenoiser.read`; called on `for_rows` of the columns that are predicted."""
        log_probs, state = self.denoiser.read(tokens, state, cond)
        return self._next(log_probs), state

    def _next(self, log_probs: Tensor) -> Tensor:
        """Restricts predictions (B, n, V) of an autoregressive model at all columns of this part,
        and records the mass."""
        restricted, mass = self._restrict(log_probs.flatten(0, 1), self.kind.flatten())
        if self.template is not None and self.given is not None:
            fixed = log_probs.gather(-1, self.template[..., None])[..., 0]
            seen = torch.where(self.given, fixed, 0.0).flatten()
            mass = torch.where(self.template.flatten() == self.vocab.mask_id, mass, seen)
            row, column = torch.ones_like(self.kind).nonzero().unbind(-1)
            self._record(row, column, mass)
        return restricted.view(log_probs.shape)

    def step_block(self, query: Query, state: State | None = None) -> Tensor:
        """See `BlockDenoiser.step_block`."""
        # Called on `for_rows` of the columns of the block.
        return self._constrain(self.denoiser.step_block(query, state), query, self._restrict)

    def advance(self, query: Query, state: State | None = None) -> State:
        """See `BlockDenoiser.advance`."""
        return self.denoiser.advance(query, state)

    def score_given(self, query: Query, state: State | None = None) -> list[int]:
        """Record the probability of the `given` tokens of a block whose masks are not filled yet.

        Args:
            query, state: as in `BlockDenoiser.step_block`; tokens are those of the template.

        Returns:
            The number of sequences in each network call.
        """
        # Called on `for_rows` of the columns of the block. A row asks for one token: it and those
        # to its right are masked. A call has as many rows as one that fills masks, so that memory
        # does not depend on the number of tokens.
        if self.template is None or self.given is None:
            return []
        place = torch.arange(self.template.shape[1], device=self.template.device)
        index = self.given.nonzero()
        sizes = []
        for first in range(0, len(index), len(self.template)):
            row, column = index[first : first + len(self.template)].unbind(-1)
            asked = column[:, None]
            template = self.template[row]
            xt = torch.where(self.given[row] & (place >= asked), self.vocab.mask_id, template)
            past = None if state is None else state.select(row)
            block = query.rows(row)._replace(xt=xt, positions=place == asked)
            log_probs = self.denoiser.step_block(block, past)
            self._record(row, column, log_probs.gather(-1, template.gather(-1, asked))[:, 0])
            sizes.append(len(row))
        return sizes

    def around(self, query: Query, columns: slice) -> State:
        """See `Denoiser.around`."""
        return self.denoiser.around(query, columns)

    def log_weight(self) -> Tensor:
        """The log importance weight of each sample of the batch that was drawn, (B,) float64, in
        nats.

        The fixed tokens of a block have the probability of the chain rule from left to right, each
        given the earlier blocks and the fixed tokens to its left, before the masks of the block are
        filled. For an autoregressive model a block is one token.
        """
        return self.log_mass.sum(-1)

    def _constrain(
        self,
        predicted: Tensor,
        query: Query,
        restrict: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    ) -> Tensor:
        """Predictions (..., V) at the requested positions, restricted at constrained masks; records
        their mass."""
        flat = predicted.reshape(-1, predicted.shape[-1])
        row, column = query.requested.nonzero().unbind(-1)
        kind = self.kind[row, column]
        chosen = (self.changes[kind] & (query.xt[row, column] == self.vocab.mask_id)).nonzero()[
            :, 0
        ]
        if not len(chosen):
            return predicted
        restricted, mass = restrict(flat[chosen], kind[chosen])
        self._record(row[chosen], column[chosen], mass)
        return flat.index_copy(0, chosen, restricted.to(flat)).view(predicted.shape)

    def _record(self, row: Tensor, column: Tensor, mass: Tensor) -> None:
        """Store the mass (M,) at rows and columns of this part of the batch."""
        if self.recording:
            at = (x.to(self.log_mass.device) for x in (self.rows[row], column + self.start))
            self.log_mass[tuple(at)] = mass.to(self.log_mass)

    def _restrict(self, log_probs: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        """`log_probs (M, V)` restricted and normalized, and the log of the allowed mass (M,); 0
        where nothing changes."""
        added = self.added[kind].to(log_probs)
        scored = log_probs + added
        mass = scored.logsumexp(-1)
        # If the model gives no allowed token any mass, draw from the constraint alone; such a
        # sample gets weight 0.
        normalized = torch.where(
            mass.isneginf()[:, None], torch.log_softmax(added, -1), scored - mass[:, None]
        )
        changes = self.changes[kind]
        return torch.where(changes[:, None], normalized, log_probs), mass.masked_fill(~changes, 0.0)


class Guided(DenoiserWrapper):
    """Classifier-free guidance of a denoiser trained with labels: p proportional to p(x0 | xt,
    label)^w p(x0 | xt)^(1 - w).

    Both distributions come from one network call on twice the sequences; an unlabeled one has a row
    of zeros (arXiv 2207.12598; for discrete diffusion 2412.10193). Guidance changes which tokens
    are drawn, not how many a step unmasks, and ratios (`log_score`) are not available.

    Args:
        denoiser: the denoiser to guide; not autoregressive.
        weight: w, 0 or more; 1 is the distribution given the label, more than 1 exaggerates what
            the label changes.
    """

    def __init__(self, denoiser: BaseDenoiser, weight: float) -> None:
        super().__init__(denoiser)
        if denoiser.autoregressive:
            raise ValueError(
                "guidance is for models that unmask, and this one is autoregressive; set guidance=1"
            )
        self.weight = weight
        self.normalized = True
        self.rows_per_sequence *= 2

    def predict(self, kind: Kind, query: Query) -> Tensor:
        return self._mixed(self.denoiser.log_probs(*_with_unlabeled(query)))

    def step_block(self, query: Query, state: State | None = None) -> Tensor:
        """See `BlockDenoiser.step_block`."""
        return self._mixed(self.denoiser.step_block(_with_unlabeled(query), _joined(state)))

    def advance(self, query: Query, state: State | None = None) -> State:
        """The state has the tensors of the labeled sequences, then those of the unlabeled ones."""
        both = self.denoiser.advance(_with_unlabeled(query), _joined(state))
        return State(
            [half for which in (0, 1) for half in (x.chunk(2)[which] for x in both.tensors)],
            both.length,
        )

    def _mixed(self, both: Tensor) -> Tensor:
        labeled, unlabeled = both.chunk(2)
        mixed = self.weight * labeled + (1 - self.weight) * unlabeled
        # Both give 0 to ids that are never emitted; inf - inf otherwise.
        impossible = labeled.isneginf() | unlabeled.isneginf()
        return torch.log_softmax(mixed.masked_fill(impossible, -torch.inf), dim=-1)


def _with_unlabeled(query: Query) -> Query:
    if query.cond is None:
        raise ValueError("guidance needs a label: pass cond (B, C)")
    twice = Query._make(None if x is None else torch.cat([x, x]) for x in query)
    return twice._replace(cond=torch.cat([query.cond, torch.zeros_like(query.cond)]))


def _joined(state: State | None) -> State | None:
    """The state of 2B sequences, the labeled ones first, from that of `Guided.advance`."""
    if state is None:
        return None
    half = len(state.tensors) // 2
    return State(
        [torch.cat(pair) for pair in zip(state.tensors[:half], state.tensors[half:])], state.length
    )
