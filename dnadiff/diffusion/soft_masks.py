"""Self-conditioning of masked diffusion models: a second pass that reads what the first one
predicts at the masks (soft masks, arXiv 2510.17206)."""

import torch
from torch import Tensor, nn

from dnadiff.diffusion.denoiser import Backbone, Denoiser, OptTensor, Query, without_gradients
from dnadiff.diffusion.noise import NoiseSchedule
from dnadiff.diffusion.process import Parameterization, emitted_log_probs
from dnadiff.diffusion.sampler.adaptive import entropy
from dnadiff.diffusion.sampler.base import rows_at_once
from dnadiff.fields import Fraction, PositiveInt


class SoftMasked(Denoiser):
    """A masked diffusion model that reads every xt twice. In the second pass the vector of a mask
    is (1 - l) times that of the mask plus l times a mean vector of tokens: those that the first
    pass finds most probable, weighted by their probabilities.

    l = scale * sigmoid(steepness * (-H - center)) with the entropy H of the first pass, in nats
    (arXiv 2510.17206). The three numbers are learned, besides the network; no gradient passes
    through the first pass. `scale` begins at 0, where the model is the one of a single pass.

    Both passes see the same xt, so the predictions are a function of xt as those of any network:
    likelihoods, samplers and everything else hold as they are, at twice the cost. The published
    sampler saves the first pass by reading the predictions of the step before, which makes the
    samples those of another model than the likelihoods; it is not used here. Further deviations:
    `scale` is not kept between 0 and 1, because the gradient of the published form vanishes at 0,
    and `steepness` and `center` may have any sign.

    Args:
        backbone, parameterization, noise, time_conditioning: as in `Denoiser`; the network must
            accept other vectors than those of tokens (`Backbone.mix`).
        probability: with which a sequence gets a second input in training, each on its own; in the
            others the second pass is the first one again. In evaluation it is always given.
        top_k: tokens of the mean. Published: 3.
    """

    rows_per_sequence = 2

    def __init__(
        self,
        backbone: Backbone,
        parameterization: Parameterization | None = None,
        noise: NoiseSchedule | None = None,
        time_conditioning: bool = False,
        probability: Fraction = 1.0,
        top_k: PositiveInt = 3,
    ) -> None:
        super().__init__(backbone, parameterization, noise, time_conditioning)
        if type(backbone).mix is Backbone.mix or type(backbone).embed is Backbone.embed:
            raise ValueError(
                f"objective.self_conditioning {probability} does not fit "
                f"{type(backbone).__name__}, which reads token ids only; set it to null, or "
                "implement embed and mix"
            )
        self.probability = probability
        self.top_k = min(top_k, len(backbone.vocab.emitted))
        self.scale = nn.Parameter(torch.zeros(()))
        self.center = nn.Parameter(torch.tensor(-0.75))
        self.steepness = nn.Parameter(torch.tensor(20 / 3))

    def read_features(self, query: Query, x0: OptTensor = None) -> Tensor:
        xt = query.xt.long()
        network = self.backbone
        masked = xt == self.vocab.mask_id
        with without_gradients():
            features = super().read_features(query)[masked]
            nats, ids, weights = self._most_probable(features, query.columns(masked))
        share = self.scale * torch.sigmoid(self.steepness * (-nats - self.center))  # (M,)
        if self.training:
            given = torch.rand(len(xt), 1, device=xt.device) < self.probability
            share = share * given.expand(xt.shape)[masked]
        plain = h = network.embedded(xt, query.cond)
        for rank in range(self.top_k):
            guess = network.embedded(xt.masked_scatter(masked, ids[:, rank]), query.cond)
            weight = (share * weights[:, rank]).to(h)
            weight = weight.new_zeros(xt.shape).masked_scatter(masked, weight)
            h = h + weight[..., None] * (guess - plain)
        sigma = self._sigma(query.t) if self.time_conditioning else None
        return network.mix(h, sigma, query.cond, query.valid)

    def _most_probable(self, features: Tensor, columns: OptTensor) -> tuple[Tensor, Tensor, Tensor]:
        """The entropy (M,) of the predictions from features (M, D) and columns (M, 10), and the
        `top_k` most probable tokens with their normalized probabilities, (M, k) both."""
        parts = []
        size = rows_at_once(features.device, self.vocab.size)
        for first in range(0, len(features), size) or [0]:
            part = slice(first, first + size)
            logits = self._head(features[part], None if columns is None else columns[part])
            log_probs = emitted_log_probs(logits, self.vocab)
            found = log_probs.topk(self.top_k, -1)
            parts.append((entropy(log_probs), found.indices, found.values.softmax(-1)))
        nats, ids, weights = map(torch.cat, zip(*parts))
        return nats, ids, weights

    @property
    def cached_backbone(self) -> None:  # type: ignore[override]
        raise ValueError(
            "a key-value cache does not fit a network that reads its own predictions "
            "(objective.self_conditioning); set sampler=grouped or another sampler"
        )

    def check_pieces(self, num_pieces: int, length: int | None) -> None:
        raise ValueError(
            f"context_parallel {num_pieces} does not fit objective.self_conditioning, expected 1: "
            "every process would draw on its own which sequences get a second input"
        )
