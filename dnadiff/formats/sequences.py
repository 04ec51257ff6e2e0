"""Reading of sequence files: FASTA, 2bit and GenBank, plain or gzip.

Every format is read as a stream of headers and codes, in bounded memory (of GenBank, a record at a
time). A code is one byte per base: the token id, plus 128 where the letter was lower case.
Ambiguity codes other than N are 12, so that the packer can count them before they become N.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO

from dnadiff.formats.fasta import Header, parse
from dnadiff.formats.nucleotides import ID_OF_LETTER, IUPAC
from dnadiff.formats.twobit import SIGNATURES, read_twobit
from dnadiff.store.files import chunks, decompressed

AMBIGUOUS = 12
_CHUNK = 1 << 22
_CODES = ID_OF_LETTER.copy()  # of the 256 bytes; 255 for bytes that are not nucleotides
_CODES[list(b"RYKMSWBDHVrykmswbdhv")] = AMBIGUOUS
_CODES[list(IUPAC.lower().encode())] |= 0x80
_TABLE = _CODES.tobytes()


def read_codes(path: str, raw: BinaryIO) -> Iterator[Header | bytes]:
    """Yield headers and codes of an open file; the format is detected from the content, not from
    the name.

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
            yield from (
                Header(*event, 0) if isinstance(event, tuple) else event
                for event in read_twobit(path, handle)
            )
            return
        first += handle.read(_CHUNK)
        if first.lstrip()[:6] in (b"LOCUS ", b"LOCUS\t"):
            from dnadiff.formats.genbank import read_genbank  # imports Biopython

            handle.seek(0)
            yield from read_genbank(path, handle, _TABLE)
        else:
            yield from parse(path, chain([first], chunks(handle, _CHUNK)), _TABLE)
