"""Letters of DNA sequences: IUPAC codes, their token ids and complements.

The ids are those of `dnadiff.data.tokenizer.DNATokenizer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

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


def ids_of(sequence: DNASequence) -> NDArray[np.uint8]:
    """`ID_OF_LETTER` of each letter `(L,)`; indexing would take nine times the memory."""
    found = plain(sequence)
    letters = found.encode("ascii", "replace") if isinstance(found, str) else found
    return np.frombuffer(bytearray(letters).translate(_ID_TABLE), np.uint8)


def plain(sequence: DNASequence) -> str | bytes:
    """The letters of a sequence without the object of Biopython or pyfaidx around them.

    Raises:
        TypeError: if it is not a sequence.
    """
    if isinstance(sequence, (str, bytes)):
        return sequence
    if not is_sequence(sequence):
        raise TypeError(
            f"{sequence!r:.60} (of type {type(sequence).__name__}) is not a sequence; give its "
            "letters as a string, or leave out what is missing"
        )
    if "pyfaidx" in _modules(sequence):
        return str(sequence)
    found = getattr(sequence, "seq", sequence)  # of a record of Biopython
    return b"" if found is None else bytes(found)


def text_of(sequence: DNASequence) -> str:
    """The letters of a sequence as a string; errors as `plain`."""
    found = plain(sequence)
    return found if isinstance(found, str) else found.decode("latin-1")


def _modules(value: object) -> set[str]:
    """The modules that the classes of a value come from; strings and bytes need none of them."""
    return {base.__module__ for base in type(value).__mro__}


def is_sequence(value: object) -> bool:
    """Whether a value is one sequence, and not several or something else."""
    return isinstance(value, (str, bytes, bytearray)) or not (
        hasattr(value, "keys")
        or _modules(value).isdisjoint(("Bio.Seq", "Bio.SeqRecord", "pyfaidx"))
    )


def several(given: Any) -> Iterator[tuple[str, DNASequence]]:
    """Each of several sequences after its place: its number in a list, an array or a generator, its
    key in a mapping, its index in a Series of pandas. Of a data frame the column `sequence`, after
    the column `name` or the index.

    Raises:
        TypeError: for a single sequence, another table, a set, which has no order, and whatever
            else holds no sequences.
    """
    if (columns := getattr(given, "columns", None)) is not None:
        if "sequence" not in columns:
            shown = ", ".join(map(str, columns))
            raise TypeError(
                f"sequences is a table without a column sequence (it has {shown}); rename the one "
                "with the sequences, or give that column alone"
            )
        names = given["name"] if "name" in columns else given.index
        return zip(map(str, names), given["sequence"])
    one = is_sequence(given)
    is_list = isinstance(given, Iterable)
    if (
        one
        or not is_list
        or isinstance(given, set | frozenset)
        or len(getattr(given, "shape", (1,))) != 1
    ):
        what = f"of type {type(given).__name__}; give a list of strings, or one column of a table"
        if one:
            what = "a single sequence; put it into a list: [sequence]"
        raise TypeError(f"sequences is {what}")
    # A Series and an open pyfaidx.Fasta are no `Mapping`.
    pairs = given.items() if hasattr(given, "keys") else enumerate(given)
    return ((str(place), sequence) for place, sequence in pairs)


def name_of(sequence: DNASequence) -> str | None:
    """The name that an object of Biopython or pyfaidx gives a sequence; None for letters alone."""
    is_record = "pyfaidx" in _modules(sequence)
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
    return (
        f"letter {text_of(sequence)[wrong[0]]!r} at position {wrong[0] + 1} is not a nucleotide; "
        f"allowed are {', '.join(IUPAC)} in either case"
    )
