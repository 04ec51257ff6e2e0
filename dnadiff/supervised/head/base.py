"""What all heads share: the interface, and where a position is in its sequence."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TypedDict

import torch
from torch import Tensor, nn
from typing_extensions import override


class HeadSizes(TypedDict):
    """Keyword arguments of every `Head`, which documents them."""

    width: int
    num_outputs: int
    max_length: int


class Head(nn.Module, ABC):
    """Maps features (B, L, D) to outputs (B, C).

    A configuration (`configs/head`) has the settings; the network and the task add these:

    Args:
        width: D.
        num_outputs: C, such as the number of classes.
        max_length: tokens of the longest sequence of the task.
    """

    buildable = (
        True  # the description of a saved classifier may name it (`dnadiff.store.objects.locate`)
    )

    def __init__(self, width: int, num_outputs: int, max_length: int) -> None:
        super().__init__()
        self.width, self.num_outputs, self.max_length = width, num_outputs, max_length

    @property
    def fixed_length(self) -> int | None:
        """The only length of sequences that it takes; None if it takes any."""
        return None

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

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
        self.features, self.bases = features, bases

    @property
    @override
    def fixed_length(self) -> int | None:
        return self.features.fixed_length

    @property
    @override
    def name(self) -> str:
        return self.features.name

    @override
    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        first, last = features.split([self.features.width, self.bases.width], -1)
        return self.features(first, valid) + self.bases(last, valid)
