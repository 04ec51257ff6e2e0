"""A task made from a genome and its annotation: windows inside regions against windows outside.

`task=NAME` on the command line builds `RegionWindows` or a `LabeledTask` from
configs/task/NAME.yaml. A task reads, divides and encodes sequences; models see only the resulting
`TaskData`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dnadiff import checks
from dnadiff.data.genome.genome import Genome
from dnadiff.data.splits import FractionSplit, Split, split_hash
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.draws import hash64
from dnadiff.formats.regions import Region, read_bed
from dnadiff.kmers import MAX_K, UNKNOWN, KmerSet
from dnadiff.supervised.items import Items, TaskData

Starts = list[tuple[int, int]]  # (record, start) of windows


class RegionWindows:
    """Windows completely inside regions against windows completely outside: all bases of a window
    are in some region, or none is.

    Whether a base is coding does not depend on the strand that is read, so the task is unstranded.
    Training windows are placed every `stride` bases. Validation and test windows do not overlap,
    and share no k-mer with the training part on either strand. The windows of a stretch are
    centered in it, so that their edges carry no information about where regions begin. Classes are
    balanced by leaving out random windows of the larger one.

    Args:
        stride: between the starts of training windows in one stretch.
        split: of the genome; by default 80-90 % test, 90-100 % validation.
        max_train: maximum number of training windows per class; None: no limit.
        k: length of the k-mers that held-out windows may not share with the training part.
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
        self.genome, self.regions, self.split, self.protocol = (
            genome,
            regions,
            split or FractionSplit(),
            protocol,
        )
        self.length, self.stride = (
            checks.integer("task.length", length),
            checks.integer("task.stride", stride),
        )
        self.max_train, self.seed = (
            checks.optional_integer("task.max_train", max_train),
            checks.integer("task.seed", seed, 0),
        )
        self.k, self.name = checks.integer("task.k", k, 1, MAX_K), checks.name("task.name", name)
        self.inside, self.outside = (
            checks.name("task.inside", inside),
            checks.name("task.outside", outside),
        )
        if self.inside == self.outside:
            raise ValueError(
                f"both classes are called {inside!r}; set task.inside or task.outside to another "
                "name"
            )

    def load(self, tokenizer: DNATokenizer) -> TaskData:
        """Read, divide and encode the task; ValueError if a part has no window of a class."""
        genome = Genome.open(self.genome)
        lengths = genome.lengths
        covered = covered_bases(read_bed(self.regions, lengths), lengths)
        intervals = self.split(genome.names, list(lengths.values()))
        bases = [tokenizer.bases(ids[:]) for ids in genome.records]
        train_kmers = KmerSet(
            [bases[i.record][i.start : i.end] for i in intervals["train"]], self.k
        )
        classes = sorted([self.inside, self.outside])
        strides = {"train": self.stride, "valid": self.length, "test": self.length}
        starts: dict[str, list[Starts]] = {part: [[] for _ in classes] for part in strides}
        left_out = {part: dict.fromkeys(classes, 0) for part in ("valid", "test")}
        for part, stride in strides.items():
            for interval in intervals[part]:
                sequence = bases[interval.record][interval.start : interval.end]
                is_covered = covered[interval.record][interval.start : interval.end]
                novel = (
                    ~kmer_centers(train_kmers, sequence)
                    if part in left_out
                    else np.ones(len(sequence), bool)
                )
                for label, name in enumerate(classes):
                    usable = (is_covered == (name == self.inside)) & (sequence < UNKNOWN)
                    allowed = window_starts(usable & novel, self.length, stride)
                    starts[part][label] += [
                        (interval.record, interval.start + int(start)) for start in allowed
                    ]
                    if part in left_out:
                        left_out[part][name] += len(
                            window_starts(usable, self.length, stride)
                        ) - len(allowed)
        limits = {part: self.max_train if part not in left_out else None for part in strides}
        train, valid, test = (
            self._items(part, starts[part], limits[part], classes, genome, tokenizer)
            for part in strides
        )
        notes = {
            "window": self.length,
            "stride": self.stride,
            "split": self.split.describe(),
            "split_hash": split_hash(intervals, genome.names),
            "shared_kmer": self.k,
            "left_out_for_a_shared_kmer": left_out,
            "windows_before_balancing": {
                part: dict(zip(classes, map(len, starts[part]))) for part in strides
            },
        }
        return TaskData(self.name, classes, train, valid, test, stranded=False, notes=notes)

    def _items(
        self,
        part: str,
        starts: Sequence[Starts],
        limit: int | None,
        classes: Sequence[str],
        genome: Genome,
        tokenizer: DNATokenizer,
    ) -> Items:
        size = min(map(len, starts))
        if size == 0:
            empty = classes[int(np.argmin([len(s) for s in starts]))]
            raise ValueError(
                f"{self.name}: no window of {self.length} bases of class {empty} in the {part} "
                "part; set task.length to less, or choose another task.split"
            )
        size = size if limit is None else min(size, limit)
        sequences, labels = [], []
        for label, (name, of_class) in enumerate(zip(classes, starts)):
            random = np.random.default_rng(hash64(self.seed, part, name))
            for number in np.sort(random.choice(len(of_class), size, replace=False)):
                record, start = of_class[number]
                sequences.append(genome.records[record][start : start + self.length])
                labels.append(label)
        return Items.from_sequences(sequences, labels, tokenizer.vocab.pad_id)


def covered_bases(regions: Sequence[Region], lengths: Mapping[str, int]) -> list[np.ndarray]:
    """For each record, a mask (length,) bool of the bases in some region on either strand."""
    change = {name: np.zeros(length + 1, np.int32) for name, length in lengths.items()}
    for region in regions:
        change[region.chrom][region.start] += 1
        change[region.chrom][region.end] -= 1
    return [np.cumsum(c[:-1]) > 0 for c in change.values()]


def window_starts(mask: np.ndarray, length: int, stride: int) -> np.ndarray:
    """Starts (W,) int64, ascending, of windows in runs of True of `mask (L,)`: as many as fit into
    each run at `stride`, centered in it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    runs = edges.reshape(-1, 2)
    runs = runs[runs[:, 1] - runs[:, 0] >= length]
    slack = runs[:, 1] - runs[:, 0] - length
    counts = slack // stride + 1
    first = runs[:, 0] + (slack - (counts - 1) * stride) // 2
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(first, counts) + number * stride


def kmer_centers(kmers: KmerSet, bases: np.ndarray) -> np.ndarray:
    """The middle base of each k-mer of `bases (L,)` that is in the set: (L,) bool. A window without
    one contains no such k-mer."""
    hits = kmers.hits(bases)
    centers = np.zeros(len(bases), bool)
    centers[kmers.k // 2 : kmers.k // 2 + len(hits)] = hits
    return centers
