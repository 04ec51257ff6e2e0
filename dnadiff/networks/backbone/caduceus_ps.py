"""Caduceus-PS: reverse-complement equivariant because all parameters are shared between the strands
(arXiv 2403.03234, section 4.2).

The streams of both strands are (2B, L, D): the first B rows in the order of the sequence, the
others in the order of its reverse complement. Any operation that treats all rows alike commutes
with exchanging the strands. Features follow the published convention (arXiv 2403.03234, section
4.2): the second strand is returned to the positions of the sequence with its channels reversed, so
that reverse-complementing the sequence reverses the positions and channels of the features.
"""

import re
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import PositiveInt, checked
from dnadiff.networks.backbone.base import OptTensor, PublishedLayout
from dnadiff.networks.backbone.layers import at_least_float32, join
from dnadiff.networks.backbone.mamba import BiMambaBackbone


@checked
class CaduceusPS(BiMambaBackbone):
    """A Caduceus that reads both strands in one batch: logits(RC x) = flip(logits(x))[...,
    complement].

    Features (B, L, 2D) are those of both strands, see `join`. It has the parameters of
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
        **options: Annotated[Any, BiMambaBackbone],
    ) -> None:
        super().__init__(vocab, d_model, n_layers, **options)
        self.d_model *= 2
        self.swap_strands = swap_strands
        self.register_buffer(
            "complement", complement_table(vocab, self.embedding.num_embeddings), persistent=False
        )

    def embed(self, ids: Tensor) -> Tensor:
        both = torch.cat([ids, self.complement[ids].flip(1)])  # and the reverse complement
        first, second = super().embed(both).chunk(2)
        return torch.cat([first, second.flip(1)], -1)

    def mix(self, h: Tensor, sigma: OptTensor, cond: OptTensor, valid: OptTensor) -> Tensor:
        first, second = h.chunk(2, -1)
        sigma, cond = (None if x is None else torch.cat([x, x]) for x in (sigma, cond))
        valid = None if valid is None else torch.cat([valid, valid.flip(1)])
        return join(super().mix(torch.cat([first, second.flip(1)]), sigma, cond, valid))

    def before_layer(self, stream: Tensor, branch: OptTensor) -> tuple[Tensor, OptTensor]:
        if not self.swap_strands:
            return stream, branch
        both = stream if branch is None else stream + branch
        # positions and channels are reversed
        return both.unflatten(0, (2, -1)).flip(0, 2, 3).flatten(0, 1), None

    def head(self, features: Tensor) -> Tensor:
        # the row of each id and the reversed row of its complement
        weight = self.embedding.weight
        joined = torch.cat([weight, weight[self.complement].flip(1)], dim=1)  # (rows, 2D)
        return at_least_float32(nn.functional.linear(features, joined))

    def head_matrix(self) -> None:
        return None  # the head's rows are computed from those of the embedding

    def published_layout(self) -> PublishedLayout:
        """That of Caduceus-Ph with other names for the modules that run once per strand; errors as
        there."""
        layout = super().published_layout()
        per_strand = r"\.(mixer)\." if self.swap_strands else r"\.(mixer|norm|norm_f)\."

        def rename(name: str) -> str:
            name = re.sub(r"(word_)(embeddings)\.|(lm_head)\.", r"\g<0>\2\3.", name)
            name = name.replace("word_embeddings.embeddings.", "word_embeddings.embedding.")
            return re.sub(per_strand, r".\1.submodule.", name)

        with torch.device("cpu"):  # also for a network on the meta device
            complement = complement_table(self.vocab, self.embedding.num_embeddings)
        table = {str(i): j for i, j in enumerate(complement.tolist())}
        return PublishedLayout(
            layout.config
            | {"rcps": True, "fused_add_norm": self.swap_strands, "complement_map": table},
            [(tensor, tuple(map(rename, names))) for tensor, names in layout.weights],
            {
                f"{where}.complement_map": complement
                for where in ("caduceus.backbone.embeddings.word_embeddings", "lm_head")
            },
        )


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
