"""Reading of sequence files: FASTA, 2bit and GenBank, plain or gzip, one or many, a folder, or an open pyfaidx.Fasta.

Every format is read as a stream of headers and codes, in bounded memory (of GenBank, a record at a time). A code is one byte per base: the token id, plus
128 where the letter was lower case. Ambiguity codes other than N are 12, so that the packer can count them before they become N.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeAlias, TypeGuard

from dnadiff.checks import expand_user
from dnadiff.data.files import chunks, decompressed, resolve
from dnadiff.data.genome.fasta_parser import Header, parse
from dnadiff.data.genome.genbank import read_genbank
from dnadiff.data.genome.twobit import SIGNATURES, read_twobit
from dnadiff.data.nucleotides import ID_OF_LETTER, IUPAC

if TYPE_CHECKING:
    from pyfaidx import Fasta

SequencePath: TypeAlias = "str | Path | Fasta | Mapping[str, SequencePath] | Iterable[SequencePath]"
AMBIGUOUS = 12
SUFFIXES = (".fa", ".fasta", ".fna", ".fas", ".ffn", ".fsa", ".2bit", ".gb", ".gbk", ".gbff", ".genbank")
_CHUNK = 1 << 22
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
    folder = expand_user(path)
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
    with decompressed(path, raw) as handle:
        first = handle.read(4)
        if first in SIGNATURES:
            handle.seek(0)
            yield from (Header(*event, 0) if isinstance(event, tuple) else event for event in read_twobit(path, handle))
            return
        first += handle.read(_CHUNK)
        if first.lstrip()[:6] in (b"LOCUS ", b"LOCUS\t"):
            handle.seek(0)
            yield from read_genbank(path, handle, _TABLE)
        else:
            yield from parse(path, chain([first], chunks(handle, _CHUNK)), _TABLE)
