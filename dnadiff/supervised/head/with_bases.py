"""A head on the features of a network and a second one on the bases."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from dnadiff.supervised.head.base import Head


class HeadWithBases(Head):
    """The sum of a head on the features and a head on the bases.

    Without the head on the features it is the control of a study (`dnadiff.supervised.one_hot`),
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
