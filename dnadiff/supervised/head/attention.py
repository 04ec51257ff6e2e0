"""Learned pooling: each of several weighted means chooses its positions by content and by place."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Unpack, override

from dnadiff.fields import PositiveInt, Probability, checked
from dnadiff.supervised.head.base import Head, HeadSizes, lengths_of, position_features


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
        **sizes: Unpack[HeadSizes],
    ) -> None:
        super().__init__(**sizes)
        self.num_heads, self.head_width = num_heads, head_width
        self.num_wavelengths = num_wavelengths
        inner = self.num_heads * self.head_width
        self.norm = nn.LayerNorm(self.width)
        self.hidden = nn.Linear(self.width + 4 * self.num_wavelengths, inner)
        self.score = nn.Conv1d(
            inner, self.num_heads, 1, groups=self.num_heads
        )  # one score from the features of each head
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(inner, self.num_outputs)

    @override
    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        batch, length, _ = features.shape
        places = position_features(lengths_of(features, valid), length, self.num_wavelengths).to(
            features
        )
        hidden = nn.functional.gelu(
            self.hidden(torch.cat([self.norm(features), places], -1))
        )  # (B, L, H W)
        score = self.score(hidden.transpose(1, 2))  # (B, H, L)
        if valid is not None:
            score = score.masked_fill(~valid[:, None], -torch.inf)
        values = hidden.view(batch, length, self.num_heads, self.head_width)
        pooled = torch.einsum("bhl,blhw->bhw", score.softmax(-1), values).flatten(1)
        return self.output(self.dropout(pooled))
