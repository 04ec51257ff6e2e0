"""Reading of sequence files of any format, plain or compressed, in bounded memory.

Records keep their letters and their case; `dnadiff.data.genome` turns them into token ids. Formats
are found by themselves: every subclass of `SequenceFormat` in an imported module is one, also in a
module that `plugins=` names. The last one that was defined is tried first, so that a format of a
user comes before those of the package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from dnadiff.formats.nucleotides import NUCLEOTIDES, not_a_nucleotide
from dnadiff.store.files import ByteReader, check_content, decompressed, resolve

_SNIFFED = 1 << 16  # bytes at the beginning of a file that decide on its format


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
        starts: how the content of its files begins, after white space.
    """

    endings: ClassVar[tuple[str, ...]] = ()
    starts: ClassVar[tuple[bytes, ...]] = ()

    @classmethod
    def sniff(cls, first: bytes) -> bool:
        """Whether a file whose content begins with these bytes, decompressed, has this format."""
        return first.lstrip().startswith(cls.starts)

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


def endings() -> tuple[str, ...]:
    """The endings of the names of sequence files, without that of a compression."""
    return tuple(ending for kind in SequenceFormat.__subclasses__() for ending in kind.endings)


def read_sequences(path: str | Path) -> list[Record]:
    """All records of a file, with the checks of `events`."""
    return list(iter_sequences(path))


def iter_sequences(path: str | Path) -> Iterator[Record]:
    """Yield the records of a file, with one in memory at a time; errors as of `events`."""
    header, pieces = None, bytearray()
    for event in chain(events(path), [None]):
        if isinstance(event, bytes):
            pieces += event
            continue
        if header is not None:
            sequence, pieces = bytes(pieces), bytearray()
            yield Record(header.name, header.description, sequence)
        header = event


def events(path: str | Path) -> Iterator[Header | bytes]:
    """Yield the header of each record of a file and then its letters in pieces.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming file, line and remedy, if the file is empty or malformed, or a record has
            no name, no sequence, the name of an earlier record or a letter that is not a
            nucleotide.
    """
    file = resolve(path)
    check_content(path, file)
    with file.open("rb") as raw:
        yield from events_of(str(path), raw)


def events_of(path: str, raw: BinaryIO) -> Iterator[Header | bytes]:
    """As `events`, of an open file. Its format is detected from its content, not from its name."""
    names: set[str] = set()
    where, empty = path, False
    with decompressed(path, raw) as content:
        first = content.read(_SNIFFED)
        content.seek(0)
        kinds = reversed(SequenceFormat.__subclasses__())
        kind = next(kind for kind in kinds if kind.sniff(first))  # FASTA takes what is left
        for event in chain(kind.records(path, content), [None]):
            if isinstance(event, bytes):
                if event.translate(None, NUCLEOTIDES):
                    raise ValueError(f"{where}: {not_a_nucleotide(event)}")
                empty = empty and not event
                yield event
                continue
            if empty:
                raise ValueError(f"{where} has no sequence; remove it or complete the file")
            if event is None:
                break
            line = f" line {event.line}:" if event.line else ""
            where, empty = f"{path}:{line} record {event.name}", True
            if event.name in names:
                raise ValueError(
                    f"{where} has the name of an earlier record; rename one, names must be unique"
                )
            names.add(event.name)
            yield event
    if not names:
        raise ValueError(f"{path} is empty; give a file with at least one record")
