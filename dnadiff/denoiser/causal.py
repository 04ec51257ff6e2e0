"""The denoiser of autoregressive models: a causal network that predicts each token from those
before it."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from dnadiff.backbone.base import CausalBackbone, State
from dnadiff.denoiser.base import NetworkDenoiser, OptTensor, at, indices
from dnadiff.parameterization import emitted_log_probs


class CausalDenoiser(NetworkDenoiser):
    """A causal backbone as an autoregressive model: the distribution of each token given those
    before it.

    The network reads a start token (the mask, which these models do not use otherwise) and all
    tokens but the last. So the first token is predicted and counted too, and likelihoods compare
    with a NELBO token by token.
    """

    reads = CausalBackbone
    backbone: CausalBackbone

    @override
    def _features(
        self, xt: Tensor, t: OptTensor, cond: OptTensor, positions: OptTensor, valid: OptTensor
    ) -> Tensor:
        context = self.backbone.context
        before, valid = (
            context.shifted(xt, self.vocab.mask_id),
            None if valid is None else context.shifted(valid, True),
        )
        index = indices(positions)
        return at(
            self.backbone.features(before.long(), None, cond, valid), index
        )  # row l predicts token l

    @override
    def next_log_probs(
        self,
        x: Tensor,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        return emitted_log_probs(self.logits(x, None, cond, positions, valid), self.vocab)

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
        ids = at(x0, positions).flatten()  # before the network, see `indices`
        features = self._features(x0, None, cond, positions, valid)
        return self._nll_of(features.flatten(0, -2), ids)

    @override
    def read(
        self, tokens: Tensor, state: State | None = None, cond: OptTensor = None
    ) -> tuple[Tensor, State]:
        features, state = self.backbone.read(tokens.long(), state, cond)
        return emitted_log_probs(
            self.backbone.head(features)[..., : self.vocab.size], self.vocab
        ), state

    @override
    def step(
        self, token: Tensor, state: State | None = None, cond: OptTensor = None
    ) -> tuple[Tensor, State]:
        features, state = self.backbone.step(token.long(), state, cond)
        return emitted_log_probs(
            self.backbone.head(features)[..., : self.vocab.size], self.vocab
        ), state
