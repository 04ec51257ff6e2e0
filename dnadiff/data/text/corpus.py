"""Which documents are for training, validation and test, before anything is tokenized.

A *source* has the documents of a part, train, valid or test, or of all parts (`all`: a single path
that a split divides).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from dnadiff.checks import integer, optional_integer
from dnadiff.data.splits import PARTS
from dnadiff.data.text.documents import Documents, Files, Paths
from dnadiff.data.text.hub import Hub, HubPart

if TYPE_CHECKING:
    from dnadiff.config import Json

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
