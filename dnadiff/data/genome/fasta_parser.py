"""The parser of FASTA: bytes in, headers and letters out, in bounded memory. Genomes and single
files are read with it alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from dnadiff.data.nucleotides import IUPAC, NOT_A_NUCLEOTIDE

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
