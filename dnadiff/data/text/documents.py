"""The documents of local files, one after the other: .txt, .jsonl, .csv and .parquet, plain or gzip-compressed.

How a document was laid out is forgotten here: what comes out are strings in the order of the files.
"""

from __future__ import annotations

import csv
import glob
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from dnadiff.data.cache import content_hash
from dnadiff.data.files import open_text, resolve

KINDS = ("file", "line", "row")
_TABLES = {".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_ROWS = 1024  # of a parquet file, read at once
_LONGEST = 2**31 - 1  # characters in a field of a .csv; the module's own limit is 131,072


class Files:
    """Documents in local files.

    Args:
        paths: files; `*`, `?` and `**` are expanded, in the order of names.
        documents: what a document of a .txt file is: `file`; `line`, without white space at its ends; or `row`, a line with its end,
            blank lines empty, as the Hugging Face Hub's WikiText has them. Tables have a document in each row.
        column: of tables: where the text stands; several columns are joined by a space.
        keep_line_ends: leave a line as it stands, white space and end included (for tokenizers without a token that ends a text).

    Raises:
        FileNotFoundError, ValueError: if a path names no file.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    def __init__(self, paths: Any, documents: str = "file", column: str | Sequence[str] = "text", keep_line_ends: bool = False) -> None:
        if documents not in KINDS:
            raise ValueError(f"documents is {documents!r}; choose {', '.join(KINDS)} for data.documents")
        self.paths = expanded(paths)
        self.documents, self.keep_line_ends = documents, keep_line_ends
        self.columns = columns_of(column)

    def __iter__(self) -> Iterator[str]:
        for path in self.paths:
            yield from self._of(path)

    def since(self, number: int) -> Iterator[str]:
        """Documents from a number on, counted from 0."""
        return itertools.islice(self, number, None)

    def key(self) -> dict[str, Any]:
        """What decides which documents come out, contents included: plain values."""
        tables = {"columns": self.columns} if any(map(kind_of, self.paths)) else {}
        texts = {} if all(map(kind_of, self.paths)) else {"documents": self.documents, "keep_line_ends": self.keep_line_ends}
        return {"files": [[content_hash(resolve(path)), kind_of(path) or "text"] for path in self.paths], **tables, **texts}

    def _of(self, path: str) -> Iterator[str]:
        kind = kind_of(path)
        if kind == "parquet":
            yield from self._parquet(path)
            return
        with open_text(path) as handle:
            if kind == "jsonl":
                yield from self._objects(path, handle)
            elif kind == "csv":
                yield from self._fields(path, handle)
            elif self.documents == "file":
                yield handle.read()
            else:
                for line in handle:
                    yield line if self.keep_line_ends else line.strip() if self.documents == "line" else line if line.strip() else ""

    def _fields(self, path: str, handle: Any) -> Iterator[str]:
        csv.field_size_limit(_LONGEST)
        rows = csv.DictReader(handle)
        try:
            for row in rows:
                yield self._joined(row, f"{path}: line {rows.line_num}")
        except csv.Error as error:
            raise ValueError(f"{path}: line {rows.line_num} is not CSV ({error}); expected a header and one document a row") from error

    def _objects(self, path: str, handle: Any) -> Iterator[str]:
        for number, line in enumerate(handle, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                said = getattr(error, "msg", "nested too deeply")
                raise ValueError(f"{path}: line {number} is not JSON ({said}); expected one object a line") from error
            if not isinstance(row, dict):
                raise ValueError(
                    f'{path}: line {number} holds a {type(row).__name__}; expected one object a line, such as {{"text": "..."}}'
                )
            text = self._joined(row, f"{path}: line {number}")
            if "\\u" in line and (half := next((c for c in text if "\ud800" <= c <= "\udfff"), None)):
                raise ValueError(f"{path}: line {number} has half of a character (\\u{ord(half):x}), which is no text; remove it")
            yield text

    def _parquet(self, path: str) -> Iterator[str]:
        import pyarrow
        from pyarrow import parquet

        try:
            with parquet.ParquetFile(resolve(path)) as file:
                if missing := [column for column in self.columns if column not in file.schema_arrow.names]:
                    raise ValueError(_no_column(path, missing[0], file.schema_arrow.names))
                for batch in file.iter_batches(_ROWS, columns=self.columns):
                    for row in batch.to_pylist():
                        yield self._joined(row, path)
        except pyarrow.ArrowException as error:
            raise ValueError(f"{path} is not a sound parquet file ({' '.join(str(error).split())[:120]})") from error

    def _joined(self, row: dict[str, Any], where: str) -> str:
        for column in self.columns:
            if not isinstance(row.get(column), str):
                raise ValueError(_no_column(where, column, [key for key, value in row.items() if isinstance(value, str)]))
        return " ".join(row[column] for column in self.columns)


def columns_of(column: Any) -> list[str]:
    """Names of the columns whose texts a document is made of.

    Raises:
        ValueError: for anything but a name or a list of names.
    """
    columns = [column] if isinstance(column, str) else column
    if not isinstance(columns, (list, tuple)) or not columns or not all(isinstance(name, str) for name in columns):
        raise ValueError(f"column is {column!r}; set data.column (data.hub.column) to a name in quotes, or to a list of names")
    return list(columns)


def kind_of(path: str) -> str | None:
    """The kind of table that a file name promises; None for text."""
    return _TABLES.get(Path(str(path).removesuffix(".gz")).suffix.lower())


def expanded(paths: Any) -> list[str]:
    """File names with patterns expanded, each pattern in the order of names.

    Raises:
        FileNotFoundError, ValueError: if there is no such file.
    """
    found: list[str] = []
    for path in [paths] if isinstance(paths, (str, Path)) else list(paths):
        text = str(path)
        matches = (
            sorted(p for p in glob.glob(str(Path(text).expanduser()), recursive=True) if not Path(p).is_dir())
            if glob.has_magic(text) and not Path(text).exists()
            else [text]
        )
        if not matches:
            raise FileNotFoundError(f"{text} matches no file; check the pattern (it is read from {Path.cwd()})")
        found += matches
    for path in found:
        if resolve(path).stat().st_size == 0:
            raise ValueError(f"{path} is empty; give a text file with at least one window of characters")
    return found


def _no_column(where: str, column: str, known: Sequence[str]) -> str:
    return f"{where} has no text in {column!r}; set data.column to one of {', '.join(map(repr, known)) or 'its columns'}"
