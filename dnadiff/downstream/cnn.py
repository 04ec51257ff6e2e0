"""The convolutional network that Genomic Benchmarks publishes as its baseline, trained properly.

Gresova et al. 2023 (doi 10.1186/s12863-023-01123-8); the layers are those of its repository, `models/torch.py` at commit 001db97.
Two things differ: the published network applies a sigmoid and then a loss that applies it again, so that no prediction can be
sure; and it has one output, so that it cannot tell three classes apart.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from dnadiff.downstream.classifier import SequenceClassifier
from dnadiff.downstream.finetuning import Trained
from dnadiff.downstream.items import TaskData
from dnadiff.draws import hash64
from dnadiff.vocab import Vocab

_KERNEL, _CHANNELS, _EMBEDDING, _HIDDEN = 8, (16, 8, 4), 100, 512


def pooled_length(length: int) -> int:
    """Positions left of `length` after the three convolutions and poolings."""
    for _ in _CHANNELS:
        length = (length - _KERNEL + 1) // 2
    return length


SHORTEST = next(length for length in range(_KERNEL, 200) if pooled_length(length) >= 1)


class CNN(SequenceClassifier):
    """Embedding, three times (convolution, batch norm, ReLU, pooling), two linear layers; sequences are padded to one length.

    Args:
        vocab: the alphabet.
        num_classes: C.
        length: of the longest sequence; shorter ones are padded to it with the pad token, whose embedding is 0.
    """

    def __init__(self, vocab: Vocab, num_classes: int, length: int) -> None:
        super().__init__()
        self.vocab, self.num_classes, self.length = vocab, num_classes, max(length, SHORTEST)
        self.embedding = nn.Embedding(vocab.size, _EMBEDDING, padding_idx=vocab.pad_id)
        widths = (_EMBEDDING, *_CHANNELS)
        blocks = [
            nn.Sequential(nn.Conv1d(a, b, _KERNEL), nn.BatchNorm1d(b), nn.ReLU(), nn.MaxPool1d(2)) for a, b in itertools.pairwise(widths)
        ]
        self.body = nn.Sequential(*blocks, nn.Flatten())
        self.head = nn.Sequential(nn.Linear(_CHANNELS[-1] * pooled_length(self.length), _HIDDEN), nn.Linear(_HIDDEN, num_classes))

    def forward(self, ids: Tensor, valid: Tensor | None = None) -> Tensor:
        """See `SequenceClassifier`."""
        if valid is not None:
            ids = torch.where(valid, ids, self.vocab.pad_id)
        ids = nn.functional.pad(ids, (0, self.length - ids.shape[1]), value=self.vocab.pad_id)
        return self.head(self.body(self.embedding(ids).transpose(1, 2)))


class PublishedCNN(Trained):
    """`CNN` as a model of the study.

    Args:
        tokenizer: its `vocab` is the alphabet.
        lr: peak rate; the published one is Adam's default 1e-3.
        **settings: see `Trained`.
    """

    kind = "PublishedCNN"

    def __init__(self, tokenizer: Any, lr: float = 1e-3, **settings: Any) -> None:
        super().__init__(lr, **settings)
        self.vocab = tokenizer.vocab

    def untrained(self, data: TaskData, seed: int) -> CNN:
        """See `Trained`."""
        torch.manual_seed(hash64(seed, "cnn") % 2**63)
        return CNN(self.vocab, len(data.classes), data.max_length)
