"""Reading and writing of FASTA files: plain, gzip and bgzip.

Records keep their letters and their case; `dnadiff.data.genome.genome` turns them into token ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from dnadiff.data.genome.fasta_parser import Header, parse
from dnadiff.data.nucleotides import ID_OF_LETTER, NOT_A_NUCLEOTIDE, not_a_nucleotide
from dnadiff.store.disk import atomic_write
from dnadiff.store.files import chunks, open_binary

LINE_WIDTH = 60
LINES_PER_PIECE = 1 << 16
_LETTERS = bytes(
    letter if ID_OF_LETTER[letter] != NOT_A_NUCLEOTIDE else NOT_A_NUCLEOTIDE
    for letter in range(256)
)


class Record(NamedTuple):
    """One sequence of a FASTA file."""

    name: str  # the first word of the header
    description: str  # the rest of the header
    sequence: bytes


def read_fasta(path: str | Path) -> list[Record]:
    """All records of a FASTA file, with the checks of `iter_fasta`."""
    return list(iter_fasta(path))


def iter_fasta(path: str | Path) -> Iterator[Record]:
    """Yield the records of a FASTA file, with one in memory at a time. Line widths, line ends and
    blank lines do not matter.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is empty or not FASTA, or a record has no name, no sequence, the
            name of an earlier record or a letter that is not a nucleotide.
    """
    header, pieces = None, bytearray()
    for event in chain(iter_events(path), [None]):
        if isinstance(event, bytes):
            pieces += event
            continue
        if header is not None:
            sequence, pieces = bytes(pieces), bytearray()
            yield Record(header.name, header.description, sequence)
        header = event


def iter_events(path: str | Path) -> Iterator[Header | bytes]:
    """Yield the header of each record and then its letters in pieces, in bounded memory, with the
    checks of `iter_fasta`."""
    names: set[str] = set()
    with open_binary(path) as content:
        header, empty = None, True
        for event in chain(parse(str(path), chunks(content), _LETTERS), [None]):
            if isinstance(event, bytes):
                empty = empty and not event
                yield event
                continue
            if header is not None:
                where = f"{path}: line {header.line}: record {header.name}"
                if empty:
                    raise ValueError(f"{where} has no sequence; remove it or complete the file")
                if header.name in names:
                    raise ValueError(
                        f"{where} has the name of an earlier record; rename one, names must be "
                        "unique"
                    )
                names.add(header.name)
            header, empty = event, True
            if event is not None:
                yield event


def write_fasta(path: str | Path, records: Iterable[Record], overwrite: bool = False) -> int:
    """Write records one by one, wrapped at 60 letters, and return their number.

    The file appears when it is complete. With a name that ends in `.gz` it is compressed; the same
    records give the same bytes.

    Raises:
        FileExistsError: if the file exists and `overwrite` is false.
        ValueError: if there is no record, or a record that `read_fasta` would refuse.
    """
    names: set[str] = set()
    with atomic_write(path, overwrite) as handle:
        for record in records:
            name, description, sequence = record
            if name.split() != [name] or name in names:
                raise ValueError(
                    f"{path}: record name {name!r} is empty, repeated or contains white space; "
                    "give each record its own"
                )
            if "\n" in description or "\r" in description:
                raise ValueError(
                    f"{path}: record {name}: the description contains a line break; remove it"
                )
            if (
                problem := not_a_nucleotide(sequence)
                if sequence
                else "no sequence; leave the record out"
            ):
                raise ValueError(f"{path}: record {name}: {problem}")
            names.add(name)
            handle.writelines(wrapped(record))
        if not names:
            raise ValueError(f"{path}: there is no record to write; ask for at least one sequence")
    return len(names)


def as_bytes(record: Record) -> bytes:
    """A record as it is written to a file, wrapped at 60 letters."""
    return b"".join(wrapped(record))


def wrapped(record: Record) -> Iterator[bytes]:
    """The bytes of `as_bytes` in pieces, so that a chromosome is not held as millions of lines."""
    yield f">{record.name} {record.description}".rstrip().encode() + b"\n"
    for start in range(0, len(record.sequence), LINES_PER_PIECE * LINE_WIDTH):
        end = min(start + LINES_PER_PIECE * LINE_WIDTH, len(record.sequence))
        yield b"".join(
            record.sequence[i : min(i + LINE_WIDTH, end)] + b"\n"
            for i in range(start, end, LINE_WIDTH)
        )


def synthetic_record(name: str, sequence: str, **settings: object) -> Record:
    """A generated sequence whose header marks it as synthetic and names the settings:
    `>{name} synthetic sampler=... calls=... seed=...`."""
    return Record(
        name,
        " ".join(["synthetic", *(f"{key}={value}" for key, value in settings.items())]),
        sequence.encode("ascii"),
    )
