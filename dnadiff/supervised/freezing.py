"""Which part of a pretrained network fine-tuning does not train."""

from __future__ import annotations

from typing import NamedTuple

from dnadiff.backbone.base import Backbone
from dnadiff.checks import integer
from dnadiff.supervised.layer_decay import before_layers


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
