"""The documents of local files and of the Hugging Face Hub, and which of them are for training,
validation and test.

A *source* has the documents of a part, train, valid or test, or of all parts (`all`: a single path
that a split divides). The package `datasets` is imported on first use and never allowed to run
code.
"""

from __future__ import annotations

import csv
import itertools
import json
import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TextIO
from urllib.parse import urlsplit

from typing_extensions import override

from dnadiff.checks import integer, optional_integer
from dnadiff.data.genome.sources import matches
from dnadiff.data.splits import PARTS
from dnadiff.store.address import file_name
from dnadiff.store.cache import content_hash
from dnadiff.store.files import bare_name, open_text, resolve

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
    suffix = Path(bare := bare_name(path)).suffix
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


_LOCAL = ("parquet", "json", "text", "csv", "arrow")  # readers of files, not repositories
_PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "http_proxy", "HTTP_PROXY")


def hub_is_reachable() -> bool:
    """Whether the host name of the Hub resolves, so that a machine without a network fails at once
    instead of after many retries.

    True with a proxy, which resolves the name itself; False if `HF_HUB_OFFLINE` is set.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if any(os.environ.get(name) for name in _PROXIES):
        return True
    try:
        socket.getaddrinfo(
            urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname, 443
        )
        return True
    except OSError:
        return False


class Hub:
    """A dataset of the Hub, or local files read by `datasets` (`id` parquet, json, text, csv or
    arrow, with `data_files`).

    Args:
        splits: names of the parts in the dataset: `{train: train, valid: validation, test: test}`.
        subset: name of the configuration, for repositories with several.
        column: name of the text column. Several columns are joined by a space.
        data_files: files of the repository (patterns) for each of its splits; None: the
            repository's own choice.
    """

    buildable: ClassVar[bool] = (
        True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)
    )

    def __init__(
        self,
        id: str,
        splits: Mapping[str, str],
        subset: str | None = None,
        revision: str | None = None,
        column: str | Sequence[str] = "text",
        data_files: Mapping[str, str | Sequence[str]] | None = None,
    ) -> None:
        if wrong := [part for part in splits if part not in PARTS]:
            raise ValueError(f"hub.splits names {wrong[0]!r}; expected train, valid and test")
        self.id, self.subset, self.revision, self.splits = id, subset, revision, dict(splits)
        self.columns = columns_of(column)
        self.data_files = (
            None
            if data_files is None
            else {split: [f] if isinstance(f, str) else list(f) for split, f in data_files.items()}
        )


class HubPart(Documents):
    """The documents of one part, in order; `streaming` reads without storing. `name` is that of the
    data in messages."""

    def __init__(self, hub: Hub, part: str, name: str, streaming: bool = False) -> None:
        self.hub, self.part, self.name, self.streaming = hub, part, name, streaming

    @override
    def key(self) -> dict[str, Json]:
        hub = self.hub
        content = [
            [Path(f).name, content_hash(Path(f))] for f in self._local_files()
        ]  # repositories are identified by their revision
        named = {
            "hub": hub.id,
            "subset": hub.subset,
            "revision": hub.revision,
            "split": hub.splits[self.part],
        }
        return {
            **named,
            "columns": hub.columns,
            "data_files": hub.data_files,
            **({"files": content} if content else {}),
        }

    def _local_files(self) -> list[str]:
        hub = self.hub
        if hub.id not in _LOCAL and Path(hub.id).is_dir():
            return sorted(str(path) for path in Path(hub.id).rglob("*") if path.is_file())
        given = (
            hub.data_files.get(hub.splits[self.part], [])
            if hub.id in _LOCAL and hub.data_files
            else []
        )
        return expanded([path for path in given if "://" not in str(path)])

    @override
    def __iter__(self) -> Iterator[str]:
        return self.since(0)

    @override
    def since(self, number: int) -> Iterator[str]:
        for place, row in enumerate(self._read(iter(self._load(number))), number + 1):
            yield joined(
                row,
                self.hub.columns,
                f"{self.hub.id}: row {place:,} of {self.hub.splits[self.part]}",
                "data.hub.column",
            )

    def _read(self, rows: Iterator[dict[str, Json]]) -> Iterator[dict[str, Json]]:
        try:
            yield from rows
        except (
            ValueError,
            OSError,
            RuntimeError,
        ) as error:  # of pyarrow and of `datasets`; none names the file
            source = ", ".join(self._local_files()) or self.hub.id
            message = " ".join(str(error).split())[:160]
            raise ValueError(
                f"{self.name}: {source} is damaged or cannot be read ({type(error).__name__}: "
                f"{message}); fetch it again"
            ) from error

    def _load(self, skip: int) -> Iterable[dict[str, Json]]:
        if not hub_is_reachable():
            os.environ.setdefault(
                "HF_HUB_OFFLINE", "1"
            )  # read when `datasets` is imported; stored datasets are still found
        import datasets

        hub = self.hub
        settings = {"split": hub.splits[self.part], "streaming": self.streaming}
        settings |= {
            key: value
            for key, value in (("revision", hub.revision), ("data_files", hub.data_files))
            if value
        }
        try:
            rows = datasets.load_dataset(hub.id, hub.subset, **settings)
        except Exception as error:  # several libraries raise, depending on what fails
            message = " ".join(str(error).split())[:160]
            files = ", ".join(f"{part}: FILE" for part in hub.splits)
            raise ValueError(
                f"{self.name}: the dataset {hub.id} could not be loaded from the Hugging Face Hub "
                f"({type(error).__name__}: {message}); "
                f"without a network, give the file of its {self.part} part, and of other parts "
                f"that are needed: 'data.path={{{files}}}' "
                "(.txt, .jsonl or .parquet with "
                f"{'a column' if len(hub.columns) == 1 else 'columns'} {', '.join(hub.columns)})"
            ) from error
        return rows.skip(skip) if skip else rows


CHOICES = ("all", "train", "test")


class Corpus:
    """The documents of each part.

    Args:
        path: files, which are the part `path_is`, or `{train: ..., valid: ..., test: ...}`; None:
            see `hub`.
        documents, column: see `Files`.
        path_is: the part that a single path contains: all, train or test.
        valid_documents: use the last documents of the training part, this many, for validation.
        num_documents: documents of the training part; required to split validation off a stream.
        streaming: read the training part during training.
    """

    def __init__(
        self,
        name: str,
        path: Paths | Mapping[str, Paths] | None,
        hub: Hub | None,
        documents: str,
        column: str | Sequence[str],
        path_is: str,
        valid_documents: int | None,
        num_documents: int | None,
        streaming: bool,
    ) -> None:
        if path is None and hub is None:
            raise ValueError(
                "path names no file; set data.path to a text file, or to {train: ..., valid: ...}"
            )
        if isinstance(path, Mapping) and (not path or set(path) - set(PARTS)):
            raise ValueError(
                f"path has the parts {', '.join(map(str, path)) or 'none'}; expected some of "
                f"{', '.join(PARTS)}"
            )
        if path_is not in CHOICES:
            raise ValueError(
                f"path_is is {path_is!r}; choose {' or '.join(CHOICES)} for data.path_is"
            )
        self.valid_documents = optional_integer("data.valid_documents", valid_documents)
        self.num_documents = optional_integer("data.num_documents", num_documents)
        self.name, self.documents, self.column, self.streaming = name, documents, column, streaming
        self.hub = hub if path is None else None
        self._paths: Mapping[str, Paths | None] = (
            {} if path is None else path if isinstance(path, Mapping) else {path_is: path}
        )
        given = self._paths if self.hub is None else self.hub.splits
        self.sources = [source for source in ("all", *PARTS) if given.get(source) is not None]
        self.is_divided = "all" in self.sources
        if streaming and self.is_divided:
            raise ValueError(
                "streaming=true needs separate parts; set data.path={train: ..., valid: ...}, or "
                "data.path_is=train"
            )
        if valid_documents is not None and self.is_divided:
            raise ValueError(
                f"valid_documents is {valid_documents}, but a single path with all of the data is "
                "divided by data.split; set data.path_is=train, "
                "or data.valid_documents=null"
            )
        if streaming and self.splits_off_validation and num_documents is None:
            raise ValueError(
                "streaming=true with valid_documents needs the number of documents; set "
                "data.num_documents, or give a valid part"
            )

    @property
    def splits_off_validation(self) -> bool:
        """Whether the last documents of the training part are used for validation."""
        return (
            self.valid_documents is not None
            and "train" in self.sources
            and "valid" not in self.sources
        )

    @property
    def parts(self) -> list[str]:
        """The available parts among train, valid and test."""
        available = {
            *self.sources,
            *(PARTS if self.is_divided else ()),
            *(["valid"] if self.splits_off_validation else ()),
        }
        return [part for part in PARTS if part in available]

    def source_of(self, part: str) -> str:
        """The name of the source that contains a part; raises ValueError if there is no such
        part."""
        if part not in PARTS:
            raise ValueError(f"split is {part!r}; expected one of {', '.join(PARTS)}")
        if part not in self.parts:
            remedy = "".join(f"part={other}, or " for other in self.parts)
            raise ValueError(
                f"{self.name} has no {part} part; set {remedy}data.path={{{part}: FILE}}"
            )
        return "all" if self.is_divided else part if part in self.sources else "train"

    def check_trainable(self) -> None:
        """Raise ValueError if there is no training or validation part."""
        missing = [part for part in PARTS[:2] if part not in self.parts]
        if missing:
            cut = (
                ", or data.valid_documents=N for the last N documents of train"
                if missing == ["valid"]
                else ""
            )
            raise ValueError(
                f"training needs a train and a valid part, but {self.name} has only "
                f"{', '.join(self.parts)}; "
                f"set data.path={{train: FILE, valid: FILE}}{cut}"
            )

    def documents_in(self, source: str, keep_line_ends: bool = False) -> Documents:
        """The documents of a source. Raises FileNotFoundError if a file does not exist."""
        if self.hub is not None:
            return HubPart(self.hub, source, self.name, self.streaming)
        paths = self._paths[source]
        assert paths is not None  # `sources` leaves those out
        return Files(paths, self.documents, self.column, keep_line_ends)

    def first_valid_document(self, number: int) -> int:
        """The first document of the validation part, of `number` in the training part; raises
        ValueError if training has none."""
        valid_documents = integer("data.valid_documents", self.valid_documents)
        if valid_documents >= number:
            raise ValueError(
                f"{self.name} has {number:,} documents and valid_documents is {valid_documents:,}: "
                "none is left for training; "
                "set data.valid_documents, or give the validation part its own file, {valid: FILE}"
            )
        return number - valid_documents


class DocumentRange(Documents):
    """Documents `first` up to but not including `last` of a source.

    Raises:
        ValueError: during iteration, if the source ends before `last`.
    """

    def __init__(self, source: Documents, first: int, last: int) -> None:
        self.source, self.first, self.last = source, first, last

    @override
    def key(self) -> dict[str, Json]:
        return {"stretch": [self.first, self.last], "of": self.source.key()}

    @override
    def since(self, number: int) -> Iterator[str]:
        wanted, found = max(0, self.last - self.first - number), 0
        for text in itertools.islice(self.source.since(self.first + number), wanted):
            found += 1
            yield text
        if found < wanted:
            raise ValueError(
                f"the training part has fewer than {self.last:,} documents; set data.num_documents "
                "to their number"
            )

    @override
    def __iter__(self) -> Iterator[str]:
        return self.since(0)
