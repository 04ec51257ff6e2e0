"""LoRA (arXiv 2106.09685): a trained update of low rank for each linear map of the layers; the
pretrained weights are not trained.

It is a parametrization of the weights, so that any network can have it and kernels that read the
weights directly see the update.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dnadiff.backbone.base import Backbone
from dnadiff.checks import Positive, PositiveInt

_WEIGHT = "weight"


class LowRankUpdate(nn.Module):
    """W -> W + alpha / rank * up @ down; `up` starts at zero, so that the network starts as it
    was."""

    def __init__(self, weight: Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.scale = alpha / rank
        self.down = nn.Parameter(weight.new_empty(rank, columns))
        self.up = nn.Parameter(weight.new_zeros(rows, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        """The weight (rows, columns) with the update."""
        return weight + self.scale * (self.up @ self.down)


@dataclass(frozen=True)
class LoRA:
    """Adds updates of rank `rank` to the linear maps of a network, scaled by `alpha / rank`."""

    rank: PositiveInt = 8
    alpha: Positive = 16.0

    def attach(self, backbone: Backbone, first: int = 0) -> None:
        """Leave everything without gradients except new updates in the layers from number `first`
        (0 is the first).

        Maps that share a weight share its update.

        Raises:
            ValueError: if the network is not a list of layers, or has no linear map larger than the
                rank.
        """
        if backbone.trunk is not None and first >= len(backbone.trunk):
            raise ValueError(
                f"freeze {first} leaves none of the {len(backbone.trunk)} layers of this "
                f"{type(backbone).__name__} to the adapter; set it lower"
            )
        backbone.requires_grad_(False)
        updates: dict[int, LowRankUpdate] = {}
        for layer in () if backbone.trunk is None else backbone.trunk[first:]:
            for module in [part for part in layer.modules() if isinstance(part, nn.Linear)]:
                if min(module.weight.shape) > self.rank:
                    key = id(module.weight)
                    if key not in updates:
                        updates[key] = LowRankUpdate(module.weight, self.rank, self.alpha)
                    parametrize.register_parametrization(module, _WEIGHT, updates[key])
        if not updates:
            raise ValueError(
                f"adapter.rank {self.rank}: this {type(backbone).__name__} has no linear map in "
                "its layers that is larger; "
                "set a smaller rank, or adapter=none"
            )

    def merge(self, backbone: Backbone) -> None:
        """Write the updates into the weights, and remove them: the network then has the parameters
        that it had before."""
        adapted = list(_adapted(backbone))
        with torch.no_grad():
            merged = {
                id(original): (original, module.weight.clone()) for module, original in adapted
            }
            for module, _ in adapted:
                parametrize.remove_parametrizations(module, _WEIGHT, leave_parametrized=False)
            for original, weight in merged.values():
                original.copy_(weight)


def _adapted(backbone: Backbone) -> Iterator[tuple[nn.Linear, nn.Parameter]]:
    """Each linear map with an update, and its pretrained weight."""
    for module in list(backbone.modules()):
        if isinstance(module, nn.Linear) and parametrize.is_parametrized(module, _WEIGHT):
            yield module, module.get_parameter(f"parametrizations.{_WEIGHT}.original")
