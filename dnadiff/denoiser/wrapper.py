"""Denoisers that stand in front of another one."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.backbone.base import Backbone, BidirectionalBackbone, State
from dnadiff.denoiser.base import BaseDenoiser, OptTensor


class DenoiserWrapper(BaseDenoiser):
    """A denoiser that changes the predictions of another one. Its properties are those of the
    wrapped denoiser."""

    def __init__(self, denoiser: BaseDenoiser) -> None:
        super().__init__(denoiser.vocab)
        self.denoiser, self.reads, self.block_size = denoiser, denoiser.reads, denoiser.block_size
        self.process_type = denoiser.process_type
        self.time_conditioning, self.normalized = denoiser.time_conditioning, denoiser.normalized
        self.rows_per_sequence, self.max_length, self.num_labels = (
            denoiser.rows_per_sequence,
            denoiser.max_length,
            denoiser.num_labels,
        )

    @property
    def backbone(self) -> Backbone:  # type: ignore[override]  # the wrapped denoiser's submodule; assigning it here would register it twice
        """The network of the wrapped denoiser."""
        return self.denoiser.backbone

    @property
    @override
    def unwrapped(self) -> BaseDenoiser:
        return self.denoiser.unwrapped

    @override
    def features(self, ids: Tensor, valid: OptTensor = None) -> Tensor:
        return self.denoiser.features(ids, valid)


class InBlock(DenoiserWrapper):
    """A block diffusion model in one block, given the blocks before it: a masked diffusion model of
    the block, for any sampler.

    Args:
        denoiser: reads blocks (`BaseDenoiser.step_block`).
        state: after the blocks before; None for the first block.
    """

    def __init__(self, denoiser: BaseDenoiser, state: State | None) -> None:
        super().__init__(denoiser)
        self.reads, self.block_size, self.state = BidirectionalBackbone, None, state
        self.normalized = True  # `step_block` returns probabilities; there is no `log_score`
        self.same_for_all_rows = state is None and denoiser.same_for_all_rows

    @override
    def for_rows(self, rows: OptTensor = None, columns: slice | None = None) -> InBlock:
        state = self.state
        if (
            state is not None and rows is not None and not _is_all(rows, len(state.tensors[0]))
        ):  # copies a cache of keys and values
            state = state.select(rows)
        return InBlock(self.denoiser.for_rows(rows, columns), state)

    @override
    def without_recording(self) -> InBlock:
        return InBlock(self.denoiser.without_recording(), self.state)

    @override
    def log_probs(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        return self.denoiser.step_block(xt, self.state, cond, positions, valid)


class InContext(InBlock):
    """A bidirectional model at some positions, given the other tokens: those in a cache, and those
    that it reads in each call.

    Args:
        denoiser: has `BaseDenoiser.step_block`.
        state: the tokens that are not in `xt` (`BaseDenoiser.around`); None if all are.
        xt: (B, n) the tokens that are read in each call.
        columns: the positions in `xt` that are predicted. Callers pass the tokens at these
            positions alone.
        valid: (B, n) bool, False on padding in `xt`.
        equal: whether all sequences have the same context, so that `log_probs` may be called with
            the first sequence alone.
    """

    def __init__(
        self,
        denoiser: BaseDenoiser,
        state: State | None,
        xt: Tensor,
        columns: slice,
        valid: OptTensor = None,
        equal: bool = False,
    ) -> None:
        super().__init__(denoiser, state)
        self.xt, self.columns, self.valid, self.same_for_all_rows = xt, columns, valid, equal

    @override
    def for_rows(self, rows: OptTensor = None, columns: slice | None = None) -> InContext:
        if columns is not None:
            raise ValueError("InContext serves its positions as a whole; columns must be None")
        if rows is None:
            return self
        inner, valid = super().for_rows(rows), None if self.valid is None else self.valid[rows]
        return InContext(
            inner.denoiser, inner.state, self.xt[rows], self.columns, valid, self.same_for_all_rows
        )

    @override
    def without_recording(self) -> InContext:
        return InContext(
            self.denoiser.without_recording(),
            self.state,
            self.xt,
            self.columns,
            self.valid,
            self.same_for_all_rows,
        )

    @override
    def log_probs(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        whole, context, state = self.xt.clone(), self.valid, self.state
        if len(xt) < len(whole):  # one for all
            first = torch.arange(len(xt), device=xt.device)
            whole, context, state = (
                whole[first],
                None if context is None else context[first],
                None if state is None else state.select(first),
            )
        requested = torch.zeros_like(whole, dtype=torch.bool)
        whole[:, self.columns], requested[:, self.columns] = (
            xt,
            True if positions is None else positions,
        )
        found = self.denoiser.step_block(whole, state, cond, requested, context)
        return found if positions is not None else found.view(*xt.shape, -1)


def _is_all(rows: Tensor, count: int) -> bool:
    """Whether `rows`, an index or a mask, selects each of `count` sequences in its place."""
    if rows.dtype == torch.bool:
        return bool(rows.all())
    return len(rows) == count and torch.equal(rows, torch.arange(count, device=rows.device))
