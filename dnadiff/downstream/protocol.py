"""Who learns from which items: how a seed becomes one or more rounds of train, validation and test.

`task.protocol=` names one of these; a round is what a model sees, and the predictions of all rounds of a seed together cover each
tested item once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dnadiff.downstream import clusters
from dnadiff.downstream.items import Items, TaskData
from dnadiff.draws import hash64


class Round(NamedTuple):
    """One division: `data.test` is the items number `tested (T,)` of all that are tested."""

    data: TaskData
    tested: Tensor


@dataclass(frozen=True)
class FixedSplit:
    """The task's own train, validation and test, the same for every seed.

    Attributes:
        pad_id: of the vocabulary.
    """

    pad_id: int
    name: ClassVar[str] = "fixed"
    varies: ClassVar[bool] = False  # another seed is another division
    epochs: ClassVar[int] = 1
    warmup: ClassVar[float] = 0.1

    def tested(self, data: TaskData) -> Items:
        """The items that are scored."""
        return data.test

    def rounds(self, data: TaskData, seed: int) -> list[Round]:
        """What the models see under this seed."""
        return [Round(data, torch.arange(len(data.test)))]


@dataclass(frozen=True)
class PaperSplit(FixedSplit):
    """As in Caduceus (arXiv 2403.03234): each seed divides the official training set 90/10 at random; there is one test set.

    The division is plain, as published: where items overlap the validation accuracy is too good, the test accuracy is not.

    Attributes:
        pad_id: of the vocabulary.
        valid_fraction: of the training items.
    """

    valid_fraction: float = 0.1
    name: ClassVar[str] = "paper"
    varies: ClassVar[bool] = True
    epochs: ClassVar[int] = 10
    warmup: ClassVar[float] = 0.01

    def rounds(self, data: TaskData, seed: int) -> list[Round]:
        """See `FixedSplit`."""
        official = data.train.joined(data.valid, self.pad_id)
        generator = torch.Generator().manual_seed(hash64(seed, "validation") % 2**63)
        order = torch.randperm(len(official), generator=generator)
        size = max(1, round(self.valid_fraction * len(official)))
        divided = replace(data, train=official.select(order[size:].sort().values), valid=official.select(order[:size].sort().values))
        _check_classes(divided, seed)
        return [Round(divided, torch.arange(len(data.test)))]


@dataclass(frozen=True)
class KFold(FixedSplit):
    """Every item of the task is tested once, by a model that learned from the other folds; what must stay together does.

    Attributes:
        pad_id: of the vocabulary.
        num_folds: rounds of a seed.
        valid_fraction: of what is not tested.
    """

    num_folds: int = 5
    valid_fraction: float = 0.1
    name: ClassVar[str] = "kfold"
    varies: ClassVar[bool] = True

    def tested(self, data: TaskData) -> Items:
        """All items of the task."""
        return data.train.joined(data.valid, self.pad_id).joined(data.test, self.pad_id)

    def rounds(self, data: TaskData, seed: int) -> list[Round]:
        """See `FixedSplit`.

        Raises:
            ValueError: if the task does not say what must stay together, or has too few groups of items.
        """
        every = self.tested(data)
        if every.groups is None:
            raise ValueError(f"{data.name} has overlapping items and divides them itself; leave task.protocol at fixed")
        owner, labels = every.groups.numpy(), every.labels.numpy()
        fold = clusters.folds(owner, labels, self.num_folds, np.random.default_rng(hash64(seed, "folds")))
        return [self._round(data, every, owner, torch.from_numpy(fold == number), seed, number) for number in range(self.num_folds)]

    def _round(self, data: TaskData, every: Items, owner: np.ndarray, tested: Tensor, seed: int, number: int) -> Round:
        rest = torch.where(~tested)[0]
        random = np.random.default_rng(hash64(seed, "validation", number))
        held = torch.from_numpy(clusters.some(owner[rest.numpy()], self.valid_fraction, random))
        parts = {"train": every.select(rest[~held]), "valid": every.select(rest[held]), "test": every.select(tested)}
        divided = replace(data, **parts)
        _check_classes(divided, seed)
        return Round(divided, torch.where(tested)[0])


def _check_classes(divided: TaskData, seed: int) -> None:
    """Refuse a division that leaves a class without items to learn from.

    Raises:
        ValueError: naming the class.
    """
    there = set(divided.train.labels.tolist())
    if missing := [name for number, name in enumerate(divided.classes) if number not in there]:
        raise ValueError(
            f"{divided.name}: the division of seed {seed} leaves no item of class {missing[0]!r} to learn from; add sequences of it, "
            "or leave task.protocol at fixed"
        )


def named(word: str, pad_id: int) -> FixedSplit:
    """The protocol of `task.protocol=WORD`.

    Raises:
        ValueError: if there is none of that name.
    """
    known = {protocol.name: protocol for protocol in (FixedSplit, PaperSplit, KFold)}
    if not isinstance(word, str) or word not in known:
        raise ValueError(f"protocol is {word!r}; set task.protocol to one of {', '.join(known)}")
    return known[word](pad_id)
