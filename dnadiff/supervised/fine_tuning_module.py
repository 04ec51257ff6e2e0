"""One training run of a sequence classifier in Lightning; the weights of the epoch with the best
validation score are kept."""

from __future__ import annotations

import copy
import time
from typing import NamedTuple

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from typing_extensions import override

from dnadiff.config import Config
from dnadiff.draws import hash64
from dnadiff.supervised.budget import MIN_STEPS, Budget, TrainingPlan
from dnadiff.supervised.classifier import Classifier, SequenceClassifier
from dnadiff.supervised.items import ItemBatch, Items, ShuffledBatches, TaskData
from dnadiff.supervised.layer_decay import decayed_groups
from dnadiff.supervised.mixup import Mixture, draw_mixture, mixed_logits
from dnadiff.supervised.model import EVALUATION, Report
from dnadiff.supervised.targets.base import ValidScore
from dnadiff.training.collector import frozen_objects
from dnadiff.training.optim import warmup_cosine


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
        weight_decay: for matrices, see `dnadiff.training.optim.parameter_groups`.
        seed: of order, strands, dropout and mixup.
        patience: stop after this many epochs without improvement; None runs all. The learning rate
            schedule is the same either way.
        layer_decay: see `dnadiff.supervised.layer_decay`; 1 trains all layers at one rate.
        mixup: see `dnadiff.supervised.mixup`; 0 is none.
        budget: stop after the epoch in which it ends, but not before 20 steps.
        start: the validation of the weights that the classifier has, if these can be the best ones.
    """

    def __init__(
        self,
        classifier: SequenceClassifier,
        data: TaskData,
        lr: float,
        weight_decay: float,
        warmup: float,
        batch_size: int,
        seed: int,
        report: Report,
        patience: int | None = None,
        layer_decay: float = 1.0,
        mixup: float = 0.0,
        budget: Budget | None = None,
        start: Validation | None = None,
    ) -> None:
        super().__init__()
        self.classifier, self.data = classifier, data
        self.lr, self.weight_decay, self.warmup, self.batch_size = (
            lr,
            weight_decay,
            warmup,
            batch_size,
        )
        self.seed, self.report, self.patience, self.budget = (
            seed,
            report,
            patience,
            budget or Budget(None),
        )
        self.layer_decay, self.mixup = layer_decay, mixup
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

    @property
    def batches_per_epoch(self) -> int:
        """Batches of all training items."""
        return -(-len(self.data.train) // self.batch_size)

    @override
    def train_dataloader(self) -> ShuffledBatches:
        both_strands = not self.data.stranded
        self.loaders.append(
            ShuffledBatches(
                self.data.train,
                self.batch_size,
                self.classifier.vocab,
                self.seed,
                self.current_epoch,
                both_strands,
            )
        )
        return self.loaders[-1]

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
        if not self.mixup:
            return self.classifier.target.loss(
                self.classifier(batch.ids, batch.valid), batch.labels
            )
        return self._mixed_loss(
            batch, draw_mixture(self.mixup, len(batch.labels), self.seed, self.global_step)
        )

    def _mixed_loss(self, batch: ItemBatch, mixture: Mixture) -> Tensor:
        if not isinstance(self.classifier, Classifier):
            raise ValueError(
                f"mixup {self.mixup:g} needs a head on features, which a "
                f"{type(self.classifier).__name__} has not; set mixup=0"
            )
        outputs, loss = (
            mixed_logits(self.classifier, batch.ids, batch.valid, mixture),
            self.classifier.target.loss,
        )
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
        return validate(self.classifier, items, self.batch_size, self.data.stranded)

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
        if self.patience is not None and self.epochs_without_improvement >= self.patience:
            self.trainer.should_stop = True

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = torch.optim.AdamW(
            decayed_groups(self.classifier, self.lr, self.weight_decay, self.layer_decay),
            lr=self.lr,
        )
        scheduler = warmup_cosine(
            optimizer, int(self.trainer.estimated_stepping_batches), self.warmup
        )
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
