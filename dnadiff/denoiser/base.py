"""The interface of every denoiser, and what denoisers of one network share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from dnadiff.backbone.base import (
    Backbone,
    BidirectionalBackbone,
    BlockBackbone,
    CausalBackbone,
    State,
)
from dnadiff.kernels import linear_log_sum
from dnadiff.parameterization import emitted_log_probs
from dnadiff.process import AbsorbingProcess, Process
from dnadiff.vocab import Vocab

OptTensor = Tensor | None
# vocabulary size from which losses avoid materializing the logits; smaller arrays are not worth
# computing twice
LARGE = 1024


class BaseDenoiser(nn.Module):
    """The interface of every denoiser.

    A subclass sets `reads` and implements what goes with it: `log_probs` for a
    `BidirectionalBackbone`, `next_log_probs` and `step` for a `CausalBackbone`, and `log_probs`,
    `step_block` and `advance` for a `BlockBackbone`. Methods that a denoiser does not support raise
    a ValueError.

    Attributes:
        backbone: the network, for denoisers that have one.
        reads: how the network reads a sequence: one of the three subclasses of `Backbone`.
        process_type: the process that it was trained to revert.
        block_size: b, for a `BlockBackbone`; None for the others.
        time_conditioning: whether its predictions depend on t.
        rows_per_sequence: sequences that the network evaluates for each one requested (2 with
            classifier-free guidance).
        same_for_all_rows: whether equal sequences get equal predictions; False if it stores
            something for each row of a batch.
        max_length: longest sequence that the network accepts; None for any.
        num_labels: C, the labels that it can be conditioned on.
        normalized: whether the ratios of `log_score` at a masked position sum to what probabilities
            would; those of SEDD need not.
        banned: ids that have probability 0 in `x0_log_probs`.
        given: (B, L) bool, fixed tokens whose probability is recorded while a sampler goes from
            left to right (`score_given`); None for most denoisers.
    """

    backbone: Backbone
    reads: type[Backbone] = BidirectionalBackbone
    process_type: type[Process] = AbsorbingProcess
    block_size: int | None = None
    time_conditioning: bool = False
    rows_per_sequence: int = 1
    same_for_all_rows: bool = True
    max_length: int | None = None
    num_labels: int = 0
    normalized: bool = True
    given: OptTensor = None

    def __init__(self, vocab: Vocab) -> None:
        super().__init__()
        self.vocab = vocab
        self.banned: tuple[int, ...] = vocab.never_emitted

    @property
    def fused_head(self) -> bool:
        """Whether losses should call `log_sum_and_logits`, which avoids (M, V) logits."""
        return False

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

    def check_window(self, length: int | None) -> None:
        """Raise ValueError if it cannot be trained on windows of `length` tokens (None if they have
        no fixed length)."""

    def check_pieces(self, num_pieces: int, length: int | None) -> None:
        """Raise ValueError or RuntimeError if windows of `length` tokens cannot be spread over so
        many processes (context parallelism)."""
        if self.reads is BlockBackbone:
            raise ValueError(
                f"context_parallel {num_pieces} does not fit objective block_mdlm, expected 1: its "
                "two streams restart at every block; set "
                "context_parallel=1, or another objective"
            )
        self.backbone.check_pieces(num_pieces, length)

    def require_any_order(self, what: str) -> None:
        """Raise a ValueError that begins with `what` if it goes from left to right."""
        if self.left_to_right:
            raise ValueError(
                f"{what} needs a model that unmasks in any order, and this one goes from left to "
                "right"
            )

    def require_cache(self) -> None:
        """Raise a ValueError if it cannot predict some positions with stored keys and values of the
        others (`around`)."""
        raise ValueError(
            f"{type(self).__name__} has no key-value cache; sampler=fast_dllm needs a model of "
            "backbone=dit"
        )

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
            t, cond, valid: as in `log_probs`.
            positions: (B, L) bool; None is everywhere.
        """
        if self.left_to_right:
            raise ValueError(
                f"{type(self).__name__} does not provide the nll of a model that goes from left to "
                "right; use `unwrapped`"
            )
        if self.fused_head:  # without (M, V) logits
            positions = torch.ones_like(x0, dtype=torch.bool) if positions is None else positions
            ids = x0[positions].long()[:, None]
            log_sum, at_ids = self.log_sum_and_logits(
                ids, self.vocab.never_emitted, xt, t, cond, positions, valid
            )
            return log_sum - at_ids[:, 0]
        ids, log_probs = (
            at(x0, positions).long()[..., None],
            self.log_probs(xt, t, cond, positions, valid),
        )
        return -log_probs.gather(-1, ids).flatten()

    def features(self, ids: Tensor, valid: OptTensor = None) -> Tensor:
        """The network's features (B, L, D) of sequences that it reads without masks, as embeddings:
        no noise level and no labels.

        Those of position l have seen what the network reads: all tokens, tokens 0..l, or, of a
        block model, its block and those before it.

        Args:
            ids: (B, L) token ids.
            valid: as in `log_probs`.
        """
        raise ValueError(f"{type(self).__name__} has no network with features")

    def log_probs(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """Log-probabilities of x0 given xt.

        Args:
            xt: (B, L) token ids.
            t: (B,) time; used only with time conditioning.
            cond: (B, C) labels.
            positions: (B, L) bool, where predictions are requested; None is everywhere.
            valid: (B, L) bool, False on padding that must not be read.

        Returns:
            (M, V) in row-major order of the M requested positions, or (B, L, V) for None.
        """
        raise ValueError(
            "an autoregressive model predicts from left to right (next_log_probs); unmasking needs "
            "an objective such as mdlm"
        )

    def x0_log_probs(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """The distribution of x0 that D3PM and the masked language model train, shaped as
        `log_probs`; under SUBS, `log_probs`."""
        return self.log_probs(xt, t, cond, positions, valid)

    def log_score(
        self,
        xt: Tensor,
        t: Tensor,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """Log-ratios of probabilities at time t, shaped as `log_probs`; see
        `Parameterization.log_score`."""
        raise ValueError(f"{type(self).__name__} does not provide log_score")

    def log_sum_and_logits(
        self,
        ids: Tensor,
        banned: Sequence[int],
        xt: Tensor,
        t: OptTensor,
        cond: OptTensor,
        positions: Tensor,
        valid: OptTensor,
    ) -> tuple[Tensor, Tensor]:
        """log sum_v exp(logit_v) over the ids not in `banned`, (M,), and the logits of
        `ids (M, K)`, at the M requested positions.

        -log p(x0) is the difference of the two. The (M, V) logits are not materialized
        (`dnadiff.kernels.linear_log_sum`).
        """
        raise ValueError(f"{type(self).__name__} has no fused head; use log_probs")

    def next_log_probs(
        self,
        x: Tensor,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """Log-probabilities of token l given tokens 0..l-1, in row l; arguments and result are
        shaped as in `log_probs`."""
        raise ValueError(
            f"{type(self).__name__} is not autoregressive; use log_probs, or train a model with "
            "objective=ar"
        )

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
            cond: (B, C) labels, the same in every call.

        Returns:
            Log-probabilities (B, V) as in `next_log_probs`, and the state after `token`.
        """
        raise ValueError(
            f"{type(self).__name__} is not autoregressive; use log_probs, or train a model with "
            "objective=ar"
        )

    def read(
        self, tokens: Tensor, state: State | None = None, cond: OptTensor = None
    ) -> tuple[Tensor, State]:
        """`step` for each of several tokens (B, n), n > 0: log-probabilities (B, n, V) and the last
        state."""
        raise ValueError(
            f"{type(self).__name__} is not autoregressive; use log_probs, or train a model with "
            "objective=ar"
        )

    def step_block(
        self,
        xt: Tensor,
        state: State | None = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """`log_probs` of one block, without reading earlier blocks again.

        Args:
            xt: (B, n) the block, of at most `block_size` tokens.
            state: after the blocks before it (see `advance`); None for the first block. It is not
                modified.
            cond, positions, valid: as in `log_probs`, for the block.
        """
        raise ValueError(
            f"{type(self).__name__} does not read block by block; train a model with "
            "objective=block_mdlm"
        )

    def advance(
        self,
        x0: Tensor,
        state: State | None = None,
        cond: OptTensor = None,
        valid: OptTensor = None,
    ) -> State:
        """Read one more finished block x0 (B, n): the state after it, from the state before it (not
        modified)."""
        raise ValueError(
            f"{type(self).__name__} does not read block by block; train a model with "
            "objective=block_mdlm"
        )

    def score_given(
        self, state: State | None = None, cond: OptTensor = None, valid: OptTensor = None
    ) -> list[int]:
        """Record the probability of the `given` tokens of a block whose masks are not filled yet.

        Args:
            state, cond, valid: as in `step_block`.

        Returns:
            The number of sequences in each network call.
        """
        return []

    def around(
        self, xt: Tensor, columns: slice, cond: OptTensor = None, valid: OptTensor = None
    ) -> State:
        """Read the sequence xt (B, L), and keep what `step_block` needs of the tokens outside
        `columns` to predict inside (approximate)."""
        raise ValueError(f"{type(self).__name__} has no key-value cache")


class NetworkDenoiser(BaseDenoiser):
    """A denoiser computed by one network. Raises ValueError if the network does not read as `reads`
    requires."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone.vocab)
        if not isinstance(backbone, self.reads):
            raise ValueError(
                f"{type(self).__name__} does not fit {type(backbone).__name__}: it needs "
                f"{self.reads.described}"
            )
        self.backbone, self.max_length, self.num_labels = (
            backbone,
            backbone.max_length,
            backbone.num_labels,
        )

    @property
    @override
    def fused_head(self) -> bool:
        return self.vocab.size >= LARGE and self.backbone.head_matrix() is not None

    @override
    def features(self, ids: Tensor, valid: OptTensor = None) -> Tensor:
        return self.backbone.features(ids.long(), valid=valid)

    def _features(
        self, xt: Tensor, t: OptTensor, cond: OptTensor, positions: OptTensor, valid: OptTensor
    ) -> Tensor:
        raise NotImplementedError  # (M, D), or (B, L, D) where positions is None

    def logits(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """Raw logits, cut to `vocab.size` columns; arguments and result are shaped as in
        `log_probs`."""
        return self.backbone.head(self._features(xt, t, cond, positions, valid))[
            ..., : self.vocab.size
        ]

    @override
    def log_sum_and_logits(
        self,
        ids: Tensor,
        banned: Sequence[int],
        xt: Tensor,
        t: OptTensor,
        cond: OptTensor,
        positions: Tensor,
        valid: OptTensor,
    ) -> tuple[Tensor, Tensor]:
        return self._log_sum(self._features(xt, t, cond, positions, valid), ids, banned)

    def _log_sum(
        self, features: Tensor, ids: Tensor, banned: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        matrix = self.backbone.head_matrix()
        if matrix is None:
            raise ValueError(
                f"the head of {type(self.backbone).__name__} is not one linear map; use log_probs"
            )
        size, (weight, bias) = self.vocab.size, matrix
        return linear_log_sum(
            features, weight[:size], None if bias is None else bias[:size], ids, banned
        )

    def _nll_of(self, features: Tensor, ids: Tensor) -> Tensor:
        """-log p of the tokens `ids (M,)` from features (M, D), among the tokens that samples may
        contain: (M,)."""
        ids = ids.long()[:, None]
        if self.fused_head:  # without (M, V) logits
            log_sum, at_ids = self._log_sum(features, ids, self.vocab.never_emitted)
            return log_sum - at_ids[:, 0]
        return -emitted_log_probs(
            self.backbone.head(features)[..., : self.vocab.size], self.vocab
        ).gather(-1, ids)[:, 0]


def at(x: Tensor, positions: Tensor | tuple[Tensor, ...] | None) -> Tensor:
    """The rows of x (B, L, ...) at `positions (B, L)` bool, or at their `indices`; x itself for
    None."""
    return x if positions is None else x[positions]


def indices(positions: OptTensor) -> tuple[Tensor, ...] | None:
    """Row and column of each True in `positions (B, L)`, (M,) each.

    M determines the shape of what follows, so on a GPU the process waits until the work queued so
    far is done. Call this before the network: after it, the GPU would be idle while the process
    queues the loss and the backward pass.
    """
    return None if positions is None else positions.nonzero(as_tuple=True)
