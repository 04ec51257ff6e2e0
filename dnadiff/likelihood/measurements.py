"""Measurements of h(n), the mean cross-entropy of a masked token when n others are visible, as sums
that a curve can be fitted to.

A window of a model that unmasks in any order gives one measurement per draw. A block diffusion
model gives one for each block of a window, which are many: they are summed over the blocks and
draws of a window as soon as its batch is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def check_lengths(lengths: Iterable[int], size: int) -> None:
    """ValueError unless sequences of these `lengths` have the same first block (`size` tokens, or
    the whole sequence), and so the same n."""
    lengths = sorted(set(lengths))
    if len({min(length, size) for length in lengths}) > 1:
        raise ValueError(
            f"batches have sequences of {lengths[0]} and of {lengths[-1]} tokens, and h(n) of "
            f"blocks of {size} is of sequences of at least "
            f"{size} tokens, or of one length; evaluate them apart, or set curve=False"
        )


class Cells(NamedTuple):
    """Sums over the measurements x of one row (a window, or a unit of the bootstrap) at one n: (C,)
    each.

    A measurement has k masked tokens of `a` that can be masked, and x0 is h(0) of the same tokens.
    """

    row: Ints
    n: Ints
    number: Floats  # of measurements
    tokens: Floats  # sum a
    squares: Floats  # sum a^2
    rise: Floats  # sum a (x - x0)
    rise_squares: Floats  # sum a (x - x0)^2
    masked: Floats  # sum k
    nats: Floats  # sum k x

    @classmethod
    def of(
        cls, row: Ints, tokens: Ints, masked: Ints, nats: Floats, start: Floats, length: int
    ) -> Cells:
        """One cell for each measurement, from arrays (C,); n is the visible fraction of `length`
        tokens, rounded."""
        n = np.clip(np.round((1 - masked / tokens) * length), 0, length - 1).astype(np.int64)
        a, rise = tokens.astype(float), nats - start
        return cls(
            row,
            n,
            np.ones(len(n)),
            a,
            a**2,
            a * rise,
            a * rise**2,
            masked.astype(float),
            masked * nats,
        )

    @classmethod
    def joined(cls, parts: Sequence[Cells]) -> Cells:
        """The cells of all parts, with one for each row and n."""
        row, n, *sums = (np.concatenate(column) for column in zip(*parts))
        width = int(n.max(initial=0)) + 1
        keys, index = np.unique(row * width + n, return_inverse=True)
        return cls(
            keys // width,
            keys % width,
            *(np.bincount(index, column, len(keys)).astype(np.float64) for column in sums),
        )


@dataclass(frozen=True)
class BlockMeasurements:
    """The measurements in the blocks of each of S sequences, each given the tokens before its
    block.

    Memory grows with the number of sequences and with the counts n that occur in them, not with the
    number of blocks or draws.

    Attributes:
        cells: rows are sequences.
        start: (S,) nats of a sequence with each block completely masked, given the tokens before
            it.
        first_start: nats of the first blocks, which have no context, completely masked: the sum
            over sequences.
        first_tokens: their tokens.
        length: b, or the number of tokens of a sequence, if it is shorter.
    """

    cells: Cells
    start: Floats
    first_start: float
    first_tokens: int
    length: int

    @classmethod
    def of(
        cls, counts: Ints, available: Ints, nats: Floats, start: Floats, length: int
    ) -> BlockMeasurements:
        """Of one batch, from numbers of each block.

        Args:
            counts, nats: masked tokens of each draw and its estimate: (D, B, blocks).
            available, start: tokens that can be masked, and nats with all of them masked: (B,
                blocks).
            length: as above.
        """
        used = np.broadcast_to(available > 0, counts.shape)
        row = np.broadcast_to(np.arange(len(available))[:, None], counts.shape)
        a, zero = (
            np.broadcast_to(available, counts.shape)[used],
            np.broadcast_to(start, counts.shape)[used],
        )
        cells = Cells.of(row[used], a, counts[used], nats[used] / a, zero / a, length)
        return cls(
            Cells.joined([cells]),
            start.sum(1),
            float(start[:, 0].sum()),
            int(available[:, 0].sum()),
            length,
        )

    @classmethod
    def joined(cls, batches: Sequence[BlockMeasurements]) -> BlockMeasurements:
        """Those of the sequences of all batches, in order.

        Raises:
            ValueError: as `check_lengths`.
        """
        check_lengths((batch.length for batch in batches), max(batch.length for batch in batches))
        first_rows = np.cumsum([0, *(len(batch.start) for batch in batches)])
        cells = Cells.joined(
            [
                batch.cells._replace(row=batch.cells.row + first)
                for first, batch in zip(first_rows, batches)
            ]
        )
        start = np.concatenate([batch.start for batch in batches])
        first_start, first_tokens = (
            sum(batch.first_start for batch in batches),
            sum(batch.first_tokens for batch in batches),
        )
        return cls(cells, start, first_start, first_tokens, batches[0].length)

    def with_draws(self, more: BlockMeasurements) -> BlockMeasurements:
        """These measurements and those of further draws of the same sequences."""
        cells = Cells.joined([self.cells, more.cells])
        return BlockMeasurements(
            cells, self.start, self.first_start, self.first_tokens, self.length
        )
