"""A head with a weight for each position, for sequences of one length."""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import Unpack, override

from dnadiff.fields import PositiveInt, Probability, checked
from dnadiff.supervised.head.base import Head, HeadSizes, HiddenLayer


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
        **sizes: Unpack[HeadSizes],
    ) -> None:
        super().__init__(**sizes)
        self.norm = nn.LayerNorm(self.width)
        self.first = nn.Linear(self.width, channels)
        self.output = HiddenLayer(channels * self.max_length, hidden, self.num_outputs, dropout)

    @property
    @override
    def fixed_length(self) -> int | None:
        return self.max_length

    @classmethod
    @override
    def check_lengths(cls, shortest: int, longest: int) -> None:
        if shortest != longest:
            raise ValueError(
                f"head=flatten is for sequences of one length, and these have {shortest} to "
                f"{longest} bases; set head=attention or head=conv"
            )

    @override
    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        if valid is not None or features.shape[1] != self.max_length:
            raise ValueError(
                f"this classifier takes sequences of {self.max_length} bases, got others; it was "
                "trained with head=flatten"
            )
        x = nn.functional.gelu(self.first(self.norm(features)))
        return self.output(x.flatten(1))
