"""Choice of a learning rate by short trials (successive halving, arXiv 1502.07943), and of the
epochs that fit a wall-clock budget."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from typing_extensions import override

from dnadiff.config import Config, Json
from dnadiff.draws import hash64
from dnadiff.supervised.budget import Budget, Speed, TrainingPlan, automatic_plan, fitted_plan
from dnadiff.supervised.fine_tuning_module import FineTuningModule, train
from dnadiff.supervised.items import Items

PRETRAINED_RATES = (
    3e-4,
    8e-4,
    2e-3,
    5e-3,
)  # the published ones of Caduceus, 1e-3 and 2e-3, are inside
NEW_RATES = (5e-4, 1.2e-3, 2.5e-3, 6e-3)  # of parameters that start random
MEASURED_STEPS = 8  # which give the speed, before anything is planned for a budget
TRIAL_SHARE, MIN_TRIAL_STEPS, MAX_VALID = (
    0.04,
    20,
    1000,
)  # of the steps; steps; validation items that rank the trials
SEARCH_SHARE, RESERVE = 0.35, 0.05  # of a budget: at most for the search, and kept back
log = logging.getLogger("dnadiff")
_WARM_UP_STEPS = 3  # slower, because memory is allocated


class Trial(NamedTuple):
    """The validation loss after a short training run."""

    lr: float
    steps: int
    valid_loss: float


class Found(NamedTuple):
    """The learning rate, how long to train, whether there were several rates, the trials, and the
    speed if it was measured for a budget."""

    lr: float
    plan: TrainingPlan
    searched: bool
    trials: list[Trial]
    speed: Speed | None = None

    def describe(self) -> dict[str, Json]:
        """For `fit_info`."""
        found: dict[str, Json] = {
            "lr": self.lr,
            "planned_epochs": self.plan.epochs,
            "batches_per_epoch": self.plan.batches,
        }
        if self.searched:
            found["trials"] = [trial._asdict() for trial in self.trials]
        return found if self.speed is None else found | {"step_seconds": round(self.speed.step, 6)}

    def __str__(self) -> str:
        tried = f" of {len({trial.lr for trial in self.trials})} tried" if self.trials else ""
        speed = "" if self.speed is None else f" at {self.speed.step:.3g} s a step"
        return (
            f"lr {self.lr:g}{tried}, {self.plan.epochs} epochs of {self.plan.batches:,} "
            f"batches{speed}"
        )


class TimedTrials(Protocol):
    """Short training runs whose speed is known."""

    @property
    def speed(self) -> Speed:
        """Of the trials so far."""

    def __call__(self, lr: float, steps: int) -> float:
        """The validation loss of a learning rate after some steps."""


class ShortRun(FineTuningModule):
    """A trial: validated once, at its end, on at most `MAX_VALID` items.

    Attributes:
        valid_loss: infinite if it is not a number.
        validation_seconds: of as many items as there are, from the time for those that were read.
    """

    valid_loss, validation_seconds = math.inf, 0.0

    @override
    def on_train_epoch_end(self) -> None:
        self.num_epochs += 1

    @override
    def on_train_end(self) -> None:
        items, start = _some(self.data.valid, self.seed), time.perf_counter()
        self.valid_loss = -self.validate(
            items
        ).score.negative_loss  # here, because Lightning then moves the network to the CPU
        self.validation_seconds = (time.perf_counter() - start) * len(self.data.valid) / len(items)


class Trials:
    """Runs trials and measures their speed.

    Args:
        short_run: a new run at a learning rate, whose network has its first weights.
        trainer: as in `fine_tuning_module.train`.
    """

    def __init__(self, short_run: Callable[[float], ShortRun], trainer: Config) -> None:
        self.short_run, self.trainer = short_run, trainer
        self.step_seconds: list[float] = []
        self.validation_seconds = 0.0  # of all validation items, from the last trial

    def __call__(self, lr: float, steps: int) -> float:
        """The validation loss of the target after `steps`, see `ShortRun`."""
        module = self.short_run(lr)
        batches = min(module.batches_per_epoch, steps)
        train(module, TrainingPlan(-(-steps // batches), batches), self.trainer, steps)
        self.step_seconds += module.step_seconds[_WARM_UP_STEPS:]
        self.validation_seconds = module.validation_seconds
        return module.valid_loss

    @property
    def speed(self) -> Speed:
        """The mean over all trials so far."""
        return Speed(
            sum(self.step_seconds) / max(len(self.step_seconds), 1), self.validation_seconds
        )


def _some(items: Items, seed: int) -> Items:
    if len(items) <= MAX_VALID:
        return items
    generator = torch.Generator().manual_seed(hash64(seed, "trials") % 2**63)
    return items.select(torch.randperm(len(items), generator=generator)[:MAX_VALID].sort().values)


def successive_halving(
    trial: Callable[[float, int], float], rates: Sequence[float], steps: int
) -> tuple[float, list[Trial]]:
    """The chosen learning rate and all trials: each of `steps`, then the better half again of twice
    the steps, until one is left.

    In a tie, the lower rate is better.
    """
    found: list[Trial] = []
    left = sorted(rates)
    while len(left) > 1:
        tried = [Trial(lr, steps, trial(lr, steps)) for lr in left]
        found += tried
        best = sorted(tried, key=lambda one: one.valid_loss)[: len(left) // 2]
        left, steps = sorted(one.lr for one in best), 2 * steps
    return left[0], found


def search_steps(num_rates: int, steps: int) -> list[int]:
    """The steps of each trial of `successive_halving`."""
    found = []
    while num_rates > 1:
        found += [steps] * num_rates
        num_rates, steps = num_rates // 2, 2 * steps
    return found


def affordable(rates: Sequence[float], steps: int, seconds: float, speed: Speed) -> Sequence[float]:
    """The rates whose search takes at most `seconds`: all, or else the middle two, or one of
    these."""
    middle = (len(rates) - 1) // 2
    for some in (rates, rates[middle : middle + 2]):
        trials = search_steps(len(some), steps)
        if sum(trials) * speed.step + len(trials) * speed.validation <= seconds:
            return some
    return rates[middle : middle + 1]


def find_rate_and_plan(
    trials: TimedTrials, rates: Sequence[float], epochs: int | None, batches: int, budget: Budget
) -> Found:
    """Choose the learning rate from `rates`, and how long to train.

    Args:
        epochs: None is `automatic_plan`, or `fitted_plan` within a limited budget.
        batches: in an epoch.
    """
    plan = automatic_plan(batches) if epochs is None else TrainingPlan(epochs, batches)
    if budget.is_limited:
        trials(min(rates), MEASURED_STEPS)
        plan = fitted_plan(batches, budget.left, trials.speed)
    steps = max(MIN_TRIAL_STEPS, round(TRIAL_SHARE * plan.steps))
    some = (
        affordable(rates, steps, SEARCH_SHARE * budget.left, trials.speed)
        if budget.is_limited
        else rates
    )
    lr, tried = successive_halving(trials, some, steps)
    if budget.is_limited:
        plan = fitted_plan(batches, (1 - RESERVE) * budget.left, trials.speed)
        if plan.steps * trials.speed.step > budget.left:
            log.warning(
                f"minutes is too short for this task: {plan.steps} steps are trained all the same; "
                "set more minutes"
            )
    return Found(lr, plan, len(rates) > 1, tried, trials.speed if budget.is_limited else None)
