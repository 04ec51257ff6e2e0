"""A network under a linear classifier: it reads the clean sequence, and the mean of its features goes to a linear layer."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from dnadiff.backbone import rc
from dnadiff.backbone.base import Backbone
from dnadiff.downstream.items import ItemBatch, Items, TaskData, batch
from dnadiff.vocab import Vocab


def merges_strands(backbone: Backbone, stranded: bool) -> bool:
    """Whether `pooled` gives the same for either strand: the network reads both, and the strand says nothing."""
    return backbone.reads_both_strands and not stranded


def pooled_width(backbone: Backbone, stranded: bool) -> int:
    """Numbers that `pooled` gives of a sequence."""
    return backbone.d_model // 2 if merges_strands(backbone, stranded) else backbone.d_model


def pooled(backbone: Backbone, ids: Tensor, valid: Tensor | None = None, stranded: bool = True) -> Tensor:
    """Mean of the features of `ids (B, L)` over the positions in `valid (B, L)`: (B, D) float32.

    Where the strand says nothing (`stranded=False`) a network that reads both gives what is the same for either: (B, D/2).
    """
    features = backbone.features(ids, valid=valid).float()  # (B, L, D)
    if merges_strands(backbone, stranded):
        features = rc.invariant(features)
    if valid is not None:
        features = torch.where(valid[..., None], features, 0.0)
    count = ids.shape[1] if valid is None else valid.sum(1, keepdim=True)
    return features.sum(1) / count


class SequenceClassifier(nn.Module, ABC):
    """Token ids in, logits of classes out.

    Attributes:
        vocab: the alphabet.
        num_classes: C.
        invariant: whether either strand of a sequence gives the same logits.
    """

    vocab: Vocab
    num_classes: int
    invariant: bool = False

    @abstractmethod
    def forward(self, ids: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits (B, C) float32 of `ids (B, L)`; positions outside `valid (B, L)` have no influence."""

    @torch.no_grad()
    def log_probs(self, items: Items, batch_size: int, both_strands: bool) -> Tensor:
        """Log-probabilities of the classes in evaluation mode: (S, C) on the CPU, normalised.

        Args:
            items: sequences of one or more tokens.
            batch_size: items at once, grouped by length.
            both_strands: average the log-probabilities of the two strands; an invariant network reads one of them.
        """
        training, device, vocab = self.training, next(self.parameters()).device, self.vocab
        self.eval()
        result = torch.empty(len(items), self.num_classes)
        for index in items.lengths.argsort(stable=True).split(batch_size):
            strands = [None, torch.ones(len(index), dtype=torch.bool)] if both_strands and not self.invariant else [None]
            total = torch.zeros(len(index), self.num_classes)
            for reverse in strands:
                ids, valid, _ = moved(batch(items, index, vocab, reverse), device)
                total += self(ids, valid).log_softmax(-1).cpu()
            result[index] = (total / len(strands)).log_softmax(-1)
        self.train(training)
        return result


class Classifier(SequenceClassifier):
    """features of the clean sequence -> mean over valid positions -> linear layer.

    Args:
        backbone: the network; told no noise level.
        num_classes: C.
        stranded: whether the strand says something; if not, a network that reads both becomes invariant.
    """

    def __init__(self, backbone: Backbone, num_classes: int, stranded: bool = True) -> None:
        super().__init__()
        self.backbone, self.vocab, self.num_classes, self.stranded = backbone, backbone.vocab, num_classes, stranded
        self.invariant = merges_strands(backbone, stranded)
        self.head = nn.Linear(pooled_width(backbone, stranded), num_classes)

    def forward(self, ids: Tensor, valid: Tensor | None = None) -> Tensor:
        """See `SequenceClassifier`."""
        return self.head(pooled(self.backbone, ids, valid, self.stranded))


def first_layers(backbone: Backbone, number: int | None) -> Backbone:
    """The network cut off after its first `number` layers, in place; the final norm follows them. None cuts nothing.

    Raises:
        ValueError: if it has fewer layers, or no list of layers.
    """
    if number is None:
        return backbone
    if backbone.trunk is None:
        raise ValueError(f"a {type(backbone).__name__} has no list of layers to cut; leave layer at null")
    num_layers = len(backbone.trunk)
    if not 0 < number <= num_layers:
        raise ValueError(f"layer {number} is not one of this network's {num_layers}; set layer to 1..{num_layers}, or to null for all")
    del backbone.trunk[number:]
    return backbone


def check_length(backbone: Backbone, data: TaskData) -> None:
    """Refuse a task with a sequence that the network does not take, rather than cut it.

    Raises:
        ValueError: if there is one.
    """
    if backbone.max_length is not None and data.max_length > backbone.max_length:
        raise ValueError(
            f"{data.name} holds a sequence of {data.max_length} bases and this {type(backbone).__name__} takes at most {backbone.max_length}; "
            "use a checkpoint trained with a larger data.length, or shorter sequences"
        )


def moved(batch: ItemBatch, device: torch.device) -> ItemBatch:
    """The batch on a device."""
    return ItemBatch(*(None if x is None else x.to(device) for x in batch))
