"""The convolutional baseline that Genomic Benchmarks publishes, trained on logits.

Gresova et al. 2023 (doi 10.1186/s12863-023-01123-8); the layers are those of `models/torch.py` in
its repository at commit 001db97. There are two differences. The published network applies a sigmoid
before a loss that applies it again, which keeps its predictions away from 0 and 1. And it has one
output, so it cannot distinguish three classes.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from typing_extensions import Unpack, override

from dnadiff.checks import Positive
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.draws import hash64
from dnadiff.supervised.classifier import SequenceClassifier
from dnadiff.supervised.finetuning import NetworkModel, TrainingSettings
from dnadiff.supervised.items import TaskData
from dnadiff.vocab import Vocab

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
