"""The published head: a linear map of the mean over positions (Caduceus, arXiv 2403.03234)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from dnadiff.supervised.head.base import Head


class MeanHead(Head):
    """A linear map of the mean of the features. It cannot express where in the sequence something
    is."""

    def __init__(self, width: int, num_outputs: int, max_length: int = 0) -> None:
        super().__init__(width, num_outputs, max_length)
        self.weight, self.bias = nn.Linear(width, num_outputs).parameters()

    @override
    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        if valid is not None:
            features = torch.where(valid[..., None], features, 0.0)
        count = features.shape[1] if valid is None else valid.sum(1, keepdim=True)
        return nn.functional.linear(features.sum(1) / count, self.weight, self.bias)
