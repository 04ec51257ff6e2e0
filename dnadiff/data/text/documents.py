"""The documents of local files, one after the other: .txt, .jsonl, .csv and .parquet, plain or
gzip-compressed."""

from __future__ import annotations

import csv
import itertools
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TextIO

from typing_extensions import override

from dnadiff.data.patterns import matches
from dnadiff.store.address import file_name
from dnadiff.store.cache import content_hash
from dnadiff.store.files import open_text, resolve

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

    from dnadiff.config import Json

Paths = str | Path | Sequence[str | Path]
_TABLES = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
_OTHER_TABLES = {".tsv", ".tab", ".xlsx"}
log = logging.getLogger("dnadiff")
_PIECE = 1 << 20  # characters of a file read at once
_ROWS = 1024  # rows of a parquet file read at once
_MAX_FIELD = (
    2**31 - 1
)  # characters in a field of a .csv; the default limit of the csv module is 131,072


class Documents(ABC):
    """An ordered collection of documents that can be read again and again."""

    @abstractmethod
    def key(self) -> dict[str, Json]:
        """Everything that determines the documents, contents of files included. The cache is named
        by it."""

    @abstractmethod
    def __iter__(self) -> Iterator[str]:
        """All documents in order."""

    def since(self, number: int) -> Iterator[str]:
        """Documents from `number` on, counted from 0."""
        return itertools.islice(self, number, None)


def _whole_file(file: TextIO) -> Iterator[str]:
    yield "".join(
        iter(partial(file.read, _PIECE), "")
    )  # short lines would take many times the memory of their characters


def _lines(file: TextIO) -> Iterator[str]:
    return (line.strip() for line in file)


def _rows(file: TextIO) -> Iterator[str]:
    return (line if line.strip() else "" for line in file)


KINDS: dict[str, Callable[[TextIO], Iterator[str]]] = {
    "file": _whole_file,
    "line": _lines,
    "row": _rows,
}


class Files(Documents):
    """Documents in local files, and in copies of those at addresses.

    Args:
        paths: files; `*`, `?` and `**` are expanded, sorted by name, also in addresses of object
            stores.
        documents: what a document of a .txt file is. `file`: the whole file. `line`: a line without
            leading and trailing white space.
            `row`: a line with its line break, blank lines empty, as in the Hugging Face Hub's
                WikiText. In tables each row is a document.
        column: of tables: name of the text column. Several columns are joined by a space.
        keep_line_ends: keep white space and line breaks of lines (for tokenizers without an
            end-of-text token).

    Raises:
        FileNotFoundError, ValueError: if a path names no file.
    """

    buildable: ClassVar[bool] = (
        True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)
    )

    def __init__(
        self,
        paths: Paths,
        documents: str = "file",
        column: str | Sequence[str] = "text",
        keep_line_ends: bool = False,
    ) -> None:
        if documents not in KINDS:
            raise ValueError(
                f"documents is {documents!r}; choose {', '.join(KINDS)} for data.documents"
            )
        self.paths = expanded(paths)
        self._kinds = {path: kind_of(path) for path in self.paths}
        self.documents, self.keep_line_ends = documents, keep_line_ends
        self._split = (
            iter if keep_line_ends and KINDS[documents] is not _whole_file else KINDS[documents]
        )
        self._readers = {"jsonl": self._objects, "csv": self._fields}
        self.columns = columns_of(column)

    @override
    def __iter__(self) -> Iterator[str]:
        for path in self.paths:
            yield from self._read(path)

    @override
    def key(self) -> dict[str, Json]:
        tables = {"columns": self.columns} if any(self._kinds.values()) else {}
        texts = (
            {}
            if all(self._kinds.values())
            else {"documents": self.documents, "keep_line_ends": self.keep_line_ends}
        )
        return {
            "files": [
                [content_hash(resolve(path)), self._kinds[path] or "text"] for path in self.paths
            ],
            **tables,
            **texts,
        }

    def _read(self, path: str) -> Iterator[str]:
        if (kind := self._kinds[path]) == "parquet":
            yield from self._parquet(path)
            return
        with open_text(path) as handle:
            yield from self._readers[kind](path, handle) if kind else self._split(handle)

    def _fields(self, path: str, handle: Iterable[str]) -> Iterator[str]:
        csv.field_size_limit(_MAX_FIELD)
        rows = csv.reader(
            handle, strict=True
        )  # a quoted field that the end of the file cuts is an error
        try:
            header = next(rows, [])
            if missing := [column for column in self.columns if column not in header]:
                raise ValueError(_no_column(path, missing[0], header))
            for cells in filter(None, rows):
                where = f"{path}: line {rows.line_num}"
                check_fields(where, cells, header)
                yield joined(dict(zip(header, cells)), self.columns, where)
        except csv.Error as error:
            raise ValueError(
                f"{path}: line {rows.line_num} is not CSV ({error}); expected a header and one "
                "document per row"
            ) from error

    def _objects(self, path: str, handle: Iterable[str]) -> Iterator[str]:
        for number, line in enumerate(handle, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                why = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
                raise ValueError(
                    f"{path}: line {number} is not JSON ({why}); expected one object per line"
                ) from error
            if not isinstance(row, dict):
                raise ValueError(
                    f"{path}: line {number} is a {type(row).__name__}; expected one object per "
                    f'line, such as {{"text": "..."}}'
                )
            text = joined(row, self.columns, f"{path}: line {number}")
            if "\\u" in line and (
                half := next((c for c in text if "\ud800" <= c <= "\udfff"), None)
            ):
                raise ValueError(
                    f"{path}: line {number} contains an unpaired surrogate (\\u{ord(half):x}), "
                    "which is not text; remove it"
                )
            yield text

    def _parquet(self, path: str) -> Iterator[str]:
        import pyarrow
        from pyarrow import parquet

        source = resolve(path)
        try:
            with parquet.ParquetFile(source, page_checksum_verification=True) as file:
                if not has_page_checksums(source, file.metadata):
                    log.info(
                        f"{path}: its pages have no checksums, so damage to them may go unnoticed"
                    )
                if missing := [
                    column for column in self.columns if column not in file.schema_arrow.names
                ]:
                    raise ValueError(_no_column(path, missing[0], file.schema_arrow.names))
                count = 0
                for batch in file.iter_batches(_ROWS, columns=self.columns):
                    for row in batch.to_pylist():
                        count += 1
                        yield joined(row, self.columns, f"{path}: row {count:,}")
                if (
                    count != file.metadata.num_rows
                ):  # a damaged page header, which has no checksum, may end a column early
                    raise ValueError(
                        f"{path} is damaged: {count:,} of its {file.metadata.num_rows:,} rows can "
                        "be read; fetch it again"
                    )
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path} is not a valid parquet file, or is damaged "
                f"({' '.join(str(error).split())[:120]}); use another copy of it"
            ) from error


def has_page_checksums(path: Path, metadata: FileMetaData) -> bool:
    """Whether the first page of each column has a checksum: the optional fourth field of its
    header, in Thrift's compact protocol.

    Source: https://github.com/apache/parquet-format, `PageHeader` in parquet.thrift.
    """
    with path.open("rb") as raw:
        for group, column in itertools.product(
            range(metadata.num_row_groups), range(metadata.num_columns)
        ):
            about = metadata.row_group(group).column(column)
            raw.seek(max(0, about.dictionary_page_offset or about.data_page_offset))
            header, place = raw.read(32), 0
            for _ in range(
                3
            ):  # type, size and compressed size: a byte that says "next field, an integer", then its bytes
                place += 1
                while header[place : place + 1] > b"\x7f":
                    place += 1
                place += 1
            if header[place : place + 1] != b"\x15":
                return False
    return True


def check_fields(where: str, cells: Sequence[str], header: Sequence[str]) -> None:
    """ValueError for a row of a table that has fewer or more fields than the header."""
    if len(cells) != len(header):
        raise ValueError(
            f"{where} has {len(cells)} fields, the header has {len(header)}; complete the row, or "
            "quote a field with commas"
        )


def joined(
    row: Mapping[str, Json], columns: Sequence[str], where: str, key: str = "data.column"
) -> str:
    """The text of a row: its columns, joined by a space.

    Args:
        where: file and row, for messages.
        key: what the configuration calls `columns`.

    Raises:
        ValueError: if the row lacks a column, or has something else than text in it.
    """
    for column in columns:
        if column not in row:
            raise ValueError(
                _no_column(
                    where,
                    column,
                    [name for name, value in row.items() if isinstance(value, str)],
                    key,
                )
            )
        if not isinstance(value := row[column], str):
            what = "null" if value is None else f"a value of type {type(value).__name__}"
            raise ValueError(
                f"{where} has {what} in {column!r}, and text is expected; remove the row, or set "
                f"{key} to a column of text"
            )
    return " ".join(row[column] for column in columns)


def columns_of(column: str | Sequence[str]) -> list[str]:
    """The names in a name or a list of names; raises ValueError for anything else."""
    columns = [column] if isinstance(column, str) else column
    if (
        not isinstance(columns, (list, tuple))
        or not columns
        or not all(isinstance(name, str) for name in columns)
    ):
        raise ValueError(
            f"column is {column!r}; set data.column (data.hub.column) to a name in quotes, or to a "
            "list of names"
        )
    return list(columns)


def kind_of(path: str) -> str | None:
    """The table format that a file name indicates; None for text. Raises ValueError for tables that
    are not read."""
    name = file_name(path).lower()
    suffix = Path(bare := name.removesuffix(".gz").removesuffix(".bgz")).suffix
    if suffix in _OTHER_TABLES:
        raise ValueError(
            f"{path}: tables are read as {', '.join(_TABLES)}, not {suffix}; convert it, or rename "
            "it to .txt if it is plain text"
        )
    if (kind := _TABLES.get(suffix)) == "parquet" and bare != name:
        raise ValueError(
            f"{path}: parquet is not read from a compressed file; unpack it (gunzip), since its "
            "columns are compressed already"
        )
    return kind


def expanded(paths: Paths) -> list[str]:
    """File names with patterns expanded, the matches of each pattern sorted by name.

    Raises:
        FileNotFoundError, ValueError: if there is no such file.
    """
    found: list[str] = []
    for path in [paths] if isinstance(paths, (str, Path)) else list(paths):
        files = matches(str(path))
        found += [str(path)] if files is None else files
    for path in found:
        if resolve(path).stat().st_size == 0:
            raise ValueError(
                f"{path} is empty; give a text file with at least one window of characters"
            )
    return found


def _no_column(where: str, column: str, known: Sequence[str], key: str = "data.column") -> str:
    return (
        f"{where} has no column {column!r}; set {key} to one of "
        f"{', '.join(map(repr, known)) or 'its columns'}"
    )
