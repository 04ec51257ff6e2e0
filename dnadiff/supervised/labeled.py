"""Tasks made of labeled sequences in files: encoding, checks, and the division of sequences without
a given split.

A reader (`tasks`) returns what is in its files; everything else is shared and implemented here.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Interval
from numpy import ndarray

from dnadiff.data.alignment import Alignment
from dnadiff.data.base import run_data
from dnadiff.data.genome.genome import Genome
from dnadiff.data.kmers import MAX_K, MAX_KMERS, NOVELTY, KmerSet
from dnadiff.data.records import num_tokens
from dnadiff.data.splits import PARTS
from dnadiff.data.tokenizer import DNATokenizer, encoded
from dnadiff.diffusion.draws import hash64
from dnadiff.fields import (
    Config,
    InnerFraction,
    Json,
    Name,
    Natural,
    Positive,
    PositiveInt,
    checked_dataclass,
)
from dnadiff.formats.nucleotides import DNASequence
from dnadiff.formats.regions import Region
from dnadiff.formats.table import read_rows
from dnadiff.progress import log
from dnadiff.store.address import refuse_controls
from dnadiff.supervised.classes import (
    ClassTarget,
    MultiLabelTarget,
    OrdinalTarget,
    SeveralTargets,
)
from dnadiff.supervised.items import (
    Items,
    TaskData,
    cluster_by_shared_kmers,
    cluster_copies,
    conflicts,
    connect,
    numbered,
    sample_clusters,
)
from dnadiff.supervised.protocol import FewItems, FixedSplit, KFold
from dnadiff.supervised.targets import MISSING, SEPARATOR, RegressionTarget, TaskTarget

if TYPE_CHECKING:
    from dnadiff.data.genome.inputs import SequenceInput

KINDS: dict[str, type[TaskTarget]] = {
    "classification": ClassTarget,
    "regression": RegressionTarget,
    "multilabel": MultiLabelTarget,
    "ordinal": OrdinalTarget,
}


def build_target(
    kind: str | Sequence[str],
    columns: Sequence[str],
    loss: str | None = None,
    transform: str | None = None,
    loss_weights: Sequence[float] | None = None,
) -> TaskTarget:
    """The target of a task before its labels are read.

    Args:
        kind: one of `KINDS`, or one for each column.
        columns: of the labels.
        loss, transform: of regressions; None is the default of `RegressionTarget`.
        loss_weights: of columns with a kind for each; None: equal.

    Raises:
        ValueError: for an unknown kind, an argument that the kind does not have, or too many
            columns.
    """
    if not columns or len(set(columns)) < len(columns):
        raise ValueError(
            f"task.label_column {list(columns)} must name distinct columns, at least one"
        )
    if not isinstance(kind, str):
        weights = loss_weights or [1.0] * len(columns)
        if not len(kind) == len(columns) == len(weights):
            raise ValueError(
                f"task.label_column names {len(columns)} columns, task.kind {len(kind)} kinds and "
                f"task.loss_weights {len(weights)} weights; give one for each column"
            )
        of_values = loss, transform
        targets = [
            build_target(one, [name], *(of_values if one == "regression" else ()))
            for one, name in zip(kind, columns)
        ]
        return SeveralTargets(columns, targets, weights)
    if kind not in KINDS:
        raise ValueError(f"task.kind {kind!r} is not known; set it to {', '.join(KINDS)}")
    target = KINDS[kind]
    own = {"loss": loss, "transform": transform}
    given = {key: value for key, value in own.items() if value is not None}
    for key, value in given.items():
        if target is not RegressionTarget:
            raise ValueError(
                f"task.{key}={value} belongs to task.kind=regression, and task.kind is {kind}; "
                "leave it out"
            )
    if len(columns) > 1 and not target.takes_several:
        raise ValueError(
            f"task.label_column names {len(columns)} columns and task.kind={kind} takes one; name "
            "one, or set task.kind to a list of kinds, one for each column"
        )
    return target(columns, **given)


PART_NAMES = {part: part for part in PARTS}
PART_NAMES |= dict.fromkeys(("dev", "val", "validation"), "valid")


@dataclass
class LabeledSequences:
    """Sequences with their labels.

    Attributes:
        source: the path, for messages.
        labels: of each sequence: the name of its class, or the cells of its target columns, joined.
        sequences: token ids `(L_i,)` uint8, none of them empty.
        parts: train, valid or test for each sequence; all train if the source has no split.
        divided: whether the source has a split.
        label_source: where the class names come from, for messages: `column 'label'`.
        split_source: where the split comes from, for messages.
        groups: the group of each sequence: sequences of one group stay in the same part. Empty if
            there are none.
        genome, regions: where each sequence is, on its strand; None and empty if it is not known.
        input: the same with the columns of an alignment; None without.
    """

    source: str
    sequences: list[ndarray] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    divided: bool = False
    label_source: str = "the labels"
    split_source: str = "the split"
    notes: dict[str, Json] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    genome: Genome | None = None
    regions: list[Region] = field(default_factory=list)
    input: SequenceInput | None = None

    def add(
        self, tokenizer: DNATokenizer, sequence: DNASequence, part: str, where: str, *cells: str
    ) -> None:
        """Encode and append one sequence, whose label is in `cells`; errors as `encoded`."""
        refuse_controls(where, *cells)
        self.sequences.append(encoded(tokenizer, sequence, where))
        self.labels.append(SEPARATOR.join(cells))
        self.parts.append(part)


def filled_rows(
    path: str, columns: Mapping[str, str], optional: Collection[str], delimiter: str | None = None
) -> Iterator[tuple[int, str, list[str]]]:
    """Number, place for messages and cells of each row of a table whose first column has the
    sequences.

    Args:
        columns: configuration key -> column name.
        optional: keys of columns whose cells may be empty.

    Raises:
        ValueError: for another empty cell, a word for a missing value, such as NA, whose letters
            are also read as bases, or a table without rows.
    """
    number, (first, *_) = 0, columns.values()
    for number, cells in read_rows(path, columns, delimiter):
        where = f"{path}: line {number}"
        for cell, (key, name) in zip(cells, columns.items()):
            if not cell and key not in optional:
                raise ValueError(
                    f"{where} has nothing in column {name!r}; complete the row or remove it"
                )
        if cells[0].lower() in MISSING:
            raise ValueError(
                f"{where} has {cells[0]!r} in column {first!r}, which stands for a missing value, "
                "and a DNA sequence is expected; complete the row or remove it"
            )
        yield number, where, cells
    if number == 0:
        raise ValueError(f"{path} has a header and no rows; add some")


def aligned_input(genome: Genome, regions: Sequence[Region], alignment: Alignment) -> SequenceInput:
    """Regions with the columns of an alignment; see `SequenceInput.align`."""
    from dnadiff.data.genome.inputs import GenomeInput  # most tasks have no alignment

    found = GenomeInput(genome, regions)
    found.align(alignment)
    return found


class Division:
    """The part of each sequence of a task; `bases` are the sequences as bases. ValueError if the
    labels do not fit the target of the task.

    Attributes:
        target: with the names that were read.
        labels: as in `Items`.
        copies: (S,) the same number for equal sequences, on either strand.
        clusters: (S,) sequences of one cluster stay in the same part.
        divided: whether the split of the source is used.
    """

    def __init__(
        self,
        found: LabeledSequences,
        bases: list[ndarray],
        target: TaskTarget,
        cluster_kmer: int | None = None,
        redivide: bool = False,
    ) -> None:
        self.found = found
        self.bases = bases
        self.target, self.labels = target.read(found.labels, found.source, found.label_source)
        self.strata, self.strata_names = self.target.strata(self.labels)
        self.clusters = self.copies = cluster_copies(bases)
        if cluster_kmer is not None:
            self.clusters = cluster_by_shared_kmers(bases, cluster_kmer)
        if found.groups:
            self.clusters = connect(self.clusters, np.unique(found.groups, return_inverse=True)[1])
        self.divided = found.divided and not redivide
        self.parts = np.array(found.parts if self.divided else ["train"] * len(self.labels))

    def rows(self, *parts: str) -> ndarray:
        """The sequence numbers of some parts, ascending."""
        return np.flatnonzero(np.isin(self.parts, parts))

    def split_off(self, part: str, fraction: float, seed: int) -> None:
        """Move `fraction` of the training sequences of each class to `part`, complete clusters at a
        time.

        Raises:
            ValueError: if a class has too few clusters.
        """
        rows = self.rows("train")
        names, first = np.unique(self.clusters[rows], return_index=True)
        # That of its first sequence: the members may differ.
        label_of_cluster = self.strata[rows][first]
        labels = label_of_cluster[np.searchsorted(names, self.clusters[rows])]
        for number in np.unique(labels):
            class_name = self.strata_names[number]
            of_class = rows[labels == number]
            random = np.random.default_rng(hash64(seed, part, class_name))
            try:
                chosen = sample_clusters(self.clusters[of_class], fraction, random)
            except ValueError:
                raise ValueError(
                    f"{self.found.source}: class {class_name!r} has too few different sequences to "
                    f"set some aside for {part}; add rows, or specify which are for {part}"
                ) from None
            self.parts[of_class[chosen]] = part

    def missing_classes(self, part: str) -> list[str]:
        """The classes of the training part that `part` lacks.

        Raises:
            ValueError: if either part is empty, or `part` has a class that the training part lacks.
        """
        train, other = (set(self.strata[self.rows(p)].tolist()) for p in ("train", part))
        for p, present in (("train", train), (part, other)):
            if not present:
                raise ValueError(
                    f"{self.found.source} has no {p} rows in {self.found.split_source}; add some, "
                    "or divide at random: task.redivide=true"
                )
        if unknown := other - train:
            raise ValueError(
                f"{self.found.source}: class {self.strata_names[min(unknown)]!r} has {part} rows "
                f"and no train rows; correct {self.found.label_source} or add rows"
            )
        return [self.strata_names[number] for number in sorted(train - other)]

    def items(self, part: str, pad_id: int) -> Items:
        """The items of a part."""
        rows = self.rows(part)
        sequences = [self.found.sequences[row] for row in rows]
        pieces = [(row, 0, len(ids)) for row, ids in zip(rows.tolist(), sequences)]
        of_rows = self.labels[rows], pad_id, self.clusters[rows]
        return Items.from_sequences(sequences, *of_rows, pieces, self.found.input)


PathName = str | os.PathLike[str]
KmerLength = Annotated[int, Interval(ge=1, le=MAX_K)]
NumFolds = Annotated[int, Interval(ge=2)]


@checked_dataclass
class LabeledTask(ABC):
    """A task whose sequences and labels are in files.

    Class numbers follow the sorted class names. Without a given split, each class is divided at
    random. Copies of a sequence, on either strand, stay in the same part; with `cluster_kmer`, so
    do all sequences connected by shared k-mers.

    Args:
        max_length: keep only the first `max_length` bases of each sequence; None keeps all.
        test_fraction: of each class, if the source has no split.
        valid_fraction: of each class of the rest, if no sequence is marked as validation.
        cluster_kmer: length of the k-mers whose sharing, on either strand, keeps sequences
            together; None: only copies.
        expected: known number of sequences of parts; a difference is logged and noted.
        protocol, folds: which items a seed trains on, see `dnadiff.supervised.protocol`.
        kind, loss, transform, loss_weights: see `dnadiff.supervised.labeled.build_target`.

    Attributes:
        label_columns: the columns of the labels; a reader of a table sets them first.
    """

    label_columns: Sequence[str] = field(default=("label",), init=False)
    name: Name
    stranded: bool = False
    max_length: PositiveInt | None = None
    test_fraction: InnerFraction = 0.2
    valid_fraction: InnerFraction = 0.1
    cluster_kmer: KmerLength | None = None
    redivide: bool = False
    expected: Mapping[str, Natural] | None = None
    protocol: str = "fixed"
    folds: NumFolds | None = None
    seed: Natural = 0
    kind: str | list[str] = "classification"
    loss: str | None = None
    transform: str | None = None
    loss_weights: list[Positive] | None = None

    def __post_init__(self) -> None:
        asked = self.kind, self.label_columns, self.loss, self.transform, self.loss_weights
        self.target = build_target(*asked)

    @abstractmethod
    def read(self, tokenizer: DNATokenizer) -> LabeledSequences:
        """The sequences in the files, encoded; a one-line FileNotFoundError or ValueError for bad
        input."""

    def load(self, tokenizer: DNATokenizer, alignment: Alignment | None = None) -> TaskData:
        """Read, divide and encode the task, with the columns of an alignment if it is given.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: for bad files, labels that do not fit the target, or a part without rows or
                with a class that the training part lacks; for an alignment of another assembly, or
                sequences without coordinates.
        """
        found = self.read(tokenizer)
        if alignment is not None:
            if found.genome is None:
                raise ValueError(
                    f"alignment {alignment.path} has columns for a genome, and {found.source} has "
                    "sequences without coordinates; leave alignment out, or give a task of "
                    "intervals"
                )
            found.input = aligned_input(found.genome, found.regions, alignment)
        truncated = sum(len(ids) > (self.max_length or len(ids)) for ids in found.sequences)
        found.sequences = [ids[: self.max_length] for ids in found.sequences]
        bases = [tokenizer.bases(ids) for ids in found.sequences]
        division = Division(found, bases, self.target, self.cluster_kmer, self.redivide)
        copies = division.copies
        if self.stranded:
            copies = numbered(map(ndarray.tobytes, division.bases))
        differing, rows = conflicts(copies, division.labels)
        if differing:
            found.notes["sequences_with_different_labels"] = {"sequences": differing, "rows": rows}
        if not division.divided:
            division.split_off("test", self.test_fraction, self.seed)
        if missing := division.missing_classes("test"):
            log.warning(
                f"{found.source}: class {missing[0]!r} has no test rows; its metrics are not "
                "meaningful"
            )
        if not len(division.rows("valid")):
            division.split_off("valid", self.valid_fraction, self.seed)
        in_folds = self.folds is not None  # each of which draws its own validation items
        draws = in_folds or self.protocol != FixedSplit.name
        if (missing := division.missing_classes("valid")) and not draws:
            log.warning(
                f"{found.source}: {', '.join(map(repr, missing))} has no validation rows, which "
                "choose the epoch and the settings"
            )
        # Under cross-validation, copies are in the same fold.
        tested, seen = (division.copies[division.rows(*p)] for p in (["test"], ["train", "valid"]))
        of_class = " of each class" if len(division.strata_names) > 1 else ""
        together = (
            "copies, either strand"
            if self.cluster_kmer is None
            else f"a common {self.cluster_kmer}-mer, either strand"
        )
        if found.groups:
            together += f"; {len(set(found.groups))} groups of the source"
        notes = {
            "path": found.source,
            "split": found.split_source
            if division.divided
            else f"random, {100 * self.test_fraction:g} %{of_class} for test",
            "kept_together": together,
            "test_sequences_also_in_training": 0 if in_folds else int(np.isin(tested, seen).sum()),
            **({"cut_to_max_length": truncated} if self.max_length else {}),
            **found.notes,
        }
        # Differences from the known numbers of sequences, before validation is split off the
        # official training part.
        counts = Counter(division.parts.tolist())
        expected = self.expected or {}
        if "valid" not in expected:
            counts["train"] += counts["valid"]
        for part, known in expected.items():
            if counts[part] != known:
                about = notes.setdefault("differs_from_the_known_counts", {})
                about[part] = {"found": counts[part], "known": known}
                log.warning(
                    f"{self.name}: {counts[part]:,} {part} sequences, the complete task has "
                    f"{known:,}"
                )
        train, valid, test = (division.items(part, tokenizer.vocab.pad_id) for part in PARTS)
        target = division.target
        # Refuse labels that cannot be learned from now, not after the baselines.
        target.fit(train.labels, found.source)
        names = list(target.names)
        return TaskData(self.name, names, train, valid, test, self.stranded, notes, target)


# An item is inside data if at least this fraction of its bases is in k-mers of the data.
MIN_OVERLAP = 0.5
# Bases of the largest training part of a task whose k-mers are stored: 1.6 GB while the set is
# built.
_MAX_TRAINING = 100_000_000


def pretraining_kmers(
    config: Config, tokenizer: DNATokenizer, trust: Sequence[str] = (), file: str | bool = True
) -> KmerSet:
    """The k-mers of the training part of a run; its data is read again.

    Args:
        config: of the run, which has the split of the data.
        file: FASTA file of the data; True is the path in the configuration.

    Raises:
        FileNotFoundError: if the files no longer exist.
        ValueError: if the model does not name its data, or they were downloaded, are not a genome,
            or have too many k-mers to keep in memory.
    """
    if not config.get("data"):
        raise ValueError(
            "pretraining_overlap=true compares with the data of the pretraining, which published "
            "weights do not name; set it to false"
        )
    described = config["data"]
    if isinstance(described, Mapping) and file is not True:
        described = {**described, "path": file}
    data = run_data(described, tokenizer, trust)
    data.prepare()
    size = num_tokens(data.intervals["train"])
    if size > MAX_KMERS:
        raise ValueError(
            f"the pretraining part has {size:,} bases, more than the {MAX_KMERS:,} whose k-mers "
            "fit in memory; set pretraining_overlap=false"
        )
    return KmerSet([tokenizer.bases(ids) for ids in data.sequences("train")], NOVELTY)


def tested_subsets(
    data: TaskData, protocol: FixedSplit, tokenizer: DNATokenizer, pretraining: KmerSet | None
) -> dict[str, ndarray]:
    """Masks (S,) bool of the tested items inside and outside the `pretraining` data, and the
    training and validation parts if these have any of them, by shared k-mers on either strand.

    This needs no coordinates, and it also finds copies elsewhere in a genome. Parts are not
    compared where each fold or seed has a different training part (`KFold`, `FewItems`), nor if
    they are very large.
    """

    def bases(items: Items) -> list[ndarray]:
        rows = zip(items.ids.numpy(), items.lengths.tolist())
        return [tokenizer.bases(ids[:length]) for ids, length in rows]

    tested = bases(protocol.tested(data))
    found = dict[str, ndarray]()
    kmers = {} if pretraining is None else {"pretraining": pretraining}
    parts = (data.train, data.valid)
    if sum(int(part.lengths.sum()) for part in parts) > _MAX_TRAINING:
        log.info(
            "test sequences are not compared with the training part, which has more than "
            f"{_MAX_TRAINING:,} bases"
        )
    elif not isinstance(protocol, KFold | FewItems):
        kmers["training"] = KmerSet([*bases(data.train), *bases(data.valid)], NOVELTY)
    for name, of_data in kmers.items():
        inside = np.array([of_data.covered(each).mean() for each in tested]) >= MIN_OVERLAP
        if name == "pretraining" or inside.any():
            found |= {f"inside {name}": inside, f"outside {name}": ~inside}
    return found
