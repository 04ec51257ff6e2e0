"""Evaluation protocols: how a seed becomes one or more divisions into training, validation and test
items.

`task.protocol=` names one of them, `task.folds=` is cross-validation. The predictions of all rounds
of a seed together cover each tested item once.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dnadiff.diffusion.draws import hash64
from dnadiff.fields import JsonDict
from dnadiff.progress import log
from dnadiff.supervised.items import Items, TaskData, assign_folds, sample_clusters

_FEWEST_VALID = 10  # validation items


class Round(NamedTuple):
    """One division. `data.test` are the items number `tested (T,)` of all tested items."""

    data: TaskData
    tested: Tensor


@dataclass(frozen=True)
class FixedSplit:
    """The task's own train, validation and test parts, the same for every seed."""

    pad_id: int
    name = "fixed"
    varies = False  # whether another seed gives another division
    tests_all_items = False  # including those of the training part
    epochs: ClassVar[int | None] = None  # published; None: as many as suit the size of the task
    rates: ClassVar[tuple[float, ...]] = ()  # published grid of learning rates
    warmup = 0.1

    def tested(self, data: TaskData) -> Items:
        """The items that are scored."""
        return data.test

    def describe(self) -> JsonDict:
        """What decides the divisions, ready for JSON."""
        return {"protocol": self.name}

    def example(self, data: TaskData, seed: int) -> TaskData:
        """The task with parts as large as those that a seed of the study uses, for reports."""
        return data

    def rounds(self, data: TaskData, seed: int) -> list[Round]:
        """The divisions of a seed; ValueError if the task cannot be divided this way, or a part is
        of no use to its target."""
        data.target.check_valid(data.valid.labels, data.name)
        if only := _only_class(data):
            # Any network that predicts it has the best accuracy.
            raise ValueError(
                f"{data.name}: all {len(data.valid):,} validation items are of class "
                f"{only}, and the choice of the epoch expects two "
                "or more classes; divide at random: task.redivide=true"
            )
        data.target.check_test(data.test.labels, data.name)
        return [Round(data, torch.arange(len(data.test)))]


@dataclass(frozen=True)
class FewItems(FixedSplit):
    """The task's own parts with fewer labels, to measure what a model learns from few: each seed
    draws other items; the test part is complete.

    The validation part, which chooses rates and epochs, is reduced in the same proportion, to no
    fewer than 10 items. Classes keep their shares. Items without a label are not drawn.
    """

    train_items: int = 100
    name = "few"
    varies = True

    def describe(self) -> JsonDict:
        return {**super().describe(), "train_items": self.train_items}

    def example(self, data: TaskData, seed: int) -> TaskData:
        return self.rounds(data, seed)[0].data

    def rounds(self, data: TaskData, seed: int) -> list[Round]:
        [whole] = super().rounds(data, seed)
        train, valid = (
            items.select(items.labels.isfinite().reshape(len(items), -1).any(1))
            for items in (data.train, data.valid)
        )
        if self.train_items > len(train):
            labeled = "" if len(train) == len(data.train) else " with a label"
            raise ValueError(
                f"train_items {self.train_items:,}: {data.name} has {len(train):,} training "
                f"items{labeled}; give at most that, or null"
            )
        num_valid = max(_FEWEST_VALID, round(len(valid) * self.train_items / len(train)))
        parts: JsonDict = {}
        for name, items, number in (
            ("train", train, self.train_items),
            ("valid", valid, num_valid),
        ):
            strata = data.target.strata(items.labels.numpy())[0]
            parts[name] = items.select(draw_items(strata, number, hash64(seed, name, "items")))
        divided = replace(data, **parts)
        try:
            _check_parts(divided, seed, data.train)
        except ValueError as error:
            raise ValueError(
                f"{str(error).rpartition(';')[0] or error}; set train_items higher than "
                f"{self.train_items:,}, or null"
            ) from None
        return [Round(divided, whole.tested)]


def draw_items(strata: np.ndarray, number: int, key: int) -> Tensor:
    """Numbers (min(S, number),) of items drawn without replacement, sorted; each of the
    `strata (S,)` keeps its share, up to rounding."""
    random = np.random.default_rng(key)
    order = random.permutation(len(strata))
    order = order[np.argsort(strata[order], kind="stable")]  # shuffled inside each stratum
    _, start, size = np.unique(strata[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(start, size)
    place = (rank + random.random(len(order))) / np.repeat(size, size)
    return torch.from_numpy(np.sort(order[np.argsort(place, kind="stable")[:number]]))


@dataclass(frozen=True)
class PaperSplit(FixedSplit):
    """The protocol of Caduceus (arXiv 2403.03234): each seed divides the official training set
    90/10; there is one test set.

    The division is plainly random, as published. If items overlap, the validation accuracy is too
    high; the test accuracy is not affected.
    """

    valid_fraction: float = 0.1
    name = "paper"
    varies = True
    epochs = 10
    rates = (1e-3, 2e-3)
    warmup = 0.01

    def rounds(self, data: TaskData, seed: int) -> list[Round]:
        if not data.target.published:
            raise ValueError(
                f"{data.name} is a {data.target.summary}, and task.protocol=paper is the "
                "published protocol of classification tasks; set task.protocol=fixed"
            )
        official = data.train.concatenate(data.valid, self.pad_id)
        generator = torch.Generator().manual_seed(hash64(seed, "validation") % 2**63)
        order = torch.randperm(len(official), generator=generator)
        size = max(1, round(self.valid_fraction * len(official)))
        divided = replace(
            data,
            train=official.select(order[size:].sort().values),
            valid=official.select(order[:size].sort().values),
        )
        _check_parts(divided, seed, official)
        return [Round(divided, torch.arange(len(data.test)))]


@dataclass(frozen=True)
class KFold(FixedSplit):
    """Cross-validation: every item is tested once, by a model trained on the other folds; each seed
    divides again. Groups of items stay together, and folds have about the same class frequencies.

    The epoch, the settings and the weights of combined models are chosen on validation items that
    are drawn from the other folds: the tested fold has no part in them.
    """

    num_folds: int = 5
    valid_fraction: float = 0.1
    name = "kfold"
    varies = True
    tests_all_items = True

    def describe(self) -> JsonDict:
        return {**super().describe(), "folds": self.num_folds}

    def tested(self, data: TaskData) -> Items:
        return data.train.concatenate(data.valid, self.pad_id).concatenate(data.test, self.pad_id)

    def rounds(self, data: TaskData, seed: int) -> list[Round]:
        items = self.tested(data)
        if items.groups is None:
            raise ValueError(
                f"{data.name} has overlapping items and defines its own division; leave out "
                "task.folds"
            )
        groups = items.groups.numpy()
        labels, names = data.target.strata(items.labels.numpy())
        random = np.random.default_rng(hash64(seed, "folds"))
        fold = assign_folds(groups, labels, self.num_folds, random)
        for number, name in enumerate(names):
            of_class = labels == number
            if (present := len(np.unique(fold[of_class]))) < self.num_folds:
                raise ValueError(
                    f"{data.name}: class {name!r} is in {present} of {self.num_folds} folds of "
                    f"seed {seed}, because it has {of_class.sum():,} sequences in "
                    f"{len(np.unique(groups[of_class])):,} groups; add sequences of it, or set "
                    "task.folds to less"
                )
        rounds = []
        for number in range(self.num_folds):
            tested = torch.from_numpy(fold == number)
            rest = torch.where(~tested)[0]
            random = np.random.default_rng(hash64(seed, "validation", number))
            is_valid = torch.from_numpy(
                sample_clusters(groups[rest.numpy()], self.valid_fraction, random)
            )
            divided = replace(
                data,
                train=items.select(rest[~is_valid]),
                valid=items.select(rest[is_valid]),
                test=items.select(tested),
            )
            _check_parts(divided, seed, items)
            rounds.append(Round(divided, torch.where(tested)[0]))
        return rounds


def _only_class(data: TaskData) -> str | None:
    """The class that all validation items are of, in quotes; None if they are of several, or the
    task has only one."""
    strata, names = data.target.strata(data.valid.labels.numpy())
    present = np.unique(strata)
    return repr(names[present[0]]) if len(names) > 1 and len(present) == 1 else None


def _check_parts(divided: TaskData, seed: int, drawn_from: Items) -> None:
    """ValueError if the parts of a seed are of no use to the target; `drawn_from` are the items
    that its training items are from."""
    (strata, names), every = (
        divided.target.strata(items.labels.numpy()) for items in (divided.train, drawn_from)
    )
    present = set(strata.tolist())
    for number, name in enumerate(names):
        if number not in present:
            raise ValueError(
                f"{divided.name}: the division of seed {seed} leaves no training item of class "
                f"{name!r}, of which there are {(every[0] == number).sum():,} in "
                f"{len(drawn_from):,}; add sequences of it, or leave out task.folds and "
                "task.protocol"
            )
    if only := _only_class(divided):
        log.warning(
            f"{divided.name}: all {len(divided.valid):,} validation items of seed {seed} are of "
            f"class {only}, so their accuracy does not tell epochs and settings apart"
        )
    divided.target.fit(divided.train.labels, f"{divided.name}, seed {seed},")
    divided.target.check_valid(divided.valid.labels, divided.name)


def build_protocol(
    name: str, pad_id: int, train_items: int | None = None, folds: int | None = None
) -> FixedSplit:
    """The protocol of `task.protocol=NAME`; with `folds`, cross-validation, and with `train_items`
    that of fewer labels. ValueError if there is none of that name, or two of the three are
    given."""
    if name == KFold.name:
        raise ValueError("task.protocol=kfold is now task.folds=5; leave task.protocol at fixed")
    protocols = {protocol.name: protocol for protocol in (FixedSplit, PaperSplit)}
    if name not in [*protocols]:
        raise ValueError(f"task.protocol {name!r} must be one of {', '.join(protocols)}")
    paper = None if name == FixedSplit.name else name
    given = (("task.protocol", paper), ("task.folds", folds), ("train_items", train_items))
    if len(both := [f"{key}={value}" for key, value in given if value is not None]) > 1:
        raise ValueError(
            f"{' and '.join(both)} each decide which items are for training; leave all but one out"
        )
    if folds is not None:
        return KFold(pad_id, folds)
    return protocols[name](pad_id) if train_items is None else FewItems(pad_id, train_items)
