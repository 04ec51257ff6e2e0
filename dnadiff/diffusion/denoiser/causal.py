"""The denoiser of autoregressive models: a causal network that predicts each token from those
before it."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from dnadiff.diffusion.denoiser.base import NetworkDenoiser, OptTensor
from dnadiff.diffusion.parameterization import emitted_log_probs
from dnadiff.diffusion.positions import at, indices
from dnadiff.networks.backbone.base import CausalBackbone, State


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
    def read_features(self, xt: Tensor, t: OptTensor, cond: OptTensor, valid: OptTensor) -> Tensor:
        context = self.backbone.context
        before = context.shifted(xt, self.vocab.mask_id)  # row l predicts token l
        valid = None if valid is None else context.shifted(valid, True)
        return self.backbone.features(before.long(), None, cond, valid)

    def next_log_probs(
        self,
        x: Tensor,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """Log-probabilities of token l given tokens 0..l-1, in row l; arguments and result are
        shaped as in `MaskedDenoiser.log_probs`."""
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
        index = indices(positions)
        features = self.read_features(x0, None, cond, valid)
        return self._nll_of(at(features, index).flatten(0, -2), at(x0, index).flatten())

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
        features, state = self.backbone.step(token.long(), state, cond)
        return emitted_log_probs(self._head(features), self.vocab), state

    def read(
        self, tokens: Tensor, state: State | None = None, cond: OptTensor = None
    ) -> tuple[Tensor, State]:
        """`step` for each of several tokens (B, n), n > 0: log-probabilities (B, n, V) and the last
        state."""
        features, state = self.backbone.read(tokens.long(), state, cond)
        return emitted_log_probs(self._head(features), self.vocab), state
