"""Sequence classifiers: a network encodes the unmasked sequence, and a head maps its features to
logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from dnadiff.backbone import rc
from dnadiff.backbone.base import Backbone
from dnadiff.config import PACKAGE, Config, build, locate
from dnadiff.supervised.head.base import Head
from dnadiff.supervised.head.with_bases import HeadWithBases
from dnadiff.supervised.head_inputs import HeadInputs
from dnadiff.supervised.items import Items, TaskData, strand_batches
from dnadiff.supervised.targets.base import TaskTarget
from dnadiff.supervised.targets.classes import ClassTarget
from dnadiff.vocab import Vocab

MEAN_HEAD: Config = {"_target_": "dnadiff.supervised.head.mean.MeanHead"}


def is_strand_invariant(backbone: Backbone, stranded: bool) -> bool:
    """Whether `pool_features` is the same for a sequence and its reverse complement."""
    return backbone.reads_both_strands and not stranded


def pooled_width(backbone: Backbone, stranded: bool) -> int:
    """The number of features per sequence that `pool_features` returns."""
    return backbone.d_model // 2 if is_strand_invariant(backbone, stranded) else backbone.d_model


def pool_features(
    backbone: Backbone, ids: Tensor, valid: Tensor | None = None, stranded: bool = True
) -> Tensor:
    """Mean over the valid positions of the features of `ids (B, L)`, (B, D) float32; `valid (B, L)`
    is False on padding.

    Unless the class is `stranded`, the features of a network that reads both strands are averaged
    over the strands: (B, D/2).
    """
    features = backbone.features(ids, valid=valid).float()  # (B, L, D)
    if is_strand_invariant(backbone, stranded):
        features = rc.invariant(features)
    if valid is not None:
        features = torch.where(valid[..., None], features, 0.0)
    count = ids.shape[1] if valid is None else valid.sum(1, keepdim=True)
    return features.sum(1) / count


class SequenceClassifier(nn.Module, ABC):
    """Maps token ids to C outputs, class logits by default; `invariant` if a sequence and its
    reverse complement have the same ones.

    Attributes:
        target: what the outputs predict; for regression with the mean and standard deviation of the
            training items.
    """

    vocab: Vocab
    num_classes: int
    invariant: bool = False
    target: TaskTarget = ClassTarget()

    @abstractmethod
    def forward(self, ids: Tensor, valid: Tensor | None = None) -> Tensor:
        """Outputs (B, C) float32 of `ids (B, L)`; positions outside `valid (B, L)` have no
        influence."""

    @torch.no_grad()
    def predict(self, items: Items, batch_size: int, both_strands: bool) -> Tensor:
        """Predictions (S, C) of the target in evaluation mode, on the CPU: of classes, normalized
        log-probabilities.

        Items of similar length are batched together. With `both_strands` predictions are averaged
        over the two strands. An invariant network reads only one of them.
        """
        training, device = self.training, next(self.parameters()).device
        self.eval()
        result = torch.empty(len(items), self.num_classes)
        for index, strands in strand_batches(
            items, batch_size, self.vocab, both_strands and not self.invariant
        ):
            given = [batch.to(device) for batch in strands]
            result[index] = self.target.predictions(
                [self(ids, valid) for ids, valid, _ in given]
            ).cpu()
        self.train(training)
        return result


class Classifier(SequenceClassifier):
    """Features of the unmasked sequence -> head; the network runs without a noise level.

    Unless `stranded`, a network that reads both strands becomes strand-invariant: the head reads
    each strand from its own beginning, and the outputs are averaged.

    Args:
        backbone: the network; None for a head on the inputs alone (`HeadInputs.one_hot`).
        head: built for `inputs.width`.
        vocab: needed without a network.
    """

    def __init__(
        self,
        backbone: Backbone | None,
        head: Head,
        stranded: bool = True,
        inputs: HeadInputs | None = None,
        vocab: Vocab | None = None,
    ) -> None:
        super().__init__()
        known = vocab if backbone is None else backbone.vocab
        if known is None:
            raise ValueError("a classifier without a network needs a vocabulary: pass vocab")
        self.vocab = known
        self.backbone, self.head, self.stranded, self.inputs = (
            backbone,
            head,
            stranded,
            inputs or HeadInputs(),
        )
        self.num_classes = head.num_outputs
        self.invariant = backbone is not None and is_strand_invariant(backbone, stranded)

    @property
    def max_length(self) -> int | None:
        """Longest sequence that it takes; None for any."""
        limits = [
            limit
            for limit in (
                self.head.fixed_length,
                None if self.backbone is None else self.backbone.max_length,
            )
            if limit
        ]
        return min(limits, default=None)

    @override
    def forward(self, ids: Tensor, valid: Tensor | None = None) -> Tensor:
        return self.logits(self.read(ids, valid), valid)

    def read(self, ids: Tensor, valid: Tensor | None = None) -> list[Tensor]:
        """What the head reads: features (B, L, D), of both strands for a strand-invariant
        network."""
        return self.inputs.read(self.backbone, self.vocab, ids, valid, self.stranded)

    def logits(self, features: Sequence[Tensor], valid: Tensor | None = None) -> Tensor:
        """Logits (B, C) from what `read` returns."""
        outputs = [self.head(one, valid) for one in features]
        return outputs[0] if len(outputs) == 1 else torch.stack(outputs).mean(0)


def build_classifier(
    backbone: Backbone,
    head: Config,
    inputs: HeadInputs,
    num_classes: int,
    max_length: int,
    stranded: bool,
    trust: Sequence[str] | None = (PACKAGE,),
) -> Classifier:
    """A classifier with a new head; with `inputs.one_hot`, with two of them (`HeadWithBases`).

    Args:
        head: a configuration as in `configs/head`.
        max_length: of the longest sequence.
        trust: packages whose classes `head` may name; None is any.
    """
    inputs.check(backbone)
    bases = inputs.bases_width(backbone.vocab)
    widths = [inputs.width(backbone, backbone.vocab, stranded) - bases, *([bases] if bases else [])]
    heads = [
        build(head, width=width, num_outputs=num_classes, max_length=max_length, trust=trust)
        for width in widths
    ]
    for made in heads:
        if not isinstance(made, Head):
            raise ValueError(
                f"head {head.get('_target_')} is not a head (dnadiff.supervised.head.base.Head)"
            )
    return Classifier(backbone, HeadWithBases(*heads) if bases else heads[0], stranded, inputs)


def check_head(head: Config, data: TaskData) -> None:
    """Raise ValueError if a head does not take the lengths of a task."""
    kind = locate(head.get("_target_"), None)
    if not isinstance(kind, type) or not issubclass(kind, Head):
        raise ValueError(
            f"head {head.get('_target_')} is not a head (dnadiff.supervised.head.base.Head)"
        )
    kind.check_lengths(data.min_length, data.max_length)


def keep_first_layers(backbone: Backbone, num_layers: int | None) -> Backbone:
    """Remove all layers after the first `num_layers`, in place; the final norm stays. None keeps
    all.

    Raises:
        ValueError: if the network has fewer layers, or no list of layers.
    """
    if num_layers is None:
        return backbone
    if backbone.trunk is None:
        raise ValueError(
            f"a {type(backbone).__name__} has no list of layers to cut; leave layer at null"
        )
    total = len(backbone.trunk)
    if not 0 < num_layers <= total:
        raise ValueError(
            f"layer {num_layers} is not one of this network's {total}; set layer to 1..{total}, or "
            "to null for all"
        )
    del backbone.trunk[num_layers:]
    return backbone


def check_length(backbone: Backbone, data: TaskData) -> None:
    """ValueError for a task with a sequence longer than the network accepts; nothing is truncated
    silently."""
    if backbone.max_length is not None and data.max_length > backbone.max_length:
        raise ValueError(
            f"{data.name} holds a sequence of {data.max_length} bases and this "
            f"{type(backbone).__name__} takes at most {backbone.max_length}; "
            "use a checkpoint trained with a larger data.length, or shorter sequences"
        )
