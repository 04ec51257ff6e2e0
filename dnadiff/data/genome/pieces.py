"""Dividing records of any length into pieces that fit a network, and batching the pieces with
padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dnadiff import fields as checks


class Piece(NamedTuple):
    """Positions `start` to `end` (0-based, half-open) of a record."""

    record: int
    start: int
    end: int


class PaddedPieces(NamedTuple):
    """Pieces of similar length, padded on the right."""

    number: list[int]  # (B,) indices of the pieces in their list
    ids: Tensor  # (B, L)
    valid: Tensor | None  # (B, L) bool, False on padding; None without padding


def cut(lengths: Sequence[int], window: int) -> list[Piece]:
    """Pieces of at most `window` tokens that cover the records: as few as possible and, within a
    record, of (almost) equal length.

    Raises:
        ValueError: if the window is below 1.
    """
    return list(iter_cut(lengths, window))


def iter_cut(lengths: Iterable[int], window: int) -> Iterator[Piece]:
    """The pieces of `cut`, one by one: a genome of 3 Gb has millions."""
    checks.integer("window", window)
    for record, length in enumerate(lengths):
        count = -(-length // window)
        for i in range(count):
            yield Piece(record, length * i // count, length * (i + 1) // count)


def grouped(pieces: Iterable[Piece], max_pieces: int, max_bases: int) -> Iterator[list[Piece]]:
    """Consecutive pieces in groups of at most so many pieces and bases; a piece of more bases is a
    group of its own."""
    group: list[Piece] = []
    bases = 0
    for piece in pieces:
        size = piece.end - piece.start
        if group and (len(group) == max_pieces or bases + size > max_bases):
            yield group
            group, bases = [], 0
        group.append(piece)
        bases += size
    if group:
        yield group


def batches(sequences: Sequence[Tensor], batch_size: int, pad_id: int) -> Iterator[PaddedPieces]:
    """All sequences in batches, the longest first, each batch padded to its longest; depends only
    on lengths and batch size.

    Raises:
        ValueError: if the batch size is below 1.
    """
    checks.integer("batch_size", batch_size)
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
    for first in range(0, len(order), batch_size):
        number = order[first : first + batch_size]
        longest = len(sequences[number[0]])
        ids = torch.full((len(number), longest), pad_id)
        for row, i in enumerate(number):
            ids[row, : len(sequences[i])] = sequences[i]
        valid = torch.arange(longest) < torch.tensor([len(sequences[i]) for i in number])[:, None]
        yield PaddedPieces(number, ids, None if bool(valid.all()) else valid)
