"""Tables with a sequence and a class in each row: comma- or tab-separated, plain or gzip-compressed, or parquet where pyarrow is installed."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dnadiff.data.files import open_text, resolve
from dnadiff.downstream.labeled import PART_OF_WORD, LabeledSequences, LabeledTask
from dnadiff.downstream.settings import word

PARQUET = ".parquet"
ENDINGS = (".csv", ".tsv", ".tab", ".csv.gz", ".tsv.gz", ".tab.gz", PARQUET)


class CsvTask(LabeledTask):
    """One table, or a folder with a table for each part: `train.csv`, `dev.csv` (or `valid.csv`), `test.csv`, as GUE publishes.

    Without a split column rows are divided at random in each class. With one, its words are train, valid (also dev, val,
    validation) and test; without validation rows, some of train's are taken.

    Args:
        path: the table, with a header, or the folder.
        sequence_column: name of the column of sequences.
        label_column: name of the column of classes.
        split_column: name of the column that says train, valid or test; None: divide here.
        delimiter: None: a tab if the name ends in .tsv or .tab, before any .gz; else a comma.
        name: of the task; None: the file name.
        **settings: see `LabeledTask`.
    """

    def __init__(
        self,
        path: str,
        sequence_column: str = "sequence",
        label_column: str = "label",
        split_column: str | None = None,
        delimiter: str | None = None,
        name: str | None = None,
        **settings: Any,
    ) -> None:
        if delimiter is not None and not (isinstance(delimiter, str) and len(delimiter) == 1 and delimiter not in '"\r\n'):
            raise ValueError(f"delimiter is {delimiter!r}; set task.delimiter to one character, or to null")
        self.path, self.delimiter = str(path), delimiter
        self.sequence_column, self.label_column = word("sequence_column", sequence_column), word("label_column", label_column)
        self.split_column = None if split_column is None else word("split_column", split_column)
        bare = Path(self.path).name.removesuffix(".gz")
        super().__init__(name or bare.rpartition(".")[0] or bare, **settings)

    def read(self, tokenizer: Any) -> LabeledSequences:
        """See `LabeledTask`."""
        place = f"column {self.label_column!r}"
        if not Path(self.path).expanduser().is_dir():
            part_place = f"column {self.split_column!r}" if self.split_column else "the split"
            found = LabeledSequences(self.path, divided=self.split_column is not None, place=place, part_place=part_place)
            self._rows(self.path, "train", self.split_column, found, tokenizer)
            return found
        found = LabeledSequences(self.path, divided=True, place=place, part_place="its file names")
        for table, part in tables_in(self.path):
            self._rows(table, part, None, found, tokenizer)
        return found

    def sources(self) -> list[Path]:
        """See `LabeledTask`."""
        if Path(self.path).expanduser().is_dir():
            return [Path(table).expanduser() for table, _ in tables_in(self.path)]
        return [resolve(self.path)]

    def _rows(self, path: str, part: str, split_column: str | None, found: LabeledSequences, tokenizer: Any) -> None:
        columns = {"sequence_column": self.sequence_column, "label_column": self.label_column, "split_column": split_column}
        columns = {key: name for key, name in columns.items() if name is not None}
        number = 0
        for number, cells in rows_of(path, columns, self.delimiter):
            where = f"{path}: line {number}"
            if empty := next((key for key, text in zip(columns, cells) if not text), None):
                raise ValueError(f"{where} has nothing in column {columns[empty]!r}; complete the row or remove it")
            if split_column is not None and cells[2].lower() not in PART_OF_WORD:
                raise ValueError(f"{where} has {cells[2]!r} in column {split_column!r}; expected train, valid or test")
            found.add(tokenizer, cells[0], cells[1], PART_OF_WORD[cells[2].lower()] if split_column else part, where)
        if number == 0:
            raise ValueError(f"{path} has a header and no rows; add some")


def tables_in(folder: str) -> list[tuple[str, str]]:
    """(path, part) of the tables of a folder that are called after a part, as in `train.csv` or `test-00000-of-00001.parquet`.

    Raises:
        ValueError: if there is none.
    """
    files = sorted(p for p in Path(folder).expanduser().rglob("*") if p.is_file() and p.name.endswith(ENDINGS))
    named = [(str(file), PART_OF_WORD[word]) for file in files if (word := file.name.split(".")[0].split("-")[0]) in PART_OF_WORD]
    if not named:
        raise ValueError(f"{folder} holds no table called train, valid, dev or test ({', '.join(ENDINGS)}); set task.path to one table")
    return named


def rows_of(path: str, columns: dict[str, str], delimiter: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """Line number and the cells of `columns` (key -> name) of each row of a table; empty lines are passed over.

    Raises:
        FileNotFoundError: if there is no table.
        ValueError: for a missing column, or a file that is no table.
    """
    if path.endswith(PARQUET):
        yield from _parquet_rows(path, columns)
        return
    try:
        with open_text(path) as handle:
            csv.field_size_limit(2**31 - 1)  # the module's own limit is 131,072 letters
            table = csv.reader(handle, delimiter=delimiter or _delimiter(path))
            header = [name.strip() for name in next(table, [])]
            header[:1] = [header[0].removeprefix("\ufeff")] if header else []
            place = [column_number(path, key, name, header) for key, name in columns.items()]
            for row in table:
                if any(row):
                    yield table.line_num, [row[number].strip() if number < len(row) else "" for number in place]
    except csv.Error as error:
        raise ValueError(f"{path} is not a table of text ({error}); give a comma- or tab-separated file") from None


def column_number(path: str, key: str, name: str, header: Sequence[str]) -> int:
    """Where the column `name`, which `task.<key>` asks for, stands in the header.

    Raises:
        ValueError: if it does not.
    """
    if name not in header:
        raise ValueError(f"{path} has no column {name!r}; its columns are {', '.join(header)}: set task.{key} to one of them")
    return header.index(name)


def header_of(path: str) -> list[str]:
    """The names of a table's columns."""
    if path.endswith(PARQUET):
        return _parquet_header(path)
    with open_text(path) as handle:
        names = next(csv.reader(handle, delimiter=_delimiter(path)), [])
    return [name.strip() for name in names]


def _delimiter(path: str) -> str:
    """What separates the cells of a table of that name."""
    return "\t" if path.removesuffix(".gz").endswith((".tsv", ".tab")) else ","


def _parquet(path: str) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"{path} is parquet, which needs pyarrow: pip install pyarrow, or convert the table to CSV") from None
    return pyarrow.parquet


def _parquet_header(path: str) -> list[str]:
    return list(_whole_parquet(path, lambda parquet, file: parquet.read_schema(file)).names)


def _whole_parquet(path: str, read: Callable[[Any, str], Any]) -> Any:
    """What `read` makes of the file.

    Raises:
        ValueError: naming the file, if it is damaged.
    """
    parquet, file = _parquet(path), str(resolve(path))
    try:
        return read(parquet, file)
    except (ValueError, OSError) as error:  # pyarrow's own errors are these
        raise ValueError(f"{path} is no parquet, or damaged ({' '.join(str(error).split())}); fetch it again") from None


def _parquet_rows(path: str, columns: dict[str, str]) -> Iterator[tuple[int, list[str]]]:
    header = _parquet_header(path)
    for key, name in columns.items():
        column_number(path, key, name, header)
    table = _whole_parquet(path, lambda parquet, file: parquet.read_table(file, columns=list(columns.values())))
    cells = [["" if value is None else str(value) for value in table.column(name).to_pylist()] for name in columns.values()]
    yield from ((number, list(row)) for number, row in enumerate(zip(*cells), 1))
