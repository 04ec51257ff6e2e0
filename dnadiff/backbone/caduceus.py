"""Caduceus-Ph: a bidirectional Mamba for DNA (arXiv 2403.03234), with a language-model head tied to its embedding."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from dnadiff import checks
from dnadiff.backbone.blocks import MambaBackbone, MambaOptions
from dnadiff.backbone.mixer import BiMamba
from dnadiff.checks import PositiveInt
from dnadiff.vocab import Vocab


class CaduceusOptions(MambaOptions, total=False):
    """Keyword arguments of `Caduceus`."""

    bidirectional_strategy: str
    bidirectional_weight_tie: bool


class Caduceus(MambaBackbone):
    """Embedding, `n_layers` bidirectional Mamba blocks, a final norm and a tied head.

    Deviation from the published code: the number of columns is `vocab.size` padded to a multiple of
    `pad_vocab_to`, so the DNA vocabulary of 12 ids has the published 16 rows.

    Args:
        vocab: the vocabulary.
        d_model: width D.
        n_layers: number of blocks.
        bidirectional_strategy: `add` or `ew_multiply` the outputs of the two directions.
        bidirectional_weight_tie: share the projections between the directions.
        **options: as in `MambaBackbone`, without `dropout`.

    Example:
        >>> import torch
        >>> from dnadiff.data.tokenizer import DNATokenizer
        >>> network = Caduceus(DNATokenizer().vocab, d_model=16, n_layers=2)
        >>> ids = torch.tensor([[7, 8, 9, 10]])  # A, C, G, T
        >>> network.features(ids).shape, network(ids).shape
        (torch.Size([1, 4, 16]), torch.Size([1, 4, 16]))
    """

    def __init__(
        self, vocab: Vocab, d_model: PositiveInt = 128, n_layers: PositiveInt = 4,
        bidirectional_strategy: str = "add", bidirectional_weight_tie: bool = True, **options: Unpack[MambaOptions],
    ) -> None:  # fmt: skip
        checks.boolean("backbone.bidirectional_weight_tie", bidirectional_weight_tie)
        mixer = partial(BiMamba, bidirectional_strategy=bidirectional_strategy, bidirectional_weight_tie=bidirectional_weight_tie)
        super().__init__(vocab, d_model, n_layers, mixer, **options)
