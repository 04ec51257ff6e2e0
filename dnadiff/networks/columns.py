"""Input layers for columns of an alignment: what the aligned genomes say about each position, next
to the sequence that a network reads.

A layer adds a vector to the embedding of each token, and to the logits of the four bases a times
the log-probabilities that the aligned genomes give. So training starts from what these predict, and
the network learns what they do not say. No column depends on the target's own base
(`dnadiff.data.alignment`), so a masked base stays unknown.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from dnadiff.diffusion.vocab import CHANNELS, DEPTH, FREQUENCY, POSTERIOR, RATE

_STD = 0.02  # of the first weights, as of the embeddings


class ColumnLayer(nn.Module):
    """A linear map of some channels of columns (..., 10), see `dnadiff.diffusion.vocab.CHANNELS`.
    Log-probabilities are divided by 3, so that all inputs are of order one.

    There is no bias, so a column of zeros, which says that nothing is aligned, changes neither the
    embedding nor the logits.

    Args:
        d_model: width D of the embedding of one strand.

    Attributes:
        described: what it reads, in words.
        reads: the channels.
        predicts: the channels with the log-probabilities of A, C, G and T that are added to their
            logits, times `a`.
        a: learned from 1: a network whose own logits are zero predicts what the columns say.
    """

    # a checkpoint's configuration may name it (`dnadiff.store.objects.locate`)
    buildable = True
    described: ClassVar[str]
    reads: ClassVar[Sequence[int]]
    predicts: ClassVar[slice] = POSTERIOR
    channels: Tensor
    scale: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_model, len(self.reads)))
        nn.init.normal_(self.weight, std=_STD)
        self.a = nn.Parameter(torch.ones(1))  # FSDP2 cuts no scalars
        self.register_buffer("channels", torch.tensor([*self.reads]), persistent=False)
        scale = torch.tensor([1 / 3 if each < RATE else 1.0 for each in self.reads])
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, columns: Tensor) -> Tensor:
        """The vectors (..., D) that are added to the embedding, from columns (..., 10)."""
        inputs = self.scale * columns[..., self.channels]
        return nn.functional.linear(inputs.to(self.weight.dtype), self.weight)

    def residual(self, columns: Tensor) -> Tensor:
        """What is added to the logits of A, C, G and T, (..., 4), from columns (..., 10)."""
        return self.a * columns[..., self.predicts]


class PosteriorColumns(ColumnLayer):
    """The posterior of the base under the phylogeny, the rate of substitution, and the number of
    genomes."""

    described = "posterior of the bases, rate and number of genomes"
    reads = *range(4), RATE, DEPTH


class FrequencyColumns(ColumnLayer):
    """The frequencies of the bases and the number of genomes: nothing of the phylogeny."""

    described = "frequencies of the bases and number of genomes"
    reads = (*range(4, 8), DEPTH)
    predicts = FREQUENCY


class PosteriorAndFrequencyColumns(ColumnLayer):
    """All channels, with the posterior in the logits."""

    described = "posterior and frequencies of the bases, rate and number of genomes"
    reads = range(CHANNELS)
