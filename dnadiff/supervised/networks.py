"""Models whose networks are trained on a task: the fine-tuned network, a head on the bases alone,
the published convolutional network, and the choice among several settings."""

from __future__ import annotations

import copy
import itertools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import Config, Json, JsonDict, Positive, checked
from dnadiff.networks.adapter import LoRA
from dnadiff.networks.backbone.base import Backbone
from dnadiff.progress import log
from dnadiff.supervised.classifier import (
    MEAN_HEAD,
    Classifier,
    HeadInputs,
    SequenceClassifier,
    build_classifier,
    check_head,
    check_length,
)
from dnadiff.supervised.heads import Head
from dnadiff.supervised.items import EVALUATION, Budget, Report, TaskData, TaskModel, no_report
from dnadiff.supervised.targets import TaskTarget, ValidScore
from dnadiff.supervised.training import (
    MIN_TRIAL_STEPS,
    TRIAL_SHARE,
    FineTuningModule,
    Recipe,
    ShortRun,
    Trials,
    automatic_plan,
    before_layers,
    find_rate_and_plan,
    search_steps,
    train,
    train_head,
    validate,
)


class NetworkModel(TaskModel):
    """A network that is trained on the task.

    Args:
        lr: peak learning rate. Of several, short trials choose one on the validation items.
        device: where it is trained.
        **recipe: see `Recipe`.

    Attributes:
        valid_score: of the last fit.
    """

    def __init__(
        self,
        lr: float | Sequence[float],
        device: str = "cpu",
        **recipe: Annotated[Any, Recipe],
    ) -> None:
        self.rates = tuple(lr) if isinstance(lr, Sequence) else (lr,)
        self.recipe = Recipe(**recipe)
        self.device = device
        self.valid_score = ValidScore(-1.0, 0.0)

    @abstractmethod
    def build_classifier(self, data: TaskData, seed: int) -> SequenceClassifier:
        """The classifier before training; ValueError if the task does not fit it."""

    def check(self, data: TaskData) -> None:
        self._target(data)
        self.build_classifier(data, 0)

    def describe(self) -> JsonDict:
        lr = self.rates[0] if len(self.rates) == 1 else list(self.rates)
        return super().describe() | {"lr": lr} | asdict(self.recipe)

    def num_steps(self, data: TaskData) -> int:
        batches = self.recipe.batches(data.train)
        epochs = self.recipe.epochs
        steps = automatic_plan(batches).steps if epochs is None else epochs * batches
        trial = max(MIN_TRIAL_STEPS, round(TRIAL_SHARE * steps))
        return steps + sum(search_steps(len(self.rates), trial))

    def fit(self, data: TaskData, seed: int, report: Report = no_report) -> SequenceClassifier:
        """Train; the classifier of the best epoch, in evaluation mode."""
        recipe = self.recipe
        budget = self.budget or Budget(recipe.minutes)
        classifier = self.build_classifier(data, seed)
        classifier.target = self._target(data)
        prepared: JsonDict = {}
        if recipe.head_epochs != 0:
            assert isinstance(classifier, Classifier)
            prepared = train_head(classifier.to(self.device), data, recipe, seed, budget, report)
        first = None
        if prepared:
            first = validate(classifier, data.valid, recipe.batch_size, data.stranded)
        start = copy.deepcopy(classifier.state_dict())

        def short_run(lr: float) -> ShortRun:
            classifier.load_state_dict(start)
            return ShortRun(classifier, data, lr, recipe, seed, report)

        trials = Trials(short_run, self.device)
        batches = recipe.batches(data.train)
        found = find_rate_and_plan(trials, self.rates, recipe.epochs, batches, budget)
        if found.searched or budget.is_limited:
            log.info(f"{data.name}, seed {seed}: {found}")
        classifier.load_state_dict(start)
        module = FineTuningModule(classifier, data, found.lr, recipe, seed, report, budget, first)
        train(module, found.plan, self.device)
        classifier.load_state_dict(module.best_weights)
        # Lightning moves the network to the CPU; predict on the device that trained it.
        classifier.to(next(iter(module.best_weights.values())).device)
        self.valid_score = module.best_score
        self.valid_predictions = module.best_valid
        self.fit_info: JsonDict = {
            **prepared,
            **found.describe(),
            **classifier.target.record(module.best_score),
            "best_epoch": module.best_epoch,
            "epochs": module.num_epochs,
            "sequences_per_second": round(module.sequences_per_second, 1),
        }
        if found.searched:
            self.fit_info["chosen"] = {"lr": found.lr, "batch_size": recipe.batch_size}
        return classifier.eval()

    def _target(self, data: TaskData) -> TaskTarget:
        target = data.target.fit(data.train.labels)
        return target.balanced(data.train.labels) if self.recipe.balanced else target

    def fit_predict(self, data: TaskData, seed: int = 0, report: Report = no_report) -> Tensor:
        self.trained = self.fit(data, seed, report)
        return self.predict(self.trained, data)

    def predict(self, classifier: SequenceClassifier, data: TaskData) -> Tensor:
        """Predictions (S, C) of the test items under a classifier that `fit` returned.

        Raises:
            ValueError: if they are not finite because training diverged.
        """
        batch_size = EVALUATION * self.recipe.batch_size
        predictions = classifier.predict(data.test, batch_size, not data.stranded)
        if not bool(predictions.isfinite().all()):
            raise ValueError(
                f"{data.name}: training at lr {self.fit_info['lr']:g} diverged, and its "
                "predictions are not finite; set a lower learning rate (lr, or lr_scratch of the "
                "network from scratch)"
            )
        return predictions


class Frozen(NamedTuple):
    """The whole `backbone`, or its embedding and first `layers`."""

    backbone: bool = False
    layers: int = 0

    def apply(self, backbone: Backbone) -> None:
        """Leave the parameters without gradients.

        Raises:
            ValueError: if the network has fewer layers, or no list of layers.
        """
        if self.backbone:
            backbone.requires_grad_(False)
        if not self.layers:
            return
        layers = list(backbone.trunk or ())
        if self.layers > len(layers):
            raise ValueError(
                f"freeze {self.layers} is more than the {len(layers)} layers of this "
                f"{type(backbone).__name__}; set freeze=backbone"
            )
        for parameter in before_layers(backbone):
            parameter.requires_grad_(False)
        for layer in layers[: self.layers]:
            layer.requires_grad_(False)


class FineTunedModel(NetworkModel):
    """A backbone with a head on top, both trained.

    Args:
        backbone: returns a new copy of the network for a seed; None is a head on the inputs alone.
        about: identifies it in `describe`, for example by the digest of its weights.
        head: a configuration as in `configs/head`, None for the published one.
        frozen: the part of the network that is not trained.
        adapter: trained in place of the network's weights, and merged into them after training.
        vocab: needed without a network.
        **settings: as in `NetworkModel`.
    """

    draws = "head"  # the random numbers of a new head

    def __init__(
        self,
        backbone: Callable[[int], Backbone] | None,
        lr: float | Sequence[float],
        about: Mapping[str, object] | None = None,
        head: Config | None = None,
        inputs: HeadInputs | None = None,
        frozen: Frozen | None = None,
        adapter: LoRA | None = None,
        vocab: Vocab | None = None,
        **settings: Annotated[Any, NetworkModel],
    ) -> None:
        super().__init__(lr, **settings)
        self.backbone = backbone
        self.about = dict(about or {})
        self.head = head or MEAN_HEAD
        self.inputs = inputs or HeadInputs()
        self.frozen = frozen or Frozen()
        self.adapter = adapter
        self.vocab = vocab

    def describe(self) -> JsonDict:
        return {
            **super().describe(),
            **self.about,
            "head": dict(self.head),
            "inputs": asdict(self.inputs),
            "frozen": self.frozen._asdict(),
            "adapter": self.adapter and {type(self.adapter).__name__: asdict(self.adapter)},
        }

    def fit(self, data: TaskData, seed: int, report: Report = no_report) -> SequenceClassifier:
        classifier = super().fit(data, seed, report)
        self.fit_info["head"] = dict(self.head)
        if self.adapter is not None:
            assert isinstance(classifier, Classifier) and classifier.backbone is not None
            self.adapter.merge(classifier.backbone)
        return classifier

    def build_classifier(self, data: TaskData, seed: int) -> Classifier:
        backbone = None if self.backbone is None else self.backbone(seed)
        torch.manual_seed(hash64(seed, self.draws) % 2**63)
        sizes = (data.target.num_outputs, data.max_length, data.stranded)
        classifier = build_classifier(backbone, self.head, self.inputs, *sizes, None, self.vocab)
        if backbone is not None:
            check_length(backbone, data)
            if self.adapter is not None:
                self.adapter.attach(backbone, self.frozen.layers)
            self.frozen.apply(backbone)
        return classifier


@dataclass(eq=False)
class GridSearch(TaskModel):
    """Trains every candidate and predicts with the one with the best validation score: accuracy,
    then loss; for other targets than classes the loss.

    A candidate is its settings, as they are to be recorded, and the model. Each seed chooses on its
    own validation items. `fit_info` records all candidates and the fit of the chosen one.
    """

    candidates: Sequence[tuple[Mapping[str, Json], NetworkModel]]

    def describe(self) -> JsonDict:
        candidates = [model.describe() for _, model in self.candidates]
        return super().describe() | {"candidates": candidates}

    def check(self, data: TaskData) -> None:
        for _, model in self.candidates:
            model.check(data)

    def num_steps(self, data: TaskData) -> int:
        return sum(model.num_steps(data) for _, model in self.candidates)

    def fit_predict(self, data: TaskData, seed: int = 0, report: Report = no_report) -> Tensor:
        tried: list[JsonDict] = []
        best = self.candidates[0][1]
        for number, (settings, model) in enumerate(self.candidates):
            model.budget = self.budget and self.budget.part(1 / (len(self.candidates) - number))
            classifier = model.fit(data, seed, report)
            settings = {**settings, **model.fit_info.get("chosen", {})}  # a rate that it chose
            tried.append({**settings, **classifier.target.record(model.valid_score)})
            # Only the best classifier stays in memory.
            if len(tried) == 1 or model.valid_score > best.valid_score:
                best = model
                chosen = settings
                self.trained = classifier
        self.fit_info = {**best.fit_info, "tried": tried, "chosen": dict(chosen)}
        self.valid_predictions = best.valid_predictions
        assert self.trained is not None
        return best.predict(self.trained, data)


@checked
class OneHotModel(FineTunedModel):
    """A head of `configs/head` on one-hot bases, without a network: what a fine-tuned network has
    to beat before its gain can be ascribed to pretraining.

    Args:
        head: makes the head from `width`, `num_outputs` and `max_length` (`_partial_: true` in a
            configuration).
        length: the head also reads the length, as the heads of the networks do with
            `inputs.length=true`.
        lr, **settings: as in `NetworkModel`.
    """

    draws = "one-hot"

    def __init__(
        self,
        tokenizer: DNATokenizer,
        head: Callable[..., Head],
        lr: Positive | Sequence[float] = 2e-3,
        length: bool = False,
        **settings: Annotated[Any, NetworkModel],
    ) -> None:
        made = head if isinstance(head, partial) else partial(head)
        target = f"{made.func.__module__}.{made.func.__qualname__}"
        config: Config = {"_target_": target, **made.keywords}
        inputs = HeadInputs(one_hot=True, length=length)
        super().__init__(None, lr, None, config, inputs, vocab=tokenizer.vocab, **settings)

    def build_classifier(self, data: TaskData, seed: int) -> Classifier:
        check_head(self.head, data)
        return super().build_classifier(data, seed)


_KERNEL = 8
_CHANNELS = (16, 8, 4)
_EMBEDDING = 100
_HIDDEN = 512


def pooled_length(length: int) -> int:
    """The number of positions that remain of `length` after the three convolution and pooling
    layers."""
    for _ in _CHANNELS:
        length = (length - _KERNEL + 1) // 2
    return length


MIN_LENGTH = 57  # the least of which a position remains


class CNN(SequenceClassifier):
    """The convolutional baseline that Genomic Benchmarks publishes (Gresova et al. 2023, doi
    10.1186/s12863-023-01123-8): embedding, three blocks of convolution, batch norm, ReLU and
    pooling, and two linear layers. Sequences are padded to one length.

    The layers are those of `models/torch.py` in its repository at commit 001db97. There are two
    differences. The published network applies a sigmoid before a loss that applies it again, which
    keeps its predictions away from 0 and 1. And it has one output, so it cannot distinguish three
    classes.

    Args:
        length: of the longest sequence; shorter ones are padded to it with the pad token, whose
            embedding is 0.
    """

    def __init__(self, vocab: Vocab, num_classes: int, length: int) -> None:
        super().__init__()
        self.vocab = vocab
        self.num_classes = num_classes
        self.length = max(length, MIN_LENGTH)
        self.embedding = nn.Embedding(vocab.size, _EMBEDDING, padding_idx=vocab.pad_id)
        blocks = [
            nn.Sequential(nn.Conv1d(a, b, _KERNEL), nn.BatchNorm1d(b), nn.ReLU(), nn.MaxPool1d(2))
            for a, b in itertools.pairwise((_EMBEDDING, *_CHANNELS))
        ]
        self.body = nn.Sequential(*blocks, nn.Flatten())
        first = nn.Linear(_CHANNELS[-1] * pooled_length(self.length), _HIDDEN)
        self.head = nn.Sequential(first, nn.Linear(_HIDDEN, num_classes))

    def forward(
        self, ids: Tensor, valid: Tensor | None = None, cond: Tensor | None = None
    ) -> Tensor:
        if valid is not None:
            ids = torch.where(valid, ids, self.vocab.pad_id)
        ids = nn.functional.pad(ids, (0, self.length - ids.shape[1]), value=self.vocab.pad_id)
        return self.head(self.body(self.embedding(ids).transpose(1, 2)))


@checked
class PublishedCNN(NetworkModel):
    """`CNN` as a model of the study; the published learning rate is Adam's default 1e-3.

    Args:
        lr, **settings: as in `NetworkModel`.
    """

    def __init__(
        self, tokenizer: DNATokenizer, lr: Positive = 1e-3, **settings: Annotated[Any, NetworkModel]
    ) -> None:
        super().__init__(lr, **settings)
        self.vocab = tokenizer.vocab

    def build_classifier(self, data: TaskData, seed: int) -> CNN:
        torch.manual_seed(hash64(seed, "cnn") % 2**63)
        return CNN(self.vocab, data.target.num_outputs, data.max_length)
