"""Reverse-complement sharing: one network reads both strands, side by side in the batch.

The streams of both strands are (2B, L, D): the first B rows in the order of the sequence, the
others in the order of its reverse complement. Any operation that treats all rows alike commutes
with exchanging the strands. Features follow the published convention (arXiv 2403.03234, section
4.2): the second strand is returned to the positions of the sequence with its channels reversed, so
that reverse-complementing the sequence reverses the positions and channels of the features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dnadiff.vocab import Vocab


def complement_table(vocab: Vocab, rows: int) -> Tensor:
    """The complement of every id, (rows,); rows beyond the vocabulary are their own complements.

    Raises:
        ValueError: if the vocabulary has no complement.
    """
    if vocab.complement is None:
        raise ValueError(
            "this vocabulary has no complement, so parameters cannot be shared between strands; "
            "use backbone=caduceus"
        )
    return torch.tensor([*vocab.complement, *range(vocab.size, rows)])


def both_strands(ids: Tensor, complement: Tensor) -> Tensor:
    """A sequence and its reverse complement: (B, L) -> (2B, L)."""
    return torch.cat([ids, complement[ids].flip(1)])


def swap(streams: Tensor) -> Tensor:
    """Exchanges the streams of the strands, with positions and channels reversed: (2B, L, D) ->
    (2B, L, D)."""
    return streams.unflatten(0, (2, -1)).flip(0, 2, 3).flatten(0, 1)


def join(streams: Tensor) -> Tensor:
    """Features of both strands at the sequence's positions: (2B, L, D) -> (B, L, 2D)."""
    first, second = streams.chunk(2)
    return torch.cat([first, second.flip(1, 2)], dim=-1)


def strands(features: Tensor) -> tuple[Tensor, Tensor]:
    """The channels of each strand, (..., 2D) -> two of (..., D), with those of the second in the
    order of the first."""
    first, second = features.chunk(2, dim=-1)
    return first, second.flip(-1)


def invariant(features: Tensor) -> Tensor:
    """The mean of both strands' channels, which does not depend on which strand is given: (..., 2D)
    -> (..., D).

    A linear layer that treats the strands alike cannot use any other part of the features.
    """
    first, second = strands(features)
    return (first + second) / 2


def shared_head(weight: Tensor, complement: Tensor) -> Tensor:
    """Head weights for joined features: the row of each id and the reversed row of its complement,
    (rows, D) -> (rows, 2D)."""
    return torch.cat([weight, weight[complement].flip(1)], dim=1)
