"""Tasks in tables with one sequence and class per row: comma- or tab-separated, plain or
gzip-compressed, or parquet."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import Unpack, override

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.fields import Name, Natural, PositiveInt, checked
from dnadiff.formats.sequences import read_sequences
from dnadiff.formats.table import ending_of, endings, is_table, read_rows
from dnadiff.store.address import expand_user
from dnadiff.store.files import resolve
from dnadiff.supervised.labeled import (
    PART_NAMES,
    LabeledSequences,
    LabeledTask,
    LabeledTaskSettings,
    PathName,
)
from dnadiff.supervised.targets.base import MISSING, SEPARATOR

log = logging.getLogger("dnadiff")


@checked
class CsvTask(LabeledTask):
    """One table, or a folder with a table for each part: `train.csv`, `dev.csv` (or `valid.csv`),
    `test.csv`, as GUE publishes.

    Without a split column, the rows of each class are divided at random. With one, its values are
    train, valid (also dev, val, validation) and test; if there are no validation rows, some
    training rows are used.

    Args:
        delimiter: None: a tab if the name ends in .tsv or .tab (before any .gz), else a comma.
    """

    def __init__(
        self,
        path: PathName,
        sequence_column: Name = "sequence",
        label_column: Name | list[Name] = "label",
        split_column: Name | None = None,
        delimiter: str | None = None,
        name: Name | None = None,
        **settings: Unpack[LabeledTaskSettings],
    ) -> None:
        if delimiter is not None and not (
            isinstance(delimiter, str) and len(delimiter) == 1 and delimiter not in '"\r\n'
        ):
            raise ValueError(f"task.delimiter {delimiter!r} must be one character, or null")
        self.path, self.delimiter = str(path), delimiter
        self.sequence_column, self.split_column = sequence_column, split_column
        self.label_columns = as_names(label_column)
        bare = Path(self.path).name.removesuffix(".gz")
        super().__init__(
            name or bare.rpartition(".")[0] or bare, columns=self.label_columns, **settings
        )

    @override
    def read(self, tokenizer: DNATokenizer) -> LabeledSequences:
        label_source = ("column " if len(self.label_columns) == 1 else "columns ") + ", ".join(
            map(repr, self.label_columns)
        )
        if not expand_user(self.path).is_dir():
            split_source = f"column {self.split_column!r}" if self.split_column else "the split"
            found = LabeledSequences(
                self.path,
                divided=self.split_column is not None,
                label_source=label_source,
                split_source=split_source,
            )
            self._add_rows(self.path, "train", self.split_column, found, tokenizer)
            return found
        found = LabeledSequences(
            self.path, divided=True, label_source=label_source, split_source="its file names"
        )
        for table, part in find_tables(self.path):
            self._add_rows(table, part, None, found, tokenizer)
        return found

    @override
    def sources(self) -> list[Path]:
        if expand_user(self.path).is_dir():
            return [expand_user(table) for table, _ in find_tables(self.path)]
        return [resolve(self.path)]

    def _add_rows(
        self,
        path: str,
        part: str,
        split_column: str | None,
        found: LabeledSequences,
        tokenizer: DNATokenizer,
    ) -> None:
        columns = {"task.sequence_column": self.sequence_column}
        columns |= {"task.split_column": split_column} if split_column is not None else {}
        first, labels = len(columns), label_keys("task.label_column", self.label_columns)
        columns |= labels
        number = 0
        for number, cells in read_rows(path, columns, self.delimiter):
            where = f"{path}: line {number}"
            for cell, (key, name) in zip(cells, columns.items()):
                if not cell and not (key in labels and self.target.can_be_missing):
                    raise ValueError(
                        f"{where} has nothing in column {name!r}; complete the row or remove it"
                    )
            if split_column is not None and cells[1].lower() not in PART_NAMES:
                raise ValueError(
                    f"{where} has {cells[1]!r} in column {split_column!r}; expected train, valid "
                    "or test"
                )
            check_sequence(cells[0], where, self.sequence_column)
            self.target.check(cells[first:], where)
            label = SEPARATOR.join(cells[first:])
            found.add(
                tokenizer,
                cells[0],
                label,
                PART_NAMES[cells[1].lower()] if split_column else part,
                where,
            )
        if number == 0:
            raise ValueError(f"{path} has a header and no rows; add some")


def as_names(columns: str | Sequence[str]) -> list[str]:
    """One name or several as a list."""
    return (
        [columns]
        if isinstance(columns, str) or not isinstance(columns, Sequence)
        else list(columns)
    )


def label_keys(key: str, columns: Sequence[str]) -> dict[str, str]:
    """The label columns by their keys in the configuration, for messages."""
    return (
        {key: columns[0]}
        if len(columns) == 1
        else {f"{key}[{number}]": name for number, name in enumerate(columns)}
    )


def find_tables(folder: str) -> list[tuple[str, str]]:
    """(path, part) of the tables in a folder that are named after a part, such as `train.csv` or
    `test-00000-of-00001.parquet`.

    Raises:
        ValueError: if there is none, a part has tables in several folders, or one name has several
            endings: one could be a copy of another.
    """
    files = sorted(p for p in expand_user(folder).rglob("*") if p.is_file() and is_table(p.name))
    named, first = list[tuple[str, str]](), dict[str, Path]()
    for file in files:
        if (word := file.name.split(".")[0].split("-")[0]) not in PART_NAMES:
            continue
        named.append((str(file), part := PART_NAMES[word]))
        other = first.setdefault(part, file)
        if other.parent != file.parent:
            raise ValueError(
                f"{folder} has {part} tables in two folders, {other} and {file}, and one is "
                f"expected; set task.path={other.parent} or the other"
            )
        other = first.setdefault(f"{part} {word}", file)
        if ending_of(other.name) != ending_of(file.name):
            raise ValueError(
                f"{folder} has two tables of one name, {other} and {file}, and one is expected; "
                "remove one, or set task.path=FOLDER with one of them"
            )
    if not named:
        raise ValueError(
            f"{folder} holds no table called train, valid, dev or test ({', '.join(endings())}); "
            "set "
            "task.path to one table"
        )
    return named


def check_sequence(cell: str, where: str, column: str) -> None:
    """ValueError if the cell of a sequence is a word for a missing value, such as NA, whose letters
    are also read as bases."""
    if cell.lower() in MISSING:
        raise ValueError(
            f"{where} has {cell!r} in column {column!r}, which stands for a missing value, and a "
            "DNA sequence is expected; complete the row "
            "or remove it"
        )


class FastaTask(LabeledTask):
    """Each record is a sequence of its file's class.

    Args:
        path: class name -> FASTA file, or part -> (class name -> FASTA file):
            `'task.path={promoter: p.fa, other: o.fa}'`.
    """

    def __init__(
        self,
        path: Mapping[str, str] | Mapping[str, Mapping[str, str]],
        name: str = "fasta",
        **settings: Unpack[LabeledTaskSettings],
    ) -> None:
        if not isinstance(path, Mapping):
            raise ValueError(
                f"path {path!r} is not a file for each class; write 'task.path={{promoter: p.fa, "
                f"other: o.fa}}'"
            )
        parts = {
            str(part): dict(files) for part, files in path.items() if isinstance(files, Mapping)
        }
        if parts and len(parts) < len(path):
            raise ValueError(
                "path mixes parts and files; write 'task.path={train: {promoter: p.fa, ...}, test: "
                "{promoter: q.fa, ...}}'"
            )
        self.divided = bool(parts)
        if unknown := set(parts) - set(PART_NAMES):
            raise ValueError(
                f"path has a part {min(unknown)!r}; the parts are train, valid and test"
            )
        self.files: dict[str, dict[str, str]] = parts or {
            "train": {name: str(file) for name, file in path.items()}
        }
        if not any(self.files.values()):
            raise ValueError("path names no file; write 'task.path={promoter: p.fa, other: o.fa}'")
        super().__init__(name, **settings)

    @override
    def read(self, tokenizer: DNATokenizer) -> LabeledSequences:
        every = [str(file) for files in self.files.values() for file in files.values()]
        found = LabeledSequences(
            ", ".join(every),
            divided=self.divided,
            label_source="task.path",
            split_source="task.path",
        )
        for part, files in self.files.items():
            for name, file in files.items():
                for record in read_sequences(file):
                    found.add(
                        tokenizer,
                        record.sequence.decode("latin-1"),
                        str(name),
                        PART_NAMES[part],
                        f"{file}: record {record.name}",
                    )
        return found

    @override
    def sources(self) -> list[Path]:
        return [resolve(file) for files in self.files.values() for file in files.values()]


_BACKGROUND, _CONTROLS = re.compile(r"_bg(\d+:\d+)"), ("neg", "pos")


@checked
class PromoterGrid(LabeledTask):
    """A table of designed promoters with a column of names.

    Args:
        start, end: the bases of a sequence that are the promoter, 0-based and half-open; the rest
            are adapters.
    """

    def __init__(
        self,
        path: PathName,
        sequence_column: Name = "sequence",
        label_column: Name = "expression",
        name_column: Name = "name",
        start: Natural = 24,
        end: PositiveInt = 174,
        name: Name = "ecoli_sigma70",
        **settings: Unpack[LabeledTaskSettings],
    ) -> None:
        self.path = str(path)
        self.columns = {
            "task.sequence_column": sequence_column,
            "task.label_column": label_column,
            "task.name_column": name_column,
        }
        self.start, self.end = start, end
        if self.end <= self.start:
            raise ValueError(
                f"task.end {self.end} is not after task.start {self.start}; give the bases of the "
                "promoter, such as 24 and 174"
            )
        super().__init__(name, columns=[self.columns["task.label_column"]], **settings)

    @override
    def sources(self) -> list[Path]:
        return [resolve(self.path)]

    @override
    def read(self, tokenizer: DNATokenizer) -> LabeledSequences:
        label_source = f"column {self.columns['task.label_column']!r}"
        found, controls, number = LabeledSequences(self.path, label_source=label_source), 0, 0
        for number, (sequence, label, name) in read_rows(self.path, self.columns):
            where = f"{self.path}: line {number}"
            if name.startswith(_CONTROLS):
                controls += 1
                continue
            background = _BACKGROUND.search(name)
            if background is None:
                raise ValueError(
                    f"{where} has the name {name!r}, which has no background such as "
                    "_bg977040:977190; complete or remove it"
                )
            if len(sequence) < self.end:
                raise ValueError(
                    f"{where} has {len(sequence)} bases, and the promoter ends at {self.end}; set "
                    "task.end to less"
                )
            self.target.check([label], where)
            found.add(tokenizer, sequence[self.start : self.end], label, "train", where)
            found.groups.append(background[1])
        if not found.labels:
            raise ValueError(f"{self.path} has no promoter of the grid; add some")
        found.notes = {"controls_left_out": controls, "backgrounds": len(set(found.groups))}
        return found
