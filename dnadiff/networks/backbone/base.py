"""The contract between a network and everything that trains it or samples from it.

There are three ways to read a sequence, each an interface that a network may have:
`BidirectionalBackbone`, `CausalBackbone` and `BlockBackbone`. Objectives, denoisers and samplers
declare which one they need (`reads`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dnadiff.diffusion.vocab import CHANNELS, Vocab, complemented
from dnadiff.fields import Config, Natural, PositiveInt, checked
from dnadiff.progress import beat

if TYPE_CHECKING:
    from dnadiff.networks.columns import ColumnLayer

OptTensor: TypeAlias = Tensor | None


class Peers(Protocol):
    """The processes of one group, numbered in the order of their pieces.

    Attributes:
        rank: the number of this process, 0 to size - 1.
        size: P, the number of processes.
    """

    rank: int
    size: int

    def gather(self, x: Tensor) -> Tensor:
        """`x` of every process, all of the same shape: (P, *x.shape). No gradient passes."""


@dataclass
class State:
    """What a network keeps of the tokens to the left that it has read, one by one or block by
    block.

    Attributes:
        tensors: the network's own, each with the batch first.
        length: number of tokens read.
    """

    tensors: list[Tensor]
    length: int = 0

    def select(self, keep: Tensor | slice) -> State:
        """The state of some of the sequences; `keep` is an index or a mask over B."""
        return State([x[keep] for x in self.tensors], self.length)


class PublishedLayout(NamedTuple):
    """The published form of one network.

    Attributes:
        config: the contents of its `config.json`.
        weights: the network's own tensors, as views of the published shape, each with its names in
            files. A tied tensor has several names; a file needs one of them.
        constants: further tensors that files may hold and that follow from the configuration.
        vocab: the vocabulary of a file that does not describe one; None is that of DNA.
    """

    config: Config
    weights: Sequence[tuple[Tensor, tuple[str, ...]]]
    constants: Mapping[str, Tensor] = MappingProxyType({})
    vocab: Vocab | None = None


@checked
class Backbone(nn.Module, ABC):
    """Maps token ids to one feature vector and one row of raw logits per position.

    A subclass implements `embed`, `mix` and `head`.

    Attributes:
        vocab: the vocabulary it was built for.
        d_model: width D of `features`; a network that reads both strands has twice the width of
            one.
        max_length: longest sequence it accepts, None for any.
        peers: the processes that read the other pieces of each sequence (`spread`); None if it
            reads whole sequences.
        reads_both_strands: whether features hold the channels of both strands, as
            `layers.join` arranges them.
        activation_checkpointing: save only the inputs of each layer, and recompute the layer in the
            backward pass.
        takes_sigma: whether it can be conditioned on the noise level.
        takes_labels: whether it can be built with `num_labels`.
        num_labels: C, number of label columns it can be conditioned on; 0 for none.
        columns: reads the columns of an alignment (`read_columns`); None if the network reads the
            sequence alone.
    """

    # a checkpoint's configuration may name it (`dnadiff.store.objects.locate`)
    buildable = True
    described = "a network"  # with examples, for messages

    max_length: int | None = None
    reads_both_strands = False
    takes_labels = False
    peers: Peers | None = None
    activation_checkpointing = False
    columns: ColumnLayer | None

    def __init__(
        self, vocab: Vocab, d_model: PositiveInt, takes_sigma: bool = False, num_labels: Natural = 0
    ) -> None:
        super().__init__()
        self.vocab = vocab
        self.d_model = d_model
        self.takes_sigma = takes_sigma
        self.num_labels = num_labels
        self.columns = None

    def read_columns(self, make: Callable[[int], ColumnLayer]) -> None:
        """From now on read the columns of an alignment, as `cond`.

        Args:
            make: the input layer, from the width of the embedding of one strand.

        Raises:
            ValueError: if the network reads no DNA, or labels, or cannot add vectors to the
                embedding.
        """
        is_dna = self.vocab.complement is not None and len(self.vocab.emitted) == 4
        if not is_dna or self.num_labels or type(self).embed is Backbone.embed:
            raise ValueError(
                f"data.alignment does not fit {type(self).__name__} with num_labels "
                f"{self.num_labels}: it is for DNA, without labels, and for networks that "
                "implement embed; set backbone.num_labels=0, or leave the alignment out"
            )
        self.columns = make(self.d_model // (1 + self.reads_both_strands))

    def run(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """The results of a layer, which the backward pass recomputes with
        `activation_checkpointing`."""
        if self.activation_checkpointing and torch.is_grad_enabled():
            return checkpoint(function, *inputs, use_reentrant=False)
        return function(*inputs)

    @property
    def trunk(self) -> nn.ModuleList | None:
        """The layers in the order in which they run, shared by reference; None for a network that
        is not a list of layers."""
        return None

    def published_layout(self) -> PublishedLayout:
        """The published form of this network; ValueError if there is none."""
        raise ValueError(
            f"{type(self).__name__} has no published format; caduceus, caduceus_ps and dit have one"
        )

    def check_pieces(self, num_pieces: int, length: int | None) -> None:
        """Raise ValueError or RuntimeError if windows of `length` tokens (None: of several lengths)
        cannot be spread over processes (`dnadiff.networks.backbone.context.spread`)."""
        raise ValueError(
            f"context_parallel {num_pieces} does not fit {type(self).__name__}, expected 1: only "
            "a network of Mamba layers passes a state from one piece of a sequence to the next; "
            "set backbone=caduceus, caduceus_ps or mamba, or context_parallel=1"
        )

    def shifted(self, x: Tensor, first: int | bool) -> Tensor:
        """x (B, n) moved one position to the right; the first position of the sequence gets
        `first`."""
        before = torch.full_like(x[:, :1], first)
        if self.peers is not None:
            left = self.peers.gather(x[:, -1:])[self.peers.rank - 1]
            before = left if self.peers.rank else before
        return torch.cat([before, x[:, :-1]], 1)

    def embed(self, ids: Tensor) -> Tensor:
        """One vector (B, L, D) for each of the token ids (B, L), the input of `mix`."""
        raise NotImplementedError(f"{type(self).__name__} reads token ids only")

    def mix(self, h: Tensor, sigma: OptTensor, cond: OptTensor, valid: OptTensor) -> Tensor:
        """The features (B, L, D) of vectors h (B, L, D), which may be other ones than those of
        tokens; other arguments as in `features`."""
        raise NotImplementedError(f"{type(self).__name__} reads token ids only")

    def embedded(self, ids: Tensor, cond: OptTensor) -> Tensor:
        """`embed`, plus what the network makes of columns, if `cond` has them: (B, L, D)."""
        h = self.embed(ids)
        if self.columns is None or cond is None:
            return h
        strands = (cond, complemented(cond)) if self.reads_both_strands else (cond,)
        return h + torch.cat([self.columns(each) for each in strands], -1)

    def beside(self, cond: OptTensor) -> OptTensor:
        """`cond` of complete sequences as `features` reads it beside their tokens; a causal network
        reads a token with the column of the next one, which it predicts."""
        return cond

    def features(
        self, ids: Tensor, sigma: OptTensor = None, cond: OptTensor = None, valid: OptTensor = None
    ) -> Tensor:
        """Normalized features of each position, the input of `head`.

        Args:
            ids: (B, L) token ids.
            sigma: (B,) noise level; None is the network's value for "no time".
            cond: (B, C) labels, 1 where a label applies; or (B, L, 10), the column of an alignment
                at each position (`dnadiff.diffusion.vocab.CHANNELS`). Zeros, like None, mean no
                label and no column.
            valid: (B, L) bool, False on padding that must be ignored; None treats all positions as
                tokens, as the published networks do.

        Returns:
            (B, L, D).

        Raises:
            ValueError: if L exceeds `max_length`, or the network cannot be conditioned on `sigma`
                or `cond`.
        """
        self.check_inputs(ids, sigma, cond)
        return self.mix(self.embedded(ids, cond), sigma, cond, valid)

    @abstractmethod
    def head(self, features: Tensor) -> Tensor:
        """Raw logits of any selection of positions: (..., D) -> (..., rows), rows >= vocab.size."""

    def head_with_columns(self, features: Tensor, columns: OptTensor = None) -> Tensor:
        """`head`, plus what the columns (..., 10) of an alignment at the same positions add."""
        logits = self.head(features)
        if self.columns is None or columns is None:
            return logits
        first = self.vocab.emitted[0]
        added = first, logits.shape[-1] - first - 4
        return logits + nn.functional.pad(self.columns.residual(columns), added)

    def head_matrix(self) -> tuple[Tensor, OptTensor] | None:
        """Weight (rows, D) and bias (rows,) or None of a `head` that is a single linear map; None
        for any other head.

        With it, losses over large vocabularies do not hold the logits
        (`dnadiff.networks.kernels.log_sum.linear_log_sum`).
        """
        return None

    def forward(
        self, ids: Tensor, sigma: OptTensor = None, cond: OptTensor = None, valid: OptTensor = None
    ) -> Tensor:
        """`head(features(...))`, with what columns in `cond` add: (B, L, rows)."""
        return self.head_with_columns(self.features(ids, sigma, cond, valid), cond)

    def check_inputs(self, ids: Tensor, sigma: OptTensor, cond: OptTensor) -> None:
        """Raise ValueError for inputs that this network cannot use, instead of ignoring them, and
        count a call of the network for each of the others."""
        beat(len(ids))
        name = type(self).__name__
        if self.max_length is not None and ids.shape[1] > self.max_length:
            raise ValueError(
                f"length {ids.shape[1]} exceeds what this {name} was built for; "
                f"use a length of at most {self.max_length}, or train with a larger data.length"
            )
        if sigma is not None and not self.takes_sigma:
            raise ValueError(
                f"this {name} has no time input; build the denoiser with time_conditioning=false"
            )
        if cond is None:
            return
        if self.columns is not None:
            expected = (*ids.shape[:2], CHANNELS)
            what = "a column of the alignment for each position"
        elif cond.ndim == 3:
            raise ValueError(f"this {name} reads no alignment; leave alignment out")
        elif not self.num_labels:
            raise ValueError(f"this {name} was built without labels; leave cond out")
        else:
            expected = (len(ids), self.num_labels)
            what = "a column for each label, 1 where it applies"
        if cond.shape != expected:
            raise ValueError(f"cond has shape {tuple(cond.shape)}, expected {expected}: {what}")


class BidirectionalBackbone(Backbone):
    """A network whose `features` of each position depend on all tokens: for masked diffusion and
    masked language models."""

    described = "a bidirectional network, such as caduceus or dit"


class CausalBackbone(Backbone):
    """A network whose `features` of position l depend on tokens 0..l only: for autoregressive
    models."""

    described = "a causal network, transformer or mamba"

    def beside(self, cond: OptTensor) -> OptTensor:
        return (
            cond if cond is None or cond.ndim < 3 else nn.functional.pad(cond[:, 1:], (0, 0, 0, 1))
        )

    def step(
        self, ids: Tensor, state: State | None = None, cond: OptTensor = None
    ) -> tuple[Tensor, State]:
        """`read` for one more token of each sequence, ids (B,), with its column (B, 1, 10):
        features (B, D) and the new state."""
        features, state = self.read(ids[:, None], state, cond)
        return features[:, 0], state

    def read(
        self, ids: Tensor, state: State | None = None, cond: OptTensor = None
    ) -> tuple[Tensor, State]:
        """Read more tokens of each sequence: what `features` returns for them, given the earlier
        tokens.

        Args:
            ids: (B, n) token ids, n > 0.
            state: from the previous call, None at the first token.
            cond: labels, the same in every call, or the columns of the tokens, (B, n, 10).

        Returns:
            Features (B, n, D) and the new state.

        Raises:
            ValueError: if the network reads whole sequences only, or has read `max_length` tokens.
        """
        raise ValueError(
            f"{type(self).__name__} cannot read token by token; mamba and transformer can"
        )


class BlockBackbone(Backbone):
    """A network that reads a sequence in blocks: each block in both directions, after the blocks to
    its left (arXiv 2503.09573).

    It has the parameters of a bidirectional network. There are two streams: the noised one, whose
    features predict x0, and the clean one, which carries what the blocks to the left say. The
    noised block i depends on the clean blocks 0..i-1 and on itself.

    Attributes:
        clean_is_causal: whether the clean stream at position l depends on tokens 0..l only;
            otherwise it sees all of its block.
    """

    described = "a network that reads blocks, caduceus or dit"
    clean_is_causal = False

    def check_blocks(self) -> None:
        """Raise ValueError or RuntimeError, naming the setting, if this network was built in a way
        that excludes reading in blocks."""

    @abstractmethod
    def block_features(
        self,
        xt: Tensor,
        x0: Tensor,
        block_size: int,
        cond: OptTensor = None,
        valid: OptTensor = None,
        clean: bool = False,
    ) -> tuple[Tensor, OptTensor]:
        """Normalized features of all blocks of xt at once, the input of `head`, with x0 in the
        blocks before each.

        Args:
            xt: (B, L) token ids of the noised stream.
            x0: (B, L) token ids of the clean stream.
            block_size: b, 1 to L; the last block may have fewer.
            cond, valid: as in `features`; both streams read the columns.
            clean: also return the features of the clean stream.

        Returns:
            (B, L, D), and (B, L, D) or None.
        """

    @abstractmethod
    def step_block(
        self,
        xt: Tensor,
        state: State | None = None,
        cond: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """What `block_features` returns for one block xt (B, n), after the blocks in `state`: (B,
        n, D). The state is not modified."""

    @abstractmethod
    def advance(
        self,
        x0: Tensor,
        state: State | None = None,
        cond: OptTensor = None,
        valid: OptTensor = None,
    ) -> State:
        """The state after one more block x0 (B, n) of the clean stream, from the state before it
        (None at the first), not modified."""


class AttentionCacheBackbone(BidirectionalBackbone, BlockBackbone):
    """A bidirectional transformer that can compute some positions with stored keys and values of
    the others (arXiv 2505.22618)."""

    described = "a transformer with a key-value cache, such as dit"

    @abstractmethod
    def around(
        self, ids: Tensor, columns: slice, cond: OptTensor = None, valid: OptTensor = None
    ) -> State:
        """Read a sequence in both directions and keep the tokens outside some positions, as a state
        for `step_block` at these positions.

        `step_block` then returns what `features` returns there, as long as no token changes. If
        tokens at these positions change, the result is approximate: the keys and values of the
        others do not.

        Args:
            ids: (B, L) token ids.
            columns: positions that are left out.
            cond, valid: as in `features`.
        """
