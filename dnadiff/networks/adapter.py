"""Updates of low rank that are trained in place of the weights of a network (LoRA, arXiv
2106.09685)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dnadiff.fields import Config, Positive, PositiveInt
from dnadiff.networks.backbone.base import Backbone
from dnadiff.store.objects import Trust, build

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

    buildable = True

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
        name = type(backbone).__name__
        layers = list(backbone.trunk or ())
        if backbone.trunk is not None and first >= len(layers):
            raise ValueError(
                f"freeze {first} leaves none of the {len(layers)} layers of this {name} to the "
                "adapter; set it lower"
            )
        backbone.requires_grad_(False)
        updates: dict[int, LowRankUpdate] = {}
        for layer in layers[first:]:
            for module in [part for part in layer.modules() if isinstance(part, nn.Linear)]:
                if min(module.weight.shape) > self.rank:
                    key = id(module.weight)
                    if key not in updates:
                        updates[key] = LowRankUpdate(module.weight, self.rank, self.alpha)
                    parametrize.register_parametrization(module, _WEIGHT, updates[key])
        if not updates:
            raise ValueError(
                f"adapter.rank {self.rank}: this {name} has no linear map in its layers that is "
                "larger; set a smaller rank, or adapter=none"
            )

    @staticmethod
    def merge(backbone: nn.Module) -> None:
        """Write the updates into the weights, and remove them: the network then has the parameters
        that it had before."""
        adapted = [
            (module, module.get_parameter(f"parametrizations.{_WEIGHT}.original"))
            for module in backbone.modules()
            if isinstance(module, nn.Linear) and parametrize.is_parametrized(module, _WEIGHT)
        ]
        with torch.no_grad():
            # Maps that share a weight share the copy too.
            merged = {id(weight): (weight, module.weight.clone()) for module, weight in adapted}
            for module, _ in adapted:
                parametrize.remove_parametrizations(module, _WEIGHT, leave_parametrized=False)
            for weight, updated in merged.values():
                weight.copy_(updated)


def build_adapter(config: Config, trust: Trust) -> LoRA:
    """The adapter that a configuration describes; ValueError if it is something else."""
    made = build(config, trust=trust)
    if not isinstance(made, LoRA):
        raise ValueError(
            f"adapter {config['_target_']} is not an adapter (dnadiff.networks.adapter.LoRA)"
        )
    return made
