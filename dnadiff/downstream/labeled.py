"""From sequences with labels, however they were read, to the parts of a task: encoding, checks, and the division of what has none.

A reader (`table`, `folders`, `intervals`, `fasta`) only says what is in its files; all of them share what is here.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dnadiff.data.splits import PARTS
from dnadiff.downstream import cache, clusters, settings
from dnadiff.downstream.items import Items, TaskData
from dnadiff.draws import hash64
from dnadiff.kmers import MAX_K

log = logging.getLogger("dnadiff")

PART_OF_WORD = {"train": "train", "valid": "valid", "test": "test", "dev": "valid", "val": "valid", "validation": "valid"}


@dataclass
class LabeledSequences:
    """Sequences with their classes, one entry for each.

    Attributes:
        source: the path, for messages.
        sequences: token ids `(L_i,)` uint8, none empty.
        labels: names of classes.
        parts: train, valid or test; all train where the source says nothing.
        divided: whether the source says which part a sequence belongs to.
        place: what names the class there, for messages: `column 'label'`.
        part_place: what names the part there.
        notes: what a reader of the numbers should know.
    """

    source: str
    sequences: list[np.ndarray] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    divided: bool = False
    place: str = "the labels"
    part_place: str = "the split"
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, tokenizer: Any, sequence: str, label: str, part: str, where: str) -> None:
        """Encode one sequence.

        Raises:
            ValueError: naming `where`, if the sequence is empty or a letter is no nucleotide.
        """
        if not sequence:
            raise ValueError(f"{where} has an empty sequence; complete or remove it")
        try:
            self.sequences.append(tokenizer.encode(sequence))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        self.labels.append(label)
        self.parts.append(part)


class LabeledTask(ABC):
    """A task whose sequences and classes lie in files.

    Class numbers follow the sorted names, the same in every part. Where the source does not divide, each class is divided at random;
    copies of a sequence, read from either strand, stay in one part, or, with `cluster_word`, all sequences joined by common words.

    Args:
        name: of the task.
        stranded: True if the class depends on the strand (promoters, transcripts).
        max_length: keep only so many bases of each sequence, from its start; None keeps all.
        test_fraction: of each class, where the source has no parts.
        valid_fraction: of each class of what is not test, where nothing is marked as validation.
        cluster_word: sequences that share a word of so many bases, on either strand, stay together; None: only copies.
        redivide: forget the parts that the source names, and divide anew.
        expected: known number of sequences of parts; a difference is said, not refused.
        protocol: which items a seed learns from, see `dnadiff.downstream.protocol`.
        seed: of the division; the same for every model.
    """

    def __init__(
        self,
        name: str,
        stranded: bool = False,
        max_length: int | None = None,
        test_fraction: float = 0.2,
        valid_fraction: float = 0.1,
        cluster_word: int | None = None,
        redivide: bool = False,
        expected: Mapping[str, int] | None = None,
        protocol: str = "fixed",
        seed: int = 0,
    ) -> None:
        self.name, self.protocol, self.expected = settings.word("name", name), protocol, dict(expected or {})
        self.stranded, self.redivide = settings.flag("stranded", stranded), settings.flag("redivide", redivide)
        self.max_length, self.seed = settings.whole_or_none("max_length", max_length, 1), settings.whole("seed", seed, 0)
        self.cluster_word = settings.whole_or_none("cluster_word", cluster_word, 1, MAX_K)
        self.test_fraction, self.valid_fraction = (
            settings.share("test_fraction", test_fraction),
            settings.share("valid_fraction", valid_fraction),
        )

    _of_division = frozenset(
        ("name", "stranded", "max_length", "seed", "protocol", "test_fraction", "valid_fraction", "cluster_word", "redivide", "expected")
    )

    @abstractmethod
    def read(self, tokenizer: Any) -> LabeledSequences:
        """What is in the files, encoded; FileNotFoundError or ValueError in one line for bad input."""

    @abstractmethod
    def sources(self) -> list[Path]:
        """The files that `read` reads; FileNotFoundError if one that must be there is not."""

    def encoded(self, tokenizer: Any) -> LabeledSequences:
        """What `read` gives, from the cache if these files were read before with the same settings (not those of the division)."""
        own = {key: value for key, value in vars(self).items() if key not in self._of_division}
        files = self.sources()
        key = cache.key_of({"reader": type(self).__name__, **own}, tokenizer, files)
        if key is not None and (kept := cache.load(key)) is not None:
            return LabeledSequences(**kept)
        found = self.read(tokenizer)
        if key is not None:
            more = {name: getattr(found, name) for name in ("source", "divided", "place", "part_place", "notes")}
            cache.save(key, found.sequences, found.labels, found.parts, more)
        return found

    def load(self, tokenizer: Any) -> TaskData:
        """See `Task`.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: for what `read` refuses, fewer than two classes, or a part without rows or with a class that training has not.
        """
        found = self.encoded(tokenizer)
        cut = self._cut(found)
        classes = sorted(set(found.labels))
        if len(classes) < 2:
            raise ValueError(f"{found.source} has one class, {classes[0]!r}, in {found.place}; classification needs two or more")
        number = {name: label for label, name in enumerate(classes)}
        labels = np.array([number[name] for name in found.labels])
        bases = [tokenizer.bases(ids) for ids in found.sequences]
        together = clusters.of_copies(bases) if self.cluster_word is None else clusters.of_shared_words(bases, self.cluster_word)
        divided = found.divided and not self.redivide
        parts = np.array(found.parts if divided else ["train"] * len(labels))
        if not divided:
            self._divide(found.source, parts, labels, together, classes, "test", self.test_fraction)
        self._check(found, parts, labels, classes, "test")
        if "valid" not in parts:
            self._divide(found.source, parts, labels, together, classes, "valid", self.valid_fraction)
        self._check(found, parts, labels, classes, "valid")
        items = {part: self._items(found, np.flatnonzero(parts == part), labels, together, tokenizer) for part in PARTS}
        notes = {
            "path": found.source,
            "split": found.part_place if divided else f"random, {100 * self.test_fraction:g} % of each class for test",
            "kept_together": "copies, either strand" if self.cluster_word is None else f"a common {self.cluster_word}-mer, either strand",
            "test_sequences_also_in_training": self._copies(bases, parts),
            **({"cut_to_max_length": cut} if self.max_length else {}),
            **found.notes,
            **self._compare(parts),
        }
        return TaskData(self.name, classes, items["train"], items["valid"], items["test"], self.stranded, notes)

    def _copies(self, bases: list[np.ndarray], parts: np.ndarray) -> int:
        """Test sequences that are also among those for training or validation, which choose together; folds keep copies together."""
        if self.protocol == "kfold":
            return 0
        seen = {clusters.strandless(bases[row]) for row in np.flatnonzero(parts != "test")}
        return sum(clusters.strandless(bases[row]) in seen for row in np.flatnonzero(parts == "test"))

    def _cut(self, found: LabeledSequences) -> int:
        """Shorten what exceeds `max_length`, and how many sequences that were."""
        if self.max_length is None:
            return 0
        longer = sum(len(ids) > self.max_length for ids in found.sequences)
        found.sequences = [ids[: self.max_length] for ids in found.sequences]
        return longer

    def _items(self, found: LabeledSequences, rows: np.ndarray, labels: np.ndarray, together: np.ndarray, tokenizer: Any) -> Items:
        return Items.from_sequences([found.sequences[row] for row in rows], labels[rows], tokenizer.vocab.pad_id, together[rows])

    def _check(self, found: LabeledSequences, parts: np.ndarray, labels: np.ndarray, classes: list[str], part: str) -> None:
        there = {p: set(labels[parts == p].tolist()) for p in ("train", part)}
        for p, present in there.items():
            if not present:
                raise ValueError(
                    f"{found.source} has no {p} rows in {found.part_place}; add some, or let them be drawn: task.redivide=true"
                )
        if unknown := there[part] - there["train"]:
            raise ValueError(
                f"{found.source}: class {classes[min(unknown)]!r} has {part} rows and no train rows; correct {found.place} or add rows"
            )
        if part == "test" and (missing := there["train"] - there["test"]):
            log.warning(f"{found.source}: class {classes[min(missing)]!r} has no test rows; its metrics say nothing")

    def _divide(
        self, source: str, parts: np.ndarray, labels: np.ndarray, together: np.ndarray, classes: list[str], part: str, fraction: float
    ) -> None:
        """Move `fraction` of the training rows of each class to `part`, in place, with all that must stay together."""
        rows = np.flatnonzero(parts == "train")
        order, first = np.unique(together[rows], return_index=True)
        class_of_group = dict(zip(order.tolist(), labels[rows][first].tolist()))
        kind = np.array([class_of_group[group] for group in together[rows].tolist()])
        for number, name in enumerate(classes):
            mine = rows[kind == number]
            if not len(mine):
                continue
            try:
                chosen = clusters.some(together[mine], fraction, np.random.default_rng(hash64(self.seed, part, name)))
            except ValueError:
                raise ValueError(
                    f"{source}: class {name!r} has too few different sequences to set some aside for {part}; add rows, or say which are for {part}"
                ) from None
            parts[mine[chosen]] = part

    def _compare(self, parts: np.ndarray) -> dict[str, Any]:
        """What is said where the number of sequences is not the known one; official training rows count before validation is cut off."""
        found = Counter({"train": int(np.isin(parts, ["train", "valid"]).sum()), "test": int((parts == "test").sum())})
        if "valid" in self.expected:
            found.update({"valid": int((parts == "valid").sum()), "train": -int((parts == "valid").sum())})
        differs = {part: {"found": found[part], "known": known} for part, known in self.expected.items() if found[part] != known}
        for part, count in differs.items():
            log.warning(f"{self.name}: {count['found']:,} {part} sequences, the complete task has {count['known']:,}")
        return {"differs_from_the_known_counts": differs} if differs else {}
