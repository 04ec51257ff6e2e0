"""Models whose networks are trained on a task: the learning rate, the length of the training, and
the training itself."""

from __future__ import annotations

import copy
import itertools
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TypedDict

import torch
from torch import Tensor, nn
from typing_extensions import Unpack, override

from dnadiff import checks
from dnadiff.backbone.base import Backbone
from dnadiff.checks import Positive, integer, optional_integer
from dnadiff.config import Config, Json
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.draws import hash64
from dnadiff.supervised.classifier import (
    MEAN_HEAD,
    Classifier,
    HeadInputs,
    SequenceClassifier,
    build_classifier,
    check_length,
)
from dnadiff.supervised.head.base import Head
from dnadiff.supervised.head_training import train_head
from dnadiff.supervised.items import TaskData
from dnadiff.supervised.layers import Frozen, LoRA
from dnadiff.supervised.models import EVALUATION, Report, TaskModel, no_report
from dnadiff.supervised.targets.base import TaskTarget, ValidScore
from dnadiff.supervised.training import (
    MAX_EPOCHS,
    MIN_TRIAL_STEPS,
    TRIAL_SHARE,
    Budget,
    FineTuningModule,
    ShortRun,
    Trials,
    automatic_plan,
    find_rate_and_plan,
    search_steps,
    train,
    validate,
)
from dnadiff.vocab import Vocab

log = logging.getLogger("dnadiff")


class TrainingSettings(TypedDict, total=False):
    """Keyword arguments of every `NetworkModel`, except the learning rate."""

    weight_decay: float
    warmup: float
    epochs: int | None
    batch_size: int
    trainer: Config | None
    patience: int | None
    minutes: float | None
    layer_decay: float
    balanced: bool
    mixup: float


_OF_MACHINE = ("accelerator", "devices")  # of the trainer: the results do not depend on them
_OFF = {"layer_decay": 1.0, "balanced": False, "mixup": 0.0, "head_epochs": 0, "stored_width": None}


class NetworkModel(TaskModel):
    """A network that is trained on the task; the settings are those of `FineTuningModule`.

    Args:
        lr: peak learning rate. Of several, short trials choose one on the validation items.
        epochs: at most; None is about 2,000 steps (`dnadiff.supervised.training`).
        trainer: further arguments of `lightning.Trainer`, such as the accelerator.
        minutes: wall-clock budget of a fit with its trials, which then sets the epochs.

    Attributes:
        head_epochs: of the head alone, before all is trained (`dnadiff.supervised.head_training`);
            None chooses a number, 0 is none.
        device: where the head alone is trained.
        stored_width: channels of what that stage stores, which limit its sequences; None is what
            the head reads.
        valid_score: of the last fit.
    """

    head_epochs: int | None = 0
    device: str = "cpu"
    stored_width: int | None = None

    def __init__(
        self,
        lr: float | Sequence[float],
        weight_decay: float = 0.1,
        warmup: float = 0.05,
        epochs: int | None = 1,
        batch_size: int = 32,
        trainer: Config | None = None,
        patience: int | None = None,
        minutes: float | None = None,
        layer_decay: float = 1.0,
        balanced: bool = False,
        mixup: float = 0.0,
    ) -> None:
        self.rates = tuple(lr) if isinstance(lr, Sequence) else (lr,)
        self.epochs, self.batch_size = (
            optional_integer("epochs", epochs),
            integer("batch_size", batch_size),
        )
        if minutes is not None and epochs is not None:
            raise ValueError(
                f"minutes {minutes:g} sets the epochs, and epochs is {epochs}; leave one of "
                "them out"
            )
        self.optimization: dict[str, Json] = {
            "weight_decay": weight_decay,
            "warmup": warmup,
            "patience": optional_integer("patience", patience),
        }
        self.changes: dict[str, Json] = {"layer_decay": layer_decay, "mixup": mixup}
        self.balanced = balanced
        self.minutes = minutes
        self.trainer: Config = {
            "devices": 1,
            **(trainer or {}),
        }  # Lightning's default, all devices, would divide the batches
        self.valid_score = ValidScore(-1.0, 0.0)
        self._trained: SequenceClassifier | None = None

    @abstractmethod
    def build_classifier(self, data: TaskData, seed: int) -> SequenceClassifier:
        """The classifier before training; ValueError if the task does not fit it."""

    def prepare(
        self,
        classifier: SequenceClassifier,
        data: TaskData,
        seed: int,
        budget: Budget,
        report: Report,
    ) -> dict[str, Json]:
        """Train the head of a new classifier alone; returns what was done, for `fit_info`, and
        nothing where `head_epochs` is 0."""
        if self.head_epochs == 0:
            return {}
        assert isinstance(classifier, Classifier)
        classifier.to(self.device)
        decay, width = self.optimization["weight_decay"], self.stored_width
        return train_head(
            classifier, data, self.head_epochs, self.batch_size, decay, seed, budget, report, width
        )

    @override
    def check(self, data: TaskData) -> None:
        self._target(data)
        self.build_classifier(data, 0)

    @override
    def describe(self) -> dict[str, Json]:
        lr = self.rates[0] if len(self.rates) == 1 else list(self.rates)
        settings = {
            "lr": lr,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            **self.optimization,
        }
        changes = {
            **self.changes,
            "balanced": self.balanced,
            "head_epochs": self.head_epochs,
            "stored_width": self.stored_width,
        }
        changed = {name: value for name, value in changes.items() if value != _OFF[name]}
        trainer = {key: value for key, value in self.trainer.items() if key not in _OF_MACHINE}
        limit = {} if self.minutes is None else {"minutes": self.minutes}
        return (
            super().describe()
            | settings
            | changed
            | limit
            | ({"trainer": trainer} if trainer else {})
        )

    @override
    def num_steps(self, data: TaskData) -> int:
        batches = self._batches(data)
        if self.minutes is not None:
            return MAX_EPOCHS * batches
        steps = automatic_plan(batches).steps if self.epochs is None else self.epochs * batches
        return steps + sum(
            search_steps(len(self.rates), max(MIN_TRIAL_STEPS, round(TRIAL_SHARE * steps)))
        )

    def fit(self, data: TaskData, seed: int, report: Report = no_report) -> SequenceClassifier:
        """Train; the classifier of the best epoch, in evaluation mode."""
        budget = Budget(self.minutes)
        classifier = self.build_classifier(data, seed)
        classifier.target = self._target(data)
        prepared = self.prepare(classifier, data, seed, budget, report)
        first = (
            validate(classifier, data.valid, self.batch_size, data.stranded) if prepared else None
        )
        start = copy.deepcopy(classifier.state_dict())
        settings = {
            **self.optimization,
            **self.changes,
            "batch_size": self.batch_size,
            "seed": seed,
            "report": report,
        }

        def short_run(lr: float) -> ShortRun:
            classifier.load_state_dict(start)
            return ShortRun(classifier, data, lr, **settings)

        trials = Trials(short_run, self.trainer)
        found = find_rate_and_plan(trials, self.rates, self.epochs, self._batches(data), budget)
        if found.searched or budget.is_limited:
            log.info(f"{data.name}, seed {seed}: {found}")
        classifier.load_state_dict(start)
        module = FineTuningModule(
            classifier, data, found.lr, **settings, budget=budget, start=first
        )
        train(module, found.plan, self.trainer)
        classifier.load_state_dict(module.best_weights)
        # Lightning moves the network to the CPU; predict on the device that trained it.
        classifier.to(next(iter(module.best_weights.values())).device)
        self.valid_score, self.valid_predictions = module.best_score, module.best_valid
        self.fit_info = {**prepared, **found.describe(), **_describe_fit(module)}
        if found.searched:
            self.fit_info = {
                **self.fit_info,
                "chosen": {"lr": found.lr, "batch_size": self.batch_size},
            }
        return classifier.eval()

    def _target(self, data: TaskData) -> TaskTarget:
        target = data.target.fit(data.train.labels)
        return target.balanced(data.train.labels) if self.balanced else target

    def record(self, score: ValidScore, data: TaskData) -> dict[str, Json]:
        """The validation score of a fit on `data`, as it is stored in `fit_info`."""
        return self._target(data).record(score)

    def _batches(self, data: TaskData) -> int:
        return -(-len(data.train) // self.batch_size)

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
        predictions = classifier.predict(data.test, EVALUATION * self.batch_size, not data.stranded)
        if not bool(predictions.isfinite().all()):
            raise ValueError(
                f"{data.name}: training at lr {self.fit_info['lr']:g} diverged, and its "
                "predictions are not finite; set a lower learning rate (lr, or lr_scratch of the "
                "network from scratch)"
            )
        return predictions


def _describe_fit(module: FineTuningModule) -> dict[str, Json]:
    return {
        **module.classifier.target.record(module.best_score),
        "best_epoch": module.best_epoch,
        "epochs": module.num_epochs,
        "sequences_per_second": round(module.sequences_per_second, 1),
        "waiting_share": round(module.data_wait_fraction, 5),
    }


class FineTunedModel(NetworkModel):
    """A backbone with a head on top, both trained.

    Args:
        backbone: returns a new copy of the network for a seed.
        about: identifies it in `describe`, for example by the digest of its weights.
        head: a configuration as in `configs/head`, None for the published one.
        frozen: the part of the network that is not trained.
        adapter: trained in place of the network's weights, and merged into them after training.
        head_epochs, device: as in `NetworkModel`.
    """

    kind = "Network"

    def __init__(
        self,
        backbone: Callable[[int], Backbone],
        lr: float | Sequence[float],
        about: Mapping[str, object] | None = None,
        head: Config | None = None,
        inputs: HeadInputs | None = None,
        frozen: Frozen | None = None,
        adapter: LoRA | None = None,
        head_epochs: int | None = 0,
        device: str = "cpu",
        **settings: Unpack[TrainingSettings],
    ) -> None:
        super().__init__(lr, **settings)
        self.backbone, self.about = backbone, dict(about or {})
        self.head, self.inputs = head or MEAN_HEAD, inputs or HeadInputs()
        self.frozen, self.adapter = frozen or Frozen(), adapter
        self.head_epochs, self.device = optional_integer("head_epochs", head_epochs, 0), device

    @override
    def describe(self) -> dict[str, Json]:
        described = super().describe() | self.about  # the defaults are those of earlier versions
        if self.head != MEAN_HEAD:
            described["head"] = dict(self.head)
        if self.inputs != HeadInputs():
            described["inputs"] = asdict(self.inputs)
        if self.frozen != Frozen():
            described["frozen"] = self.frozen._asdict()
        return (
            described
            if self.adapter is None
            else described | {"adapter": {type(self.adapter).__name__: asdict(self.adapter)}}
        )

    @override
    def fit(self, data: TaskData, seed: int, report: Report = no_report) -> SequenceClassifier:
        classifier = super().fit(data, seed, report)
        self.fit_info = {**self.fit_info, "head": dict(self.head)}
        if self.adapter is not None:
            assert isinstance(classifier, Classifier) and classifier.backbone is not None
            self.adapter.merge(classifier.backbone)
        return classifier

    @override
    def build_classifier(self, data: TaskData, seed: int) -> Classifier:
        backbone = self.backbone(seed)
        check_length(backbone, data)
        torch.manual_seed(hash64(seed, "head") % 2**63)
        classifier = build_classifier(
            backbone,
            self.head,
            self.inputs,
            data.target.num_outputs,
            data.max_length,
            data.stranded,
        )
        if self.adapter is not None:
            self.adapter.attach(backbone, self.frozen.layers)
        self.frozen.apply(backbone)
        return classifier


class GridSearch(TaskModel):
    """Trains every candidate and predicts with the one with the best validation score: accuracy,
    then loss; for other targets than classes the loss.

    A candidate is its settings, as they are to be recorded, and the model. Each seed chooses on its
    own validation items. `fit_info` records all candidates and the fit of the chosen one.
    """

    kind = "Grid"

    def __init__(self, candidates: Sequence[tuple[Mapping[str, Json], NetworkModel]]) -> None:
        self.candidates = candidates
        self._trained: SequenceClassifier | None = None

    @override
    def describe(self) -> dict[str, Json]:
        return super().describe() | {
            "candidates": [model.describe() for _, model in self.candidates]
        }

    @override
    def check(self, data: TaskData) -> None:
        for _, model in self.candidates:
            model.check(data)

    @override
    def num_steps(self, data: TaskData) -> int:
        return sum(model.num_steps(data) for _, model in self.candidates)

    @override
    def fit_predict(self, data: TaskData, seed: int = 0, report: Report = no_report) -> Tensor:
        tried: list[dict[str, Json]] = []
        best: (
            tuple[ValidScore, Mapping[str, Json], NetworkModel, SequenceClassifier, Tensor | None]
            | None
        ) = None
        for settings, model in self.candidates:
            classifier, score = model.fit(data, seed, report), model.valid_score
            settings = {
                **settings,
                **model.fit_info.get("chosen", {}),
            }  # a rate that the model chose
            tried.append({**settings, **model.record(score, data)})
            if best is None or score > best[0]:  # only the best classifier stays in memory
                best = score, settings, model, classifier, model.valid_predictions
        if best is None:
            raise ValueError("a grid search needs at least one candidate")
        _, settings, model, self._trained, valid = best
        self.fit_info = {**model.fit_info, "tried": tried, "chosen": dict(settings)}
        self.valid_predictions = valid
        return model.predict(self._trained, data)

    @override
    def take_classifier(self) -> SequenceClassifier | None:
        taken, self._trained = self._trained, None
        return taken


class OneHotModel(NetworkModel):
    """A head of `configs/head` on one-hot bases, without a network.

    Args:
        head: makes the head from `width`, `num_outputs` and `max_length` (`_partial_: true` in a
            configuration).
        lr, head_epochs, device, stored_width, **settings: as in `NetworkModel`. The control of a
            fine-tuned network has the same two stages, with as many sequences (`stored_width` of
            the network) and the same learning rates.
        length: the head also reads the length, as the heads of the networks do with
            `inputs.length=true`.
    """

    def __init__(
        self,
        tokenizer: DNATokenizer,
        head: Callable[..., Head],
        lr: Positive | Sequence[float] = 2e-3,
        head_epochs: int | None = 0,
        device: str = "cpu",
        stored_width: int | None = None,
        length: bool = False,
        **settings: Unpack[TrainingSettings],
    ) -> None:
        super().__init__(lr, **settings)
        self.head_epochs, self.device = optional_integer("head_epochs", head_epochs, 0), device
        self.stored_width = optional_integer("stored_width", stored_width)
        self.vocab, self.head, self.inputs = (
            tokenizer.vocab,
            head,
            HeadInputs(one_hot=True, length=checks.boolean("length", length)),
        )

    @override
    def describe(self) -> dict[str, Json]:
        described = super().describe() | {"head": repr(self.head)}
        return described | {"inputs": asdict(self.inputs)} if self.inputs.length else described

    @override
    def build_classifier(self, data: TaskData, seed: int) -> Classifier:
        torch.manual_seed(hash64(seed, "one-hot") % 2**63)
        if (
            isinstance(self.head, partial)
            and isinstance(self.head.func, type)
            and issubclass(self.head.func, Head)
        ):
            self.head.func.check_lengths(data.min_length, data.max_length)
        width = self.inputs.width(None, self.vocab, data.stranded)
        head = self.head(
            width=width, num_outputs=data.target.num_outputs, max_length=data.max_length
        )
        return Classifier(None, head, data.stranded, self.inputs, self.vocab)


_KERNEL, _CHANNELS, _EMBEDDING, _HIDDEN = 8, (16, 8, 4), 100, 512


def pooled_length(length: int) -> int:
    """The number of positions that remain of `length` after the three convolution and pooling
    layers."""
    for _ in _CHANNELS:
        length = (length - _KERNEL + 1) // 2
    return length


MIN_LENGTH = next(length for length in range(_KERNEL, 200) if pooled_length(length) >= 1)


class CNN(SequenceClassifier):
    """Embedding, three blocks of convolution, batch norm, ReLU and pooling, and two linear layers.
    Sequences are padded to one length.

    Args:
        length: of the longest sequence; shorter ones are padded to it with the pad token, whose
            embedding is 0.
    """

    def __init__(self, vocab: Vocab, num_classes: int, length: int) -> None:
        super().__init__()
        self.vocab, self.num_classes, self.length = vocab, num_classes, max(length, MIN_LENGTH)
        self.embedding = nn.Embedding(vocab.size, _EMBEDDING, padding_idx=vocab.pad_id)
        widths = (_EMBEDDING, *_CHANNELS)
        blocks = [
            nn.Sequential(nn.Conv1d(a, b, _KERNEL), nn.BatchNorm1d(b), nn.ReLU(), nn.MaxPool1d(2))
            for a, b in itertools.pairwise(widths)
        ]
        self.body = nn.Sequential(*blocks, nn.Flatten())
        self.head = nn.Sequential(
            nn.Linear(_CHANNELS[-1] * pooled_length(self.length), _HIDDEN),
            nn.Linear(_HIDDEN, num_classes),
        )

    @override
    def forward(self, ids: Tensor, valid: Tensor | None = None) -> Tensor:
        if valid is not None:
            ids = torch.where(valid, ids, self.vocab.pad_id)
        ids = nn.functional.pad(ids, (0, self.length - ids.shape[1]), value=self.vocab.pad_id)
        return self.head(self.body(self.embedding(ids).transpose(1, 2)))


class PublishedCNN(NetworkModel):
    """`CNN` as a model of the study; the published learning rate is Adam's default 1e-3."""

    def __init__(
        self, tokenizer: DNATokenizer, lr: Positive = 1e-3, **settings: Unpack[TrainingSettings]
    ) -> None:
        super().__init__(lr, **settings)
        self.vocab = tokenizer.vocab

    @override
    def build_classifier(self, data: TaskData, seed: int) -> CNN:
        torch.manual_seed(hash64(seed, "cnn") % 2**63)
        return CNN(self.vocab, data.target.num_outputs, data.max_length)
