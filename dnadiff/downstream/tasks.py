"""Tasks: where labelled sequences come from. `task=NAME` on the command line builds one of these from configs/task/NAME.yaml.

A task reads, splits and encodes; models see the resulting `TaskData` and nothing else.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dnadiff.data.files import open_text
from dnadiff.data.genome import Genome
from dnadiff.data.regions import Region, read_bed
from dnadiff.data.splits import PARTS, FractionSplit, Split, split_hash
from dnadiff.data.tokenizer import reverse_complement
from dnadiff.downstream.items import Items, TaskData
from dnadiff.draws import hash64
from dnadiff.kmers import UNKNOWN, KmerSet


class RegionWindows:
    """Windows wholly inside regions against windows wholly outside any: inside means that every base lies in some region.

    Whether bases are coding does not depend on the strand one reads, so the task is unstranded. Training windows lie at
    `stride`; those for validation and test do not overlap, and none holds a word of `k` bases that occurs anywhere in the
    training part, on either strand. Stretches are filled from their middle, so that a window's edge says nothing about
    where a region begins. Classes are balanced by leaving out windows of the larger one at random.

    Args:
        genome: FASTA file.
        regions: BED file.
        length: bases in a window.
        stride: between training windows of one stretch.
        split: of the genome; by default 80-90 % test, 90-100 % validation.
        max_train: most training windows of a class; None for all.
        k: length of the words that held-out windows may not share with the training part.
        inside: name of the first class.
        outside: name of the second class.
        name: of the task.
        seed: of the windows left out.
    """

    def __init__(
        self,
        genome: str,
        regions: str,
        length: int = 200,
        stride: int = 50,
        split: Split | None = None,
        max_train: int | None = None,
        k: int = 24,
        inside: str = "inside",
        outside: str = "outside",
        name: str = "regions",
        seed: int = 0,
    ) -> None:
        for key, value in (("length", length), ("stride", stride), ("max_train", 1 if max_train is None else max_train)):
            if value < 1:
                raise ValueError(f"{key} is {value}; set task.{key} to 1 or more")
        if inside == outside:
            raise ValueError(f"both classes are called {inside!r}; set task.inside or task.outside to another name")
        self.genome, self.regions, self.length, self.stride, self.k = genome, regions, length, stride, k
        self.split, self.max_train = split or FractionSplit(), max_train
        self.inside, self.outside, self.name, self.seed = inside, outside, name, seed

    def load(self, tokenizer: Any) -> TaskData:
        """See `Task`.

        Raises:
            ValueError: if a part has no window of a class.
        """
        genome = Genome.from_fasta(self.genome, tokenizer)
        lengths = genome.lengths
        covered = covered_bases(read_bed(self.regions, lengths), lengths)
        intervals = self.split(genome.names, list(lengths.values()))
        bases = [tokenizer.bases(ids) for ids in genome.records]
        train_words = KmerSet([bases[i.record][i.start : i.end] for i in intervals["train"]], self.k)
        classes = sorted([self.inside, self.outside])
        places: dict[str, list[list[tuple[int, int]]]] = {part: [[], []] for part in PARTS}  # part -> class -> (record, start)
        fell_out = {part: dict.fromkeys(classes, 0) for part in ("valid", "test")}
        for part in PARTS:
            for interval in intervals[part]:
                here = bases[interval.record][interval.start : interval.end]
                is_covered = covered[interval.record][interval.start : interval.end]
                for label, name in enumerate(classes):
                    usable = (is_covered == (name == self.inside)) & (here < UNKNOWN)
                    starts = window_starts(usable, self.length, self.stride if part == "train" else self.length)
                    if part != "train":
                        before = len(starts)
                        starts = window_starts(usable & ~word_centres(train_words, here), self.length, self.length)
                        fell_out[part][name] += before - len(starts)
                    places[part][label] += [(interval.record, interval.start + int(start)) for start in starts]
        items = {part: self._items(part, places[part], classes, genome, tokenizer) for part in PARTS}
        notes = {
            "window": self.length,
            "stride": self.stride,
            "split": self.split.describe(),
            "split_hash": split_hash(intervals, genome.names),
            "shared_word": self.k,
            "left_out_for_a_shared_word": fell_out,
            "windows_before_balancing": {part: dict(zip(classes, map(len, places[part]))) for part in PARTS},
        }
        return TaskData(self.name, classes, items["train"], items["valid"], items["test"], stranded=False, notes=notes)

    def _items(
        self, part: str, places: Sequence[Sequence[tuple[int, int]]], classes: Sequence[str], genome: Genome, tokenizer: Any
    ) -> Items:
        size = min(map(len, places))
        if size == 0:
            empty = classes[int(np.argmin([len(p) for p in places]))]
            raise ValueError(
                f"{self.name}: no window of {self.length} bases of class {empty} in the {part} part; set task.length to less, or choose another task.split"
            )
        if part == "train" and self.max_train is not None:
            size = min(size, self.max_train)
        sequences, labels = [], []
        for label, (name, of_class) in enumerate(zip(classes, places)):
            random = np.random.default_rng(hash64(self.seed, part, name))
            for number in np.sort(random.choice(len(of_class), size, replace=False)):
                record, start = of_class[number]
                sequences.append(genome.records[record][start : start + self.length])
                labels.append(label)
        return Items.from_sequences(sequences, labels, tokenizer.vocab.pad_id)


def covered_bases(regions: Sequence[Region], lengths: Mapping[str, int]) -> list[np.ndarray]:
    """For each record, which bases lie in some region on either strand: bool arrays (length,)."""
    change = {name: np.zeros(length + 1, np.int32) for name, length in lengths.items()}
    for region in regions:
        change[region.chrom][region.start] += 1
        change[region.chrom][region.end] -= 1
    return [np.cumsum(c[:-1]) > 0 for c in change.values()]


def window_starts(marked: np.ndarray, length: int, stride: int) -> np.ndarray:
    """Starts of windows in runs of True: as many as fit into each run at `stride`, in its middle.

    Args:
        marked: (L,) bool.
        length: of a window.
        stride: between starts in one run.

    Returns:
        (W,) int64, ascending.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marked.astype(np.int8), [0]])))
    runs = edges.reshape(-1, 2)
    runs = runs[runs[:, 1] - runs[:, 0] >= length]
    slack = runs[:, 1] - runs[:, 0] - length
    counts = slack // stride + 1
    first = runs[:, 0] + (slack - (counts - 1) * stride) // 2
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(first, counts) + number * stride


def word_centres(words: KmerSet, bases: np.ndarray) -> np.ndarray:
    """The middle base of each word of `bases (L,)` that is in the set: (L,) bool. A stretch without one holds no such word."""
    hits = words.hits(bases)
    marked = np.zeros(len(bases), bool)
    marked[words.k // 2 : words.k // 2 + len(hits)] = hits
    return marked


class CsvTask:
    """A table with a sequence and a label in each row: comma- or tab-separated, plain or gzip-compressed.

    Without a split column rows are divided at random in each class; copies of a sequence, read from either strand, stay
    together, so that none is in two parts. With one, its words are train, valid and test; without valid rows, some of train's
    are taken.

    Args:
        path: the table, with a header.
        sequence_column: name of the column of sequences.
        label_column: name of the column of classes.
        split_column: name of the column that says train, valid or test; None: divide here.
        test_fraction: of each class, without a split column.
        valid_fraction: of each class of what is not test, where no row says valid.
        stranded: True if the class depends on the strand (promoters, transcripts).
        delimiter: None: a tab if the name ends in .tsv or .tab, before any .gz; else a comma.
        name: of the task; None: the file name.
        seed: of the division.
    """

    def __init__(
        self,
        path: str,
        sequence_column: str = "sequence",
        label_column: str = "label",
        split_column: str | None = None,
        test_fraction: float = 0.2,
        valid_fraction: float = 0.1,
        stranded: bool = False,
        delimiter: str | None = None,
        name: str | None = None,
        seed: int = 0,
    ) -> None:
        for key, value in (("test_fraction", test_fraction), ("valid_fraction", valid_fraction)):
            if not 0 < value < 1:
                raise ValueError(f"{key} is {value}; set task.{key} to a fraction above 0 and below 1")
        self.path, self.sequence_column, self.label_column, self.split_column = str(path), sequence_column, label_column, split_column
        self.test_fraction, self.valid_fraction, self.stranded, self.seed = test_fraction, valid_fraction, stranded, seed
        bare = Path(self.path).name.removesuffix(".gz")
        self.delimiter = delimiter or ("\t" if bare.endswith((".tsv", ".tab")) else ",")
        self.name = name or bare.rpartition(".")[0] or bare

    def load(self, tokenizer: Any) -> TaskData:
        """See `Task`.

        Raises:
            FileNotFoundError: if there is no table.
            ValueError: for a missing column, fewer than two classes, an empty sequence, letters that are no nucleotides, an
                unknown word in the split column, or a part without rows or with a class that training has not.
        """
        sequences, labels, parts = self._rows(tokenizer)
        classes = sorted(set(labels))
        if len(classes) < 2:
            raise ValueError(
                f"{self.path} has one class, {classes[0]!r}, in column {self.label_column!r}; classification needs two or more"
            )
        canonical = [min(s, reverse_complement(s)) for s in sequences]
        if self.split_column is None:
            parts = self._divided(canonical, labels, classes, parts, "test", self.test_fraction)
        self._check(labels, parts, "test")
        if "valid" not in parts:
            parts = self._divided(canonical, labels, classes, parts, "valid", self.valid_fraction)
        self._check(labels, parts, "valid")
        number = {name: label for label, name in enumerate(classes)}
        rows = {part: [row for row, p in enumerate(parts) if p == part] for part in PARTS}
        items = {
            part: Items.from_sequences(
                [tokenizer.encode(sequences[row]) for row in chosen], [number[labels[row]] for row in chosen], tokenizer.vocab.pad_id
            )
            for part, chosen in rows.items()
        }
        seen = {canonical[row] for row in rows["train"]}
        notes = {
            "path": self.path,
            "split": f"column {self.split_column}"
            if self.split_column
            else f"random, {100 * self.test_fraction:g} % of each class for test",
            "test_sequences_also_in_training": sum(canonical[row] in seen for row in rows["test"]),
        }
        return TaskData(self.name, classes, items["train"], items["valid"], items["test"], self.stranded, notes)

    def _rows(self, tokenizer: Any) -> tuple[list[str], list[str], list[str]]:
        """Sequence (upper case), label and part of each row, checked."""
        sequences, labels, parts = [], [], []
        columns = {"sequence_column": self.sequence_column, "label_column": self.label_column, "split_column": self.split_column}
        try:
            with open_text(self.path) as handle:
                csv.field_size_limit(2**31 - 1)  # the module's own limit is 131,072 letters
                table = csv.reader(handle, delimiter=self.delimiter)
                header = [name.strip() for name in next(table, [])]
                header[:1] = [header[0].removeprefix("\ufeff")] if header else []
                place = {key: self._column(key, name, header) for key, name in columns.items() if name is not None}
                for row in table:
                    if not any(row):
                        continue
                    cell = {key: row[number].strip() if number < len(row) else "" for key, number in place.items()}
                    where = f"{self.path}: line {table.line_num}"
                    if empty := next((key for key, text in cell.items() if not text), None):
                        raise ValueError(f"{where} has nothing in column {columns[empty]!r}; complete the row or remove it")
                    if cell.get("split_column", "train") not in PARTS:
                        raise ValueError(
                            f"{where} has {cell['split_column']!r} in column {self.split_column!r}; expected train, valid or test"
                        )
                    try:
                        tokenizer.encode(cell["sequence_column"])
                    except ValueError as error:
                        raise ValueError(f"{where}: {error}") from None
                    sequences.append(cell["sequence_column"].upper().replace("U", "T"))
                    labels.append(cell["label_column"])
                    parts.append(cell.get("split_column", "train"))
        except csv.Error as error:
            raise ValueError(f"{self.path} is not a table of text ({error}); give a comma- or tab-separated file") from None
        if not sequences:
            raise ValueError(f"{self.path} has a header and no rows; add some")
        return sequences, labels, parts

    def _column(self, key: str, name: str, header: Sequence[str]) -> int:
        if name not in header:
            raise ValueError(f"{self.path} has no column {name!r}; its columns are {', '.join(header)}: set task.{key} to one of them")
        return header.index(name)

    def _check(self, labels: Sequence[str], parts: Sequence[str], part: str) -> None:
        classes = {p: {label for label, q in zip(labels, parts) if q == p} for p in ("train", part)}
        for p, found in classes.items():
            if not found:
                raise ValueError(f"{self.path} has no {p} rows in column {self.split_column!r}; add some, or leave task.split_column out")
        if unknown := classes[part] - classes["train"]:
            raise ValueError(
                f"{self.path}: class {min(unknown)!r} has {part} rows and no train rows; correct column {self.label_column!r} or add rows"
            )

    def _divided(
        self, canonical: Sequence[str], labels: Sequence[str], classes: Sequence[str], parts: Sequence[str], part: str, fraction: float
    ) -> list[str]:
        """Move `fraction` of the different training sequences of each class to `part`, with all their copies."""
        class_of: dict[str, str] = {}
        for sequence, label, p in zip(canonical, labels, parts):
            if p == "train":
                class_of.setdefault(sequence, label)
        chosen: set[str] = set()
        for name in classes:
            mine = [sequence for sequence, label in class_of.items() if label == name]
            if len(mine) < 2:
                raise ValueError(
                    f"{self.path}: class {name!r} has too few different sequences to set some aside for {part}; add rows, or a column for task.split_column"
                )
            size = min(max(1, round(fraction * len(mine))), len(mine) - 1)
            random = np.random.default_rng(hash64(self.seed, part, name))
            chosen |= {mine[number] for number in random.choice(len(mine), size, replace=False)}
        return [part if p == "train" and sequence in chosen else p for sequence, p in zip(canonical, parts)]
