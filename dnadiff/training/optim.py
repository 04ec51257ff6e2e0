"""Parameter groups, learning rate schedules, and the memory of the process, shared by pretraining
and fine-tuning."""

import gc
import math
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from dnadiff.fields import Fraction, Natural


def parameter_groups(
    module: nn.Module, weight_decay: float
) -> list[dict[str, list[nn.Parameter] | float]]:
    """Two parameter groups: matrices, with weight decay, and everything else without.

    Norms, biases and the parameters of state spaces are not decayed: those of one dimension, and
    those that a submodule names `no_weight_decay`. The names belong to the class of the submodule:
    an attribute of a parameter would be lost in a copy of the module.
    """
    named = {
        id(part.get_parameter(name))
        for part in module.modules()
        for name in getattr(part, "no_weight_decay", ())
    }
    decayed = [p for p in module.parameters() if p.ndim >= 2 and id(p) not in named]
    free = [p for p in module.parameters() if p.ndim < 2 or id(p) in named]
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]


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


def peak_memory(status: Path = Path("/proc/self/status")) -> int:
    """The largest resident memory of this process so far, in bytes.

    On Linux `ru_maxrss` of a new program begins with that of the process that started it; the
    kernel's own VmHWM does not.
    """
    for line in status.read_text(encoding="utf-8").splitlines() if status.is_file() else ():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used << 10


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Inside, the garbage collector skips all objects that exist now: PyTorch and its modules are
    some 500,000, which it would visit often.

    On a CPU that is 2 to 4 % of the step of a small network. Afterwards they are ordinary objects
    again. If the caller has frozen objects, nothing is done: unfreezing would undo that.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
