"""The documents of local files and of the Hugging Face Hub, and which of them are for training,
validation and test.

A *source* has the documents of a part, train, valid or test, or of all parts (`all`: a single path
that a split divides). The package `datasets` is imported on first use and never allowed to run
code.
"""

from __future__ import annotations

import itertools
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal
from urllib.parse import urlsplit

from typing_extensions import override

from dnadiff.data.splits import PARTS
from dnadiff.fields import PositiveInt, checked
from dnadiff.formats.documents import DocumentKind, format_of, joined, read_documents
from dnadiff.store.cache import content_hash
from dnadiff.store.files import matches, resolve

if TYPE_CHECKING:
    from dnadiff.fields import Json

Paths = str | Path | Sequence[str | Path]


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


@checked
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

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it

    def __init__(
        self,
        paths: Paths,
        documents: DocumentKind = "file",
        column: str | Sequence[str] = "text",
        keep_line_ends: bool = False,
    ) -> None:
        self.paths = expanded(paths)
        formats = (format_of(path) for path in self.paths)
        self._kinds = [None if each is None else each.name for each in formats]
        self.documents, self.keep_line_ends = documents, keep_line_ends
        self.columns = [column] if isinstance(column, str) else list(column)

    @override
    def __iter__(self) -> Iterator[str]:
        for path in self.paths:
            yield from read_documents(path, self.documents, self.columns, self.keep_line_ends)

    @override
    def key(self) -> dict[str, Json]:
        hashes = [content_hash(resolve(path)) for path in self.paths]
        kinds = [kind or "text" for kind in self._kinds]
        found: dict[str, Json] = {"files": [list(pair) for pair in zip(hashes, kinds)]}
        found |= {"columns": self.columns} if any(self._kinds) else {}
        plain = {"documents": self.documents, "keep_line_ends": self.keep_line_ends}
        return found if all(self._kinds) else found | plain


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


@checked
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

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it

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
        self.columns = [column] if isinstance(column, str) else list(column)
        self.data_files = (
            None
            if data_files is None
            else {split: [f] if isinstance(f, str) else list(f) for split, f in data_files.items()}
        )


@dataclass
class HubPart(Documents):
    """The documents of one part, in order; `streaming` reads without storing. `name` is that of the
    data in messages."""

    hub: Hub
    part: str
    name: str
    streaming: bool = False

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


@dataclass
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

    name: str
    path: Paths | Mapping[str, Paths] | None
    hub: Hub | None
    documents: DocumentKind
    column: str | Sequence[str]
    path_is: Literal["all", "train", "test"]
    valid_documents: PositiveInt | None
    num_documents: PositiveInt | None
    streaming: bool

    def __post_init__(self) -> None:
        path = self.path
        if path is None and self.hub is None:
            raise ValueError(
                "path names no file; set data.path to a text file, or to {train: ..., valid: ...}"
            )
        if isinstance(path, Mapping) and (not path or set(path) - set(PARTS)):
            raise ValueError(
                f"path has the parts {', '.join(map(str, path)) or 'none'}; expected some of "
                f"{', '.join(PARTS)}"
            )
        self.hub = self.hub if path is None else None
        self._paths: Mapping[str, Paths | None] = (
            {} if path is None else path if isinstance(path, Mapping) else {self.path_is: path}
        )
        given = self._paths if self.hub is None else self.hub.splits
        self.sources = [source for source in ("all", *PARTS) if given.get(source) is not None]
        self.is_divided = "all" in self.sources
        if self.streaming and self.is_divided:
            raise ValueError(
                "streaming=true needs separate parts; set data.path={train: ..., valid: ...}, or "
                "data.path_is=train"
            )
        if self.valid_documents is not None and self.is_divided:
            raise ValueError(
                f"valid_documents is {self.valid_documents}, but a single path with all of the "
                "data is divided by data.split; set data.path_is=train, or "
                "data.valid_documents=null"
            )
        if self.streaming and self.splits_off_validation and self.num_documents is None:
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
        assert self.valid_documents is not None  # `splits_off_validation`
        valid_documents = self.valid_documents
        if valid_documents >= number:
            raise ValueError(
                f"{self.name} has {number:,} documents and valid_documents is {valid_documents:,}: "
                "none is left for training; "
                "set data.valid_documents, or give the validation part its own file, {valid: FILE}"
            )
        return number - valid_documents


@dataclass
class DocumentRange(Documents):
    """Documents `first` up to but not including `last` of a source.

    Raises:
        ValueError: during iteration, if the source ends before `last`.
    """

    source: Documents
    first: int
    last: int

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
