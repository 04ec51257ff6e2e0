"""What a file format is: a class that recognizes its files and reads their records.

Formats are found by themselves: every subclass in an imported module is one, also in a module that
`plugins=` names. The last one that was defined is tried first, so that a format of a user comes
before those of the package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from dnadiff.store.files import ByteReader


class Header(NamedTuple):
    """The beginning of a record; its sequence is what comes up to the next header. `line` is 0 in
    formats without lines."""

    name: str
    description: str = ""
    line: int = 0


class Record(NamedTuple):
    """One sequence of a file."""

    name: str  # the first word of the header
    description: str  # the rest of the header
    sequence: bytes


class SequenceFormat(ABC):
    """A format of files of sequences.

    Attributes:
        endings: of the names of its files, in lower case, without that of a compression.
    """

    endings: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def sniff(cls, first: bytes) -> bool:
        """Whether a file whose content begins with these bytes, decompressed, has this format."""

    @classmethod
    @abstractmethod
    def records(cls, path: str, content: ByteReader) -> Iterator[Header | bytes]:
        """Yield the header of each record, followed by its letters in pieces of any size.

        Args:
            path: for messages.
            content: the open file, decompressed, at its beginning.

        Raises:
            ValueError: naming file, line and remedy.
        """
