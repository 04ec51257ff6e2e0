"""Analog Bits (arXiv 2208.04202): the bits of each token as real numbers with Gaussian noise."""

import torch
from torch import Tensor

from dnadiff.diffusion.denoiser import Backbone, BaseDenoiser, without_gradients
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.gaussian import GaussianProcess, VectorDenoiser
from dnadiff.diffusion.objective.base import Loss, Objective, TrainingBatch
from dnadiff.diffusion.objective.masking import strata
from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import Fraction, Positive, checked_dataclass

_HARD = 1e6  # rounding takes the token of the nearest bits


@checked_dataclass
class AnalogBits(Objective):
    """Mean squared error of the estimated bits of each token at a random time: two for a base,
    ceil(log2 V) for V tokens.

    Args:
        process: Gaussian noise; the published schedule is `noise=cosine_squared`.
        scale: a bit is -scale or scale.
        self_conditioning: the share of batches in which the network reads an estimate of its own
            from a first pass without gradients; with 0 it has no input for it.
    """

    process_type = GaussianProcess
    time_conditioning = True
    trains_bound = False
    own_bound = True
    no_likelihood = "an error of bits as real numbers bounds no probability of tokens"

    process: GaussianProcess  # type: ignore[assignment]
    scale: Positive = 1.0
    self_conditioning: Fraction = 0.5

    def make_denoiser(self, backbone: Backbone, time_conditioning: bool) -> BaseDenoiser:
        codes = self.scale * bits(backbone.vocab)
        reads_estimate = self.self_conditioning > 0
        return VectorDenoiser(
            backbone, self.process, codes, time_conditioning, _HARD, reads_estimate
        )

    def compute(self, denoiser: VectorDenoiser, batch: TrainingBatch) -> Loss:
        x0, weight, draws, cond, valid = batch
        clean = denoiser.codes[x0]
        t_min = self.process.t_min
        t = t_min + (1 - t_min) * strata(draws, True, x0.device)
        zt = self.process.corrupt(clean, t, weight > 0, draws)
        estimate = None
        if hash64(draws.seed, "estimate", draws.step) < self.self_conditioning * 2**64:
            with without_gradients():
                estimate = denoiser.denoise(zt, t, cond, valid)
        error = (denoiser.denoise(zt, t, cond, valid, estimate) - clean).square().mean(-1)
        return Loss.mean((error * weight).sum(), weight.sum())


def bits(vocab: Vocab) -> Tensor:
    """-1 or 1 for each bit of the number of each token among those that samples may contain, lowest
    first; 0 for the others: (V, bits)."""
    number = torch.arange(len(vocab.emitted))
    width = max(1, (len(number) - 1).bit_length())
    table = torch.zeros(vocab.size, width)
    table[list(vocab.emitted)] = 2.0 * ((number[:, None] >> torch.arange(width)) & 1) - 1
    return table
