"""Sequences to classify: records of a FASTA file or rows of a table, cut into windows, in chunks of
bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dnadiff.formats.sequences import iter_sequences
from dnadiff.supervised.table import check_sequence, is_table, label_keys, read_rows
from dnadiff.supervised.targets.base import Label, TaskTarget

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
    """The rows of a table, see `dnadiff.supervised.table.read_rows`; with `empty_labels`, cells of
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
