"""Gaussian noise on vectors: the process, and the denoiser, which has a vector for each token and a
network that estimates clean vectors from noisy ones.

Vectors are bits of the token (Analog Bits) or learned embeddings (Diffusion-LM). A sample becomes
tokens in the last step, by rounding.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from dnadiff.diffusion.denoiser import NetworkDenoiser
from dnadiff.diffusion.draws import Draws
from dnadiff.diffusion.noise import float64_device
from dnadiff.diffusion.process import BaseProcess, emitted_log_probs
from dnadiff.fields import InnerFraction, checked_dataclass
from dnadiff.networks.backbone.base import Backbone, OptTensor


def normal(draws: Draws, purpose: str, like: Tensor) -> Tensor:
    """Independent standard normal numbers of the shape (B, ...) and the type of `like`."""
    return torch.special.ndtri(draws.uniform(purpose, *like.shape[1:])).to(like)


@checked_dataclass
class GaussianProcess(BaseProcess):
    """z_t = sqrt(alpha) x0 + sqrt(1 - alpha) n with standard normal n, for vectors x0 (B, L, D)
    (arXiv 2006.11239, eq. 4, whose alpha-bar is alpha(t) of the schedule).

    Here xt are vectors, and the network estimates x0. What depends on times alone is computed in
    float64, on the CPU for a device without it.

    Args:
        vocab: the vocabulary.
        noise: alpha(t).
        t_min: the time at which vectors are rounded to tokens.
    """

    described = "Gaussian noise on vectors"
    example = "gaussian"
    sampler = "ddim"

    t_min: InnerFraction = 1e-4

    def times(self, num_steps: int, like: Tensor, last: float = 1.0) -> Tensor:
        """A uniform grid from t_min to `last`: (num_steps + 1,) float64, on the device of `like` if
        it has float64."""
        grid = torch.linspace(self.t_min, last, num_steps + 1, dtype=torch.float64)
        return grid.to(float64_device(like.device))

    def snr(self, t: Tensor) -> Tensor:
        """alpha / (1 - alpha), the signal-to-noise ratio."""
        alpha = self.noise.alpha(t)
        return alpha / (1 - alpha)

    def corrupt(self, x0: Tensor, t: Tensor, maskable: Tensor, draws: Draws) -> Tensor:
        alpha = self.noise.alpha(t)[:, None, None]
        zt = alpha.sqrt().to(x0) * x0 + (1 - alpha).sqrt().to(x0) * normal(draws, "noise", x0)
        return torch.where(maskable[..., None], zt, x0)

    def step_cost(self, estimate: Tensor, x0: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """KL(q(z_s | z_t, x0) || p(z_s | z_t)) of each position, where p has the variance of q
        (arXiv 2107.00630, eq. 13 and 14); t and s broadcast with positions."""
        return (self.snr(s) - self.snr(t)).to(x0) / 2 * (x0 - estimate).square().sum(-1)

    def reverse(
        self, estimate: Tensor, zt: Tensor, t: Tensor, s: Tensor, eta: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Mean (..., D) and standard deviation () of z_s given z_t and an estimate of x0; t and s
        are scalars. The deviation is eta times that of the posterior q(z_s | z_t, x0) (arXiv
        2010.02502, eq. 16)."""
        alpha_t, alpha_s = self.noise.alpha(torch.stack([t, s]))
        std = eta * ((1 - alpha_s) / (1 - alpha_t) * (1 - alpha_t / alpha_s)).sqrt()
        of_noise = ((1 - alpha_s - std**2).clamp(min=0) / (1 - alpha_t)).sqrt()
        of_x0 = alpha_s.sqrt() - of_noise * alpha_t.sqrt()
        return of_x0.to(zt) * estimate + of_noise.to(zt) * zt, std.to(zt)

    def ends(self, x0: Tensor) -> Tensor:
        alpha = self.noise.alpha(torch.ones(1, dtype=torch.float64)).to(x0)
        return (alpha * (x0.square() - 1) - torch.log1p(-alpha)).sum(-1) / 2


class VectorDenoiser(NetworkDenoiser):
    """A network that estimates the vectors of x0 from noisy ones, through `Backbone.mix` between an
    input and an output layer of its own.

    The embedding and the head of the network, which are of tokens, are not used.

    Args:
        backbone: the network, with a time input.
        process: of its training.
        codes: (V, D) a vector for each token id; a parameter is learned.
        time_conditioning: False is refused.
        sharpness: factor of the inner products with vectors that tokens are rounded by; large: the
            token of the largest one.
        reads_estimate: whether it also reads its last estimate (self-conditioning).
        clamps: whether samplers replace estimates by the vectors of tokens, unless told otherwise.

    Raises:
        ValueError: if the network is not conditioned on time.
    """

    codes: Tensor
    bias: OptTensor

    def __init__(
        self,
        backbone: Backbone,
        process: GaussianProcess,
        codes: Tensor,
        time_conditioning: bool = True,
        sharpness: float = 1.0,
        reads_estimate: bool = False,
        clamps: bool = False,
    ) -> None:
        super().__init__(backbone)
        if not time_conditioning or not backbone.takes_sigma:
            raise ValueError(
                "time_conditioning=false, but a network that reads noisy vectors needs the time; "
                "set time_conditioning=true"
            )
        if backbone.columns is not None:
            raise ValueError(
                "data.alignment does not fit an objective of noisy vectors, which has no logits of "
                "bases; leave it out, or set another objective"
            )
        self.process = process
        self.time_conditioning = True
        self.sharpness = sharpness
        self.reads_estimate = reads_estimate
        self.clamps = clamps
        if isinstance(codes, nn.Parameter):
            self.codes = codes
            self.bias = nn.Parameter(torch.zeros(len(codes)))
            self.no_weight_decay = ("codes",)
        else:
            self.register_buffer("codes", codes, persistent=False)
            self.bias = None
        width = codes.shape[1]
        self.input = nn.Linear(width * (1 + reads_estimate), backbone.d_model)
        self.output = nn.Linear(backbone.d_model, width)

    def denoise(
        self,
        z: Tensor,
        t: Tensor,
        cond: OptTensor = None,
        valid: OptTensor = None,
        estimate: OptTensor = None,
    ) -> Tensor:
        """x0 estimated from z (B, L, D) at times t (B,), and from an earlier `estimate` if it reads
        one: (B, L, D)."""
        return self.output(self._features(z, t, cond, valid, estimate)).to(z)

    def _features(
        self, z: Tensor, t: Tensor, cond: OptTensor, valid: OptTensor, estimate: OptTensor = None
    ) -> Tensor:
        if self.reads_estimate:
            z = torch.cat([z, torch.zeros_like(z) if estimate is None else estimate], -1)
        sigma = self.process.noise.sigma(t).float().to(z.device)
        self.backbone.check_inputs(z, sigma, cond)
        return self.backbone.mix(self.input(z), sigma, cond, valid)

    def round(self, z: Tensor) -> Tensor:
        """Log-probabilities of the tokens given vectors: (..., D) -> (..., V)."""
        return emitted_log_probs(self.sharpness * linear(z, self.codes, self.bias), self.vocab)

    def nearest(self, z: Tensor) -> Tensor:
        """The nearest vector of a token that a sample may contain, for each of z (..., D)."""
        distance = self.codes.square().sum(-1) - 2 * linear(z, self.codes)
        banned = ~self.vocab.is_emitted(z.device)
        return self.codes[distance.masked_fill(banned, torch.inf).argmin(-1)]

    def features(self, ids: Tensor, valid: OptTensor = None, cond: OptTensor = None) -> Tensor:
        t = torch.full((len(ids),), self.process.t_min, device=ids.device)
        return self._features(self.codes[ids.long()], t, cond, valid)
