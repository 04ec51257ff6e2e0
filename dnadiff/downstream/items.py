"""LabeledSequences sequences as a few tensors, and the batches that are cut from them.

Whatever a task reads (`tasks`), classifier and baselines see only what is here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dnadiff.draws import hash64
from dnadiff.vocab import Vocab


@dataclass(frozen=True)
class Items:
    """Sequences with their classes, padded on the right into one tensor.

    Attributes:
        ids: (S, L) uint8 token ids.
        lengths: (S,) int64; what follows in a row is padding.
        labels: (S,) int64 class numbers.
        groups: (S,) int64, items of one number must stay together when a set is divided; None: each may stand alone.
    """

    ids: Tensor
    lengths: Tensor
    labels: Tensor
    groups: Tensor | None = None

    @classmethod
    def from_sequences(cls, sequences: Sequence[np.ndarray], labels: Sequence[int], pad_id: int, groups: np.ndarray | None = None) -> Items:
        """Pad arrays of token ids `(L_i,)` to the longest of them."""
        lengths = torch.tensor([len(s) for s in sequences], dtype=torch.int64)
        ids = torch.full((len(sequences), int(lengths.max()) if len(sequences) else 0), pad_id, dtype=torch.uint8)
        ids[torch.arange(ids.shape[1]) < lengths[:, None]] = torch.from_numpy(np.concatenate([*sequences, np.empty(0, np.uint8)]))
        together = None if groups is None else torch.as_tensor(groups, dtype=torch.int64)
        return cls(ids, lengths, torch.as_tensor(labels, dtype=torch.int64), together)

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, index: Tensor) -> Items:
        """The items that `index` (numbers or a mask) names."""
        return Items(self.ids[index], self.lengths[index], self.labels[index], None if self.groups is None else self.groups[index])

    def joined(self, other: Items, pad_id: int) -> Items:
        """These items, then those of `other`."""
        width = max(self.ids.shape[1], other.ids.shape[1])
        ids = [torch.nn.functional.pad(items.ids, (0, width - items.ids.shape[1]), value=pad_id) for items in (self, other)]
        groups = None if self.groups is None or other.groups is None else torch.cat([self.groups, other.groups])
        return Items(torch.cat(ids), torch.cat([self.lengths, other.lengths]), torch.cat([self.labels, other.labels]), groups)


@dataclass(frozen=True)
class TaskData:
    """What a task hands to every model alike.

    Attributes:
        name: of the task.
        classes: their names, sorted; a label is a place in this list.
        train: to learn from.
        valid: to choose the epoch and regularisation on.
        test: scored once.
        stranded: True if the class depends on the strand; otherwise models see and score both.
        notes: what a reader of the numbers should know, ready for JSON.
    """

    name: str
    classes: list[str]
    train: Items
    valid: Items
    test: Items
    stranded: bool = False
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def max_length(self) -> int:
        """Tokens in the longest sequence."""
        return max(int(items.lengths.max()) for items in (self.train, self.valid, self.test))

    def counts(self) -> dict[str, dict[str, int]]:
        """Items of each class in each part."""
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        return {
            part: {name: int((items.labels == number).sum()) for number, name in enumerate(self.classes)} for part, items in parts.items()
        }


class Task(Protocol):
    """What `task=` on the command line builds.

    Attributes:
        protocol: the word for which items a seed learns from, see `dnadiff.downstream.protocol.named`.
    """

    protocol: str

    def load(self, tokenizer: Any) -> TaskData:
        """Read, check and encode; ValueError or FileNotFoundError in one line for bad input."""
        ...


class ItemBatch(NamedTuple):
    """Some items: `ids (B, L)` int64, `valid (B, L)` bool or None where nothing is padded, `labels (B,)` int64."""

    ids: Tensor
    valid: Tensor | None
    labels: Tensor


def other_strand(ids: Tensor, lengths: Tensor, vocab: Vocab) -> Tensor:
    """Reverse complement of right-padded rows; the padding stays on the right.

    Args:
        ids: (B, L) token ids.
        lengths: (B,) tokens in each row.
        vocab: with a complement.

    Returns:
        (B, L) int64.
    """
    place = lengths[:, None] - 1 - torch.arange(ids.shape[1], device=ids.device)
    complement = torch.tensor(vocab.complement, device=ids.device)
    return torch.where(place >= 0, complement[ids.long().gather(1, place.clamp(min=0))], vocab.pad_id)


def batch(items: Items, index: Tensor, vocab: Vocab, reverse: Tensor | None = None) -> ItemBatch:
    """The items at `index (B,)`, cut to the longest of them; rows where `reverse (B,)` is True are read from the other strand."""
    lengths = items.lengths[index]
    longest = int(lengths.max())
    ids = items.ids[index, :longest].long()
    if reverse is not None:
        ids = torch.where(reverse[:, None], other_strand(ids, lengths, vocab), ids)
    valid = None if int(lengths.min()) == longest else torch.arange(longest) < lengths[:, None]
    return ItemBatch(ids, valid, items.labels[index])


class ShuffledBatches:
    """One epoch of training in random order, a function of (seed, epoch) alone.

    Where lengths differ, `nearby` batches at a time are sorted by length before they are cut, and shown in random order: hardly
    any padding is computed. Items of one length are shown in the plain random order.

    Args:
        items: what to learn from.
        batch_size: items in a batch; the last one may be smaller.
        vocab: for the other strand.
        seed: of order and strands.
        epoch: its number.
        both_strands: read half of the items, by a coin, from the other strand.

    Attributes:
        seconds: that cutting batches took so far: as long did whoever iterates wait.
    """

    nearby = 32

    def __init__(self, items: Items, batch_size: int, vocab: Vocab, seed: int, epoch: int, both_strands: bool) -> None:
        self.items, self.batch_size, self.vocab, self.both_strands = items, batch_size, vocab, both_strands
        self.key, self.seconds = hash64(seed, "batches", epoch), 0.0

    def __len__(self) -> int:
        return -(-len(self.items) // self.batch_size)

    def __iter__(self) -> Iterator[ItemBatch]:
        start = time.perf_counter()
        generator = torch.Generator().manual_seed(self.key % 2**63)
        order = torch.randperm(len(self.items), generator=generator)
        coins = torch.rand(len(self.items), generator=generator) < 0.5
        for index in self._batches(order, generator):
            cut = batch(self.items, index, self.vocab, coins[index] if self.both_strands else None)
            self.seconds += time.perf_counter() - start
            yield cut
            start = time.perf_counter()

    def _batches(self, order: Tensor, generator: torch.Generator) -> list[Tensor]:
        lengths = self.items.lengths
        if len(lengths) == 0 or bool((lengths == lengths[0]).all()):
            return list(order.split(self.batch_size))
        chunks = [chunk[lengths[chunk].argsort(stable=True)] for chunk in order.split(self.batch_size * self.nearby)]
        batches = [index for chunk in chunks for index in chunk.split(self.batch_size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
