"""Reading of sequence files: FASTA, 2bit and GenBank, plain or gzip, one or many, a folder, or an open pyfaidx.Fasta.

Every format is read as a stream of headers and codes, in bounded memory. A code is one byte per base: the token id, plus
128 where the letter was lower case. Ambiguity codes other than N are 12, so that the packer can count them before they become N.
"""

from __future__ import annotations

import gzip
import io
import sys
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeAlias, TypeGuard

import numpy as np
from Bio import BiopythonParserWarning, SeqIO
from Bio.SeqRecord import SeqRecord

from dnadiff.data.files import ByteReader, is_gzip, resolve
from dnadiff.data.genome.twobit import SIGNATURES, read_twobit
from dnadiff.data.nucleotides import ID_OF_LETTER, IUPAC, NOT_A_NUCLEOTIDE

if TYPE_CHECKING:
    from pyfaidx import Fasta

SequencePath: TypeAlias = "str | Path | Fasta | Mapping[str, SequencePath] | Iterable[SequencePath]"
AMBIGUOUS = 12
SUFFIXES = (".fa", ".fasta", ".fna", ".fas", ".ffn", ".fsa", ".2bit", ".gb", ".gbk", ".gbff", ".genbank")
_CHUNK = 1 << 22
_BLANK = b"\n\r \t"
_CODES = ID_OF_LETTER.copy()  # of the 256 bytes; 255 for bytes that are not nucleotides
_CODES[list(b"RYKMSWBDHVrykmswbdhv")] = AMBIGUOUS
_CODES[list(IUPAC.lower().encode())] |= 0x80
_TABLE = _CODES.tobytes()
_PATHS = "expected the name of a file or of a folder, a list of them, or {label: name}"


class Source(NamedTuple):
    """One file of sequences."""

    path: str  # as the user wrote it
    label: str | None = None  # the species or class of all its records
    names: tuple[str, ...] | None = None  # names to use instead of those in the file, in the order of the file


class Header(NamedTuple):
    """The beginning of a record; its sequence is the codes up to the next header. `line` is 0 in formats without lines."""

    name: str
    description: str
    line: int


def expand(path: SequencePath | None) -> list[Source]:
    """The files of a path, a folder, several of them, `{label: path}`, or an open pyfaidx.Fasta.

    Raises:
        FileNotFoundError, ValueError: if a file does not exist, or a folder contains no sequence files.
    """
    if isinstance(path, Mapping):
        return [source._replace(label=str(label)) for label, one in path.items() for source in expand(one)]
    if _is_pyfaidx(path):
        return [Source(str(path.filename), names=tuple(path.keys()))]
    if not isinstance(path, (str, Path)):
        return [source for one in _several(path) for source in expand(one)]
    if not str(path).strip():
        raise ValueError(f"data.path is {path!r}; {_PATHS}")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        resolve(path)
        return [Source(str(path))]
    files = sorted(p for p in folder.iterdir() if p.is_file() and _is_sequence_file(p))
    if not files:
        raise ValueError(f"{path} is a folder without sequence files ({', '.join(SUFFIXES)}, also with .gz); name a file in it")
    return [Source(str(p)) for p in files]


def paths_of(path: SequencePath | None) -> list[str]:
    """The paths that the user wrote, as strings, for reports.

    Raises:
        ValueError: if it is not a path.
    """
    if isinstance(path, Mapping):
        return [f"{label}={one}" for label, many in path.items() for one in paths_of(many)]
    if _is_pyfaidx(path):
        return [str(path.filename)]
    return [str(path)] if isinstance(path, (str, Path)) else [one for each in _several(path) for one in paths_of(each)]


def _several(path: SequencePath | None) -> Iterable[SequencePath]:
    if not isinstance(path, Iterable) or isinstance(path, bytes):
        raise ValueError(f"data.path is or contains {path!r}; {_PATHS}")
    return path


def _is_pyfaidx(path: SequencePath | None) -> TypeGuard[Fasta]:
    module = sys.modules.get("pyfaidx")  # optional; an open file cannot exist unless the module is imported
    return module is not None and isinstance(path, module.Fasta)


def _is_sequence_file(path: Path) -> bool:
    name = path.name.lower().removesuffix(".gz").removesuffix(".bgz")
    return name.endswith(SUFFIXES) and not name.startswith(".")


def read_codes(path: str, raw: BinaryIO) -> Iterator[Header | bytes]:
    """Yield headers and codes of an open file; the format is detected from the content, not from the name.

    Raises:
        ValueError: naming file, line and remedy.
    """
    if not raw.read(1):
        raise ValueError(f"{path} is empty; give a file that holds sequence")
    raw.seek(0)
    handle: ByteReader = gzip.GzipFile(fileobj=raw) if is_gzip(path, raw) else raw
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


def read_fasta_codes(path: str, handle: ByteReader, first: bytes) -> Iterator[Header | bytes]:
    """Yield headers and codes of FASTA with any line ends and widths; `first` is the beginning, which was read already."""
    line, name, header, at_line_start = 1, None, None, True
    chunk = first.removeprefix(b"\xef\xbb\xbf")
    old_mac = b"\r" in chunk and b"\n" not in chunk
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
                yield event
                name, header, at_line_start, position, line = event.name, None, True, end + 1, line + 1
                continue
            end = chunk.find(b">", position)
            piece = chunk[position : end if end >= 0 else len(chunk)]
            if piece:
                codes = piece.translate(_TABLE, _BLANK)
                if name is None and codes:
                    raise ValueError(_no_header(path, piece, line))
                if NOT_A_NUCLEOTIDE in codes:
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
            return f"{path} is not FASTA: line {number} is {shown!r}, expected a header such as '>name' (2bit and GenBank are read too)"
    return f"{path} is not FASTA"


def _wrong_letter(path: str, piece: bytes, line: int, name: str | None) -> str:
    letters = np.frombuffer(piece, np.uint8)
    wrong = (_CODES[letters] == NOT_A_NUCLEOTIDE) & ~np.isin(letters, list(_BLANK))
    place = int(np.flatnonzero(wrong)[0])
    number = line + piece.count(b"\n", 0, place)
    column = place - piece.rfind(b"\n", 0, place)
    letter, allowed = piece[place : place + 4].decode("utf-8", "replace")[0], ", ".join(IUPAC)
    return f"{path}: line {number}: record {name}: letter {letter!r} at column {column} is not a nucleotide; allowed are {allowed} in either case"


def _read_genbank(path: str, handle: ByteReader) -> Iterator[Header | bytes]:
    try:
        for record in _genbank_records(handle):
            sequence, name = record.seq, str(record.id)
            if sequence is None or (len(sequence) and not sequence.defined):
                raise ValueError(f"record {name} has no sequence (only its length is given); fetch the full GenBank record")
            yield Header(name, record.description, 0)
            letters = bytes(sequence)
            codes = letters.translate(_TABLE, _BLANK)
            if NOT_A_NUCLEOTIDE in codes:
                raise ValueError(_wrong_letter("", letters, 1, name).partition(": record ")[2])
            if codes:
                yield codes
    except (ValueError, BiopythonParserWarning) as error:
        cut_short = isinstance(error, BiopythonParserWarning) or str(error).startswith("Premature end")
        problem = f" is damaged or cut short ({str(error).rstrip('.')}): fetch it again" if cut_short else f": {error}"
        raise ValueError(f"{path}{problem}; this is read as GenBank") from None


def _genbank_records(handle: ByteReader) -> Iterator[SeqRecord]:
    """Biopython's records; its warnings of a wrong length in LOCUS and of a missing `//` at the end become errors."""
    records = iter(SeqIO.parse(io.TextIOWrapper(handle, encoding="utf-8"), "genbank"))
    while True:
        with warnings.catch_warnings():
            for message in ("Expected sequence length", "Premature end of file"):
                warnings.filterwarnings("error", message, BiopythonParserWarning)
            record = next(records, None)
        if record is None:
            return
        yield record
