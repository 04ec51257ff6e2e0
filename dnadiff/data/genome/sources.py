"""Where sequences come from: FASTA, 2bit and GenBank files, plain or gzip, one or many, a folder, an open pyfaidx.Fasta.

Every format is read as a stream of headers and of codes, in bounded memory. A code is one byte a base: the token id, plus
128 where the letter was lower case; an ambiguity code other than N is 12, so that the packer can count it before it becomes N.
"""

from __future__ import annotations

import gzip
import io
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from Bio import BiopythonParserWarning, SeqIO

from dnadiff.data.files import is_gzip, resolve
from dnadiff.data.genome.twobit import SIGNATURES, read_twobit
from dnadiff.data.tokenizer import IUPAC, DNATokenizer

AMBIGUOUS = 12
SUFFIXES = (".fa", ".fasta", ".fna", ".fas", ".ffn", ".fsa", ".2bit", ".gb", ".gbk", ".gbff", ".genbank")
_CHUNK = 1 << 22
_BLANK = b"\n\r \t"
_WRONG = 255


class Source(NamedTuple):
    """One file of sequences.

    Attributes:
        path: as the user wrote it.
        label: the species or class that all its records carry; None where none was given.
        names: names to use instead of those in the file, in its order.
    """

    path: str
    label: str | None = None
    names: tuple[str, ...] | None = None


class Header(NamedTuple):
    """The beginning of a record; codes up to the next header are its sequence. `line` is 0 where a format has no lines."""

    name: str
    description: str
    line: int


def expand(path: Any) -> list[Source]:
    """The files meant by a path, a folder, several of them, `{label: path}`, or an open pyfaidx.Fasta.

    Raises:
        FileNotFoundError, ValueError: for what does not exist, and a folder without sequence files.
    """
    if isinstance(path, Mapping):
        return [source._replace(label=str(label)) for label, one in path.items() for source in expand(one)]
    if hasattr(path, "faidx") and hasattr(path, "filename"):
        return [Source(str(path.filename), names=tuple(path.keys()))]
    if not isinstance(path, str | Path):
        return [source for one in _several(path) for source in expand(one)]
    if not str(path).strip():
        raise ValueError(f"path is {path!r}; {_PATHS}")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        resolve(path)
        return [Source(str(path))]
    files = sorted(p for p in folder.iterdir() if p.is_file() and _is_sequence_file(p))
    if not files:
        raise ValueError(f"{path} is a folder without sequence files ({', '.join(SUFFIXES)}, also with .gz); name a file in it")
    return [Source(str(p)) for p in files]


_PATHS = "expected the name of a file or of a folder, a list of them, or {label: name}; set data.path"


def _several(path: Any) -> Iterable[Any]:
    if not isinstance(path, Iterable) or isinstance(path, bytes):
        raise ValueError(f"path is or holds {path!r}; {_PATHS}")
    return path


def paths_of(path: Any) -> list[str]:
    """What the user wrote, as strings, for reports.

    Raises:
        ValueError: if it is no path.
    """
    if isinstance(path, Mapping):
        return [f"{label}={one}" for label, many in path.items() for one in paths_of(many)]
    if hasattr(path, "faidx"):
        return [str(path.filename)]
    return [str(path)] if isinstance(path, str | Path) else [one for each in _several(path) for one in paths_of(each)]


def _is_sequence_file(path: Path) -> bool:
    name = path.name.lower()
    for ending in (".gz", ".bgz"):
        name = name.removesuffix(ending)
    return name.endswith(SUFFIXES) and not name.startswith(".")


def read_codes(path: str, raw: BinaryIO) -> Iterator[Header | bytes]:
    """Headers and codes of an open file; the content, not the name, says which format it is.

    Raises:
        ValueError: naming file, line and remedy.
    """
    if not raw.read(1):
        raise ValueError(f"{path} is empty; give a file that holds sequence")
    raw.seek(0)
    handle = gzip.GzipFile(fileobj=raw) if is_gzip(path, raw) else raw
    try:
        first = handle.read(4)
        if first in SIGNATURES:
            handle.seek(0)
            yield from (Header(*event, 0) if isinstance(event, tuple) else event for event in read_twobit(path, handle))
            while handle.read(_CHUNK):  # the checksum of a gzip file is at its end
                pass
            return
        first += handle.read(_CHUNK)
        if first.lstrip()[:6] in (b"LOCUS ", b"LOCUS\t"):
            handle.seek(0)
            yield from _read_genbank(path, handle)
        else:
            yield from read_fasta_codes(path, handle, first)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); fetch or compress it again") from error


def code_table() -> bytes:
    """The code of each of the 256 bytes; 255 for what is no nucleotide."""
    table = np.full(256, _WRONG, dtype=np.uint8)
    dna = DNATokenizer()
    for letter in IUPAC:
        table[ord(letter)] = dna.encode(letter)[0] if letter in "ACGTUN" else AMBIGUOUS
        table[ord(letter.lower())] = table[ord(letter)] | 0x80
    return table.tobytes()


_TABLE = code_table()


def read_fasta_codes(path: str, handle: BinaryIO, first: bytes) -> Iterator[Header | bytes]:
    """FASTA, any line ends and widths, blank lines anywhere; `first` is what was already read of it."""
    line, name, header, at_line_start = 1, None, None, True
    first = first.removeprefix(b"\xef\xbb\xbf")
    old_mac = b"\r" in first and b"\n" not in first
    chunk = first
    while chunk:
        if old_mac:
            chunk = chunk.replace(b"\r", b"\n")
        position = 0
        while position < len(chunk):
            if header is not None:
                end = chunk.find(b"\n", position)
                header += chunk[position : end if end >= 0 else len(chunk)]
                if end < 0:
                    break
                event = _header(path, header, line)
                name, header, at_line_start, position = event.name, None, True, end + 1
                line += 1
                yield event
                continue
            end = chunk.find(b">", position)
            piece = chunk[position : end if end >= 0 else len(chunk)]
            if piece:
                codes = piece.translate(_TABLE, _BLANK)
                if name is None and codes:
                    raise ValueError(_no_header(path, piece, line))
                if _WRONG in codes:
                    raise ValueError(_wrong_letter(path, piece, line, name))
                line += piece.count(b"\n")
                at_line_start = piece[-1:] in (b"\n", b"\r")
                if codes:
                    yield codes
            if end < 0:
                break
            if not at_line_start:
                raise ValueError(f"{path}: line {line}: '>' in the middle of a sequence line; begin the header of a record on a new line")
            header, position = b"", end + 1
        chunk = handle.read(_CHUNK)
    if header is not None:
        yield _header(path, header, line)
    elif name is None:
        raise ValueError(f"{path} is empty; give a FASTA file with at least one record")


def _header(path: str, header: bytes, line: int) -> Header:
    words = header.decode("utf-8", "replace").strip().split(None, 1)
    if not words:
        raise ValueError(f"{path}: line {line}: a record has no name; write one after its '>'")
    return Header(words[0], words[1] if len(words) > 1 else "", line)


def _no_header(path: str, piece: bytes, line: int) -> str:
    for number, text in enumerate(piece.split(b"\n"), start=line):
        if text.strip():
            shown = text.strip()[:30].decode("utf-8", "replace")
            return f"{path} is not FASTA: line {number} is {shown!r}, where a header such as '>name' must stand (2bit and GenBank are read too)"
    return f"{path} is not FASTA"


def _wrong_letter(path: str, piece: bytes, line: int, name: str | None) -> str:
    codes = np.frombuffer(_TABLE, np.uint8)[np.frombuffer(piece, np.uint8)]
    codes[np.isin(np.frombuffer(piece, np.uint8), np.frombuffer(_BLANK, np.uint8))] = 0
    place = int(np.flatnonzero(codes == _WRONG)[0])
    number = line + piece.count(b"\n", 0, place)
    column = place - piece.rfind(b"\n", 0, place)
    letter = piece[place : place + 4].decode("utf-8", "replace")[0]
    allowed = ", ".join(IUPAC)
    return f"{path}: line {number}: record {name}: letter {letter!r} at column {column} is not a nucleotide; allowed are {allowed} in either case"


def _read_genbank(path: str, handle: BinaryIO) -> Iterator[Header | bytes]:
    try:
        for record in _genbank_records(handle):
            if len(record.seq) and not record.seq.defined:
                raise ValueError(f"record {record.id} has no sequence (only its length is given); fetch the full GenBank record")
            yield Header(record.id, record.description, 0)
            letters = bytes(record.seq)
            codes = letters.translate(_TABLE, _BLANK)
            if _WRONG in codes:
                raise ValueError(_wrong_letter("", letters, 1, record.id).partition(": record ")[2])
            if codes:
                yield codes
    except (ValueError, BiopythonParserWarning) as error:
        cut_short = isinstance(error, BiopythonParserWarning) or str(error).startswith("Premature end")
        problem = f" is damaged or cut short ({str(error).rstrip('.')}): fetch it again" if cut_short else f": {error}"
        raise ValueError(f"{path}{problem}; this is read as GenBank") from None


def _genbank_records(handle: BinaryIO) -> Iterator[Any]:
    """Biopython's records. It only warns of a length other than the one in LOCUS, and of a record without its closing `//`."""
    records = iter(SeqIO.parse(io.TextIOWrapper(handle, encoding="utf-8"), "genbank"))
    while True:
        with warnings.catch_warnings():
            for message in ("Expected sequence length", "Premature end of file"):
                warnings.filterwarnings("error", message, BiopythonParserWarning)
            record = next(records, None)
        if record is None:
            return
        yield record


def as_sources(path: Any) -> Sequence[Source]:
    """`expand`, refusing nothing at all.

    Raises:
        ValueError: if `path` names no file.
    """
    sources = expand(path)
    if not sources:
        raise ValueError("path names no file; set data.path to a FASTA file or to a list of them")
    return sources
