"""Caduceus-PS: reverse-complement equivariant by sharing every parameter between the strands (arXiv 2403.03234, section 4.2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dnadiff.backbone import rc
from dnadiff.backbone.caduceus import Caduceus
from dnadiff.backbone.layers import widened
from dnadiff.vocab import Vocab


class CaduceusPS(Caduceus):
    """A Caduceus that reads both strands in one batch: logits(RC x) = flip(logits(x))[..., complement].

    Features (B, L, 2D) are those of both strands, see `rc.join`. It has the parameters of Caduceus-Ph and twice its cost.

    Args:
        vocab: the alphabet, with a complement.
        *args: as in `Caduceus`.
        swap_strands: exchange the strands in front of every block, as published networks with `fused_add_norm=true` do. The
            same weights then mean another function; with an even number of layers what can be learned is the same, for the
            exchange amounts to trading the directions and reversing the channels of every other layer.
        **kwargs: as in `Caduceus`.

    Raises:
        ValueError: if the vocabulary has no complement.
    """

    reads_both_strands = True

    def __init__(self, vocab: Vocab, *args: Any, swap_strands: bool = False, **kwargs: Any) -> None:
        super().__init__(vocab, *args, **kwargs)
        self.d_model = 2 * self.d_model
        self.swap_strands = swap_strands
        self.register_buffer("complement", rc.complement_table(vocab, self.embedding.num_embeddings), persistent=False)

    def features(self, ids: Tensor, sigma: Tensor | None = None, cond: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """See `Backbone.features`; both strands of a sequence are told the same: (B, L, 2D)."""
        self.check(ids, sigma, cond)
        sigma, cond = (None if told is None else torch.cat([told, told]) for told in (sigma, cond))
        valid = None if valid is None else torch.cat([valid, valid.flip(1)])
        return rc.join(self.read(rc.both_strands(ids, self.complement), sigma, cond, valid))

    def enter(self, stream: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """See `MambaBackbone.enter`."""
        if not self.swap_strands:
            return stream, branch
        return rc.swap(stream if branch is None else stream + branch), None

    def head(self, features: Tensor) -> Tensor:
        """Raw logits (..., rows) of features (..., 2D), at least float32; tied to the embedding for both strands."""
        return widened(nn.functional.linear(features, rc.shared_head(self.embedding.weight, self.complement)))

    def head_matrix(self) -> None:
        """See `Backbone.head_matrix`; here the head's rows are made from the embedding's."""
        return None
