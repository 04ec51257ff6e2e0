"""What denoisers can be asked, by their kind, and what denoisers of one network share.

Every denoiser is a `BaseDenoiser`. One that unmasks, in any order or in the blocks of block
diffusion, is a `MaskedDenoiser`; an autoregressive one is a `CausalDenoiser`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from dnadiff.diffusion.parameterization import emitted_log_probs
from dnadiff.diffusion.positions import FUSED_TOKENS, at, indices
from dnadiff.diffusion.process import AbsorbingProcess, Process
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.base import (
    Backbone,
    BidirectionalBackbone,
    BlockBackbone,
    CausalBackbone,
)
from dnadiff.networks.kernels.log_sum import linear_log_sum

OptTensor = Tensor | None


class BaseDenoiser(nn.Module):
    """A model of tokens, whatever it can be asked.

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
        given: (B, L) bool, fixed tokens whose probability is recorded while a sampler goes from
            left to right; None for most denoisers.
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
    given: OptTensor = None

    def __init__(self, vocab: Vocab) -> None:
        super().__init__()
        self.vocab = vocab

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

    def require_any_order(self, what: str) -> MaskedDenoiser:
        """Itself; raises a ValueError that begins with `what` if it goes from left to right."""
        if self.left_to_right or not isinstance(self, MaskedDenoiser):
            raise ValueError(
                f"{what} needs a model that unmasks in any order, and this one goes from left to "
                "right"
            )
        return self

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
            t, cond, valid: as in `MaskedDenoiser.log_probs`.
            positions: (B, L) bool; None is everywhere.
        """
        raise NotImplementedError

    def features(self, ids: Tensor, valid: OptTensor = None) -> Tensor:
        """The network's features (B, L, D) of sequences that it reads without masks, as embeddings:
        no noise level and no labels.

        Those of position l have seen what the network reads: all tokens, tokens 0..l, or, of a
        block model, its block and those before it.

        Args:
            ids: (B, L) token ids.
            valid: as in `MaskedDenoiser.log_probs`.
        """
        raise NotImplementedError


class MaskedDenoiser(BaseDenoiser):
    """A denoiser that unmasks. A subclass implements `log_probs`.

    Attributes:
        normalized: whether the ratios of `log_score`, if it has them, sum at a masked position to
            what probabilities would; those of SEDD need not.
        banned: ids that have probability 0 in `x0_log_probs`.
    """

    normalized: bool = True

    def __init__(self, vocab: Vocab) -> None:
        super().__init__(vocab)
        self.banned: tuple[int, ...] = vocab.never_emitted

    @property
    def fused_head(self) -> bool:
        """Whether losses should call `log_sum_and_logits`, which avoids (M, V) logits."""
        return False

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
        raise NotImplementedError

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
        `ids (M, K)`, at the M requested positions, for a `fused_head`.

        -log p(x0) is the difference of the two. The (M, V) logits are not materialized
        (`dnadiff.networks.kernels.log_sum.linear_log_sum`).
        """
        raise NotImplementedError

    @override
    def nll(
        self,
        x0: Tensor,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        if self.left_to_right:
            raise ValueError(
                f"{type(self).__name__} does not provide the nll of a model that goes from left to "
                "right; use `unwrapped`"
            )
        if self.fused_head:
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

    def x0_nll(
        self,
        x0: Tensor,
        xt: Tensor,
        t: Tensor,
        cond: OptTensor,
        positions: Tensor,
        valid: OptTensor,
    ) -> tuple[Tensor, Tensor]:
        """-log p(x0) and log p(mask) under `x0_log_probs`, each `(M,)`.

        `positions` includes visible ones only where that distribution does not carry them over.
        """
        target, mask_id = x0[positions][:, None], self.vocab.mask_id
        if not self.fused_head:
            log_probs = self.x0_log_probs(xt, t, cond, positions, valid)  # (M, V)
            return -log_probs.gather(-1, target)[:, 0], log_probs[:, mask_id]
        has_mask = mask_id not in self.banned
        ids = torch.cat([target, torch.full_like(target, mask_id)], 1) if has_mask else target
        log_sum, found = self.log_sum_and_logits(ids, self.banned, xt, t, cond, positions, valid)
        on_mask = found[:, 1] - log_sum if has_mask else torch.full_like(log_sum, -torch.inf)
        return log_sum - found[:, 0], on_mask


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
        self.backbone, self.max_length, self.num_labels = (
            backbone,
            backbone.max_length,
            backbone.num_labels,
        )

    @property
    def fused_head(self) -> bool:
        """Whether losses avoid (M, V) logits."""
        return self.vocab.size >= self.fused_from and self.backbone.head_matrix() is not None

    @override
    def features(self, ids: Tensor, valid: OptTensor = None) -> Tensor:
        return self.backbone.features(ids.long(), valid=valid)

    def read_features(self, xt: Tensor, t: OptTensor, cond: OptTensor, valid: OptTensor) -> Tensor:
        """The features (B, L, D) from which xt is predicted; arguments as in
        `MaskedDenoiser.log_probs`."""
        return self.backbone.features(xt.long(), None, cond, valid)

    def logits(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """Raw logits, cut to `vocab.size` columns; arguments and result are shaped as in
        `MaskedDenoiser.log_probs`."""
        index = indices(positions)
        return self._head(at(self.read_features(xt, t, cond, valid), index))

    def _head(self, features: Tensor) -> Tensor:
        return self.backbone.head(features)[..., : self.vocab.size]

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
        if self.fused_head:
            log_sum, at_ids = self._log_sum(features, ids, self.vocab.never_emitted)
            return log_sum - at_ids[:, 0]
        return -emitted_log_probs(self._head(features), self.vocab).gather(-1, ids)[:, 0]
