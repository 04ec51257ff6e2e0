"""Sequences to classify: records of a FASTA file or rows of a table, cut into windows, in chunks of
bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.fields import optional_integer
from dnadiff.formats.nucleotides import DNASequence, is_sequence
from dnadiff.formats.sequences import iter_sequences
from dnadiff.formats.table import is_table, read_rows
from dnadiff.supervised.classifier import Classifier
from dnadiff.supervised.items import Items
from dnadiff.supervised.targets.base import Label, Predicted, TaskTarget
from dnadiff.supervised.targets.classes import ClassProbabilities as ClassProbabilities
from dnadiff.supervised.tasks import check_sequence, label_keys

CHUNK = 1 << 23  # tokens, padding included, that are in memory and classified together
UNLABELED = -1
Encode = Callable[
    [str, str | bytes], np.ndarray
]  # where the sequence is, and its letters -> token ids


@dataclass(frozen=True)
class LengthLimits:
    """The numbers of bases that a classifier accepts.

    Attributes:
        maximum: that the network accepts; None is any.
        fixed: the only number that the head accepts; None is any.
        head: class of the head with a fixed length.
    """

    maximum: int | None = None
    fixed: int | None = None
    head: str = "Head"

    def check(self, where: str, total: int, length: int) -> None:
        """Raise ValueError if `length` bases cannot be classified; they are a window of `where`, a
        sequence of `total` bases."""
        got = (
            f"{where} has {total:,} bases"
            if length == total
            else f"{where} has a window of {length:,} bases"
        )
        if self.fixed is not None and length != self.fixed:
            remedy = (
                f"set window={self.fixed}"
                if total >= self.fixed
                else "remove it, or fine-tune with head=attention, head=conv or head=mean"
            )
            raise ValueError(
                f"{got}, and the {self.head} of this classifier accepts only sequences of "
                f"{self.fixed:,}; {remedy}"
            )
        if self.fixed is None and self.maximum is not None and length > self.maximum:
            raise ValueError(
                f"{got}, more than the {self.maximum:,} that this network accepts; set "
                f"window={self.maximum} or less to cut it into windows"
            )

    def check_window(self, window: int) -> None:
        """Raise ValueError if windows of so many bases cannot be classified."""
        if self.fixed is not None and window != self.fixed:
            raise ValueError(
                f"window {window} does not fit the {self.head} of this classifier, which accepts "
                f"only {self.fixed}; set it to that"
            )
        if self.maximum is not None and window > self.maximum:
            raise ValueError(
                f"window {window} is more than the {self.maximum} bases that this network accepts; "
                "set it to that or less"
            )


class Query(NamedTuple):
    """What gets one prediction: the bases `start` to `end` (0-based, half-open) of the record
    `name`.

    `ids (L,)` are its tokens, `label` is the number of its class or its values, or `UNLABELED`.
    """

    name: str
    start: int
    end: int
    ids: np.ndarray
    label: Label = UNLABELED

    @classmethod
    def whole(cls, name: str, ids: np.ndarray, label: Label = UNLABELED) -> Query:
        """A complete record."""
        return cls(name, 0, len(ids), ids, label)


class LabeledRow(NamedTuple):
    """A sequence in a file: `where` is its place for messages, `label` the cells of its label, or
    None."""

    where: str
    name: str
    letters: str | bytes
    label: list[str] | None = None


@dataclass(frozen=True)
class Columns:
    """The columns of a table; `name` None numbers the rows by their lines, `label` None reads no
    labels."""

    sequence: str = "sequence"
    name: str | None = None
    label: Sequence[str] | None = None


def fasta_rows(path: str, columns: Columns) -> Iterator[LabeledRow]:
    """The records of a FASTA file; ValueError if a column is named."""
    for name, value in vars(columns).items():
        if value != vars(Columns())[name]:
            given = value if isinstance(value, str) else ", ".join(value)
            raise ValueError(
                f"{name}_column={given} is the column of a table, and input {path} is FASTA; give "
                "a table, or leave it out"
            )
    for record in iter_sequences(path):
        yield LabeledRow(f"{path}: record {record.name}", record.name, record.sequence)


def table_rows(path: str, columns: Columns, empty_labels: bool = False) -> Iterator[LabeledRow]:
    """The rows of a table, see `dnadiff.formats.table.read_rows`; with `empty_labels`, cells of
    labels may be empty."""
    labels = {} if columns.label is None else label_keys("label_column", columns.label)
    keys = {"sequence_column": columns.sequence, "name_column": columns.name, **labels}
    wanted = {key: name for key, name in keys.items() if name is not None}
    number = 0
    for number, cells in read_rows(path, wanted):
        found = dict(zip(wanted, cells))
        where = f"{path}: line {number}"
        for key, column in wanted.items():
            if not found[key] and not (empty_labels and key in labels):
                raise ValueError(
                    f"{where} has nothing in column {column!r}; complete the row or remove it"
                )
        check_sequence(found["sequence_column"], where, columns.sequence)
        yield LabeledRow(
            where,
            found.get("name_column", str(number)),
            found["sequence_column"],
            [found[key] for key in labels] or None,
        )
    if number == 0:
        raise ValueError(f"{path} has a header and no rows; add some")


@dataclass(frozen=True)
class SequenceFile:
    """The queries in a file; can be iterated repeatedly, with one record in memory at a time.

    Args:
        path: FASTA or a table (by its ending), plain or gzip.
        encode: see `ClassifierEnsemble.encode`.
        target: what labels are.
        window: bases of a window; None predicts complete records.
        stride: bases between the starts of windows; None: windows do not overlap.
        limits: on the length of a query.

    Raises:
        ValueError: while it is iterated, naming the place, for a sequence, label or length that
            cannot be used.
    """

    path: str
    encode: Encode
    target: TaskTarget
    columns: Columns = Columns()
    window: int | None = None
    stride: int | None = None
    limits: LengthLimits = LengthLimits()

    def __iter__(self) -> Iterator[Query]:
        for row in self._rows():
            ids = self.encode(row.where, row.letters)
            label = (
                UNLABELED
                if row.label is None
                else self.target.parse(row.label, row.where, self.columns.label or ())
            )
            for start, end in window_bounds(len(ids), self.window, self.stride):
                self.limits.check(row.where, len(ids), end - start)
                yield Query(row.name, start, end, ids[start:end], label)

    def _rows(self) -> Iterator[LabeledRow]:
        if is_table(self.path):
            return table_rows(self.path, self.columns, self.target.can_be_missing)
        return fasta_rows(self.path, self.columns)


def window_bounds(
    length: int, window: int | None, stride: int | None = None
) -> Iterator[tuple[int, int]]:
    """Start and end of the windows of a sequence.

    They start at multiples of `stride` (None: `window`); a last one that ends with the sequence
    covers the rest. A sequence that is not longer than `window` is one window; so is any sequence
    if `window` is None.
    """
    if window is None or length <= window:
        yield 0, length
        return
    stride = window if stride is None else stride
    last = (length - window) // stride * stride
    for start in range(0, last + 1, stride):
        yield start, start + window
    if last + window < length:
        yield length - window, length


def chunks(queries: Iterable[Query], first: int = 0, size: int = CHUNK) -> Iterator[list[Query]]:
    """The queries from number `first` on, in lists that take at most `size` tokens when they are
    padded to the longest.

    A longer query is a chunk of its own. Chunks that start with the first query of a chunk are the
    same whatever came before.
    """
    chunk: list[Query] = []
    longest = 0
    for number, query in enumerate(queries):
        if number < first:
            continue
        longest = max(longest, len(query.ids))
        if chunk and (len(chunk) + 1) * longest > size:
            yield chunk
            chunk, longest = [], len(query.ids)
        chunk.append(query)
    if chunk:
        yield chunk


@dataclass(frozen=True)
class SeedClassifier:
    """The classifier of one seed, in evaluation mode, with the SHA-256 of its weights and the
    `folder` that it came from."""

    seed: int
    classifier: Classifier
    sha256: str
    folder: Path


def limits_of(classifiers: Sequence[Classifier]) -> LengthLimits:
    """The lengths of sequences that all classifiers accept, whose heads may differ."""
    longest = [one.max_length for one in classifiers if one.max_length is not None]
    fixed = [one.head for one in classifiers if one.head.fixed_length is not None]
    if not fixed:
        return LengthLimits(min(longest, default=None))
    return LengthLimits(min(longest), fixed[0].fixed_length, fixed[0].name)


class ClassifierEnsemble:
    """What `dnadiff.load` returns for a run of `python -m dnadiff.finetune`.

    Attributes:
        target: what is predicted; each classifier has its own, fitted on the training items of its
            seed.
        classes: names of the classes, or of what else is predicted.
        members: the classifier of each seed.
        path: the folder of the run.
        task: name of the task.
        longest: bases in the longest sequence that it was trained or tested on.
        limits: the lengths of sequences that all members accept.
        head_inputs: what the heads read; the same for all members.
        batch_size: sequences in a batch, as the test items of the task were predicted.
    """

    def __init__(
        self,
        target: TaskTarget,
        members: Sequence[SeedClassifier],
        tokenizer: DNATokenizer,
        path: Path,
        task: str,
        longest: int,
        batch_size: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.target, self.members, self.tokenizer, self.path = (
            target,
            tuple(members),
            tokenizer,
            path,
        )
        self.task, self.longest, self.batch_size, self.device = (
            task,
            longest,
            batch_size,
            torch.device(device),
        )
        for member in self.members:
            member.classifier.to(device).eval()
        self.stranded, self.limits = (
            self.members[0].classifier.stranded,
            limits_of([member.classifier for member in members]),
        )
        self.head_inputs = self.members[0].classifier.inputs

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, or of what else is predicted."""
        return self.target.names

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each classifier."""
        return tuple(member.seed for member in self.members)

    def predict(self, sequences: Sequence[DNASequence], batch_size: int | None = None) -> Predicted:
        """Predictions of sequences of any lengths: class probabilities, or for a regression
        `values`.

        Args:
            sequences: letters in either case, or records of Biopython or pyfaidx; N is read.
            batch_size: None is that of the task's test items: the same items then get the same
                numbers.

        Raises:
            ValueError: for a letter that is not a nucleotide, an empty sequence, or one of a length
                that the networks do not accept.
        """
        if is_sequence(sequences):
            raise ValueError("sequences is a single sequence; put it into a list: [sequence]")
        queries = (
            Query.whole(f"sequence {i}", self.encode(f"sequence {i}", letters))
            for i, letters in enumerate(sequences)
        )
        found = [self.classify(chunk, batch_size).each_seed for chunk in chunks(queries)]
        empty = np.zeros((len(self.members), 0, self.target.num_outputs), np.float32)
        return self.target.predicted(np.concatenate([empty, *found], axis=1))

    def contrasts(
        self, name: str | None = None, batch_size: int | None = None
    ) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
        """A function from token ids of sequences (L_i,) to predictions (R, S) of one class or
        column, for each seed.

        Classes are compared by their log-odds, labels by theirs, values on the scale of the
        transform.

        Args:
            name: of the class or column; None is the only one, or the second of two classes.
            batch_size: None is that of the task's test items.

        Raises:
            ValueError: if there is none of that name, or none is given and there are several.
        """
        number = self.number_of(name)

        def predict(sequences: Sequence[np.ndarray]) -> np.ndarray:
            queries = (Query.whole(f"window {i}", ids) for i, ids in enumerate(sequences))
            found = np.concatenate(
                [self.classify(chunk, batch_size).each_seed for chunk in chunks(queries)], axis=1
            )
            return self.target.contrast(torch.from_numpy(found).double())[..., number].numpy()

        return predict

    def number_of(self, name: str | None) -> int:
        """The number of a class or column; None is the only one, or the second of two classes.
        ValueError if there is none of that name."""
        if name is None and (
            len(self.classes) == 1 or (len(self.classes) == 2 and not self.target.takes_several)
        ):
            name = self.classes[-1]
        if name not in self.classes:
            got = "is missing" if name is None else f"{name!r} is not predicted by this model"
            raise ValueError(f"target {got}; set it to {', '.join(map(repr, self.classes))}")
        return self.classes.index(name)

    def window_of(self, window: int | None) -> int:
        """The bases of a window: those of the longest sequence of the task, unless given;
        ValueError for a length that is not accepted."""
        window = (
            self.longest if window is None else optional_integer("window", window) or self.longest
        )
        self.limits.check_window(window)
        return window

    def encode(self, where: str, letters: DNASequence) -> np.ndarray:
        """Token ids (L,) of a sequence; a ValueError that begins with `where` for one that cannot
        be read."""
        try:
            ids = self.tokenizer.encode(letters)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if not len(ids):
            raise ValueError(f"{where} has an empty sequence; complete or remove it")
        return ids

    def classify(
        self,
        queries: Sequence[Query],
        batch_size: int | None = None,
        report: Callable[[int], None] = lambda tokens: None,
    ) -> Predicted:
        """The predictions for a chunk of queries; `report` is called with the tokens read after
        each seed."""
        batch_size = optional_integer("batch_size", batch_size) or self.batch_size
        for query in queries:
            self.limits.check(query.name, len(query.ids), len(query.ids))
        items = Items.from_sequences(
            [query.ids for query in queries], [0] * len(queries), self.tokenizer.vocab.pad_id
        )
        return self.target.predicted(np.stack(list(self._each_seed(items, batch_size, report))))

    def _each_seed(
        self, items: Items, batch_size: int, report: Callable[[int], None]
    ) -> Iterator[np.ndarray]:
        for member in self.members:
            yield member.classifier.predict(items, batch_size, not self.stranded).numpy()
            report(int(items.lengths.sum()))

    def __repr__(self) -> str:
        network = type(self.members[0].classifier.backbone).__name__
        return (
            f"ClassifierEnsemble({network}, {self.target.summary}, seeds "
            f"{', '.join(map(str, self.seeds))}, {self.path})"
        )
