"""Denoisers: what objectives, samplers and likelihoods call.

A denoiser combines a network with a reading of its logits as log-probabilities of x0. There is one
for each way to read a sequence (`dnadiff.networks.backbone.base`): `Denoiser` for masked diffusion
on both sides of a mask, `CausalDenoiser` for autoregressive models, and `BlockDenoiser` for block
diffusion. All derive from `BaseDenoiser`, and those that unmask from `MaskedDenoiser`. The head
runs on the requested positions alone, which saves most of the memory with a large vocabulary.
Denoisers that stand in front of another one derive from `DenoiserWrapper`.

On a GPU the process waits for the number of positions that a mask selects, because it determines
the shapes of what follows. So positions are listed before the network runs: after it, the GPU would
be idle while the process queues the loss and the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from dnadiff.diffusion.noise import NoiseSchedule
from dnadiff.diffusion.process import (
    SUBS,
    AbsorbingProcess,
    BaseProcess,
    Parameterization,
    emitted_log_probs,
    require,
)
from dnadiff.diffusion.vocab import Vocab, at_positions, mirrored
from dnadiff.fields import PositiveInt, checked
from dnadiff.networks.backbone.base import (
    AttentionCacheBackbone,
    Backbone,
    BidirectionalBackbone,
    BlockBackbone,
    CausalBackbone,
    OptTensor,
    State,
)
from dnadiff.networks.kernels.log_sum import linear_log_sum

Kind: TypeAlias = Literal["log_probs", "x0_log_probs", "log_score"]
# From this size of the vocabulary on, losses do not hold the logits; smaller arrays are not worth
# computing twice.
FUSED_TOKENS = 1024


@contextmanager
def without_gradients() -> Iterator[None]:
    """A pass without gradients before another pass of the same network, which would otherwise use
    the copies of the weights that autocast made in this one, and get no gradients either."""
    with torch.no_grad():
        yield
    torch.clear_autocast_cache()


class Query(NamedTuple):
    """What a denoiser is asked for.

    Attributes:
        xt: (B, L) token ids.
        t: (B,) time; used only with time conditioning.
        cond: (B, C) labels, or (B, L, 10) columns of an alignment (`Backbone.features`).
        positions: (B, L) bool, where predictions are requested; None is everywhere.
        valid: (B, L) bool, False on padding that must not be read.
    """

    xt: Tensor
    t: OptTensor = None
    cond: OptTensor = None
    positions: OptTensor = None
    valid: OptTensor = None

    def rows(self, rows: Tensor | slice) -> Query:
        """The same for some sequences, an index or a mask over B."""
        return Query._make(None if x is None else x[rows] for x in self)

    @property
    def requested(self) -> Tensor:
        """`positions`, also if they are everywhere."""
        everywhere = torch.ones_like(self.xt, dtype=torch.bool)
        return everywhere if self.positions is None else self.positions

    def shaped(self, found: Tensor) -> Tensor:
        """Predictions (M, V) at all positions in row-major order as (B, L, V) if `positions` is
        None."""
        return found if self.positions is not None else found.view(*self.xt.shape, -1)

    def places(self) -> Any:
        """Row and column of each requested position, (M,) each; the whole array for None."""
        return (...,) if self.positions is None else self.positions.nonzero(as_tuple=True)

    def columns(self, index: Any) -> OptTensor:
        """The columns of an alignment (..., 10) at an index such as that of `places`; None without
        them."""
        return None if self.cond is None or self.cond.ndim < 3 else self.cond[index]


class BaseDenoiser(nn.Module):
    """A model of tokens, whatever it can be asked. A subclass implements `cost` and `features`.

    Attributes:
        backbone: the network, for denoisers that have one.
        reads: how the network reads a sequence: one of the three subclasses of `Backbone`.
        process_type: the process that it was trained to revert.
        sampler: the word on the command line of the sampler that fits it.
        bound: draws of its own bound (`Objective.token_bound`); None: masks of exact counts.
        block_size: b, for a `BlockBackbone`; None for the others.
        time_conditioning: whether its predictions depend on t.
        rows_per_sequence: sequences that the network evaluates for each one requested (2 with
            classifier-free guidance).
        same_for_all_rows: whether equal sequences get equal predictions; False if it stores
            something for each row of a batch.
        max_length: longest sequence that the network accepts; None for any.
        num_labels: C, the labels that it can be conditioned on.
        given: (B, L) bool, fixed tokens whose probability is recorded while a sampler goes from
            left to right; None for most denoisers.
        fused_head: whether losses should call `log_sum_and_logits`, which avoids (M, V) logits.
    """

    backbone: Backbone
    reads: type[Backbone] = BidirectionalBackbone
    process_type: type[BaseProcess] = AbsorbingProcess
    sampler = "grouped"
    bound: Callable[..., Tensor] | None = None
    block_size: int | None = None
    time_conditioning = False
    rows_per_sequence = 1
    same_for_all_rows = True
    max_length: int | None = None
    num_labels = 0
    given: OptTensor = None
    fused_head = False

    def __init__(self, vocab: Vocab) -> None:
        super().__init__()
        self.vocab = vocab

    @property
    def device(self) -> torch.device:
        """Of the network's weights."""
        return next(self.parameters()).device

    @property
    def unwrapped(self) -> BaseDenoiser:
        """The denoiser without guidance and constraints."""
        return self

    def for_rows(self, rows: OptTensor = None, columns: slice | None = None) -> BaseDenoiser:
        """The denoiser for some sequences of the batch (an index or a mask over B) and some
        positions; itself if it stores nothing for them."""
        return self

    def without_recording(self) -> BaseDenoiser:
        """The denoiser without side effects of its calls (see `Constrained`); itself if it has
        none."""
        return self

    @property
    def cond_ndim(self) -> int:
        """Dimensions of `cond`: 3 for columns of an alignment, 2 for labels, 0 if it takes none."""
        return 3 if self.backbone.columns is not None else 2 if self.num_labels else 0

    @property
    def outside_network(self) -> str:
        """The names of the parameters that are trained besides the network."""
        trained = (name for name, each in self.named_parameters() if each.requires_grad)
        return ", ".join(name for name in trained if not name.startswith("backbone."))

    def check_window(self, length: int | None) -> None:
        """Raise ValueError if it cannot be trained on windows of `length` tokens (None if they have
        no fixed length)."""

    def check_pieces(self, num_pieces: int, length: int | None) -> None:
        """Raise ValueError or RuntimeError if windows of `length` tokens cannot be spread over so
        many processes (context parallelism)."""
        if self.reads is BlockBackbone:
            raise ValueError(
                f"context_parallel {num_pieces} does not fit objective block_mdlm, expected 1: its "
                "two streams restart at every block; set context_parallel=1, or another objective"
            )
        if names := self.outside_network:
            raise ValueError(
                f"context_parallel {num_pieces} does not fit this objective, expected 1: each "
                f"process would count the gradients of {names}; set context_parallel=1"
            )
        self.backbone.check_pieces(num_pieces, length)

    def require_any_order(self, what: str, remedy: str = "use another model") -> MaskedDenoiser:
        """Itself; raises a ValueError that begins with `what` and ends with `remedy` if it goes
        from left to right, or predicts no tokens."""
        if self.left_to_right:
            raise ValueError(
                f"{what} needs a model that unmasks in any order, and this one goes from left to "
                f"right; {remedy}"
            )
        if not isinstance(self, MaskedDenoiser):
            require(what, self, AbsorbingProcess)
        return cast(MaskedDenoiser, self)

    @property
    def autoregressive(self) -> bool:
        """Whether each token is predicted from those before it: likelihoods are exact, and one
        network call gives all of them."""
        return self.reads is CausalBackbone

    @property
    def left_to_right(self) -> bool:
        """Whether predictions never depend on what is to the right: of a token, or of its block."""
        return self.reads is not BidirectionalBackbone

    def nll(
        self,
        x0: Tensor,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """-log p(x0) at some positions, where xt is masked, given what the model sees: (M,) in
        row-major order.

        An autoregressive model sees x0 to the left of each position, whatever xt is; block
        diffusion sees x0 in the blocks to the left and xt in the block itself; any other sees xt
        alone.

        Args:
            x0: (B, L) tokens.
            xt: (B, L) the same, some of them masked.
            t, cond, positions, valid: as in `Query`.
        """
        return self.cost(x0, Query(xt, t, cond, positions, valid))

    def cost(self, x0: Tensor, query: Query) -> Tensor:
        """See `nll`."""
        raise NotImplementedError

    def features(self, ids: Tensor, valid: OptTensor = None, cond: OptTensor = None) -> Tensor:
        """The network's features (B, L, D) of sequences that it reads without masks, as embeddings:
        no noise level.

        Those of position l have seen what the network reads: all tokens, tokens 0..l, or, of a
        block model, its block and those before it.

        Args:
            ids: (B, L) token ids.
            valid, cond: as in `Query`.
        """
        raise NotImplementedError


class MaskedDenoiser(BaseDenoiser):
    """A denoiser that unmasks. A subclass implements `log_probs`, or `predict` for all kinds of
    predictions.

    Attributes:
        normalized: whether the ratios of `log_score`, if it has them, sum at a masked position to
            what probabilities would; those of SEDD need not.
        banned: ids that have probability 0 in `x0_log_probs`.
    """

    normalized = True

    def __init__(self, vocab: Vocab) -> None:
        super().__init__(vocab)
        self.banned: tuple[int, ...] = vocab.never_emitted

    def log_probs(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """Log-probabilities of x0 given xt, for the arguments of `Query`: (M, V) in row-major order
        of the M requested positions, or (B, L, V) for None."""
        return self.predict("log_probs", Query(xt, t, cond, positions, valid))

    def x0_log_probs(self, *query: Any, **named: Any) -> Tensor:
        """The distribution of x0 that D3PM and the masked language model train, shaped as
        `log_probs`; under SUBS, `log_probs`."""
        return self.predict("x0_log_probs", Query(*query, **named))

    def log_score(self, *query: Any, **named: Any) -> Tensor:
        """Log-ratios of probabilities at time t, shaped as `log_probs`; see
        `Parameterization.log_score`."""
        return self.predict("log_score", Query(*query, **named))

    def predict(self, kind: Kind, query: Query) -> Tensor:
        """The predictions of the method with the name `kind`."""
        if kind == "log_score":
            raise NotImplementedError(f"{type(self).__name__} has no ratios of probabilities")
        return self.log_probs(*query)

    def log_sum_and_logits(
        self, ids: Tensor, banned: Sequence[int], query: Query
    ) -> tuple[Tensor, Tensor]:
        """log sum_v exp(logit_v) over the ids not in `banned`, (M,), and the logits of
        `ids (M, K)`, at the M requested positions, for a `fused_head`.

        -log p(x0) is the difference of the two. The (M, V) logits are not materialized
        (`dnadiff.networks.kernels.log_sum.linear_log_sum`).
        """
        raise NotImplementedError

    def cost(self, x0: Tensor, query: Query) -> Tensor:
        if self.left_to_right:
            raise ValueError(
                f"{type(self).__name__} does not provide the nll of a model that goes from left to "
                "right; use `unwrapped`"
            )
        log_probs = self.log_probs(*query)
        return -log_probs.gather(-1, x0[query.places()].long()[..., None]).flatten()

    def x0_log_probs_of(self, x0: Tensor, query: Query, *others: int) -> Tensor:
        """`x0_log_probs` of the tokens x0 (B, L) at the M requested positions, and of K `others`,
        none of them `banned`: (M, 1 + K).

        `positions` includes visible ones only where that distribution does not carry them over.
        """
        target = x0[query.positions]
        ids = torch.stack([target, *(torch.full_like(target, each) for each in others)], 1)
        if not self.fused_head:
            return self.x0_log_probs(*query).gather(-1, ids)
        log_sum, found = self.log_sum_and_logits(ids, self.banned, query)
        return found - log_sum[:, None]


class NetworkDenoiser(BaseDenoiser):
    """A denoiser computed by one network. Raises ValueError if the network does not read as `reads`
    requires."""

    fused_from: int = FUSED_TOKENS

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone.vocab)
        if not isinstance(backbone, self.reads):
            raise ValueError(
                f"{type(self).__name__} does not fit {type(backbone).__name__}: it needs "
                f"{self.reads.described}"
            )
        self.backbone = backbone
        self.max_length = backbone.max_length
        self.num_labels = backbone.num_labels

    @property
    def fused_head(self) -> bool:  # type: ignore[override]
        """Whether losses avoid (M, V) logits."""
        is_large = self.vocab.size >= self.fused_from and self.backbone.columns is None
        return is_large and self.backbone.head_matrix() is not None

    def features(self, ids: Tensor, valid: OptTensor = None, cond: OptTensor = None) -> Tensor:
        return self.backbone.features(ids.long(), None, self.backbone.beside(cond), valid)

    def read_features(self, query: Query, x0: OptTensor = None) -> Tensor:
        """The features (B, L, D) from which tokens are predicted; x0 is what the model sees to the
        left, xt by default."""
        raise NotImplementedError

    def logits(self, query: Query, index: Any = None) -> Tensor:
        """Raw logits at the requested positions, or an `index` of them that is known, cut to
        `vocab.size` columns."""
        index = index or query.places()
        return self._head(self.read_features(query)[index], query.columns(index))

    def _head(self, features: Tensor, columns: OptTensor = None) -> Tensor:
        return self.backbone.head_with_columns(features, columns)[..., : self.vocab.size]

    def _log_sum(
        self, features: Tensor, ids: Tensor, banned: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        matrix = self.backbone.head_matrix()
        assert matrix is not None  # `fused_head`
        size, (weight, bias) = self.vocab.size, matrix
        bias = None if bias is None else bias[:size]
        return linear_log_sum(features, weight[:size], bias, ids, banned)

    def cost(self, x0: Tensor, query: Query) -> Tensor:
        index = query.places()
        return self._nll_of(self.read_features(query, x0)[index], x0[index], query.columns(index))

    def _nll_of(self, features: Tensor, ids: Tensor, columns: OptTensor = None) -> Tensor:
        """-log p of the tokens ids (...), M of them, from features (..., D) and columns (..., 10)
        of an alignment, among the tokens that samples may contain: (M,)."""
        ids = ids.long()[..., None]
        if self.fused_head:
            flat = features.flatten(0, -2), ids.flatten(0, -2)
            log_sum, at_ids = self._log_sum(*flat, self.vocab.never_emitted)
            return log_sum - at_ids[:, 0]
        log_probs = emitted_log_probs(self._head(features, columns), self.vocab)
        return -log_probs.gather(-1, ids).flatten()


class Denoiser(MaskedDenoiser, NetworkDenoiser):
    """A backbone with a parameterization: the distribution p(x0 | xt) of a masked diffusion model.

    Args:
        backbone: the network.
        parameterization: defaults to SUBS.
        noise: the schedule that turns t into sigma; needed for time conditioning and `log_score`.
        time_conditioning: condition the network on the noise level. Off by default: SUBS does not
            need it, and without it the prediction for a sequence that did not change stays valid.
            The backbone must have a time input.

    Examples:
        >>> import torch
        >>> from dnadiff.networks.backbone.caduceus import Caduceus
        >>> from dnadiff.data.tokenizer import DNATokenizer
        >>> vocab = DNATokenizer().vocab
        >>> denoiser = Denoiser(Caduceus(vocab, d_model=16, n_layers=1))
        >>> xt = torch.tensor([[7, 3, 10, 3]])  # A, mask, T, mask
        >>> log_probs = denoiser.log_probs(xt, positions=xt == vocab.mask_id)
        >>> log_probs.shape  # two masked positions, 12 token ids
        torch.Size([2, 12])
        >>> # only A, C, G and T have probability
        >>> bool(torch.allclose(log_probs[:, 7:11].exp().sum(-1), torch.ones(2)))
        True
    """

    def __init__(
        self,
        backbone: Backbone,
        parameterization: Parameterization | None = None,
        noise: NoiseSchedule | None = None,
        time_conditioning: bool = False,
    ) -> None:
        NetworkDenoiser.__init__(self, backbone)
        if time_conditioning and noise is None:
            raise ValueError("time_conditioning=True needs the noise schedule: pass noise=")
        if time_conditioning and not backbone.takes_sigma:
            why = f"time_conditioning=true, but this {type(backbone).__name__} has no time input"
            raise ValueError(f"{why}; set time_conditioning=false, or build the backbone with one")
        self.parameterization = parameterization or SUBS(backbone.vocab)
        self.normalized = self.parameterization.normalized
        self.banned = self.parameterization.banned
        self.noise = noise
        self.time_conditioning = time_conditioning

    def read_features(self, query: Query, x0: OptTensor = None) -> Tensor:
        sigma = self._sigma(query.t) if self.time_conditioning else None
        return self.backbone.features(query.xt.long(), sigma, query.cond, query.valid)

    def _sigma(self, t: OptTensor) -> Tensor:
        if self.noise is None:
            raise ValueError("log_score needs the noise schedule: build the denoiser with noise=")
        if t is None:
            raise ValueError("this denoiser is conditioned on time: pass t (B,)")
        return self.noise.sigma(t)

    # Under every parameterization a mask has the `log_probs` of SUBS.
    cost = NetworkDenoiser.cost

    def predict(self, kind: Kind, query: Query) -> Tensor:
        index = query.places()
        sigma = []
        if kind == "log_score":
            sigma = [self._sigma(query.t)[:, None].expand(query.xt.shape)[index]]
        logits = self.logits(query, index)
        return getattr(self.parameterization, kind)(logits, query.xt[index], *sigma)

    def log_sum_and_logits(
        self, ids: Tensor, banned: Sequence[int], query: Query
    ) -> tuple[Tensor, Tensor]:
        index = query.places()  # before the network
        return self._log_sum(self.read_features(query)[index], ids, banned)

    def step_block(self, query: Query, state: State | None = None) -> Tensor:
        """`log_probs` at the positions that a state of `around` leaves out."""
        xt = query.xt.long()
        features = self.cached_backbone.step_block(xt, state, query.cond, query.valid)
        index = query.places()
        logits = self._head(features[index], query.columns(index))
        return self.parameterization.log_probs(logits, xt[index])

    def around(self, query: Query, columns: slice) -> State:
        """Read sequences, and keep what `step_block` needs of the tokens outside `columns` to
        predict inside (approximate)."""
        return self.cached_backbone.around(query.xt.long(), columns, query.cond, query.valid)

    @property
    def cached_backbone(self) -> AttentionCacheBackbone:
        """The network, for predictions with stored keys and values (`around`).

        Raises:
            ValueError: if it has no such cache.
        """
        if not isinstance(self.backbone, AttentionCacheBackbone):
            name = type(self.backbone).__name__
            raise ValueError(
                f"this sampler needs {AttentionCacheBackbone.described}; {name} has none: set "
                "sampler=grouped or another one"
            )
        if self.time_conditioning:
            raise ValueError(
                "a key-value cache does not fit a network that is conditioned on time; set "
                "sampler=grouped or another sampler"
            )
        return self.backbone


@checked
class BlockDenoiser(Denoiser):
    """A network that reads blocks under SUBS: the distribution of x0 in each block given xt in it
    and x0 in all blocks before it (block diffusion, BD3-LM, arXiv 2503.09573).

    Args:
        backbone: the network.
        block_size: b, tokens of a block; the last block of a sequence may have fewer.

    Examples:
        >>> import torch
        >>> from dnadiff.networks.backbone.caduceus import Caduceus
        >>> from dnadiff.data.tokenizer import DNATokenizer
        >>> vocab = DNATokenizer().vocab
        >>> denoiser = BlockDenoiser(Caduceus(vocab, d_model=16, n_layers=1), block_size=2)
        >>> x0 = torch.tensor([[7, 8, 10, 9]])  # A, C, T, G
        >>> xt = torch.tensor([[7, 3, 3, 3]])  # A, mask, mask, mask
        >>> # -log p of C given A, of T and of G given A, C
        >>> denoiser.nll(x0, xt, positions=xt == vocab.mask_id).shape
        torch.Size([3])
        >>> state = denoiser.advance(Query(x0[:, :2]))
        >>> # both masked positions of the second block, 12 token ids
        >>> denoiser.step_block(Query(xt[:, 2:]), state).shape
        torch.Size([1, 2, 12])
    """

    reads = BlockBackbone
    sampler = "block"
    backbone: Any  # a `BlockBackbone`

    def __init__(self, backbone: Backbone, block_size: PositiveInt) -> None:
        super().__init__(backbone)
        self.block_size: int = block_size

    def check_window(self, length: int | None) -> None:
        if length is not None and self.block_size > length:
            raise ValueError(
                f"objective.block_size {self.block_size} is more than the {length} tokens of a "
                "window; lower it, or raise data.length"
            )

    def features(self, ids: Tensor, valid: OptTensor = None, cond: OptTensor = None) -> Tensor:
        return self.read_features(Query(ids, cond=cond, valid=valid))

    def read_features(self, query: Query, x0: OptTensor = None) -> Tensor:
        return self._both(query.xt if x0 is None else x0, query)[0]

    def _both(self, x0: Tensor, query: Query, clean: bool = False) -> tuple[Tensor, OptTensor]:
        xt = query.xt.long()
        beside = query.cond, query.valid
        size = min(self.block_size, xt.shape[1])
        if size == xt.shape[1] and not clean:  # no block reads the clean stream
            return self.backbone.features(xt, None, *beside), None
        return self.backbone.block_features(xt, x0.long(), size, *beside, clean)

    def nll_with_next(
        self, x0: Tensor, query: Query, next_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`nll`, and -log p of the tokens at `next_positions (B, L)` bool given those before each,
        from the clean stream: (M,) and (N,).

        Both come from one pass. The first token has no token before it, and is not predicted here.

        It is for networks with `BlockBackbone.clean_is_causal`: another clean stream would copy the
        next token.

        Raises:
            ValueError: if position 0 is requested.
        """
        if next_positions[:, 0].any():
            raise ValueError("next_positions includes position 0, which has no token before it")
        index = query.places()
        following = next_positions.nonzero(as_tuple=True)
        before = next_positions.roll(-1, 1).nonzero(as_tuple=True)  # row l - 1 predicts token l
        noised, clean = self._both(x0, query, clean=True)
        assert clean is not None
        return (
            self._nll_of(noised[index], x0[index], query.columns(index)),
            self._nll_of(clean[before], x0[following], query.columns(following)),
        )

    @property
    def cached_backbone(self) -> Any:
        """The network: `step_block` predicts one block, after the blocks in a state of `advance`
        (None for the first block), without reading them again."""
        return self.backbone

    def advance(self, query: Query, state: State | None = None) -> State:
        """Read one more finished block, `xt` (B, n): the state after it, from the state before it
        (not modified)."""
        return self.backbone.advance(query.xt.long(), state, query.cond, query.valid)


class CausalDenoiser(NetworkDenoiser):
    """A causal backbone as an autoregressive model: the distribution of each token given those
    before it.

    The network reads a start token (the mask, which these models do not use otherwise) and all
    tokens but the last. So the first token is predicted and counted too, and likelihoods compare
    with a NELBO token by token.
    """

    reads = CausalBackbone
    sampler = "ar"
    backbone: Any  # a `CausalBackbone`

    def read_features(self, query: Query, x0: OptTensor = None) -> Tensor:
        shifted = self.backbone.shifted
        valid = query.valid
        before = shifted(query.xt if x0 is None else x0, self.vocab.mask_id)
        valid = None if valid is None else shifted(valid, True)
        return self.backbone.features(before.long(), None, query.cond, valid)

    def next_log_probs(
        self,
        x: Tensor,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """Log-probabilities of token l given tokens 0..l-1, in row l; arguments and result are
        shaped as in `MaskedDenoiser.log_probs`."""
        return emitted_log_probs(self.logits(Query(x, None, cond, positions, valid)), self.vocab)

    def step(
        self, token: Tensor, state: State | None = None, cond: OptTensor = None
    ) -> tuple[Tensor, State]:
        """Read one more token and return the distribution of the next one, without reading earlier
        tokens again.

        Args:
            token: (B,) the token just placed; the mask, which is the start token, in the first
                call.
            state: the network's state from the previous call; None in the first call. Do not use it
                again afterwards.
            cond: labels, or all columns of the sequences, the same in every call.

        Returns:
            Log-probabilities (B, V) as in `next_log_probs`, and the state after `token`.
        """
        here = self._next_columns(state, 1, cond)
        features, state = self.backbone.step(token.long(), state, here)
        columns = None if here is None else here[:, 0]
        return emitted_log_probs(self._head(features, columns), self.vocab), state

    def read(
        self, tokens: Tensor, state: State | None = None, cond: OptTensor = None
    ) -> tuple[Tensor, State]:
        """`step` for each of several tokens (B, n), n > 0: log-probabilities (B, n, V) and the last
        state."""
        here = self._next_columns(state, tokens.shape[1], cond)
        features, state = self.backbone.read(tokens.long(), state, here)
        return emitted_log_probs(self._head(features, here), self.vocab), state

    def _next_columns(self, state: State | None, number: int, cond: OptTensor) -> OptTensor:
        """`cond` of the next tokens, each read with the column of the one that it predicts."""
        first = 0 if state is None else state.length
        return at_positions(cond, slice(first, first + number))


class DenoiserWrapper(MaskedDenoiser):
    """A denoiser that changes the predictions of another one. Its properties are those of the
    wrapped denoiser.

    It implements what the kinds of denoisers that it is for can be asked.
    """

    denoiser: Any  # of the kind that `reads` says

    def __init__(self, denoiser: BaseDenoiser) -> None:
        super().__init__(denoiser.vocab)
        self.denoiser = denoiser
        for name in (
            "reads",
            "block_size",
            "process_type",
            "sampler",
            "bound",
            "time_conditioning",
            "rows_per_sequence",
            "max_length",
            "num_labels",
        ):
            setattr(self, name, getattr(denoiser, name))
        self.normalized = getattr(denoiser, "normalized", True)

    # The wrapped denoiser's submodule; assigning it here would register it twice.
    @property
    def backbone(self) -> Backbone:  # type: ignore[override]
        """The network of the wrapped denoiser."""
        return self.denoiser.backbone

    @property
    def unwrapped(self) -> BaseDenoiser:
        return self.denoiser.unwrapped

    def features(self, ids: Tensor, valid: OptTensor = None, cond: OptTensor = None) -> Tensor:
        return self.denoiser.features(ids, valid, cond)

    def predict(self, kind: Kind, query: Query) -> Tensor:
        return getattr(self.denoiser, kind)(*query)


class InBlock(DenoiserWrapper):
    """A block diffusion model in one block, given the blocks before it: a masked diffusion model of
    the block, for any sampler.

    Args:
        denoiser: reads blocks (`BlockDenoiser.step_block`).
        state: after the blocks before; None for the first block.
    """

    def __init__(self, denoiser: BaseDenoiser, state: State | None) -> None:
        super().__init__(denoiser)
        self.reads = BidirectionalBackbone
        self.block_size = None
        self.state = state
        self.normalized = True  # `step_block` returns probabilities; there is no `log_score`
        self.same_for_all_rows = state is None and denoiser.same_for_all_rows

    def for_rows(self, rows: OptTensor = None, columns: slice | None = None) -> InBlock:
        return self._around(self.denoiser.for_rows(rows, columns), rows)

    def without_recording(self) -> InBlock:
        return self._around(self.denoiser.without_recording(), None)

    def _around(self, denoiser: BaseDenoiser, rows: OptTensor) -> InBlock:
        """The same of another denoiser, for some sequences."""
        return InBlock(denoiser, self._state_of(rows))

    def _state_of(self, rows: OptTensor) -> State | None:
        state = self.state
        if state is None or rows is None:
            return state
        every = torch.arange(len(state.tensors[0]), device=rows.device)
        # `select` copies a cache of keys and values
        return state if torch.equal(every[rows], every) else state.select(rows)

    def predict(self, kind: Kind, query: Query) -> Tensor:
        return self.denoiser.step_block(query, self.state)


class InContext(InBlock):
    """A bidirectional model at some positions, given the other tokens: those in a cache, and those
    that it reads in each call.

    Args:
        denoiser: has `Denoiser.step_block`.
        state: the tokens that are not read (`Denoiser.around`); None if all are.
        context: the tokens `xt` (B, n) that are read in each call, and `valid`.
        columns: the positions in `xt` that are predicted. Callers pass the tokens at these
            positions alone.
        equal: whether all sequences have the same context, so that `log_probs` may be called with
            the first sequence alone.
    """

    def __init__(
        self,
        denoiser: BaseDenoiser,
        state: State | None,
        context: Query,
        columns: slice,
        equal: bool,
    ) -> None:
        super().__init__(denoiser, state)
        self.context = context
        self.columns = columns
        self.same_for_all_rows = equal

    def for_rows(self, rows: OptTensor = None, columns: slice | None = None) -> InBlock:
        if columns is not None:
            raise ValueError("InContext serves its positions as a whole; columns must be None")
        return super().for_rows(rows)

    def _around(self, denoiser: BaseDenoiser, rows: OptTensor) -> InContext:
        context = self.context if rows is None else self.context.rows(rows)
        own = self.columns, self.same_for_all_rows
        return InContext(denoiser, self._state_of(rows), context, *own)

    def predict(self, kind: Kind, query: Query) -> Tensor:
        first = slice(len(query.xt))  # one for all
        context = self.context.rows(first)
        whole = context.xt.clone()
        requested = torch.zeros_like(context.xt, dtype=torch.bool)
        whole[:, self.columns], requested[:, self.columns] = query.xt, query.requested
        state = None if self.state is None else self.state.select(first)
        asked = context._replace(xt=whole, t=query.t, positions=requested)
        return query.shaped(self.denoiser.step_block(asked, state))


class OtherStrand(DenoiserWrapper):
    """A denoiser that reads RC x instead of x: the NELBO of x under it is the NELBO of RC x, with
    mirrored masks.

    Using the same noise for both strands makes their difference precise, and exactly 0 for an
    equivariant network. Raises ValueError if the vocabulary has no complement, or for a model that
    goes from left to right, whose other strand has other masks (see `ReverseComplemented`).
    """

    def __init__(self, denoiser: BaseDenoiser, vocab: Vocab) -> None:
        super().__init__(denoiser)
        denoiser.require_any_order("reading the other strand with the same masks")
        self.complement = vocab.reverse_complement(torch.arange(vocab.size)).flip(0)

    def predict(self, kind: Kind, query: Query) -> Tensor:
        positions = query.requested
        flipped = positions.flip(-1)
        row = flipped.flatten().cumsum(0).view(flipped.shape) - 1
        other = query._replace(
            xt=self.vocab.reverse_complement(query.xt),
            cond=mirrored(query.cond),
            positions=flipped,
            valid=None if query.valid is None else query.valid.flip(-1),
        )
        found = getattr(self.denoiser, kind)(*other)[row.flip(-1)[positions]]
        found = found[..., self.complement.to(row.device)]
        return query.shaped(found)


class Conjoined(DenoiserWrapper):
    """A denoiser that averages the probabilities of both strands at every call, so that p(x) = p(RC
    x), with twice the network calls.

    Its NELBO is a valid bound and at most the mean of both strands' NELBOs, because log is concave.
    The published Caduceus-Ph uses the same post-hoc conjoining for classification (arXiv
    2403.03234, section 4.2).
    """

    def __init__(self, denoiser: BaseDenoiser, vocab: Vocab) -> None:
        super().__init__(denoiser)
        self.other = OtherStrand(denoiser, vocab)
        self.rows_per_sequence = 2 * denoiser.rows_per_sequence

    def predict(self, kind: Kind, query: Query) -> Tensor:
        both = (getattr(each, kind)(*query) for each in (self.denoiser, self.other))
        return torch.logaddexp(*both) - math.log(2)


@torch.no_grad()
def site_log_probs(
    denoiser: BaseDenoiser,
    process: AbsorbingProcess,
    ids: Tensor,
    sites: Tensor,
    stranded: bool = False,
    cond: OptTensor = None,
) -> Tensor:
    """Log-probabilities of the token at each site, with all sites of a window masked in the same
    network call.

    With a single site per window this is the conditional distribution given everything else; with
    several, each is conditioned on the tokens outside all of them. The time of a network that is
    conditioned on time is that of the masked share of the window.

    Args:
        denoiser: a model that unmasks in any order.
        ids: (B, L) tokens.
        sites: (B, L) bool, where predictions are requested; what `ids` has there is not read.
        stranded: read the given strand alone. Otherwise the reverse complement is read too, in a
            second call. A network that is equivariant under the reverse complement (Caduceus-PS)
            predicts the same for both, so the second call can be saved.
        cond: as in `Query`; columns are those of the given strand.

    Returns:
        (K, M, V): for each of the K strands read, the given one first, the M sites in row-major
        order. Both are distributions of the token on the given strand.

    Raises:
        ValueError: for a model that goes from left to right, and for a vocabulary without
            complement unless `stranded`.
    """
    denoiser = denoiser.require_any_order("the distribution at a site given both sides")
    require("the distribution at a masked site", denoiser, AbsorbingProcess)
    xt = torch.where(sites, process.vocab.mask_id, ids)
    strands = [denoiser] if stranded else [denoiser, OtherStrand(denoiser, process.vocab)]
    query = Query(xt, process.time_of(xt), cond, sites)
    return torch.stack([strand.log_probs(*query) for strand in strands])
