"""Parameter groups and learning rate schedules, shared by pretraining and fine-tuning."""

from __future__ import annotations

import math

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from dnadiff.fields import Fraction, Natural


def parameter_groups(
    module: nn.Module, weight_decay: float
) -> list[dict[str, list[nn.Parameter] | float]]:
    """Two parameter groups: matrices, with weight decay, and everything else without.

    Norms, biases and the parameters of state spaces are not decayed (`without_weight_decay`).
    """
    excluded = without_weight_decay(module)
    decayed = [p for p in module.parameters() if id(p) not in excluded]
    free = [p for p in module.parameters() if id(p) in excluded]
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]


def without_weight_decay(module: nn.Module) -> set[int]:
    """The identities of the parameters that are not decayed: those of one dimension, and those that
    a submodule names `no_weight_decay`.

    The names belong to the class of the submodule: an attribute of a parameter would be lost in a
    copy of the module.
    """
    named = (
        part.get_parameter(name)
        for part in module.modules()
        for name in getattr(part, "no_weight_decay", ())
    )
    return {id(p) for p in module.parameters() if p.ndim < 2} | {id(p) for p in named}


def warmup_cosine(
    optimizer: Optimizer, num_steps: int, warmup: Fraction = 0.05, final: Fraction = 0.0
) -> LambdaLR:
    """Linear warm-up over the first `warmup` fraction of `num_steps`, then half a cosine down to
    `final` times the peak rate."""
    first = max(1, round(warmup * num_steps))

    def factor(step: int) -> float:
        if step < first:
            return (step + 1) / first
        progress = min(1.0, (step - first) / max(1, num_steps - first))
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))

    return LambdaLR(optimizer, factor)


def warmup_constant(optimizer: Optimizer, num_steps: int, warmup_steps: Natural = 2500) -> LambdaLR:
    """Linear warm-up over `warmup_steps`, then the constant peak rate (the text recipe of arXiv
    2406.07524, appendix C)."""
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / max(1, warmup_steps)))
