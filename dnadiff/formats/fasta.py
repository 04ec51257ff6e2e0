"""Reading and writing of FASTA: records keep their letters and their case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from typing_extensions import override

from dnadiff.formats.nucleotides import (
    IUPAC,
    NOT_A_NUCLEOTIDE,
    NUCLEOTIDE_OR_255,
    NUCLEOTIDES,
    not_a_nucleotide,
)
from dnadiff.formats.sequences import Header, Record, SequenceFormat
from dnadiff.store.disk import atomic_write
from dnadiff.store.files import ByteReader, chunks

BLANK = b"\n\r \t"
MAX_HEADER = 1 << 20  # bytes
LINE_WIDTH = 60
_CHUNK = 1 << 22  # bytes
LINES_PER_PIECE = 1 << 16
# Bytes of white space without a letter; a compressed file of a few kilobytes can hold terabytes of
# them.
MAX_BLANK = 1 << 28


class Fasta(SequenceFormat):
    """FASTA, the format of a file that no other format recognizes: its errors name the line."""

    endings = (".fa", ".fasta", ".fna", ".fas", ".ffn", ".fsa")
    starts = (b"",)  # any content

    @classmethod
    @override
    def records(cls, path: str, content: ByteReader) -> Iterator[Header | bytes]:
        return parse(path, chunks(content, _CHUNK))


def parse(path: str, chunks: Iterable[bytes]) -> Iterator[Header | bytes]:
    r"""Yield headers and letters of FASTA, with any line widths and any mixture of the line ends
    `\n`, `\r\n` and `\r`.

    Args:
        path: for messages.
        chunks: the content in pieces of any size.

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
                letters = piece.translate(NUCLEOTIDE_OR_255, BLANK)
                blank = 0 if letters else blank + len(piece)
                _check(path, piece, letters, line, name, blank)
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
    path: str, piece: bytes, letters: bytes, line: int, name: str | None, blank: int
) -> None:
    if name is None and letters:
        raise ValueError(_no_header(path, piece, line))
    if NOT_A_NUCLEOTIDE in letters:
        raise ValueError(wrong_letter(path, piece, line, name))
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


def wrong_letter(path: str, piece: bytes, line: int, name: str | None) -> str:
    """The message for the first letter of `piece` that is no nucleotide; `piece` begins on
    `line`."""
    place = piece.index(piece.translate(None, NUCLEOTIDES + BLANK)[:1])
    number = line + piece.count(b"\n", 0, place)
    column = place - piece.rfind(b"\n", 0, place)
    letter, allowed = piece[place : place + 4].decode("utf-8", "replace")[0], ", ".join(IUPAC)
    return (
        f"{path}: line {number}: record {name}: letter {letter!r} at column {column} is not a "
        f"nucleotide; allowed are {allowed} in either case"
    )


def write_fasta(path: str | Path, records: Iterable[Record], overwrite: bool = False) -> int:
    """Write records one by one, wrapped at 60 letters, and return their number.

    The file appears when it is complete. With a name that ends in `.gz` it is compressed; the same
    records give the same bytes.

    Raises:
        FileExistsError: if the file exists and `overwrite` is false.
        ValueError: if there is no record, or a record that `read_sequences` would refuse.
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
