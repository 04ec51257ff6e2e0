"""Fine-tuning of a classifier, with the best epoch by validation; which are compared on which task is decided in `run`."""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import lightning
import torch
from torch import Tensor, nn

from dnadiff.backbone.base import Backbone
from dnadiff.downstream.classifier import Classifier, SequenceClassifier, check_length, moved
from dnadiff.downstream.items import ItemBatch, ShuffledBatches, TaskData
from dnadiff.draws import hash64
from dnadiff.training.optim import parameter_groups, warmup_cosine

Report = Callable[..., None]


class FineTuningModule(lightning.LightningModule):
    """Cross-entropy of a classifier; remembers the weights of the epoch with the best validation accuracy (ties: the lower loss).

    Args:
        classifier: what is trained, all of it.
        data: the task.
        lr: peak rate of AdamW, reached after `warmup` of the steps, then a half cosine to 0.
        weight_decay: for matrices, see `dnadiff.training.optim.parameter_groups`.
        warmup: share of all steps.
        batch_size: items in a step.
        seed: of order, strands and dropout.
        report: called after each step as `report(1, tokens)`, with the sequences per second so far.
        patience: stop after so many epochs without a better one; None runs all. The rate falls as if none were left out.
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
        self.seed, self.report, self.patience, self.waited = seed, report, patience, 0
        self.best: tuple[float, float] = (-1.0, 0.0)  # accuracy, -loss
        self.best_weights: dict[str, Tensor] = {}
        self.best_epoch = self.num_epochs = self.sequences = 0
        self.loaders: list[ShuffledBatches] = []
        self.seconds = self.since = 0.0  # of training steps with the wait for their data; when the running epoch began

    def train_dataloader(self) -> ShuffledBatches:
        """The epoch's own order; Lightning asks anew each epoch."""
        both_strands = not self.data.stranded
        self.loaders.append(
            ShuffledBatches(self.data.train, self.batch_size, self.classifier.vocab, self.seed, self.current_epoch, both_strands)
        )
        return self.loaders[-1]

    def on_train_epoch_start(self) -> None:
        """Start the clock."""
        self.since = time.perf_counter()

    @property
    def sequences_per_second(self) -> float:
        """Of training alone, the wait for data included."""
        return self.sequences / max(self.seconds, 1e-9)

    @property
    def waiting_share(self) -> float:
        """Share of the training time in which the next batch was not there yet."""
        return sum(loader.seconds for loader in self.loaders) / max(self.seconds, 1e-9)

    def transfer_batch_to_device(self, batch: ItemBatch, device: torch.device, dataloader_idx: int) -> ItemBatch:
        """Lightning's hook."""
        return moved(batch, device)

    def training_step(self, batch: ItemBatch, batch_idx: int) -> Tensor:
        """Mean cross-entropy of one batch, nats."""
        torch.manual_seed(hash64(self.seed, "dropout", self.global_step) % 2**63)
        loss = nn.functional.cross_entropy(self.classifier(batch.ids, batch.valid), batch.labels)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: ItemBatch, batch_idx: int) -> None:
        """Count."""
        now = time.perf_counter()
        self.seconds, self.since = self.seconds + now - self.since, now
        self.sequences += len(batch.labels)
        self.report(1, batch.ids.numel(), **{"sequences/s": f"{self.sequences_per_second:,.0f}"})

    def on_train_epoch_end(self) -> None:
        """Score the validation items and keep the weights if they are the best so far."""
        self.num_epochs += 1
        log_probs = self.classifier.log_probs(self.data.valid, 4 * self.batch_size, not self.data.stranded)
        labels = self.data.valid.labels
        score = (float((log_probs.argmax(-1) == labels).float().mean()), -float(nn.functional.nll_loss(log_probs, labels)))
        if not math.isfinite(score[1]):
            score = (-1.0, -math.inf)  # diverged: worse than any other epoch, however many a network that says nothing gets right
        if not self.best_weights or score > self.best:
            self.best, self.best_weights, self.waited = score, copy.deepcopy(self.classifier.state_dict()), 0
            self.best_epoch = self.num_epochs
            return
        self.waited += 1
        if self.patience is not None and self.waited >= self.patience:
            self.trainer.should_stop = True

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW with warm-up and cosine over the real number of steps."""
        optimizer = torch.optim.AdamW(parameter_groups(self.classifier, self.weight_decay), lr=self.lr)
        scheduler = warmup_cosine(optimizer, int(self.trainer.estimated_stepping_batches), self.warmup)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Trained(ABC):
    """A way to classify: some network, trained on the task as a whole.

    Called with a task and a seed it gives the log-probabilities of the test items; the same call gives the same numbers.

    Attributes:
        score: of the last fit, on the validation items: accuracy and minus the loss. The larger, the better.
        found: of the last fit, see `run.TaskModel`.

    Args:
        lr: see `FineTuningModule`.
        weight_decay: see `FineTuningModule`.
        warmup: see `FineTuningModule`.
        epochs: passes over the training items, at most.
        batch_size: items in a step.
        trainer: further arguments of `lightning.Trainer`, such as the accelerator.
        patience: see `FineTuningModule`.
    """

    random = True  # another seed gives another result
    kind: ClassVar[str]  # in the digest of stored predictions: not to be renamed

    def __init__(
        self,
        lr: float,
        weight_decay: float = 0.1,
        warmup: float = 0.05,
        epochs: int = 1,
        batch_size: int = 32,
        trainer: dict[str, Any] | None = None,
        patience: int | None = None,
    ) -> None:
        for name, value in (("epochs", epochs), ("batch_size", batch_size), ("patience", 1 if patience is None else patience)):
            if value < 1:
                raise ValueError(f"{name} is {value}; set {name} to 1 or more")
        self.epochs, self.batch_size = epochs, batch_size
        self.settings = {"lr": lr, "weight_decay": weight_decay, "warmup": warmup, "batch_size": batch_size, "patience": patience}
        self.trainer = {"devices": 1, **(trainer or {})}  # Lightning's own choice, all devices, would divide the batches
        self.score, self.found = (-1.0, 0.0), {}

    @abstractmethod
    def untrained(self, data: TaskData, seed: int) -> SequenceClassifier:
        """A fresh classifier for the task; ValueError if the task does not fit it."""

    def describe(self) -> dict[str, Any]:
        """What the result depends on, besides task and seed."""
        return {"kind": self.kind, "epochs": self.epochs, **self.settings}

    def num_steps(self, data: TaskData) -> int:
        """Optimizer steps of one call, at most."""
        return self.epochs * -(-len(data.train) // self.batch_size)

    def fit(self, data: TaskData, seed: int, report: Report = lambda *_, **__: None) -> SequenceClassifier:
        """The classifier of the best epoch, in evaluation mode."""
        training = FineTuningModule(self.untrained(data, seed), data, seed=seed, report=report, **self.settings)
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
        training.train()  # a loaded network arrives in evaluation mode, which Lightning would keep
        trainer.fit(training)
        training.classifier.load_state_dict(training.best_weights)
        # Lightning leaves the network on the CPU: the test items are to be scored where it was trained.
        training.classifier.to(next(iter(training.best_weights.values())).device)
        self.score = training.best
        self.found = {
            "valid_accuracy": training.best[0],
            "best_epoch": training.best_epoch,
            "epochs": training.num_epochs,
            "sequences_per_second": round(training.sequences_per_second, 1),
            "waiting_share": round(training.waiting_share, 5),
        }
        return training.classifier.eval()

    def __call__(self, data: TaskData, seed: int, report: Report = lambda *_, **__: None) -> Tensor:
        """Log-probabilities of the test items, (S, C)."""
        return self.predict(self.fit(data, seed, report), data)

    def predict(self, classifier: SequenceClassifier, data: TaskData) -> Tensor:
        """What a classifier that `fit` gave says of the test items: log-probabilities (S, C).

        Raises:
            ValueError: if they are no numbers, because training diverged.
        """
        log_probs = classifier.log_probs(data.test, 4 * self.batch_size, not data.stranded)
        if not bool(log_probs.isfinite().all()):
            raise ValueError(
                f"{data.name}: training at rate {self.settings['lr']:g} diverged, its predictions are no numbers; set a lower rate"
            )
        return log_probs


class FineTunedModel(Trained):
    """A backbone under a linear layer, both trained.

    Args:
        backbone: gives a fresh copy of the network for a seed.
        lr: see `FineTuningModule`.
        about: names the network in `describe`, such as its checkpoint.
        **settings: see `Trained`.
    """

    kind = "Network"

    def __init__(self, backbone: Callable[[int], Backbone], lr: float, about: Mapping[str, Any] | None = None, **settings: Any) -> None:
        super().__init__(lr, **settings)
        self.backbone, self.about = backbone, dict(about or {})

    def describe(self) -> dict[str, Any]:
        """See `Trained`."""
        return super().describe() | self.about

    def untrained(self, data: TaskData, seed: int) -> Classifier:
        """See `Trained`.

        Raises:
            ValueError: if a sequence is longer than the network takes.
        """
        backbone = self.backbone(seed)
        check_length(backbone, data)
        torch.manual_seed(hash64(seed, "head") % 2**63)
        return Classifier(backbone, len(data.classes), data.stranded)
