"""How a network is trained on a task: which parameters at which rates, how many steps, and in which
stages.

First the head alone is trained, on stored features of the pretrained network (LP-FT, arXiv
2202.10054): the network runs once for each stored sequence instead of once for each step, and it
does not adapt to a head that is still random. Then all is trained for a number of steps that suits
the size of the task, or for what fits a wall-clock budget.

Layer-wise decay of the learning rate: ELECTRA (arXiv 2003.10555, appendix B) and BEiT (arXiv
2106.08254, appendix) train the first layers of a pretrained network at lower rates: they hold what
is the same for all tasks. The exponents are those of BEiT's code.
"""

import copy
import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from dnadiff.diffusion.draws import hash64
from dnadiff.fields import (
    Fraction,
    Json,
    JsonDict,
    Natural,
    NonNegative,
    Positive,
    PositiveInt,
    checked,
)
from dnadiff.networks.backbone.base import Backbone
from dnadiff.progress import log
from dnadiff.supervised.classifier import Classifier, SequenceClassifier, draw_mixture, mixed_logits
from dnadiff.supervised.items import (
    EVALUATION,
    Budget,
    ItemBatch,
    Items,
    Report,
    ShuffledBatches,
    TaskData,
)
from dnadiff.supervised.targets import ValidScore
from dnadiff.training.optim import frozen_objects, parameter_groups, warmup_cosine

Groups = list[dict[str, list[nn.Parameter] | float]]
STEPS = 2000
MIN_STEPS = 20
MIN_EPOCHS = 2
MAX_EPOCHS = 20
# Of the head alone.
HEAD_STEPS = 1000
HEAD_RATIO = 4  # at most so many steps for each step of a given number of epochs
MIN_HEAD_EPOCHS = 4
MAX_HEAD_EPOCHS = 30
PATIENCE = 3
LR = 1e-3
WARMUP = 0.1
BATCH_SIZE = 32
MAX_SEQUENCES = 40_000  # of which features are stored
MAX_VALID = 1000  # items that rank trials
MAX_BYTES = 2**30  # of the features of the training part, and again of the validation part
# of what is left of a wall-clock budget
READ_SHARE = 0.25
TRAIN_SHARE = 0.3
# The published ones of Caduceus, 1e-3 and 2e-3, are inside.
PRETRAINED_RATES = (3e-4, 8e-4, 2e-3, 5e-3)
NEW_RATES = (5e-4, 1.2e-3, 2.5e-3, 6e-3)  # of parameters that start random
MEASURED_STEPS = 8  # which give the speed, before anything is planned for a budget
TRIAL_SHARE = 0.04  # of the steps
MIN_TRIAL_STEPS = 20  # steps
# of a budget: at most for the search, and kept back
SEARCH_SHARE = 0.35
RESERVE = 0.05
_WARM_UP_STEPS = 3  # slower, because memory is allocated


def before_layers(backbone: Backbone) -> list[nn.Parameter]:
    """The parameters that a network registers before its layers: its embeddings. None of a network
    that is not a list of layers."""
    if backbone.trunk is None:
        return []
    in_layers = {id(p) for p in backbone.trunk.parameters()}
    return list(itertools.takewhile(lambda p: id(p) not in in_layers, backbone.parameters()))


def decayed_groups(
    classifier: SequenceClassifier, lr: float, weight_decay: float, decay: float
) -> Groups:
    """The groups of `parameter_groups`, divided by learning rate; parameters that are not trained
    are left out.

    Layer i of n, from 0, has the rate `lr decay^(n - i)` and the embeddings `lr decay^(n + 1)`. The
    head and what follows the layers have `lr`.
    """
    factors: dict[int, float] = {}
    backbone = classifier.backbone if isinstance(classifier, Classifier) else None
    if backbone is not None and backbone.trunk is not None:
        count = len(backbone.trunk)
        factors = {id(p): decay ** (count + 1) for p in before_layers(backbone)}
        for number, layer in enumerate(backbone.trunk):
            for parameter in layer.parameters():
                factors.setdefault(id(parameter), decay ** (count - number))
    groups = Groups()
    for group in parameter_groups(classifier, weight_decay):
        assert isinstance(group["params"], list)
        by_factor: dict[float, list[nn.Parameter]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.requires_grad:
                by_factor[factors.get(id(parameter), 1.0)].append(parameter)
        for factor, params in by_factor.items():
            groups.append({**group, "params": params, "lr": lr * factor})
    return groups


class TrainingPlan(NamedTuple):
    """`epochs` of `batches` each; validation follows each epoch."""

    epochs: int
    batches: int

    @property
    def steps(self) -> int:
        """Optimizer steps in all."""
        return self.epochs * self.batches


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
        layer_decay: see `decayed_groups`; 1 trains all layers at one rate.
        mixup: see `draw_mixture`; 0 is none.
        balanced: each class has the same total weight in the loss.
        head_epochs: of the head alone, before all is trained (`train_head`);
            None chooses a number, 0 is none.
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
    minutes: Positive | None = None

    def __post_init__(self) -> None:
        if self.minutes is not None and self.epochs is not None:
            raise ValueError(
                f"minutes {self.minutes:g} sets the epochs, and epochs is {self.epochs}; leave one "
                "of them out"
            )

    def batches(self, items: Items) -> int:
        """Batches of all items."""
        return -(-len(items) // self.batch_size)


class Speed(NamedTuple):
    """Seconds of an optimizer step and of a validation."""

    step: float
    validation: float


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
        self.classifier = classifier
        self.data = data
        self.lr = lr
        self.recipe = recipe
        self.seed = seed
        self.report = report
        self.budget = budget or Budget(None)
        self.best_score = ValidScore(-1.0, 0.0)
        self.best_epoch = 0
        self.best_weights: dict[str, Tensor] = {}
        # Predictions of the validation items under the best weights.
        self.best_valid: Tensor | None = None
        self.start = start
        self.num_epochs = self.num_sequences = self.epochs_without_improvement = 0
        self.step_seconds: list[float] = []  # of each training step, waiting for data included
        self.last_batch_end = 0.0

    def train_dataloader(self) -> ShuffledBatches:
        data = self.data
        size = self.recipe.batch_size
        return ShuffledBatches(
            data.train,
            size,
            self.classifier.vocab,
            self.seed,
            self.current_epoch,
            not data.stranded,
        )

    def on_train_start(self) -> None:
        # Here, because the weights are now on the device of the training.
        if self.start is not None:
            self.best_valid, self.best_score = self.start
            self.best_weights = copy.deepcopy(self.classifier.state_dict())

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

    def transfer_batch_to_device(
        self, batch: ItemBatch, device: torch.device, dataloader_idx: int
    ) -> ItemBatch:
        return batch.to(device)

    def training_step(self, batch: ItemBatch, batch_idx: int) -> Tensor:
        torch.manual_seed(hash64(self.seed, "dropout", self.global_step) % 2**63)
        loss = self.classifier.target.loss
        mixup = self.recipe.mixup
        if not mixup:
            return loss(self.classifier(*batch[:3]), batch.labels)
        if not isinstance(self.classifier, Classifier):
            raise ValueError(
                f"mixup {mixup:g} needs a head on features, which a "
                f"{type(self.classifier).__name__} has not; set mixup=0"
            )
        labels = batch.labels
        share, order = draw_mixture(mixup, len(labels), self.seed, self.global_step)
        order = order.to(labels.device)
        outputs = mixed_logits(self.classifier, batch.ids, batch.valid, share, order, batch.cond)
        return share * loss(outputs, labels) + (1 - share) * loss(outputs, labels[order])

    def on_train_batch_end(self, outputs: object, batch: ItemBatch, batch_idx: int) -> None:
        now = time.perf_counter()
        self.step_seconds.append(now - self.last_batch_end)
        self.last_batch_end = now
        self.num_sequences += len(batch.labels)
        self.report(1, batch.ids.numel(), **{"sequences/s": f"{self.sequences_per_second:,.0f}"})

    def on_train_epoch_end(self) -> None:
        self.num_epochs += 1
        data = self.data
        size = self.recipe.batch_size
        predictions, score = validate(self.classifier, data.valid, size, data.stranded)
        if self.budget.left < 0 and self.global_step >= MIN_STEPS:
            self.trainer.should_stop = True
        if not self.best_weights or score > self.best_score:
            self.best_score = score
            self.best_epoch = self.num_epochs
            self.best_weights = copy.deepcopy(self.classifier.state_dict())
            self.best_valid = predictions
            self.epochs_without_improvement = 0
            return
        self.epochs_without_improvement += 1
        patience = self.recipe.patience
        if patience is not None and self.epochs_without_improvement >= patience:
            self.trainer.should_stop = True

    def configure_optimizers(self) -> OptimizerLRScheduler:
        recipe = self.recipe
        steps = int(self.trainer.estimated_stepping_batches)
        groups = decayed_groups(self.classifier, self.lr, recipe.weight_decay, recipe.layer_decay)
        optimizer = torch.optim.AdamW(groups, lr=self.lr)
        scheduler = warmup_cosine(optimizer, steps, recipe.warmup)
        schedule: Json = {"scheduler": scheduler, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def train(module: FineTuningModule, plan: TrainingPlan, device: str, max_steps: int = -1) -> None:
    """Run the training loop.

    Args:
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
        accelerator=torch.device(device).type,
        devices=1,  # the default, all devices, would divide the batches
    )
    module.train()  # a loaded network is in evaluation mode, which Lightning would keep
    with frozen_objects():
        trainer.fit(module)


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

    def describe(self) -> JsonDict:
        """For `fit_info`."""
        found: JsonDict = {
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

    valid_loss = math.inf
    validation_seconds = 0.0

    def on_train_epoch_end(self) -> None:
        self.num_epochs += 1

    def on_train_end(self) -> None:
        items = every = self.data.valid
        if len(every) > MAX_VALID:
            generator = torch.Generator().manual_seed(hash64(self.seed, "trials") % 2**63)
            some = torch.randperm(len(every), generator=generator)[:MAX_VALID]
            items = every.select(some.sort().values)
        start = time.perf_counter()
        # Here, because Lightning then moves the network to the CPU.
        found = validate(self.classifier, items, self.recipe.batch_size, self.data.stranded)
        self.valid_loss = -found.score.negative_loss
        self.validation_seconds = (time.perf_counter() - start) * len(every) / len(items)


@dataclass
class Trials:
    """Runs trials and measures their speed.

    Args:
        short_run: a new run at a learning rate, whose network has its first weights.
        device: as in `train`.
    """

    short_run: Callable[[float], ShortRun]
    device: str
    step_seconds: list[float] = field(default_factory=list)
    validation_seconds: float = 0.0  # of all validation items, from the last trial

    def __call__(self, lr: float, steps: int) -> float:
        """The validation loss of the target after `steps`, see `ShortRun`."""
        module = self.short_run(lr)
        batches = min(module.recipe.batches(module.data.train), steps)
        train(module, TrainingPlan(-(-steps // batches), batches), self.device, steps)
        self.step_seconds += module.step_seconds[_WARM_UP_STEPS:]
        self.validation_seconds = module.validation_seconds
        return module.valid_loss

    @property
    def speed(self) -> Speed:
        """The mean over all trials so far."""
        steps = self.step_seconds
        return Speed(sum(steps) / max(len(steps), 1), self.validation_seconds)


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
        left = sorted(one.lr for one in best)
        steps = 2 * steps
    return left[0], found


def search_steps(num_rates: int, steps: int) -> list[int]:
    """The steps of each trial of `successive_halving`."""
    tried = successive_halving(lambda lr, steps: 0.0, range(num_rates), steps)[1]
    return [trial.steps for trial in tried]


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
    several = len(rates) > 1
    # A search takes at most a part of the budget, or without one as many steps as the training.
    left, speed = SEARCH_SHARE * budget.left, trials.speed
    if not budget.is_limited:
        left, speed = float(plan.steps), Speed(1.0, 0.0)
    rates = affordable(rates, steps, left, speed)
    lr, tried = successive_halving(trials, rates, steps)
    if budget.is_limited:
        plan = fitted_plan(batches, (1 - RESERVE) * budget.left, trials.speed)
        if plan.steps * trials.speed.step > budget.left:
            log.warning(
                f"minutes is too short for this task: {plan.steps} steps are trained all the same; "
                "set more minutes"
            )
    return Found(lr, plan, several, tried, trials.speed if budget.is_limited else None)


@dataclass(frozen=True)
class StoredFeatures:
    """What the head reads of S sequences: one tensor (S, L, D) float16 for each strand that the
    network reads together.

    `valid (S, L)` is False on padding; `labels` are those of `Items`.
    """

    strands: list[Tensor]
    valid: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def outputs(self, classifier: Classifier, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (B, C) of the head for the sequences `rows (B,)`, and their labels."""
        rows = rows.to(self.labels.device)
        lengths = self.valid[rows].sum(1)
        longest = int(lengths.max())
        valid = None if int(lengths.min()) == longest else self.valid[rows, :longest]
        features = [one[rows, :longest].float() for one in self.strands]
        return classifier.logits(features, valid), self.labels[rows]

    def loss(self, classifier: Classifier, batch_size: int) -> float:
        """The loss of the target; infinite if it is not a number, or no label is known."""
        classifier.eval()
        if not bool(self.labels.isfinite().any()):
            return math.inf
        with torch.no_grad():
            every = torch.arange(len(self)).split(batch_size)
            outputs = [self.outputs(classifier, rows)[0] for rows in every]
            predictions = classifier.target.predictions([torch.cat(outputs)])
            score = classifier.target.valid_score(predictions.cpu(), self.labels.cpu())
        return -score.negative_loss if math.isfinite(score.negative_loss) else math.inf


def read_features(
    classifier: Classifier,
    batches: Iterable[ItemBatch],
    number: int,
    length: int,
    seconds: float,
    report: Report,
) -> StoredFeatures:
    """The features of the first `number` sequences of at most `length` tokens; reading stops early
    after `seconds` (and one batch)."""
    end = time.monotonic() + seconds
    device = next(classifier.parameters()).device
    strands: list[Tensor] = []
    valid = torch.zeros(number, length, dtype=torch.bool, device=device)
    labels = []
    count = 0
    classifier.eval()
    for batch in batches:
        ids, mask, cond, of_batch = batch.first(number - count).to(device)
        with torch.no_grad():
            features = classifier.read(ids, mask, cond)
        # Small numbers, because they follow the last norm of the network: float16 holds them.
        strands = strands or [
            torch.zeros(number, length, one.shape[-1], dtype=torch.float16, device=device)
            for one in features
        ]
        rows = slice(count, count + len(of_batch))
        for stored, one in zip(strands, features):
            stored[rows, : ids.shape[1]] = one
        valid[rows, : ids.shape[1]] = True if mask is None else mask
        labels.append(of_batch)
        count += len(of_batch)
        report(0, ids.numel())
        if count == number or time.monotonic() > end:
            break
    return StoredFeatures([one[:count] for one in strands], valid[:count], torch.cat(labels))


def train_head(
    classifier: Classifier,
    data: TaskData,
    recipe: Recipe,
    seed: int,
    budget: Budget,
    report: Report,
    max_sequences: int = MAX_SEQUENCES,
    max_bytes: int = MAX_BYTES,
    lr: float = LR,
) -> JsonDict:
    """Train the head of a classifier, in place, and return what was done, empty if nothing was; the
    network stays as it is.

    The head gets the weights of the epoch with the least validation loss, which may be those it
    came with. Items are read in random order, on a random strand unless the task is stranded or the
    network reads both, and then on the other one.

    Args:
        recipe: of the training of the whole network. The head is trained with batches of 32 or, if
            that is less, four times its size, in at most `head_epochs` over the stored features;
            None is about 1,000 steps, in 4 to 30 epochs. Training stops after 3 without
            improvement.
        seed: of the order, the strands and the dropout.
        budget: reading takes at most a quarter of what is left of it (but one batch of each part),
            and training 30 % of the rest.
        max_sequences, max_bytes: of stored features.
        lr: peak learning rate.
    """
    # Not of test items, which decide nothing.
    longest = max(int(items.lengths.max()) for items in (data.train, data.valid))
    head = classifier.head
    start = time.monotonic()
    width = (2 if classifier.invariant else 1) * head.width
    fitting = min(max_sequences, max_bytes // (2 * longest * width))
    if fitting < BATCH_SIZE:
        log.info(
            f"{data.name}: the head is not trained alone, because the features of only {fitting} "
            "sequences fit into memory"
        )
        return {}
    batch_size = min(BATCH_SIZE, EVALUATION * recipe.batch_size)
    both_strands = not data.stranded and not classifier.invariant
    seconds = READ_SHARE * budget.left

    def batches_of(items: Items, other_strand: bool = False) -> ShuffledBatches:
        vocab = classifier.vocab
        return ShuffledBatches(items, batch_size, vocab, seed, 0, both_strands, other_strand)

    number = min(len(data.valid), MAX_VALID, fitting)
    batches: Iterable[ItemBatch] = batches_of(data.valid)
    valid = read_features(classifier, batches, number, longest, seconds / 4, report)
    passes = [batches_of(data.train, other) for other in (False, True)[: 1 + both_strands]]
    number = min(len(data.train) * len(passes), fitting)
    batches = itertools.chain(*passes)
    left = seconds - (time.monotonic() - start)
    train = read_features(classifier, batches, number, longest, left, report)
    per_epoch = math.ceil(len(train) / batch_size)
    epochs = recipe.head_epochs
    if epochs is None:
        most = recipe.batches(data.train) * (recipe.epochs or HEAD_STEPS)
        fitting_steps = min(HEAD_STEPS, HEAD_RATIO * most)
        epochs = min(MAX_HEAD_EPOCHS, max(MIN_HEAD_EPOCHS, round(fitting_steps / per_epoch)))
    steps = per_epoch * epochs
    end = TRAIN_SHARE * budget.left
    begin = time.monotonic()

    def progress_at(step: int) -> float:
        """The part of the training that is over, by its steps or by its time."""
        over = step / steps if end > 0 else 1.0
        return min(1.0, max(over, (time.monotonic() - begin) / max(end, 1e-9)))

    optimizer = torch.optim.AdamW(parameter_groups(head, recipe.weight_decay))
    best_loss = valid.loss(classifier, batch_size)
    best_weights = copy.deepcopy(head.state_dict())
    step = epoch = best_epoch = 0
    while progress_at(step) < 1 and epoch - best_epoch < PATIENCE:
        head.train()
        order = torch.Generator().manual_seed(hash64(seed, "head training", epoch) % 2**63)
        for rows in torch.randperm(len(train), generator=order).split(batch_size):
            progress = progress_at(step)
            if progress == 1:
                break
            rising = lr * min(1.0, (progress + 1 / steps) / WARMUP)
            for group in optimizer.param_groups:
                group["lr"] = rising * 0.5 * (1 + math.cos(math.pi * progress))
            torch.manual_seed(hash64(seed, "head dropout", step) % 2**63)
            optimizer.zero_grad()
            classifier.target.loss(*train.outputs(classifier, rows)).backward()
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            step += 1
        epoch += 1
        loss = valid.loss(classifier, batch_size)
        if loss < best_loss:
            best_loss = loss
            best_epoch = epoch
            best_weights = copy.deepcopy(head.state_dict())
        report(0)
    head.load_state_dict(best_weights)
    return {
        "head_sequences": len(train),
        "head_epochs": epoch,
        "head_best_epoch": best_epoch,
        "head_valid_loss": best_loss,
    }
