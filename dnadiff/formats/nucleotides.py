"""Letters of DNA sequences: IUPAC codes, their token ids and complements.

The ids are those of `dnadiff.data.tokenizer.DNATokenizer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from Bio.Seq import Seq
    from Bio.SeqRecord import SeqRecord
    from pyfaidx import FastaRecord, Sequence

DNASequence: TypeAlias = "str | bytes | bytearray | Seq | SeqRecord | Sequence | FastaRecord"
IUPAC = "ACGTURYKMSWBDHVN"
_IUPAC_COMPLEMENT = "TGCAAYRMKSWVHDBN"
_COMPLEMENT_LETTER = bytes.maketrans(
    (IUPAC + IUPAC.lower()).encode(), (_IUPAC_COMPLEMENT + _IUPAC_COMPLEMENT.lower()).encode()
)

FIRST_BASE = 7
N_ID = 11
NOT_A_NUCLEOTIDE = 255
ID_OF_LETTER = np.full(
    256, NOT_A_NUCLEOTIDE, dtype=np.uint8
)  # of all bytes: A, C, G, T (and U) in either case, N for other IUPAC codes
ID_OF_LETTER[list((IUPAC + IUPAC.lower()).encode())] = N_ID
ID_OF_LETTER[list(b"ACGTUacgtu")] = [7, 8, 9, 10, 10] * 2
_ID_TABLE = ID_OF_LETTER.tobytes()
NUCLEOTIDES = (IUPAC + IUPAC.lower()).encode()
# For `bytes.translate`: nucleotides themselves, 255 for other bytes.
NUCLEOTIDE_OR_255 = bytes(
    letter if letter in NUCLEOTIDES else NOT_A_NUCLEOTIDE for letter in range(256)
)


def letters(sequence: DNASequence) -> NDArray[np.uint8]:
    """The letters of a string, bytes, or object of Biopython or pyfaidx as bytes `(L,)` uint8;
    non-ASCII letters become `?`."""
    sequence = plain(sequence)
    return np.frombuffer(
        sequence.encode("ascii", "replace") if isinstance(sequence, str) else bytes(sequence),
        dtype=np.uint8,
    )


def ids_of(sequence: DNASequence) -> NDArray[np.uint8]:
    """`ID_OF_LETTER` of each letter `(L,)`; indexing would take nine times the memory."""
    return np.frombuffer(bytearray(letters(sequence)).translate(_ID_TABLE), np.uint8)


def plain(sequence: DNASequence) -> str | bytes:
    """The letters of a sequence without the object of Biopython or pyfaidx around them."""
    if isinstance(sequence, (str, bytes)):
        return sequence
    if "pyfaidx" in _packages(sequence):
        return str(sequence)
    found = getattr(sequence, "seq", sequence)  # of a record of Biopython
    return b"" if found is None else bytes(found)


def _packages(value: object) -> set[str]:
    """The packages that the classes of a value come from; strings and bytes need none of them."""
    return {base.__module__.partition(".")[0] for base in type(value).__mro__}


def is_sequence(value: object) -> bool:
    """Whether a value is one sequence, and not several."""
    return isinstance(value, (str, bytes)) or not _packages(value).isdisjoint(("Bio", "pyfaidx"))


def name_of(sequence: DNASequence) -> str | None:
    """The name that an object of Biopython or pyfaidx gives a sequence; None for letters alone."""
    is_record = "pyfaidx" in _packages(sequence)
    return getattr(sequence, "name" if is_record else "id", None)


def reverse_complement(sequence: str | bytes) -> str | bytes:
    """The reverse complement, letter by letter: all IUPAC codes, case kept; U pairs with A."""
    if isinstance(sequence, str):
        return sequence.encode("ascii").translate(_COMPLEMENT_LETTER)[::-1].decode("ascii")
    return sequence.translate(_COMPLEMENT_LETTER)[::-1]


def not_a_nucleotide(sequence: DNASequence) -> str | None:
    """A message that names the first letter of `sequence` that is not a nucleotide; None if there
    is none."""
    wrong = np.flatnonzero(ids_of(sequence) == NOT_A_NUCLEOTIDE)
    if not len(wrong):
        return None
    sequence = plain(sequence)
    text = sequence if isinstance(sequence, str) else sequence.decode("latin-1")
    return (
        f"letter {text[wrong[0]]!r} at position {wrong[0] + 1} is not a nucleotide; allowed "
        "are "
        f"{', '.join(IUPAC)} in either case"
    )
