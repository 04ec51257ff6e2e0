"""How parameters are grouped and how the rate moves: shared by pretraining and fine-tuning."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay for matrices only: norms, biases and the state space's own parameters (`_no_weight_decay`) go without."""
    decayed, free = [], []
    for parameter in module.parameters():
        keep = parameter.ndim < 2 or getattr(parameter, "_no_weight_decay", False)
        (free if keep else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]


def warmup_cosine(optimizer: torch.optim.Optimizer, num_steps: int, warmup: float = 0.05, final: float = 0.0) -> Any:
    """Linear warm-up over the first `warmup` share of `num_steps`, then a half cosine down to `final` of the peak rate."""
    first = max(1, round(warmup * num_steps))

    def factor(step: int) -> float:
        if step < first:
            return (step + 1) / first
        share = min(1.0, (step - first) / max(1, num_steps - first))
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * share))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def warmup_constant(optimizer: torch.optim.Optimizer, num_steps: int, warmup_steps: int = 2500) -> Any:
    """Linear warm-up over `warmup_steps`, then the peak rate for ever (the text recipe of arXiv 2406.07524, appendix C)."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / max(1, warmup_steps)))
