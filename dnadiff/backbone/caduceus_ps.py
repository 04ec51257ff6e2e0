"""Caduceus-PS: reverse-complement equivariant because all parameters are shared between the strands
(arXiv 2403.03234, section 4.2)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from typing_extensions import override

from dnadiff import checks
from dnadiff.backbone import rc
from dnadiff.backbone.caduceus import BiMambaBackbone, CaduceusOptions
from dnadiff.backbone.layers import at_least_float32
from dnadiff.checks import PositiveInt
from dnadiff.vocab import Vocab


class CaduceusPS(BiMambaBackbone):
    """A Caduceus that reads both strands in one batch: logits(RC x) = flip(logits(x))[...,
    complement].

    Features (B, L, 2D) are those of both strands, see `rc.join`. It has the parameters of
    Caduceus-Ph and twice its cost.

    Args:
        vocab: the vocabulary, with a complement.
        d_model: width D of one strand.
        n_layers: number of blocks.
        swap_strands: exchange the strands before every block, as some published networks do. The
            same weights then compute another function. With an even number of layers both variants
            can represent the same functions, because the exchange is equivalent to swapping the
            directions and reversing the channels of every other layer.
        **options: as in `BiMambaBackbone`.

    Raises:
        ValueError: if the vocabulary has no complement.
    """

    reads_both_strands = True
    complement: Tensor

    def __init__(
        self,
        vocab: Vocab,
        d_model: PositiveInt = 128,
        n_layers: PositiveInt = 4,
        *,
        swap_strands: bool = False,
        **options: Unpack[CaduceusOptions],
    ) -> None:
        super().__init__(vocab, d_model, n_layers, **options)
        self.d_model *= 2
        self.swap_strands = checks.boolean("backbone.swap_strands", swap_strands)
        self.register_buffer(
            "complement",
            rc.complement_table(vocab, self.embedding.num_embeddings),
            persistent=False,
        )

    @override
    def features(
        self,
        ids: Tensor,
        sigma: Tensor | None = None,
        cond: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Tensor:
        self.check_inputs(ids, sigma, cond)
        sigma, cond = (
            None if given is None else torch.cat([given, given]) for given in (sigma, cond)
        )
        valid = None if valid is None else torch.cat([valid, valid.flip(1)])
        return rc.join(self.encode(rc.both_strands(ids, self.complement), sigma, cond, valid))

    @override
    def before_layer(self, stream: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if not self.swap_strands:
            return stream, branch
        return rc.swap(stream if branch is None else stream + branch), None

    @override
    def head(self, features: Tensor) -> Tensor:
        return at_least_float32(
            nn.functional.linear(features, rc.shared_head(self.embedding.weight, self.complement))
        )

    @override
    def head_matrix(self) -> None:
        return None  # the head's rows are computed from those of the embedding
