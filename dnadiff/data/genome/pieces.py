"""Records of any length as pieces that a network takes, and the pieces as padded batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Piece(NamedTuple):
    """A stretch of a record: positions `start` to `end` (0-based, half-open)."""

    record: int
    start: int
    end: int


class PaddedPieces(NamedTuple):
    """Pieces of similar length.

    Attributes:
        number: (B,) places of the pieces in their list.
        ids: (B, L), padding behind the shorter ones.
        valid: (B, L) bool, False on padding; None if there is none.
    """

    number: list[int]
    ids: Tensor
    valid: Tensor | None


def cut(lengths: Sequence[int], window: int) -> list[Piece]:
    """Pieces of at most `window` tokens that cover the records: as few as possible and, within a record, of (almost) equal length.

    Raises:
        ValueError: if the window is below 1.
    """
    if window < 1:
        raise ValueError(f"window {window} must be at least 1 token")
    pieces = []
    for record, length in enumerate(lengths):
        count = -(-length // window)
        ends = [length * i // count for i in range(count + 1)] if count else []
        pieces += [Piece(record, start, end) for start, end in itertools.pairwise(ends)]
    return pieces


def batches(sequences: Sequence[Tensor], batch_size: int, pad_id: int) -> Iterator[PaddedPieces]:
    """All sequences, the longest first, in batches padded to their longest: a function of lengths and batch size alone.

    Raises:
        ValueError: if the batch size is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size {batch_size} must be at least 1")
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
    for first in range(0, len(order), batch_size):
        number = order[first : first + batch_size]
        longest = len(sequences[number[0]])
        ids = torch.full((len(number), longest), pad_id, dtype=torch.int64)
        for row, i in enumerate(number):
            ids[row, : len(sequences[i])] = sequences[i]
        lengths = torch.tensor([len(sequences[i]) for i in number])
        valid = torch.arange(longest) < lengths[:, None]
        yield PaddedPieces(number, ids, None if bool(valid.all()) else valid)
