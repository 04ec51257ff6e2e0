"""Layer-wise decay of the learning rate in fine-tuning, and which parameters come before the layers
of a network.

ELECTRA (arXiv 2003.10555, appendix B) and BEiT (arXiv 2106.08254, appendix) train the first layers
of a pretrained network at lower rates: they hold what is the same for all tasks. The exponents are
those of BEiT's code.
"""

from __future__ import annotations

from collections import defaultdict

from torch import nn

from dnadiff.backbone.base import Backbone
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
