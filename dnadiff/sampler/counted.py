"""How samplers call a denoiser: only for sequences with something to predict, and counted."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dnadiff.denoiser import BaseDenoiser, InBlock, InContext, State


class CountedDenoiser:
    """A denoiser for one batch, and how much it was used.

    Only sequences with a requested position are evaluated. If all of these are equal, as at the
    beginning, when everything is masked, one of them is evaluated and the others share its
    predictions.

    Attributes:
        nfe: network calls so far.
        rows: sequences evaluated in them.
    """

    def __init__(
        self, denoiser: BaseDenoiser, cond: Tensor | None = None, valid: Tensor | None = None
    ) -> None:
        self.denoiser, self.cond, self.valid = denoiser, cond, valid
        self.nfe = self.rows = 0

    def log_probs(self, x: Tensor, t: Tensor, positions: Tensor) -> Tensor:
        """Log-probabilities (M, V) at `positions (B, L)` bool, row-major, of `x (B, L)` at times
        `t (B,)`."""
        return self._call(
            lambda denoiser: denoiser.log_probs, x, t, positions, self.denoiser.time_conditioning
        )

    def log_score(self, x: Tensor, t: Tensor, positions: Tensor) -> Tensor:
        """Log-ratios (M, V); arguments as in `log_probs`. They depend on the time also if the
        network is not conditioned on it."""
        return self._call(lambda denoiser: denoiser.log_score, x, t, positions, True)

    def read(self, tokens: Tensor, state: State, rows: Tensor, columns: slice) -> State:
        """`CausalDenoiser.read` for some `rows` of the batch, predicting given tokens in `columns`:
        the state afterwards."""
        self.nfe += 1
        self.rows += len(rows) * self.denoiser.rows_per_sequence
        denoiser = self.denoiser.for_rows(rows, columns)
        return denoiser.read(tokens, state, None if self.cond is None else self.cond[rows])[1]

    def step(
        self, token: Tensor, state: State | None, rows: Tensor, column: int
    ) -> tuple[Tensor, State]:
        """`CausalDenoiser.step` for some `rows` of the batch, predicting the tokens in `column`."""
        self.nfe += 1
        self.rows += len(rows) * self.denoiser.rows_per_sequence
        denoiser = self.denoiser.for_rows(rows, slice(column, column + 1))
        return denoiser.step(token, state, None if self.cond is None else self.cond[rows])

    def without_recording(self) -> None:
        """From here on use the denoiser without side effects (see `Constrained`)."""
        self.denoiser = self.denoiser.without_recording()

    def for_columns(self, columns: slice) -> CountedDenoiser:
        """A counter for some positions of the batch; add its counts with `add`."""
        return CountedDenoiser(
            self.denoiser.for_rows(None, columns),
            self.cond,
            None if self.valid is None else self.valid[:, columns],
        )

    def for_block(self, rows: Tensor, columns: slice, state: State | None) -> CountedDenoiser:
        """A counter for one block of some `rows` of the batch, after the blocks in `state`; see
        `for_columns`."""
        cond, valid = self._of_block(rows, columns)
        return CountedDenoiser(InBlock(self.denoiser.for_rows(rows, columns), state), cond, valid)

    def in_context(self, x: Tensor, rows: Tensor, read: slice, columns: slice) -> CountedDenoiser:
        """A counter for some `columns` of some `rows` of the batch, which reads the tokens in
        `read` again in each call; see `for_columns`.

        The other tokens are read here, once, and their keys and values are used in each call
        (`BaseDenoiser.around`).

        Args:
            x: (B, L) tokens of the batch.
            rows: index of sequences.
            read: includes `columns`.
            columns: positions to predict.
        """
        x, (cond, valid) = x[rows], self._of_block(rows, slice(None))
        equal, state = self._equal(x, cond, valid), None
        if read.stop - read.start < x.shape[1]:
            self.nfe += 1
            self.rows += (1 if equal else len(x)) * self.denoiser.rows_per_sequence
            first = slice(1 if equal else None)
            state = self.denoiser.around(
                x[first],
                read,
                *(None if given is None else given[first] for given in (cond, valid)),
            )
            state = state.select(x.new_zeros(len(x))) if equal else state
        inside = slice(columns.start - read.start, columns.stop - read.start)
        context = None if valid is None else valid[:, read]
        inner = InContext(
            self.denoiser.for_rows(rows, read), state, x[:, read], inside, context, equal
        )
        return CountedDenoiser(inner, cond, None if valid is None else valid[:, columns])

    def advance(self, x0: Tensor, state: State | None, rows: Tensor, columns: slice) -> State:
        """`BlockDenoiser.advance` over a finished block x0 of some `rows` of the batch."""
        self.nfe += 1
        self.rows += len(rows) * self.denoiser.rows_per_sequence
        return self.denoiser.advance(x0, state, *self._of_block(rows, columns))

    def score_given(self, state: State | None, rows: Tensor, columns: slice) -> None:
        """`BaseDenoiser.score_given` for a block of some `rows` of the batch that is not filled
        yet."""
        if self.denoiser.given is not None:
            calls = self.denoiser.for_rows(rows, columns).score_given(
                state, *self._of_block(rows, columns)
            )
            self.nfe += len(calls)
            self.rows += sum(calls) * self.denoiser.rows_per_sequence

    def ends(self, masked: Tensor) -> Tensor:
        """One after the last position of `masked (B, L)` and of those that the denoiser scores, 0
        if there are none: (B,)."""
        asked = masked if self.denoiser.given is None else masked | self.denoiser.given
        return (asked * torch.arange(1, masked.shape[1] + 1, device=masked.device)).amax(-1)

    def _of_block(self, rows: Tensor, columns: slice) -> tuple[Tensor | None, Tensor | None]:
        """Labels and padding of a block."""
        return None if self.cond is None else self.cond[
            rows
        ], None if self.valid is None else self.valid[rows, columns]

    def add(self, other: CountedDenoiser) -> None:
        """Add the counts of another one."""
        self.nfe, self.rows = self.nfe + other.nfe, self.rows + other.rows

    def _equal(self, *inputs: Tensor | None) -> bool:
        """Whether several sequences with these inputs have the same predictions."""
        given = [x for x in inputs if x is not None]
        return (
            self.denoiser.same_for_all_rows
            and len(given[0]) > 1
            and all(bool((x == x[:1]).all()) for x in given)
        )

    def _call(
        self,
        method: Callable[[BaseDenoiser], Callable[..., Tensor]],
        x: Tensor,
        t: Tensor,
        positions: Tensor,
        timed: bool,
    ) -> Tensor:
        active = positions.any(-1).nonzero()[:, 0]
        x, t, positions = x[active], t[active], positions[active]
        cond, valid = (
            None if given is None else given[active] for given in (self.cond, self.valid)
        )
        call = method(self.denoiser.for_rows(active))
        equal = self._equal(x, cond, valid, t if timed else None)
        self.nfe += 1
        self.rows += (1 if equal else len(active)) * self.denoiser.rows_per_sequence
        if not equal:
            return call(x, t, cond, positions, valid)
        union = positions.any(0, keepdim=True)  # (1, L)
        found = call(
            x[:1],
            t[:1],
            None if cond is None else cond[:1],
            union,
            None if valid is None else valid[:1],
        )
        return found[(union.cumsum(-1) - 1).expand(positions.shape)[positions]]
