"""A small convolutional network on the features, pooled in parts of the sequence and as a whole."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Unpack, override

from dnadiff.fields import PositiveInt, Probability, checked
from dnadiff.supervised.head.base import Head, HeadSizes, HiddenLayer, lengths_of


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
        **sizes: Unpack[HeadSizes],
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

    @override
    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        normed = self.norm(features)
        x = self.first(normed)
        for norm, convolution in zip(self.norms, self.convolutions):
            y = nn.functional.gelu(norm(x))
            if valid is not None:
                y = torch.where(valid[..., None], y, 0.0)
            x = x + convolution(y.transpose(1, 2)).transpose(1, 2)
        x, lengths = nn.functional.gelu(x), lengths_of(features, valid)
        by_part = self.output(self._pooled(x, lengths, valid))
        if self.linear is None:
            return by_part
        largest = x if valid is None else x.masked_fill(~valid[..., None], -torch.inf)
        overall = [_mean(normed, lengths, valid), _mean(x, lengths, valid), largest.amax(1)]
        return by_part + self.linear(torch.cat(overall, 1))

    def _pooled(self, x: Tensor, lengths: Tensor, valid: Tensor | None) -> Tensor:
        """Mean and maximum of each part: (B, L, C) -> (B, 2 * bins * C). A part without a position,
        of a short sequence, has zeros."""
        batch, length, channels = x.shape
        index = torch.arange(length, device=x.device).expand(batch, -1)
        part = (index * self.num_bins // lengths[:, None]).clamp(max=self.num_bins)
        part = (
            part if valid is None else torch.where(valid, part, self.num_bins)
        )  # padding: one part more, dropped below
        where = part[..., None].expand(-1, -1, channels)
        shape = (batch, self.num_bins + 1, channels)
        total = x.new_zeros(shape).scatter_add(1, where, x)
        count = x.new_zeros(shape[:2]).scatter_add(1, part, torch.ones_like(part, dtype=x.dtype))
        largest = x.new_zeros(shape).scatter_reduce(1, where, x, "amax", include_self=False)
        mean = total / count.clamp(min=1)[..., None]
        return torch.stack([mean, largest], 1)[:, :, : self.num_bins].flatten(1)


def _mean(x: Tensor, lengths: Tensor, valid: Tensor | None) -> Tensor:
    """The mean over valid positions: (B, L, C) -> (B, C)."""
    return (x if valid is None else torch.where(valid[..., None], x, 0.0)).sum(1) / lengths[:, None]
