"""The denoiser of masked diffusion models: a bidirectional network with a parameterization."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from typing_extensions import override

from dnadiff.diffusion.denoiser.base import MaskedDenoiser, NetworkDenoiser, OptTensor
from dnadiff.diffusion.noise import NoiseSchedule
from dnadiff.diffusion.parameterization import SUBS, Parameterization
from dnadiff.diffusion.positions import at, indices
from dnadiff.networks.backbone.base import AttentionCacheBackbone, Backbone, State


class Denoiser(NetworkDenoiser, MaskedDenoiser):
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
        super().__init__(backbone)
        if time_conditioning and noise is None:
            raise ValueError("time_conditioning=True needs the noise schedule: pass noise=")
        if time_conditioning and not backbone.takes_sigma:
            why = f"time_conditioning=true, but this {type(backbone).__name__} has no time input"
            raise ValueError(f"{why}; set time_conditioning=false, or build the backbone with one")
        self.parameterization = parameterization or SUBS(backbone.vocab)
        self.normalized, self.banned = (
            self.parameterization.normalized,
            self.parameterization.banned,
        )
        self.noise, self.time_conditioning = noise, time_conditioning

    @override
    def read_features(self, xt: Tensor, t: OptTensor, cond: OptTensor, valid: OptTensor) -> Tensor:
        sigma = self._sigma(t) if self.time_conditioning else None
        return self.backbone.features(xt.long(), sigma, cond, valid)

    def _sigma(self, t: OptTensor) -> Tensor:
        if self.noise is None:
            raise ValueError("log_score needs the noise schedule: build the denoiser with noise=")
        if t is None:
            raise ValueError("this denoiser is conditioned on time: pass t (B,)")
        return self.noise.sigma(t)

    @override
    def log_probs(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        tokens = at(xt, positions)
        logits = self.logits(xt, t, cond, positions, valid)
        return self.parameterization.log_probs(logits, tokens)

    @override
    def x0_log_probs(
        self,
        xt: Tensor,
        t: OptTensor = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        tokens = at(xt, positions)
        logits = self.logits(xt, t, cond, positions, valid)
        return self.parameterization.x0_log_probs(logits, tokens)

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
        index = indices(positions)
        return self._log_sum(at(self.read_features(xt, t, cond, valid), index), ids, banned)

    def step_block(
        self,
        xt: Tensor,
        state: State | None = None,
        cond: OptTensor = None,
        positions: OptTensor = None,
        valid: OptTensor = None,
    ) -> Tensor:
        """`log_probs` at the positions that a state of `around` leaves out, xt (B, n)."""
        features = at(self.cached_backbone.step_block(xt.long(), state, cond, valid), positions)
        return self.parameterization.log_probs(self._head(features), at(xt, positions))

    def around(
        self, xt: Tensor, columns: slice, cond: OptTensor = None, valid: OptTensor = None
    ) -> State:
        """Read the sequence xt (B, L), and keep what `step_block` needs of the tokens outside
        `columns` to predict inside (approximate)."""
        return self.cached_backbone.around(xt.long(), columns, cond, valid)

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
        index = indices(positions)
        tokens, sigma = at(xt, index), at(self._sigma(t)[:, None].expand(xt.shape), index)
        return self.parameterization.log_score(
            self.logits(xt, t, cond, positions, valid), tokens, sigma
        )
