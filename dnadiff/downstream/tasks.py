"""A task cut from a genome and its annotation: windows inside regions against windows outside.

`task=NAME` on the command line builds this, or a `LabelledTask`, from configs/task/NAME.yaml. A task reads, splits and encodes;
models see the resulting `TaskData` and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dnadiff.data.genome.genome import Genome
from dnadiff.data.genome.regions import Region, read_bed
from dnadiff.data.splits import PARTS, FractionSplit, Split, split_hash
from dnadiff.downstream import settings
from dnadiff.downstream.items import Items, TaskData
from dnadiff.draws import hash64
from dnadiff.kmers import MAX_K, UNKNOWN, KmerSet


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
        protocol: which items a seed learns from, see `dnadiff.downstream.protocol`.
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
        protocol: str = "fixed",
        seed: int = 0,
    ) -> None:
        length, stride = settings.whole("length", length, 1), settings.whole("stride", stride, 1)
        max_train, seed = settings.whole_or_none("max_train", max_train, 1), settings.whole("seed", seed, 0)
        k, name = settings.whole("k", k, 1, MAX_K), settings.word("name", name)
        inside, outside = settings.word("inside", inside), settings.word("outside", outside)
        if inside == outside:
            raise ValueError(f"both classes are called {inside!r}; set task.inside or task.outside to another name")
        self.genome, self.regions, self.length, self.stride, self.k = genome, regions, length, stride, k
        self.split, self.max_train = split or FractionSplit(), max_train
        self.inside, self.outside, self.name, self.protocol, self.seed = inside, outside, name, protocol, seed

    def load(self, tokenizer: Any) -> TaskData:
        """See `Task`.

        Raises:
            ValueError: if a part has no window of a class.
        """
        genome = Genome.open(self.genome)
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
