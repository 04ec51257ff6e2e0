"""Which documents are for training, validation and test: files or parts of a dataset, before anything is tokenised."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dnadiff.data.splits import PARTS
from dnadiff.data.text.documents import Files
from dnadiff.data.text.hub import Hub

WHOLE = ("all", "train", "test")


class Corpus:
    """The documents of each part.

    Args:
        name: what reports call it.
        path: files that are the part `path_is`, or `{train: ..., valid: ..., test: ...}`; None: what `hub` names.
        hub: see `Hub`.
        documents, column: see `Files`.
        path_is: what a single path stands for: all, train or test.
        valid_documents: so many documents at the end of the training part are the validation part.
        num_documents: documents of the training part; needed where validation is cut off a stream.
        streaming: the training part is read while training goes on.
    """

    def __init__(
        self,
        name: str,
        path: Any,
        hub: Hub | None,
        documents: str,
        column: str | Sequence[str],
        path_is: str,
        valid_documents: int | None,
        num_documents: int | None,
        streaming: bool,
    ) -> None:
        if path is None and hub is None:
            raise ValueError("path names no file; set data.path to a text file, or to {train: ..., valid: ..., test: ...}")
        if isinstance(path, Mapping) and (not path or set(path) - set(PARTS)):
            raise ValueError(f"path has the parts {', '.join(map(str, path)) or 'none'}; expected some of {', '.join(PARTS)}")
        if path_is not in WHOLE:
            raise ValueError(f"path_is is {path_is!r}; choose {' or '.join(WHOLE)} for data.path_is")
        for key, value in (("valid_documents", valid_documents), ("num_documents", num_documents)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{key} is {value!r}; set data.{key} to 1 or more, a whole number, or null")
        self.name, self.path, self.hub, self.documents, self.column, self.path_is = name, path, hub, documents, column, path_is
        self.valid_documents, self.num_documents, self.streaming = valid_documents, num_documents, streaming
        if streaming and "all" in self.places():
            raise ValueError("streaming=true needs parts of their own; set data.path={train: ..., valid: ...}, or data.path_is=train")
        if valid_documents is not None and "all" in self.places():
            raise ValueError(
                f"valid_documents is {valid_documents}, but a single path that is all of the data is cut by data.split; set data.path_is=train, "
                "or data.valid_documents=null"
            )
        if streaming and self.cut_off and num_documents is None:
            raise ValueError("streaming=true cannot tell where the last documents begin; set data.num_documents, or give a valid part")

    def places(self) -> list[str]:
        """The parts that have files or a split of their own; `all` for a single path that a split cuts."""
        own = self.hub.splits if self.path is None else self.path if isinstance(self.path, Mapping) else {self.path_is: self.path}
        return [place for place in ("all", *PARTS) if own.get(place) is not None]

    @property
    def cut_off(self) -> bool:
        """Whether validation is cut off the training part."""
        places = self.places()
        return self.valid_documents is not None and "train" in places and "valid" not in places

    @property
    def parts(self) -> list[str]:
        """Which of train, valid and test there are."""
        places = self.places()
        return [part for part in PARTS if part in places or "all" in places or (part == "valid" and self.cut_off)]

    def place_of(self, part: str) -> str:
        """In which of `places` a part lies.

        Raises:
            ValueError: if there is no such part, with those that there are.
        """
        if part not in PARTS:
            raise ValueError(f"split is {part!r}; expected one of {', '.join(PARTS)}")
        if part not in self.parts:
            remedy = "".join(f"part={other}, or " for other in self.parts)
            raise ValueError(f"{self.name} has no {part} part; set {remedy}data.path={{{part}: FILE}}")
        places = self.places()
        return "all" if "all" in places else part if part in places else "train"

    def check_trainable(self) -> None:
        """Refuse what cannot be trained on.

        Raises:
            ValueError: if there is no training or no validation part, saying which there are.
        """
        if missing := [part for part in ("train", "valid") if part not in self.parts]:
            cut = ", or data.valid_documents=N for the last N documents of train" if missing == ["valid"] else ""
            raise ValueError(
                f"training needs a train and a valid part, and {self.name} has {', '.join(self.parts)} alone; "
                f"set data.path={{train: FILE, valid: FILE}}{cut}"
            )

    def source(self, place: str, keep_line_ends: bool = False) -> Any:
        """The documents of one of `places`: an iterable with `key()` and `since(number)`."""
        if self.path is None:
            return self.hub.part(place, self.name, self.streaming)
        many = self.path[place] if isinstance(self.path, Mapping) else self.path
        return Files(many, self.documents, self.column, keep_line_ends)

    def split_off(self, number: int) -> int:
        """The first document of the validation part, of `number` in the training part.

        Raises:
            ValueError: if none would be left for training.
        """
        if self.valid_documents >= number:
            raise ValueError(
                f"{self.name} has {number:,} documents and valid_documents is {self.valid_documents:,}: none is left for training; "
                "set data.valid_documents"
            )
        return number - self.valid_documents


class DocumentRange:
    """Documents `first` up to but not including `last` of a source.

    Raises:
        ValueError: while it is read, if the source ends before.
    """

    def __init__(self, source: Any, first: int, last: int) -> None:
        self.source, self.first, self.last = source, first, last

    def key(self) -> dict[str, Any]:
        """See `Files.key`."""
        return {"stretch": [self.first, self.last], "of": self.source.key()}

    def since(self, number: int) -> Iterator[str]:
        """Documents from a number on, counted from `first`."""
        wanted, found = max(0, self.last - self.first - number), 0
        for text in itertools.islice(self.source.since(self.first + number), wanted):
            found += 1
            yield text
        if found < wanted:
            raise ValueError(f"the training part has fewer than {self.last:,} documents; set data.num_documents to how many it has")

    def __iter__(self) -> Iterator[str]:
        return self.since(0)
