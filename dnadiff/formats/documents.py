"""Documents of text: plain text, lines of JSON and rows of tables."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from dnadiff.formats import table
from dnadiff.store.disk import load_json
from dnadiff.store.files import bare_name, open_text

DocumentKind = Literal["file", "line", "row"]  # what is a document of plain text
_OTHER_TABLES = (".xlsx", ".xls")
_PIECE = 1 << 20  # characters of a file read at once


class DocumentFormat(ABC):
    """A format of files with a document in each row, known by the ending of its name; a subclass
    in an imported module is found by itself.

    Attributes:
        name: in the names of what is cached.
        endings: of the names of its files, in lower case, without that of a compression.
    """

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]

    @classmethod
    @abstractmethod
    def rows(
        cls, path: str, columns: Sequence[str]
    ) -> Iterator[tuple[int | str, Mapping[str, Any]]]:
        """Number and columns of each row, at least of those in `columns` that it has; ValueError
        naming file and line."""


class JsonLines(DocumentFormat):
    """An object in each line."""

    name = "jsonl"
    endings = (".jsonl", ".json", ".ndjson")

    @classmethod
    def rows(cls, path: str, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        with open_text(path) as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                where = f"{path}: line {number}"
                try:
                    row = load_json(line)
                except (ValueError, RecursionError) as error:
                    raise ValueError(
                        f"{where} is not JSON ({getattr(error, 'msg', error)}); expected one "
                        "object per line"
                    ) from error
                if not isinstance(row, dict):
                    raise ValueError(
                        f"{where} is a {type(row).__name__}; expected one object per line, such "
                        'as {"text": "..."}'
                    )
                # escapes of halves of surrogate pairs
                texts = "".join(str(row.get(name)) for name in columns) if "\\u" in line else ""
                if half := re.search("[\ud800-\udfff]", texts):
                    raise ValueError(
                        f"{where} contains an unpaired surrogate (\\u{ord(half[0]):x}), which is "
                        "not text; remove it"
                    )
                yield number, row


class _Rows:
    """The rows of a table as documents."""

    def __init__(self, kind: type[table.TableFormat]) -> None:
        self.kind = kind
        self.name = kind.endings[0][1:]

    def rows(self, path: str, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        keys = [("data.column", name) for name in columns]
        for number, cells in table.read_cells(path, keys, blank=True):
            yield number, dict(zip(columns, cells))


def format_of(path: str) -> type[DocumentFormat] | _Rows | None:
    """The format that the name of a file indicates; None for plain text.

    Raises:
        ValueError: for tables that are not read.
    """
    bare = bare_name(path)
    if bare.endswith(_OTHER_TABLES):
        raise ValueError(
            f"{path}: spreadsheets are not read; write it as {', '.join(table.endings())}, or "
            "rename it to .txt if it is plain text"
        )
    kinds = (kind for kind in DocumentFormat.__subclasses__() if bare.endswith(kind.endings))
    return next(kinds, _Rows(table.format_of(path)) if table.is_table(path) else None)


def read_documents(
    path: str, documents: DocumentKind, columns: Sequence[str], keep_line_ends: bool
) -> Iterator[str]:
    """The documents of a file; arguments as of `dnadiff.data.text.corpus.Files`.

    Raises:
        FileNotFoundError, ValueError: naming file and line.
    """
    if (kind := format_of(path)) is not None:
        for number, row in kind.rows(path, columns):
            place = "row" if bare_name(path).endswith(table.Parquet.endings) else "line"
            yield joined(row, columns, f"{path}: {place} {number:,}")
        return
    with open_text(path) as file:
        file.longest = 1 << 29  # a corpus may be one line, as text8 is
        if documents == "file":  # short lines would take many times the memory of their characters
            yield "".join(iter(partial(file.read, _PIECE), ""))
        elif keep_line_ends:
            yield from file
        else:
            is_line = documents == "line"
            yield from (line.strip() if is_line else line if line.strip() else "" for line in file)


def read_sides(path: str, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """File with line, and source and target, of each row: the two columns of a table or of lines of
    JSON, or a line of any other file (`.tsv` too) with a tab between them. Blank lines are left
    out.

    With one column, lines may have one side, and a table gives that side only.

    Raises:
        FileNotFoundError, ValueError: naming file and line, also of an empty side and of ASCII's
            separators, which are the ends of sides in windows.
    """
    rows: Iterable[tuple[int | str, list[str]]]
    kind = format_of(path)
    if kind is not None and kind.name != "tsv":
        rows = (
            (n, [joined(row, [c], path) for c in columns]) for n, row in kind.rows(path, columns)
        )
    else:
        with open_text(path) as file:
            rows = [(n, line.split("\t")) for n, line in enumerate(file, 1) if line.strip()]
    for number, given in rows:
        sides = [side.strip() for side in given]
        where = f"{path}: line {number}"
        if "" in sides:
            name = ("source", "target")[sides.index("") > 0]
            raise ValueError(f"{where} has an empty {name}; complete or remove the pair")
        if len(sides) < len(columns) or len(sides) > 2:
            raise ValueError(
                f"{where} has {len(sides) - 1} tabs; expected source, tab and target, or a .jsonl "
                f"file with {' and '.join(columns)}"
            )
        if mark := re.search("[\x1c-\x1f]", "".join(sides)):
            raise ValueError(
                f"{where} contains the control character U+{ord(mark[0]):04X}, which separates "
                "texts; remove it"
            )
        yield where, sides


def joined(
    row: Mapping[str, Any], columns: Sequence[str], where: str, key: str = "data.column"
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
            known = [repr(name) for name, value in row.items() if isinstance(value, str)]
            raise ValueError(
                f"{where} has no column {column!r}; set {key} to one of "
                f"{', '.join(known) or 'its columns'}"
            )
        if not isinstance(value := row[column], str):
            what = "null" if value is None else f"a value of type {type(value).__name__}"
            raise ValueError(
                f"{where} has {what} in {column!r}, and text is expected; remove the row, or set "
                f"{key} to a column of text"
            )
    return " ".join(row[column] for column in columns)
