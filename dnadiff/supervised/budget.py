"""How long a network is trained on a task: a number of steps that suits its size, or what fits a
wall-clock budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

STEPS, MIN_STEPS, MIN_EPOCHS, MAX_EPOCHS = 2000, 20, 2, 20


class TrainingPlan(NamedTuple):
    """`epochs` of `batches` each; validation follows each epoch."""

    epochs: int
    batches: int

    @property
    def steps(self) -> int:
        """Optimizer steps in all."""
        return self.epochs * self.batches


class Speed(NamedTuple):
    """Seconds of an optimizer step and of a validation."""

    step: float
    validation: float


class Budget:
    """A wall-clock budget that starts now; without `minutes`, it has no end."""

    def __init__(self, minutes: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_limited, self.clock = minutes is not None, clock
        self.end = math.inf if minutes is None else clock() + 60 * minutes

    @property
    def left(self) -> float:
        """Seconds; negative after the end."""
        return self.end - self.clock()


def automatic_plan(batches: int) -> TrainingPlan:
    """About 2,000 optimizer steps in complete epochs, at least 2 and at most 20 of them."""
    return TrainingPlan(min(MAX_EPOCHS, max(MIN_EPOCHS, round(STEPS / batches))), batches)


def fitted_plan(batches: int, seconds: float, speed: Speed) -> TrainingPlan:
    """The epochs that fit into `seconds`, at most 20.

    If not even 2 fit, 2 that each end after a part of the `batches`; or 1, so that validation
    leaves time for training. A network is trained for at least 20 steps, even if they take longer;
    those are several epochs if an epoch has fewer batches.
    """
    fewest = math.ceil(MIN_STEPS / batches)
    epochs = int(seconds / (batches * speed.step + speed.validation))
    if epochs >= MIN_EPOCHS:
        return TrainingPlan(min(MAX_EPOCHS, max(fewest, epochs)), batches)
    part = int((seconds / MIN_EPOCHS - speed.validation) / speed.step)
    if part >= MIN_STEPS:
        return TrainingPlan(MIN_EPOCHS, part)
    return TrainingPlan(
        fewest, min(batches, max(MIN_STEPS, int((seconds - speed.validation) / speed.step)))
    )
