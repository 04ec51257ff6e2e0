"""Heads of sequence classifiers: from the features of all positions to the outputs."""

import math
from abc import ABC, abstractmethod
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from dnadiff.fields import PositiveInt, Probability, checked


class Head(nn.Module, ABC):
    """Maps features (B, L, D) to outputs (B, C).

    A configuration (`configs/head`) has the settings; the network and the task add these:

    Args:
        width: D.
        num_outputs: C, such as the number of classes.
        max_length: tokens of the longest sequence of the task.
    """

    # The description of a saved classifier may name it (`dnadiff.store.objects.locate`).
    buildable = True
    # The only length of sequences that it takes; None if it takes any.
    fixed_length: int | None = None

    def __init__(self, width: int, num_outputs: int, max_length: int) -> None:
        super().__init__()
        self.width = width
        self.num_outputs = num_outputs
        self.max_length = max_length

    @classmethod
    def check_lengths(cls, shortest: int, longest: int) -> None:
        """Raise ValueError if it does not take sequences of these lengths."""

    @abstractmethod
    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        """Features (B, L, D) float32 -> (B, C); positions outside `valid (B, L)`, at the end, have
        no influence."""


class HiddenLayer(nn.Sequential):
    """Features of a sequence (B, F) -> outputs (B, C) by a network of one hidden layer."""

    def __init__(self, num_features: int, hidden: int, num_outputs: int, dropout: float) -> None:
        super().__init__(
            nn.Dropout(dropout),
            nn.Linear(num_features, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_outputs),
        )


def lengths_of(features: Tensor, valid: Tensor | None) -> Tensor:
    """The number of valid positions of each sequence, (B,) int64."""
    batch, length = features.shape[:2]
    return torch.full((batch,), length, device=features.device) if valid is None else valid.sum(1)


def position_features(lengths: Tensor, length: int, count: int) -> Tensor:
    """Where each position is, from the beginning and from the end of its sequence: (B, length, 4 *
    count) float32.

    Sines and cosines of `count` wavelengths, from 4 tokens, each `2 sqrt(2)` times the one before:
    the distances that matter in a promoter or a splice site are exact to a base, and the longest
    wavelengths tell the parts of a long sequence apart.
    """
    index = torch.arange(length, device=lengths.device, dtype=torch.float32)
    begin = index.expand(len(lengths), -1)
    end = lengths[:, None] - 1 - begin
    return _waves(torch.stack([begin, end], -1), count).flatten(2)


def length_features(lengths: Tensor, count: int) -> Tensor:
    """Number of tokens of each sequence, as (B, 1 + 2 * count) float32: its logarithm, and the
    waves of `position_features`.

    The logarithm alone separates long sequences from short ones. The waves also resolve single
    lengths, such as the 200 and 400 bases of elements that were drawn in steps.
    """
    return torch.cat([(lengths / 1000).log()[:, None], _waves(lengths.float(), count)], -1)


def _waves(distance: Tensor, count: int) -> Tensor:
    """Sines and cosines (..., 2 * count) of distances in tokens."""
    exponent = torch.arange(count, device=distance.device, dtype=torch.float32)
    frequency = 2 * math.pi / (4 * (2 * math.sqrt(2)) ** exponent)
    angle = distance[..., None] * frequency
    return torch.cat([angle.sin(), angle.cos()], -1)


class HeadWithBases(Head):
    """The sum of a head on the features and a head on the bases.

    Without the head on the features it is the control of a study (`dnadiff.supervised.networks`),
    trained in the same two stages. On validation it is about as accurate as one head on all
    channels (docs/results/fine_tuning.md, What was tried).

    Args:
        features: reads the first channels.
        bases: reads the last `bases.width` channels.
    """

    def __init__(self, features: Head, bases: Head) -> None:
        super().__init__(features.width + bases.width, features.num_outputs, features.max_length)
        self.features = features
        self.bases = bases
        self.fixed_length = features.fixed_length

    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        first, last = features.split([self.features.width, self.bases.width], -1)
        return self.features(first, valid) + self.bases(last, valid)


class Mean(Head):
    """The mean of the features (B, D), with nothing to learn."""

    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        return mean_of_valid(features, lengths_of(features, valid), valid)


class MeanHead(Mean):
    """A linear map of the mean of the features. It cannot express where in the sequence something
    is."""

    def __init__(self, width: int, num_outputs: int, max_length: int = 0) -> None:
        super().__init__(width, num_outputs, max_length)
        self.weight, self.bias = nn.Linear(width, num_outputs).parameters()

    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        return nn.functional.linear(super().forward(features, valid), self.weight, self.bias)


@checked
class AttentionHead(Head):
    """Several softmax-weighted means over positions, and a linear map of them.

    Keys and values are linear in the features and in sines and cosines of the distances to both
    ends, so that a mean can select what is at a place, or where something is.

    Args:
        num_heads: weighted means.
        head_width: features of each.
        num_wavelengths: of the position features.
        dropout: on the means.
        **sizes: see `Head`.
    """

    def __init__(
        self,
        num_heads: PositiveInt = 8,
        head_width: PositiveInt = 32,
        num_wavelengths: PositiveInt = 6,
        dropout: Probability = 0.1,
        **sizes: Annotated[Any, Head],
    ) -> None:
        super().__init__(**sizes)
        self.num_heads = num_heads
        self.num_wavelengths = num_wavelengths
        inner = num_heads * head_width
        self.norm = nn.LayerNorm(self.width)
        self.hidden = nn.Linear(self.width + 4 * num_wavelengths, inner)
        # One score from the features of each head.
        self.score = nn.Conv1d(inner, num_heads, 1, groups=num_heads)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(inner, self.num_outputs)

    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        lengths = lengths_of(features, valid)
        places = position_features(lengths, features.shape[1], self.num_wavelengths).to(features)
        inputs = torch.cat([self.norm(features), places], -1)
        hidden = nn.functional.gelu(self.hidden(inputs))  # (B, L, H W)
        score = self.score(hidden.transpose(1, 2))  # (B, H, L)
        if valid is not None:
            score = score.masked_fill(~valid[:, None], -torch.inf)
        values = hidden.unflatten(-1, (self.num_heads, -1))
        pooled = torch.einsum("bhl,blhw->bhw", score.softmax(-1), values).flatten(1)
        return self.output(self.dropout(pooled))


@checked
class ConvHead(Head):
    """Convolutions, then the mean and the maximum of each part of the sequence, and a network of
    one hidden layer.

    The sequence is divided into `num_bins` equal parts, whatever its length, so that the position
    is known to a part. With `global_pooling` a linear layer also reads the whole sequence, without
    positions: it learns from few labels, and its gradients let a network without pretraining start
        to learn at once. Batch normalization is avoided: predictions do not depend on the batch.

    Args:
        channels: of each convolution.
        kernel_size: odd.
        num_convolutions: number of convolutions, connected by residuals.
        num_bins: parts of the sequence.
        hidden: width of the hidden layer.
        dropout: before and after the hidden layer.
        global_pooling: whether to add a linear layer on the mean over all positions of the
            normalized features and of the convolutions' output, and on the maximum of the latter.
        **sizes: see `Head`.
    """

    def __init__(
        self,
        channels: PositiveInt = 64,
        kernel_size: PositiveInt = 7,
        num_convolutions: PositiveInt = 2,
        num_bins: PositiveInt = 16,
        hidden: PositiveInt = 64,
        dropout: Probability = 0.2,
        global_pooling: bool = True,
        **sizes: Annotated[Any, Head],
    ) -> None:
        super().__init__(**sizes)
        if not kernel_size % 2:
            raise ValueError(f"head.kernel_size {kernel_size} must be odd")
        self.num_bins = num_bins
        self.norm = nn.LayerNorm(self.width)
        self.first = nn.Linear(self.width, channels)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(num_convolutions))
        self.convolutions = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel_size, padding=kernel_size // 2)
            for _ in range(num_convolutions)
        )
        self.output = HiddenLayer(2 * channels * self.num_bins, hidden, self.num_outputs, dropout)
        width = self.width + 2 * channels
        self.linear = nn.Linear(width, self.num_outputs) if global_pooling else None

    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        normed = self.norm(features)
        x = self.first(normed)
        for norm, convolution in zip(self.norms, self.convolutions):
            y = nn.functional.gelu(norm(x))
            if valid is not None:
                y = torch.where(valid[..., None], y, 0.0)
            x = x + convolution(y.transpose(1, 2)).transpose(1, 2)
        x = nn.functional.gelu(x)
        lengths = lengths_of(features, valid)
        by_part = self.output(self._pooled(x, lengths, valid))
        if self.linear is None:
            return by_part
        largest = x if valid is None else x.masked_fill(~valid[..., None], -torch.inf)
        overall = [
            mean_of_valid(normed, lengths, valid),
            mean_of_valid(x, lengths, valid),
            largest.amax(1),
        ]
        return by_part + self.linear(torch.cat(overall, 1))

    def _pooled(self, x: Tensor, lengths: Tensor, valid: Tensor | None) -> Tensor:
        """Mean and maximum of each part: (B, L, C) -> (B, 2 * bins * C). A part without a position,
        of a short sequence, has zeros."""
        batch, length, channels = x.shape
        index = torch.arange(length, device=x.device).expand(batch, -1)
        # Padding has one part more, dropped below.
        part = (index * self.num_bins // lengths[:, None]).clamp(max=self.num_bins)
        part = part if valid is None else torch.where(valid, part, self.num_bins)
        where = part[..., None].expand(-1, -1, channels)
        shape = (batch, self.num_bins + 1, channels)
        total = x.new_zeros(shape).scatter_add(1, where, x)
        count = x.new_zeros(shape[:2]).scatter_add(1, part, torch.ones_like(part, dtype=x.dtype))
        largest = x.new_zeros(shape).scatter_reduce(1, where, x, "amax", include_self=False)
        mean = total / count.clamp(min=1)[..., None]
        return torch.stack([mean, largest], 1)[:, :, : self.num_bins].flatten(1)


def mean_of_valid(x: Tensor, lengths: Tensor, valid: Tensor | None) -> Tensor:
    """The mean over valid positions: (B, L, C) -> (B, C)."""
    return (x if valid is None else torch.where(valid[..., None], x, 0.0)).sum(1) / lengths[:, None]


@checked
class FlattenHead(Head):
    """Each position is reduced to a few channels, and a network of one hidden layer reads all of
    them.

    It is for sequences of one length, in which a position always means the same, such as the
    distance to a splice site.

    Args:
        channels: of each position.
        hidden: width of the hidden layer.
        dropout: before and after the hidden layer.
        **sizes: see `Head`; every sequence has `max_length` tokens.
    """

    def __init__(
        self,
        channels: PositiveInt = 16,
        hidden: PositiveInt = 64,
        dropout: Probability = 0.2,
        **sizes: Annotated[Any, Head],
    ) -> None:
        super().__init__(**sizes)
        self.fixed_length = self.max_length
        self.norm = nn.LayerNorm(self.width)
        self.first = nn.Linear(self.width, channels)
        self.output = HiddenLayer(channels * self.max_length, hidden, self.num_outputs, dropout)

    @classmethod
    def check_lengths(cls, shortest: int, longest: int) -> None:
        if shortest != longest:
            raise ValueError(
                f"head=flatten is for sequences of one length, and these have {shortest} to "
                f"{longest} bases; set head=attention or head=conv"
            )

    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        if valid is not None or features.shape[1] != self.max_length:
            raise ValueError(
                f"this classifier takes sequences of {self.max_length} bases, got others; it was "
                "trained with head=flatten"
            )
        x = nn.functional.gelu(self.first(self.norm(features)))
        return self.output(x.flatten(1))
