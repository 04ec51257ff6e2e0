"""Denoisers that stand in front of another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff.diffusion.denoiser.base import BaseDenoiser, MaskedDenoiser, OptTensor
from dnadiff.networks.backbone.base import Backbone, BidirectionalBackbone, State
from dnadiff.networks.backbone.context import Peers


class DenoiserWrapper(MaskedDenoiser):
    """A denoiser that changes the predictions of another one. Its properties are those of the
    wrapped denoiser.

    It implements what the kinds of denoisers that it is for can be asked.
    """

    denoiser: Any  # of the kind that `reads` says

    def __init__(self, denoiser: BaseDenoiser) -> None:
        super().__init__(denoiser.vocab)
        self.denoiser, self.reads, self.block_size = denoiser, denoiser.reads, denoiser.block_size
        self.process_type, self.time_conditioning = (
            denoiser.process_type,
            denoiser.time_conditioning,
        )
        self.normalized = not isinstance(denoiser, MaskedDenoiser) or denoiser.normalized
        self.rows_per_sequence, self.max_length, self.num_labels = (
            denoiser.rows_per_sequence,
            denoiser.max_length,
            denoiser.num_labels,
        )

    # The wrapped denoiser's submodule; assigning it here would register it twice.
    @property
    def backbone(self) -> Backbone:  # type: ignore[override]
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


class PiecewiseDenoiser(DenoiserWrapper):
    """Takes whole sequences, as an objective gives them, and returns predictions for all requested
    positions in every process.

    Each process computes the positions of its own piece and receives the other predictions without
    their gradients. So the objective is the same in all processes, and the gradient of each
    parameter is the sum over the processes.

    Args:
        denoiser: its network reads pieces (`Backbone.spread`).
        peers: the processes that hold the pieces.
    """

    def __init__(self, denoiser: BaseDenoiser, peers: Peers) -> None:
        super().__init__(denoiser)
        self.peers = peers
        if isinstance(denoiser, MaskedDenoiser):
            self.banned = denoiser.banned

    @property
    @override
    def fused_head(self) -> bool:
        return self.denoiser.fused_head

    @override
    def nll(
        self,
        x0: Tensor,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        positions = torch.ones_like(x0, dtype=torch.bool) if positions is None else positions
        places = self._places(positions)
        found = self.denoiser.nll(
            self._own(x0), self._own(xt), t, cond, self._own(positions), self._own_valid(valid)
        )
        return self._joined(found, places)

    @override
    def log_probs(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        return self._predicted(self.denoiser.log_probs, xt, t, cond, positions, valid)

    @override
    def x0_log_probs(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        return self._predicted(self.denoiser.x0_log_probs, xt, t, cond, positions, valid)

    def log_score(
        self,
        xt: Tensor,
        t: Tensor,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """See `Denoiser`."""
        return self._predicted(self.denoiser.log_score, xt, t, cond, positions, valid)

    @override
    def log_sum_and_logits(
        self,
        ids: Tensor,
        banned: Sequence[int],
        xt: Tensor,
        t: OptTensor,
        cond: OptTensor,
        positions: Tensor,
        valid: OptTensor,
    ) -> tuple[Tensor, Tensor]:
        places = self._places(positions)
        ids = ids[places[self.peers.rank]]
        log_sum, logits = self.denoiser.log_sum_and_logits(
            ids, banned, self._own(xt), t, cond, self._own(positions), self._own_valid(valid)
        )
        return self._joined(log_sum, places), self._joined(logits, places)

    def _predicted(
        self,
        predict: Callable[..., Tensor],
        xt: Tensor,
        t: OptTensor,
        cond: OptTensor,
        positions: OptTensor,
        valid: OptTensor,
    ) -> Tensor:
        requested = torch.ones_like(xt, dtype=torch.bool) if positions is None else positions
        places = self._places(requested)
        found = predict(self._own(xt), t, cond, self._own(requested), self._own_valid(valid))
        joined = self._joined(found, places)
        return joined if positions is not None else joined.view(*xt.shape, -1)

    def _own(self, x: Tensor) -> Tensor:
        """The columns of this process."""
        return x.chunk(self.peers.size, 1)[self.peers.rank]

    def _own_valid(self, valid: OptTensor) -> OptTensor:
        return None if valid is None else self._own(valid)

    def _places(self, positions: Tensor) -> list[Tensor]:
        """For each process, the places of its positions in the row-major order of all `positions`
        (B, L); call it before the network."""
        size = self.peers.size
        numbers = (positions.flatten().cumsum(0) - 1).view(positions.shape)
        return [
            number[own]
            for number, own in zip(numbers.chunk(size, 1), positions.chunk(size, 1), strict=True)
        ]

    def _joined(self, found: Tensor, places: list[Tensor]) -> Tensor:
        """What all processes found (m, ...) at their positions, in row-major order of all
        positions: (M, ...)."""
        return _Join.apply(found, places, self.peers)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, found: Tensor, places: list[Tensor], peers: Peers) -> Tensor:
        ctx.save_for_backward(places[peers.rank])
        sent = found.new_zeros(max(len(place) for place in places), *found.shape[1:])
        sent[: len(found)] = found
        joined = found.new_empty(sum(len(place) for place in places), *found.shape[1:])
        for place, received in zip(places, peers.gather(sent), strict=True):
            joined[place] = received[: len(place)]
        return joined

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient[ctx.saved_tensors[0]], None, None
