"""How long a network is trained on a task: a number of steps that suits its size, or what fits a
wall-clock budget."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from typing_extensions import TypedDict, override

from dnadiff.diffusion.draws import hash64
from dnadiff.fields import (
    Config,
    Fraction,
    Json,
    Natural,
    NonNegative,
    Positive,
    PositiveInt,
    checked,
)
from dnadiff.supervised.classifier import (
    Classifier,
    SequenceClassifier,
    draw_mixture,
    mixed_logits,
)
from dnadiff.supervised.items import EVALUATION, ItemBatch, Items, Report, ShuffledBatches, TaskData
from dnadiff.supervised.layers import decayed_groups
from dnadiff.supervised.targets.base import ValidScore
from dnadiff.training.memory import frozen_objects
from dnadiff.training.optim import warmup_cosine

log = logging.getLogger("dnadiff")


STEPS, MIN_STEPS, MIN_EPOCHS, MAX_EPOCHS = 2000, 20, 2, 20


class TrainingPlan(NamedTuple):
    """`epochs` of `batches` each; validation follows each epoch."""

    epochs: int
    batches: int

    @property
    def steps(self) -> int:
        """Optimizer steps in all."""
        return self.epochs * self.batches


class TrainingSettings(TypedDict, total=False):
    """The arguments of `Recipe`, for constructors that pass them on."""

    epochs: PositiveInt | None
    batch_size: PositiveInt
    weight_decay: NonNegative
    warmup: Fraction
    patience: PositiveInt | None
    layer_decay: Positive
    mixup: NonNegative
    balanced: bool
    head_epochs: Natural | None
    stored_width: PositiveInt | None
    minutes: Positive | None


@checked
@dataclass(frozen=True)
class Recipe:
    """How a network is trained on a task.

    Args:
        epochs: at most; None is about 2,000 steps (`automatic_plan`).
        weight_decay: for matrices, see `dnadiff.training.optim.parameter_groups`.
        warmup: fraction of the steps.
        patience: stop after this many epochs without improvement; None runs all. The learning rate
            schedule is the same either way.
        layer_decay: see `dnadiff.supervised.layers`; 1 trains all layers at one rate.
        mixup: see `draw_mixture`; 0 is none.
        balanced: each class has the same total weight in the loss.
        head_epochs: of the head alone, before all is trained (`dnadiff.supervised.head_training`);
            None chooses a number, 0 is none.
        stored_width: channels of what that stage stores, which limit its sequences; None is what
            the head reads.
        minutes: wall-clock budget of a fit with its trials, which then sets the epochs.
    """

    epochs: PositiveInt | None = 1
    batch_size: PositiveInt = 32
    weight_decay: NonNegative = 0.1
    warmup: Fraction = 0.05
    patience: PositiveInt | None = None
    layer_decay: Positive = 1.0
    mixup: NonNegative = 0.0
    balanced: bool = False
    head_epochs: Natural | None = 0
    stored_width: PositiveInt | None = None
    minutes: Positive | None = None

    def __post_init__(self) -> None:
        if self.minutes is not None and self.epochs is not None:
            raise ValueError(
                f"minutes {self.minutes:g} sets the epochs, and epochs is {self.epochs}; leave one "
                "of them out"
            )

    def describe(self) -> dict[str, Json]:
        """What stored predictions depend on: the first five, and others that are not off."""
        always, off = ("epochs", "batch_size", "weight_decay", "warmup", "patience"), vars(Recipe())
        return {k: v for k, v in vars(self).items() if k in always or v != off[k]}

    def batches(self, items: Items) -> int:
        """Batches of all items."""
        return -(-len(items) // self.batch_size)


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


class Validation(NamedTuple):
    """Predictions (V, C) of validation items, and their score."""

    predictions: Tensor
    score: ValidScore


def validate(
    classifier: SequenceClassifier, items: Items, batch_size: int, stranded: bool
) -> Validation:
    """The predictions of validation items and their score; `batch_size` is that of training."""
    predictions = classifier.predict(items, EVALUATION * batch_size, not stranded)
    return Validation(predictions, classifier.target.valid_score(predictions, items.labels))


class FineTuningModule(lightning.LightningModule):
    """Trains a classifier with the loss of its target and keeps the weights of the best epoch on
    the validation items.

    Args:
        classifier: its parameters that require gradients are trained.
        lr: peak learning rate of AdamW, after a linear warmup and before a half cosine to 0.
        seed: of order, strands, dropout and mixup.
        budget: stop after the epoch in which it ends, but not before 20 steps.
        start: the validation of the weights that the classifier has, if these can be the best ones.
    """

    def __init__(
        self,
        classifier: SequenceClassifier,
        data: TaskData,
        lr: float,
        recipe: Recipe,
        seed: int,
        report: Report,
        budget: Budget | None = None,
        start: Validation | None = None,
    ) -> None:
        super().__init__()
        self.classifier, self.data = classifier, data
        self.lr, self.recipe, self.seed, self.report = lr, recipe, seed, report
        self.budget = budget or Budget(None)
        self.best_score, self.best_epoch = ValidScore(-1.0, 0.0), 0
        self.best_weights: dict[str, Tensor] = {}
        self.best_valid: Tensor | None = (
            None  # predictions of the validation items under the best weights
        )
        self.start = start
        self.num_epochs = self.num_sequences = self.epochs_without_improvement = 0
        self.loaders: list[ShuffledBatches] = []
        self.step_seconds: list[float] = []  # of each training step, waiting for data included
        self.last_batch_end = 0.0

    @override
    def train_dataloader(self) -> ShuffledBatches:
        batches = ShuffledBatches(
            self.data.train,
            self.recipe.batch_size,
            self.classifier.vocab,
            self.seed,
            self.current_epoch,
            not self.data.stranded,
        )
        self.loaders.append(batches)
        return batches

    @override
    def on_train_start(self) -> None:
        if (
            self.start is not None
        ):  # here, because the weights are now on the device of the training
            self.best_valid, self.best_score = self.start
            self.best_weights = copy.deepcopy(self.classifier.state_dict())

    @override
    def on_train_epoch_start(self) -> None:
        for part in self.classifier.modules():  # no dropout in what is frozen
            own = list(part.parameters())
            if own and not any(parameter.requires_grad for parameter in own):
                part.eval()
        self.last_batch_end = time.perf_counter()

    @property
    def sequences_per_second(self) -> float:
        """Training throughput, waiting for data included and validation excluded."""
        return self.num_sequences / max(sum(self.step_seconds), 1e-9)

    @property
    def data_wait_fraction(self) -> float:
        """Fraction of the training time spent waiting for the next batch."""
        return sum(loader.seconds for loader in self.loaders) / max(sum(self.step_seconds), 1e-9)

    @override
    def transfer_batch_to_device(
        self, batch: ItemBatch, device: torch.device, dataloader_idx: int
    ) -> ItemBatch:
        return batch.to(device)

    @override
    def training_step(self, batch: ItemBatch, batch_idx: int) -> Tensor:
        torch.manual_seed(hash64(self.seed, "dropout", self.global_step) % 2**63)
        loss, mixup = self.classifier.target.loss, self.recipe.mixup
        if not mixup:
            return loss(self.classifier(batch.ids, batch.valid), batch.labels)
        if not isinstance(self.classifier, Classifier):
            raise ValueError(
                f"mixup {mixup:g} needs a head on features, which a "
                f"{type(self.classifier).__name__} has not; set mixup=0"
            )
        mixture = draw_mixture(mixup, len(batch.labels), self.seed, self.global_step)
        outputs = mixed_logits(self.classifier, batch.ids, batch.valid, mixture)
        other = loss(outputs, batch.labels[mixture.order.to(batch.labels.device)])
        return mixture.share * loss(outputs, batch.labels) + (1 - mixture.share) * other

    @override
    def on_train_batch_end(self, outputs: object, batch: ItemBatch, batch_idx: int) -> None:
        now = time.perf_counter()
        self.step_seconds.append(now - self.last_batch_end)
        self.last_batch_end = now
        self.num_sequences += len(batch.labels)
        self.report(1, batch.ids.numel(), **{"sequences/s": f"{self.sequences_per_second:,.0f}"})

    def validate(self, items: Items) -> Validation:
        """The predictions of validation items and their score."""
        return validate(self.classifier, items, self.recipe.batch_size, self.data.stranded)

    @override
    def on_train_epoch_end(self) -> None:
        self.num_epochs += 1
        predictions, score = self.validate(self.data.valid)
        if self.budget.left < 0 and self.global_step >= MIN_STEPS:
            self.trainer.should_stop = True
        if not self.best_weights or score > self.best_score:
            self.best_score, self.best_weights, self.best_epoch = (
                score,
                copy.deepcopy(self.classifier.state_dict()),
                self.num_epochs,
            )
            self.best_valid, self.epochs_without_improvement = predictions, 0
            return
        self.epochs_without_improvement += 1
        patience = self.recipe.patience
        if patience is not None and self.epochs_without_improvement >= patience:
            self.trainer.should_stop = True

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        groups = decayed_groups(
            self.classifier, self.lr, self.recipe.weight_decay, self.recipe.layer_decay
        )
        optimizer = torch.optim.AdamW(groups, lr=self.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = warmup_cosine(optimizer, steps, self.recipe.warmup)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def train(
    module: FineTuningModule, plan: TrainingPlan, settings: Config, max_steps: int = -1
) -> None:
    """Run the training loop.

    Args:
        settings: further arguments of `lightning.Trainer`.
        max_steps: stop after so many optimizer steps; -1 runs the whole plan.
    """
    trainer = lightning.Trainer(
        max_epochs=plan.epochs,
        max_steps=max_steps,
        limit_train_batches=plan.batches,
        gradient_clip_val=1.0,
        reload_dataloaders_every_n_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    module.train()  # a loaded network is in evaluation mode, which Lightning would keep
    with frozen_objects():
        trainer.fit(module)


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
        batches = min(module.recipe.batches(module.data.train), steps)
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
    trials: Trials, rates: Sequence[float], epochs: int | None, batches: int, budget: Budget
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
