"""The types of the keys of `python -m dnadiff.train`; those of the config groups come from the
classes that they name."""

from __future__ import annotations

from typing import Literal

from dnadiff import checks
from dnadiff.config import SHARED, Keys

KEYS: Keys = {
    **SHARED,
    "init_from": str | None,
    "context_parallel": checks.PositiveInt,
    "time_conditioning": bool | None,
    "weight_decay": checks.NonNegative,
    "matmul_precision": Literal["highest", "high", "medium"],
    "callbacks": dict[str, checks.Built | None],
    "callbacks.checkpoints.every_n_steps": checks.PositiveInt,
    "trainer.callbacks": list[checks.Built] | None,
    # Of classes of other packages, whose signatures give no limits.
    "optimizer.lr": checks.NonNegative,
    "optimizer.eps": checks.NonNegative,
    "trainer.max_steps": checks.PositiveInt,
    "trainer.devices": checks.PositiveInt | list[checks.Natural] | str,
    "trainer.num_nodes": checks.PositiveInt,
    "trainer.strategy": str | dict,
    "trainer.gradient_clip_val": checks.NonNegative | None,
    "trainer.log_every_n_steps": checks.PositiveInt,
}
