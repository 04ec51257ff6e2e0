"""Training of a sequence classifier; the weights of the epoch with the best validation score are used: accuracy, or the loss."""

from __future__ import annotations

import copy
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TypedDict

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from typing_extensions import Unpack, override

from dnadiff.backbone.base import Backbone
from dnadiff.checks import integer, optional_integer
from dnadiff.config import Config, Json
from dnadiff.downstream.classifier import MEAN_HEAD, Classifier, SequenceClassifier, build_classifier, check_length
from dnadiff.downstream.head_inputs import HeadInputs
from dnadiff.downstream.items import ItemBatch, ShuffledBatches, TaskData
from dnadiff.downstream.model import EVALUATION, Report, TaskModel, no_report
from dnadiff.downstream.target.base import ValidScore as ValidScore
from dnadiff.draws import hash64
from dnadiff.training.collector import frozen_objects
from dnadiff.training.optim import parameter_groups, warmup_cosine


class TrainingSettings(TypedDict, total=False):
    """Keyword arguments of every `NetworkModel`, except the learning rate."""

    weight_decay: float
    warmup: float
    epochs: int
    batch_size: int
    trainer: Config | None
    patience: int | None


class FineTuningModule(lightning.LightningModule):
    """Trains a classifier with the loss of its target and keeps the weights of the best epoch on the validation items.

    Args:
        classifier: all of its parameters are trained.
        lr: peak learning rate of AdamW, after a linear warmup and before a half cosine to 0.
        weight_decay: for matrices, see `dnadiff.training.optim.parameter_groups`.
        seed: of order, strands and dropout.
        patience: stop after this many epochs without improvement; None runs all. The learning rate schedule is the same either way.
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
    ) -> None:
        super().__init__()
        self.classifier, self.data = classifier, data
        self.lr, self.weight_decay, self.warmup, self.batch_size = lr, weight_decay, warmup, batch_size
        self.seed, self.report, self.patience = seed, report, patience
        self.best_score, self.best_epoch = ValidScore(-1.0, 0.0), 0
        self.best_weights: dict[str, Tensor] = {}
        self.num_epochs = self.num_sequences = self.epochs_without_improvement = 0
        self.loaders: list[ShuffledBatches] = []
        self.seconds = self.last_batch_end = 0.0  # time spent on training steps, waiting for data included

    @override
    def train_dataloader(self) -> ShuffledBatches:
        both_strands = not self.data.stranded
        self.loaders.append(
            ShuffledBatches(self.data.train, self.batch_size, self.classifier.vocab, self.seed, self.current_epoch, both_strands)
        )
        return self.loaders[-1]

    @override
    def on_train_epoch_start(self) -> None:
        self.last_batch_end = time.perf_counter()

    @property
    def sequences_per_second(self) -> float:
        """Training throughput, waiting for data included and validation excluded."""
        return self.num_sequences / max(self.seconds, 1e-9)

    @property
    def data_wait_fraction(self) -> float:
        """Fraction of the training time spent waiting for the next batch."""
        return sum(loader.seconds for loader in self.loaders) / max(self.seconds, 1e-9)

    @override
    def transfer_batch_to_device(self, batch: ItemBatch, device: torch.device, dataloader_idx: int) -> ItemBatch:
        return batch.to(device)

    @override
    def training_step(self, batch: ItemBatch, batch_idx: int) -> Tensor:
        torch.manual_seed(hash64(self.seed, "dropout", self.global_step) % 2**63)
        return self.classifier.target.loss(self.classifier(batch.ids, batch.valid), batch.labels)

    @override
    def on_train_batch_end(self, outputs: object, batch: ItemBatch, batch_idx: int) -> None:
        now = time.perf_counter()
        self.seconds, self.last_batch_end = self.seconds + now - self.last_batch_end, now
        self.num_sequences += len(batch.labels)
        self.report(1, batch.ids.numel(), **{"sequences/s": f"{self.sequences_per_second:,.0f}"})

    @override
    def on_train_epoch_end(self) -> None:
        self.num_epochs += 1
        log_probs = self.classifier.log_probs(self.data.valid, EVALUATION * self.batch_size, not self.data.stranded)
        score = self.classifier.target.valid_score(log_probs, self.data.valid.labels)
        if not self.best_weights or score > self.best_score:
            self.best_score, self.best_weights, self.best_epoch = score, copy.deepcopy(self.classifier.state_dict()), self.num_epochs
            self.epochs_without_improvement = 0
            return
        self.epochs_without_improvement += 1
        if self.patience is not None and self.epochs_without_improvement >= self.patience:
            self.trainer.should_stop = True

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = torch.optim.AdamW(parameter_groups(self.classifier, self.weight_decay), lr=self.lr)
        scheduler = warmup_cosine(optimizer, int(self.trainer.estimated_stepping_batches), self.warmup)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class NetworkModel(TaskModel):
    """A network whose parameters are all trained on the task for at most `epochs`; the settings are those of `FineTuningModule`.

    `trainer` has further arguments of `lightning.Trainer`, such as the accelerator; `valid_score` is that of the last fit.
    """

    def __init__(
        self,
        lr: float,
        weight_decay: float = 0.1,
        warmup: float = 0.05,
        epochs: int = 1,
        batch_size: int = 32,
        trainer: Config | None = None,
        patience: int | None = None,
    ) -> None:
        self.lr, self.weight_decay, self.warmup = lr, weight_decay, warmup
        self.epochs, self.batch_size = integer("epochs", epochs), integer("batch_size", batch_size)
        self.patience = optional_integer("patience", patience)
        self.trainer: Config = {"devices": 1, **(trainer or {})}  # Lightning's default, all devices, would divide the batches
        self.valid_score = ValidScore(-1.0, 0.0)
        self._trained: SequenceClassifier | None = None

    @abstractmethod
    def build_classifier(self, data: TaskData, seed: int) -> SequenceClassifier:
        """The classifier before training; ValueError if the task does not fit it."""

    @override
    def describe(self) -> dict[str, Json]:
        settings = ("lr", "weight_decay", "warmup", "epochs", "batch_size", "patience")
        return super().describe() | {name: vars(self)[name] for name in settings}

    @override
    def num_steps(self, data: TaskData) -> int:
        return self.epochs * -(-len(data.train) // self.batch_size)

    def fit(self, data: TaskData, seed: int, report: Report = no_report) -> SequenceClassifier:
        """Train; the classifier of the best epoch, in evaluation mode."""
        classifier = self.build_classifier(data, seed)
        classifier.target = data.target.fit(data.train.labels)
        module = FineTuningModule(
            classifier, data, self.lr, self.weight_decay, self.warmup, self.batch_size, seed, report, patience=self.patience
        )
        trainer = lightning.Trainer(
            max_epochs=self.epochs,
            gradient_clip_val=1.0,
            reload_dataloaders_every_n_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **self.trainer,
        )
        module.train()  # a loaded network is in evaluation mode, which Lightning would keep
        with frozen_objects():
            trainer.fit(module)
        classifier.load_state_dict(module.best_weights)
        # Lightning moves the network to the CPU; predict on the device that trained it.
        classifier.to(next(iter(module.best_weights.values())).device)
        self.valid_score = module.best_score
        self.fit_info = {
            **classifier.target.record(module.best_score),
            "best_epoch": module.best_epoch,
            "epochs": module.num_epochs,
            "sequences_per_second": round(module.sequences_per_second, 1),
            "waiting_share": round(module.data_wait_fraction, 5),
        }
        return classifier.eval()

    @override
    def fit_predict(self, data: TaskData, seed: int = 0, report: Report = no_report) -> Tensor:
        self._trained = self.fit(data, seed, report)
        return self.predict(self._trained, data)

    @override
    def take_classifier(self) -> SequenceClassifier | None:
        taken, self._trained = self._trained, None
        return taken

    def predict(self, classifier: SequenceClassifier, data: TaskData) -> Tensor:
        """Predictions (S, C) of the test items under a classifier that `fit` returned.

        Raises:
            ValueError: if they are not finite because training diverged.
        """
        log_probs = classifier.log_probs(data.test, EVALUATION * self.batch_size, not data.stranded)
        if not bool(log_probs.isfinite().all()):
            raise ValueError(f"{data.name}: training at lr {self.lr:g} diverged, and its predictions are not finite; set a lower lr")
        return log_probs


class FineTunedModel(NetworkModel):
    """A backbone with a head on top, both trained.

    `backbone` returns a new copy of the network for a seed; `about` identifies it in `describe`, for example by the digest of its weights.
    `head` is a configuration as in `configs/head`, None for the published one.
    """

    kind = "Network"

    def __init__(
        self,
        backbone: Callable[[int], Backbone],
        lr: float,
        about: Mapping[str, object] | None = None,
        head: Config | None = None,
        inputs: HeadInputs | None = None,
        **settings: Unpack[TrainingSettings],
    ) -> None:
        super().__init__(lr, **settings)
        self.backbone, self.about = backbone, dict(about or {})
        self.head, self.inputs = head or MEAN_HEAD, inputs or HeadInputs()

    @override
    def describe(self) -> dict[str, Json]:
        head = {} if self.head == MEAN_HEAD else {"head": dict(self.head)}
        inputs = {} if self.inputs == HeadInputs() else {"inputs": asdict(self.inputs)}
        return super().describe() | self.about | head | inputs  # the defaults are those of earlier versions

    @override
    def fit(self, data: TaskData, seed: int, report: Report = no_report) -> SequenceClassifier:
        classifier = super().fit(data, seed, report)
        self.fit_info = {**self.fit_info, "head": dict(self.head)}
        return classifier

    @override
    def build_classifier(self, data: TaskData, seed: int) -> Classifier:
        backbone = self.backbone(seed)
        check_length(backbone, data)
        torch.manual_seed(hash64(seed, "head") % 2**63)
        return build_classifier(backbone, self.head, self.inputs, data.target.num_outputs, data.max_length, data.stranded)
