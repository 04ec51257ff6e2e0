"""Reading and writing of FASTA: records keep their letters and their case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dnadiff.formats.nucleotides import ID_OF_LETTER, IUPAC, NOT_A_NUCLEOTIDE, not_a_nucleotide
from dnadiff.store.disk import atomic_write
from dnadiff.store.files import chunks, open_binary

BLANK = b"\n\r \t"
MAX_HEADER = 1 << 20  # bytes
MAX_BLANK = (
    1 << 28
)  # bytes of white space without a letter; a compressed file of a few kilobytes can hold terabytes of them


class Header(NamedTuple):
    """The beginning of a record; its sequence is what comes up to the next header. `line` is 0 in
    formats without lines."""

    name: str
    description: str
    line: int


def parse(path: str, chunks: Iterable[bytes], table: bytes) -> Iterator[Header | bytes]:
    r"""Yield headers and letters of FASTA, with any line widths and any mixture of the line ends
    `\n`, `\r\n` and `\r`.

    Args:
        path: for messages.
        chunks: the content in pieces of any size.
        table: what each of the 256 bytes becomes, as in `bytes.translate`; 255 for bytes that are
            not nucleotides.

    Raises:
        ValueError: naming file, line and remedy.
    """
    line, name, at_line_start, blank = 1, None, True, 0
    header: bytes | None = None
    for chunk in _with_newlines(chunks):
        position = 0
        while position < len(chunk):
            if header is not None:
                end = chunk.find(b"\n", position)
                header += chunk[position : end if end >= 0 else len(chunk)]
                if len(header) > MAX_HEADER:
                    raise ValueError(
                        f"{path}: line {line}: a header of more than {MAX_HEADER:,} bytes; "
                        "shorten it"
                    )
                if end < 0:
                    break
                event = _header(path, header, line)
                yield event
                name, header, at_line_start, position, line = (
                    event.name,
                    None,
                    True,
                    end + 1,
                    line + 1,
                )
                continue
            end = chunk.find(b">", position)
            piece = chunk[position : end if end >= 0 else len(chunk)]
            if piece:
                letters = piece.translate(table, BLANK)
                blank = 0 if letters else blank + len(piece)
                _check(path, piece, letters, line, name, blank, table)
                line += piece.count(b"\n")
                at_line_start = piece.endswith(b"\n")
                yield letters
            if end < 0:
                break
            if not at_line_start:
                raise ValueError(
                    f"{path}: line {line}: '>' in the middle of a sequence line; begin the header "
                    "of a record on a new line"
                )
            header, position = b"", end + 1
    if header is not None:
        yield _header(path, header, line)
    elif name is None:
        raise ValueError(f"{path} is empty; give a FASTA file with at least one record")


def _with_newlines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    r"""The chunks with `\n` in place of `\r\n` and `\r`, without a byte order mark; a chunk may end
    between `\r` and `\n`."""
    held, first = b"", True
    for chunk in chunks:
        chunk = held + chunk
        if first and len(chunk) < 3 and b"\xef\xbb\xbf".startswith(chunk):
            held = chunk
            continue
        chunk = chunk.removeprefix(b"\xef\xbb\xbf") if first else chunk
        held, first = b"\r" if chunk.endswith(b"\r") else b"", False
        if b"\r" in chunk:
            chunk = chunk[: len(chunk) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield chunk
    if held:
        yield held.replace(b"\r", b"\n")


def _header(path: str, header: bytes, line: int) -> Header:
    words = header.decode("utf-8", "replace").strip().split(None, 1)
    if not words:
        raise ValueError(f"{path}: line {line}: a record has no name; write one after its '>'")
    return Header(words[0], words[1] if len(words) > 1 else "", line)


def _check(
    path: str, piece: bytes, letters: bytes, line: int, name: str | None, blank: int, table: bytes
) -> None:
    if name is None and letters:
        raise ValueError(_no_header(path, piece, line))
    if NOT_A_NUCLEOTIDE in letters:
        raise ValueError(wrong_letter(path, piece, line, name, table))
    if blank > MAX_BLANK:
        raise ValueError(
            f"{path}: line {line}: more than {MAX_BLANK:,} bytes of blank lines; remove them"
        )


def _no_header(path: str, piece: bytes, line: int) -> str:
    for number, text in enumerate(piece.split(b"\n"), start=line):
        if text.strip():
            try:
                shown = text.strip()[:30].decode("utf-8", "strict" if len(text) <= 30 else "ignore")
            except UnicodeDecodeError as error:
                return (
                    f"{path} is not UTF-8 text ({error.reason}); give a text file, plain or "
                    "gzip-compressed"
                )
            return (
                f"{path} is not FASTA: line {number} is {shown!r}, expected a header such as "
                "'>name' (2bit and GenBank are read as genomes)"
            )
    return f"{path} is not FASTA"


def wrong_letter(path: str, piece: bytes, line: int, name: str | None, table: bytes) -> str:
    """The message for the first letter of `piece` that `table` refuses; `piece` begins on
    `line`."""
    letters = np.frombuffer(piece, np.uint8)
    wrong = (np.frombuffer(table, np.uint8)[letters] == NOT_A_NUCLEOTIDE) & ~np.isin(
        letters, list(BLANK)
    )
    place = int(np.flatnonzero(wrong)[0])
    number = line + piece.count(b"\n", 0, place)
    column = place - piece.rfind(b"\n", 0, place)
    letter, allowed = piece[place : place + 4].decode("utf-8", "replace")[0], ", ".join(IUPAC)
    return (
        f"{path}: line {number}: record {name}: letter {letter!r} at column {column} is not a "
        f"nucleotide; allowed are {allowed} in either case"
    )


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
