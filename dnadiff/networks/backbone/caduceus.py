"""Caduceus-Ph: a bidirectional Mamba for DNA (arXiv 2403.03234), with a language-model head tied to
its embedding."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from dnadiff.fields import checked
from dnadiff.networks.backbone.base import BlockBackbone, OptTensor, State
from dnadiff.networks.backbone.mamba import BiMambaBackbone, MambaBlock
from dnadiff.networks.kernels.facade import check_states


@checked
class Caduceus(BiMambaBackbone, BlockBackbone):
    """Embedding, `n_layers` bidirectional Mamba blocks, a final norm and a tied head.

    In blocks (`BlockBackbone`) the clean stream has the forward direction alone, so its state after
    the clean blocks is all that a noised block needs to know of them: it has the same size whatever
    their length. The reverse direction stays within a block.

    Deviation from the published code: the number of columns is `vocab.size` padded to a multiple of
    `pad_vocab_to`, so the DNA vocabulary of 12 ids has the published 16 rows.

    Args:
        vocab: the vocabulary.
        d_model: width D.
        n_layers: number of blocks.
        bidirectional_strategy: `add` or `ew_multiply` the outputs of the two directions.
        bidirectional_weight_tie: share the projections between the directions.
        **options: as in `MambaBackbone`.

    Examples:
        >>> import torch
        >>> from dnadiff.data.tokenizer import DNATokenizer
        >>> network = Caduceus(DNATokenizer().vocab, d_model=16, n_layers=2)
        >>> ids = torch.tensor([[7, 8, 9, 10]])  # A, C, G, T
        >>> network.features(ids).shape, network(ids).shape
        (torch.Size([1, 4, 16]), torch.Size([1, 4, 16]))
    """

    clean_is_causal = True

    def check_blocks(self) -> None:
        check_states(self.scan)
        if self.takes_sigma:
            raise ValueError(
                "backbone.time_conditioning true, expected false: every block has another time, so "
                "the network would never read it and its "
                "weights for the time would not be trained; set backbone.time_conditioning=false"
            )

    def block_features(
        self,
        xt: Tensor,
        x0: Tensor,
        block_size: int,
        cond: OptTensor = None,
        valid: OptTensor = None,
        clean: bool = False,
    ) -> tuple[Tensor, OptTensor]:
        self.check_inputs(xt, None, cond)
        condition = self.conditioned(None, cond)
        streams = self.embedded(xt, cond), self.embedded(x0, cond)
        branches: tuple[OptTensor, ...] = None, None
        run = compiled_two_streams() if self.compiled else two_streams
        for number, layer in enumerate(self.layers):
            clean_output = clean or number + 1 < len(self.layers)
            inputs = layer, streams, branches, block_size, condition, valid, clean_output, self.scan
            streams, branches = self.run(run, *inputs)
            branches = tuple(None if each is None else self.dropout(each) for each in branches)
        noised = self.normalized(streams[0], branches[0])
        return noised, self.normalized(streams[1], branches[1]) if clean else None

    def step_block(
        self,
        xt: Tensor,
        state: State | None = None,
        cond: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        stream, branch = self.after(
            state, xt, cond, lambda mixer, *inputs: mixer.block(*inputs, valid, self.scan)
        )
        return self.normalized(stream, branch)

    def advance(
        self,
        x0: Tensor,
        state: State | None = None,
        cond: OptTensor = None,
        valid: OptTensor = None,
    ) -> State:
        return self.carried(x0, state, cond, valid)[2]


def two_streams(
    layer: MambaBlock,
    streams: tuple[Tensor, Tensor],
    branches: tuple[OptTensor, ...],
    block_size: int,
    condition: OptTensor,
    valid: OptTensor,
    clean_output: bool,
    scan: str,
) -> tuple[tuple[Tensor, Tensor], tuple[OptTensor, ...]]:
    """`MambaBlock.forward` of one layer for the noised and the clean stream."""
    noised, hidden, gate = layer.enter(streams[0], branches[0], condition)
    clean, hidden_clean, _ = layer.enter(streams[1], branches[1], condition)
    mixed = layer.mixer.two_streams(hidden, hidden_clean, block_size, valid, scan, clean_output)
    if gate is not None:
        mixed = tuple(None if each is None else gate * each for each in mixed)
    return (noised, clean), mixed


@cache
def compiled_two_streams() -> Any:
    """`two_streams`, compiled when it is called first: once for the first layer, the last one, and
    all others."""
    return torch.compile(two_streams)
