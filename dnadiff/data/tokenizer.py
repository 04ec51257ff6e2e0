"""Letters to token ids and back, for DNA and for characters of text.

The DNA ids are those of Caduceus and HyenaDNA, so that published weights load. What a model needs to know
about an alphabet is the tokenizer's `vocab`; case is kept by `dnadiff.data.genome.genome`, not here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dnadiff.vocab import Vocab

IUPAC = "ACGTURYKMSWBDHVN"
_IUPAC_COMPLEMENT = "TGCAAYRMKSWVHDBN"
_COMPLEMENT_LETTER = bytes.maketrans((IUPAC + IUPAC.lower()).encode(), (_IUPAC_COMPLEMENT + _IUPAC_COMPLEMENT.lower()).encode())

_BASES = "ACGT"
_FIRST_BASE = 7
_N = 11
_NOT_A_NUCLEOTIDE = 255


def _id_of_letter() -> NDArray[np.uint8]:
    """The ids of all 256 bytes: A, C, G, T (and U) in either case, N for the other IUPAC codes, 255 for the rest."""
    table = np.full(256, _NOT_A_NUCLEOTIDE, dtype=np.uint8)
    for letter in IUPAC:
        token = _FIRST_BASE + _BASES.index(letter) if letter in _BASES else _N
        table[[ord(letter), ord(letter.lower())]] = token
    table[[ord("U"), ord("u")]] = _FIRST_BASE + _BASES.index("T")
    return table


_ID_OF_LETTER = _id_of_letter()
_LETTER_OF_ID = np.zeros(12, dtype=np.uint8)
_LETTER_OF_ID[_FIRST_BASE:12] = np.frombuffer(b"ACGTN", dtype=np.uint8)
_BASE_OF_ID = np.full(256, 4, dtype=np.uint8)
_BASE_OF_ID[_FIRST_BASE:_N] = np.arange(4)
_ID_OF_BASE = np.array([7, 8, 9, 10, _N], dtype=np.uint8)


def letters(sequence: Any) -> NDArray[np.uint8]:
    """The bytes of a string, bytes, Biopython `Seq` or `SeqRecord`, one per letter: `(L,)` uint8; non-ASCII letters become `?`."""
    sequence = getattr(sequence, "seq", sequence)
    if isinstance(sequence, str):
        sequence = sequence.encode("ascii", "replace")
    return np.frombuffer(bytes(sequence), dtype=np.uint8)


def reverse_complement(sequence: str | bytes) -> str | bytes:
    """The other strand, letter by letter: all IUPAC codes, case kept; U pairs with A.

    >>> reverse_complement("ACGTNacgtn")
    'nacgtNACGT'
    """
    if isinstance(sequence, str):
        return sequence.encode("ascii").translate(_COMPLEMENT_LETTER)[::-1].decode("ascii")
    return sequence.translate(_COMPLEMENT_LETTER)[::-1]


class DNATokenizer:
    """Nucleotides as token ids.

    CLS 0, SEP 1, BOS 2, MASK 3, PAD 4, RESERVED 5, UNK 6, A 7, C 8, G 9, T 10, N 11. Only A, C, G and T are emitted.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    name: ClassVar[str] = "dna"
    special_ids: ClassVar[tuple[int, ...]] = ()
    mask_letter: ClassVar[str] = "_"

    def __init__(self) -> None:
        self.vocab = Vocab(
            size=12, mask_id=3, pad_id=4, never_emitted=(0, 1, 2, 3, 4, 5, 6, _N), complement=(0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, _N)
        )

    def encode(self, sequence: Any) -> NDArray[np.uint8]:
        """Token ids of a string, bytes, Biopython `Seq` or `SeqRecord`: `(L,)` uint8.

        Upper and lower case are the same; U is T; the ambiguity codes (R, Y, K, M, S, W, B, D, H, V) are N.

        Raises:
            ValueError: if a letter is not a nucleotide; its position is counted from 1.
        """
        ids = _ID_OF_LETTER[letters(sequence)]
        if len(ids) and ids.max() == _NOT_A_NUCLEOTIDE:
            raise ValueError(not_a_nucleotide(sequence))
        return ids

    def decode(self, ids: ArrayLike) -> str:
        """Letters of `ids (L,)`: A, C, G, T, N, and `_` for a position still masked.

        Raises:
            ValueError: if an id has no letter (CLS, SEP, BOS, PAD, RESERVED, UNK, or outside the vocabulary).
        """
        ids = _one_sequence(ids)
        table = _LETTER_OF_ID.copy()
        table[self.vocab.mask_id] = ord(self.mask_letter)
        _refuse_ids(ids, (ids >= len(table)) | (table[np.minimum(ids, len(table) - 1)] == 0), "A 7, C 8, G 9, T 10, N 11 and MASK 3")
        return table[ids].tobytes().decode("ascii")

    def bases(self, ids: ArrayLike) -> NDArray[np.uint8]:
        """A, C, G, T as 0, 1, 2, 3 and everything else as 4; same shape as `ids`."""
        return _BASE_OF_ID[np.asarray(ids)]

    def ids_from_bases(self, bases: ArrayLike) -> NDArray[np.uint8]:
        """The inverse of `bases`: 0, 1, 2, 3 to A, C, G, T and 4 to N; same shape."""
        return _ID_OF_BASE[np.asarray(bases)]

    def config(self) -> dict[str, Any]:
        """A plain dictionary from which the tokenizer can be built again."""
        return {"_target_": "dnadiff.data.tokenizer.DNATokenizer"}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DNATokenizer) and self.config() == other.config()

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return "DNATokenizer()"


class CharTokenizer:
    """Characters of text as token ids: MASK 0, PAD 1, then the characters in the order of their code points.

    Args:
        characters: the alphabet; order and repetition do not matter.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    name: ClassVar[str] = "characters"
    mask_letter: ClassVar[str] = "\ufffd"
    bos_id: ClassVar[int | None] = None  # no character begins or ends a text
    eos_id: ClassVar[int | None] = None
    special_ids: ClassVar[tuple[int, ...]] = ()

    def __init__(self, characters: str) -> None:
        self.characters = "".join(sorted(set(characters)))
        if not self.characters:
            raise ValueError("characters is empty; give the letters that the text may hold, or a text to CharTokenizer.from_text")
        self._code_points = _code_points(self.characters)
        self.vocab = Vocab(size=2 + len(self.characters), mask_id=0, pad_id=1, never_emitted=(0, 1))
        self.dtype = np.dtype(np.uint8 if self.vocab.size <= 256 else np.uint16 if self.vocab.size <= 1 << 16 else np.int32)

    @classmethod
    def from_text(cls, text: str) -> CharTokenizer:
        """The tokenizer of exactly the characters in `text`."""
        return cls(text)

    def encode(self, sequence: str) -> NDArray[np.uint8] | NDArray[np.uint16]:
        """Token ids of a string: `(L,)` uint8, or uint16 for more than 254 characters.

        Raises:
            ValueError: if a character is not in the alphabet; its position is counted from 1.
        """
        points = _code_points(sequence)
        places = np.searchsorted(self._code_points, points).clip(max=len(self._code_points) - 1)
        unknown = np.flatnonzero(self._code_points[places] != points)
        if len(unknown):
            raise ValueError(
                f"character {sequence[unknown[0]]!r} at position {unknown[0] + 1} is not among the {len(self.characters)} characters "
                f"of this vocabulary; remove it, or train on a text that holds it"
            )
        return (places + 2).astype(self.dtype)

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """`encode` of each text."""
        return [self.encode(text) for text in texts]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides which ids a text gets."""
        return hashlib.sha256(f"characters {self.characters}".encode("utf-8", "surrogatepass")).hexdigest()

    def decode(self, ids: ArrayLike) -> str:
        """Characters of `ids (L,)`; a position still masked is U+FFFD.

        Raises:
            ValueError: if an id has no character (PAD, or outside the vocabulary).
        """
        ids = _one_sequence(ids)
        _refuse_ids(ids, (ids == self.vocab.pad_id) | (ids >= self.vocab.size), f"MASK 0 and 2..{self.vocab.size - 1}")
        points = np.concatenate([_code_points(self.mask_letter * 2), self._code_points])
        return points[ids].astype("<u4").tobytes().decode("utf-32-le")

    def config(self) -> dict[str, Any]:
        """A plain dictionary from which the tokenizer can be built again."""
        return {"_target_": "dnadiff.data.tokenizer.CharTokenizer", "characters": self.characters}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharTokenizer) and self.config() == other.config()

    def __hash__(self) -> int:
        return hash(self.characters)

    def __repr__(self) -> str:
        return f"CharTokenizer({self.characters!r})"


def not_a_nucleotide(sequence: Any) -> str | None:
    """What is wrong with the first letter of `sequence` that is no nucleotide, in one line; None if all are."""
    wrong = np.flatnonzero(_ID_OF_LETTER[letters(sequence)] == _NOT_A_NUCLEOTIDE)
    if not len(wrong):
        return None
    sequence = getattr(sequence, "seq", sequence)
    sequence = sequence.decode("latin-1") if isinstance(sequence, bytes) else str(sequence)
    return f"letter {sequence[wrong[0]]!r} at position {wrong[0] + 1} is not a nucleotide; allowed are {', '.join(IUPAC)} in either case"


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _one_sequence(ids: ArrayLike) -> NDArray[np.int64]:
    ids = np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids).astype(np.int64)
    if ids.ndim != 1:
        raise ValueError(f"ids has shape {ids.shape}; decode takes one sequence (L,) at a time")
    return ids


def _refuse_ids(ids: NDArray[np.int64], wrong: NDArray[np.bool_], allowed: str) -> None:
    wrong = np.flatnonzero(wrong | (ids < 0))
    if len(wrong):
        raise ValueError(f"id {ids[wrong[0]]} at position {wrong[0] + 1} has no letter; those that have are {allowed}")
