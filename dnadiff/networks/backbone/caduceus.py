"""Caduceus-Ph: a bidirectional Mamba for DNA (arXiv 2403.03234), with a language-model head tied to
its embedding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Literal, Unpack

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import PositiveInt, checked
from dnadiff.networks.backbone.base import BidirectionalBackbone, BlockBackbone, State
from dnadiff.networks.backbone.mamba_backbone import MambaBackbone, MambaBlock, MambaOptions
from dnadiff.networks.backbone.mixer import BiMamba
from dnadiff.networks.kernels.select import check_states


class CaduceusOptions(MambaOptions, total=False):
    """Keyword arguments of `BiMambaBackbone`."""

    bidirectional_strategy: Literal["add", "ew_multiply"]
    bidirectional_weight_tie: bool


class BiMambaBackbone(MambaBackbone, BidirectionalBackbone):
    """Bidirectional Mamba blocks: what `Caduceus` and `CaduceusPS` share.

    Args:
        vocab, d_model, n_layers, **options: as in `MambaBackbone`.
        bidirectional_strategy, bidirectional_weight_tie: as in `BiMamba`.
    """

    def __init__(
        self, vocab: Vocab, d_model: PositiveInt = 128, n_layers: PositiveInt = 4,
        bidirectional_strategy: Literal["add", "ew_multiply"] = "add",
        bidirectional_weight_tie: bool = True, **options: Unpack[MambaOptions],
    ) -> None:  # fmt: skip
        mixer = partial(
            BiMamba,
            bidirectional_strategy=bidirectional_strategy,
            bidirectional_weight_tie=bidirectional_weight_tie,
        )
        super().__init__(vocab, d_model, n_layers, mixer, **options)

    def mixers(self) -> Iterator[tuple[MambaBlock, BiMamba]]:
        """Each layer with its mixer."""
        for layer in self.layers:
            assert isinstance(layer, MambaBlock) and isinstance(layer.mixer, BiMamba)
            yield layer, layer.mixer


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
        **options: as in `MambaBackbone`, without `dropout`.

    Examples:
        >>> import torch
        >>> from dnadiff.data.tokenizer import DNATokenizer
        >>> network = Caduceus(DNATokenizer().vocab, d_model=16, n_layers=2)
        >>> ids = torch.tensor([[7, 8, 9, 10]])  # A, C, G, T
        >>> network.features(ids).shape, network(ids).shape
        (torch.Size([1, 4, 16]), torch.Size([1, 4, 16]))
    """

    clean_is_causal = True

    @override
    def check_blocks(self) -> None:
        check_states(self.scan)
        if self.takes_sigma:
            raise ValueError(
                "backbone.time_conditioning true, expected false: every block has another time, so "
                "the network would never read it and its "
                "weights for the time would not be trained; set backbone.time_conditioning=false"
            )

    @override
    def block_features(
        self,
        xt: Tensor,
        x0: Tensor,
        block_size: int,
        cond: Tensor | None = None,
        valid: Tensor | None = None,
        clean: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        self.check_inputs(xt, None, cond)
        condition = None if self.condition is None else self.condition(None, cond)
        streams = self.embed(xt), self.embed(x0)
        branches: tuple[Tensor | None, Tensor | None] = None, None
        run = compiled_two_streams() if self.compiled else two_streams
        for number, (layer, mixer) in enumerate(self.mixers()):
            clean_output = clean or number + 1 < len(self.layers)
            inputs = (
                layer,
                mixer,
                streams,
                branches,
                block_size,
                condition,
                valid,
                clean_output,
                self.scan,
            )
            if self.activation_checkpointing and torch.is_grad_enabled():
                streams, branches = checkpoint(
                    run, *inputs, use_reentrant=False, preserve_rng_state=False
                )
            else:
                streams, branches = run(*inputs)
            branches = (
                self.dropout(branches[0]),
                None if branches[1] is None else self.dropout(branches[1]),
            )
        return self.normalized(streams[0], branches[0]), self.normalized(
            streams[1], branches[1]
        ) if clean else None

    @override
    def step_block(
        self,
        xt: Tensor,
        state: State | None = None,
        cond: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Tensor:
        self.check_inputs(xt, None, cond)
        condition = None if self.condition is None else self.condition(None, cond)
        stream, branch = self.embed(xt), None
        for number, (layer, mixer) in enumerate(self.mixers()):
            stream, hidden, gate = layer.enter(stream, branch, condition)
            past, h = (None, None) if state is None else state.tensors[2 * number : 2 * number + 2]
            mixed = mixer.block(hidden, past, h, valid, self.scan)
            branch = mixed if gate is None else gate * mixed
        return self.normalized(stream, branch)

    @override
    def advance(
        self,
        x0: Tensor,
        state: State | None = None,
        cond: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> State:
        self.check_inputs(x0, None, cond)
        return self.carried(x0, state, cond, valid)[2]


def two_streams(
    layer: MambaBlock,
    mixer: BiMamba,
    streams: tuple[Tensor, Tensor],
    branches: tuple[Tensor | None, Tensor | None],
    block_size: int,
    condition: Tensor | None,
    valid: Tensor | None,
    clean_output: bool,
    scan: str,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor | None]]:
    """`MambaBlock.forward` of one layer, with its mixer, for the noised and the clean stream."""
    noised, hidden, gate = layer.enter(streams[0], branches[0], condition)
    clean, hidden_clean, _ = layer.enter(streams[1], branches[1], condition)
    mixed, mixed_clean = mixer.two_streams(
        hidden, hidden_clean, block_size, valid, scan, clean_output
    )
    if gate is not None:
        mixed, mixed_clean = gate * mixed, None if mixed_clean is None else gate * mixed_clean
    return (noised, clean), (mixed, mixed_clean)


@cache
def compiled_two_streams() -> Callable[
    ..., tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor | None]]
]:
    """`two_streams`, compiled when it is called first: once for the first layer, the last one, and
    all others."""
    return torch.compile(two_streams)
