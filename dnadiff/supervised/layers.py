"""Layer-wise decay of the learning rate in fine-tuning, and which parameters come before the layers
of a network.

ELECTRA (arXiv 2003.10555, appendix B) and BEiT (arXiv 2106.08254, appendix) train the first layers
of a pretrained network at lower rates: they hold what is the same for all tasks. The exponents are
those of BEiT's code.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dnadiff.fields import Positive, PositiveInt, integer
from dnadiff.networks.backbone.base import Backbone
from dnadiff.supervised.classifier import Classifier, SequenceClassifier
from dnadiff.training.optim import parameter_groups

Groups = list[dict[str, list[nn.Parameter] | float]]


def before_layers(backbone: Backbone) -> list[nn.Parameter]:
    """The parameters that a network registers before its layers: its embeddings. None of a network
    that is not a list of layers."""
    own = list(backbone.parameters())
    in_layers = (
        {id(p) for p in backbone.trunk.parameters()} if backbone.trunk is not None else set()
    )
    first = next((number for number, p in enumerate(own) if id(p) in in_layers), 0)
    return own[:first]


def rate_factors(classifier: SequenceClassifier, decay: float) -> dict[int, float]:
    """The factor of the learning rate by the identity of each parameter; 1 of those that are
    missing.

    Layer i of n, from 0, has `decay^(n - i)` and the embeddings `decay^(n + 1)`. The head and what
    follows the layers have 1.
    """
    backbone = classifier.backbone if isinstance(classifier, Classifier) else None
    if backbone is None or backbone.trunk is None:
        return {}
    count = len(backbone.trunk)
    factors = {id(p): decay ** (count + 1) for p in before_layers(backbone)}
    for number, layer in enumerate(backbone.trunk):
        for parameter in layer.parameters():
            factors.setdefault(id(parameter), decay ** (count - number))
    return factors


def decayed_groups(
    classifier: SequenceClassifier, lr: float, weight_decay: float, decay: float
) -> Groups:
    """The groups of `parameter_groups`, divided by learning rate; parameters that are not trained
    are left out."""
    factors, groups = rate_factors(classifier, decay), Groups()
    for group in parameter_groups(classifier, weight_decay):
        assert isinstance(group["params"], list)
        by_factor: dict[float, list[nn.Parameter]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.requires_grad:
                by_factor[factors.get(id(parameter), 1.0)].append(parameter)
        groups += [
            {**group, "params": params, "lr": lr * factor} for factor, params in by_factor.items()
        ]
    return groups


class Frozen(NamedTuple):
    """The whole `backbone`, or its embedding and first `layers`."""

    backbone: bool = False
    layers: int = 0

    @classmethod
    def of(cls, freeze: str | int) -> Frozen:
        """From `freeze=` of the command: `none`, `backbone`, or a number of layers."""
        if isinstance(freeze, str):
            return cls(backbone=freeze == "backbone")
        return cls(layers=integer("freeze", freeze))

    def apply(self, backbone: Backbone) -> None:
        """Leave the parameters without gradients.

        Raises:
            ValueError: if the network has fewer layers, or no list of layers.
        """
        if self.backbone:
            backbone.requires_grad_(False)
        if not self.layers:
            return
        total = 0 if backbone.trunk is None else len(backbone.trunk)
        if backbone.trunk is None or self.layers > total:
            raise ValueError(
                f"freeze {self.layers} is more than the {total} layers of this "
                f"{type(backbone).__name__}; set freeze=backbone"
            )
        for parameter in before_layers(backbone):
            parameter.requires_grad_(False)
        for layer in backbone.trunk[: self.layers]:
            layer.requires_grad_(False)


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
