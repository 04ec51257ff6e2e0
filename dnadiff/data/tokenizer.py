"""Tokenizers for DNA and for characters of text: letters to token ids and back.

DNA has the token ids of Caduceus and HyenaDNA, so that published weights load. A model reads what
it needs to know about the alphabet from the tokenizer's `vocab`. Tokens have no case;
`dnadiff.data.genome.genome` keeps it separately.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import Config
from dnadiff.formats.nucleotides import (
    FIRST_BASE,
    N_ID,
    NOT_A_NUCLEOTIDE,
    DNASequence,
    ids_of,
    not_a_nucleotide,
    text_of,
)

TokenIds = NDArray[np.integer]  # (L,); uint8 for DNA, uint8, uint16 or int32 for text

TOKENIZER_JSON = "tokenizer.json"
VOCAB_TXT = "vocab.txt"
BPE_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
# Files that define a tokenizer, preferred first.
FILE_SETS = ((TOKENIZER_JSON,), *BPE_FILES, (VOCAB_TXT,))
# ASCII's separators of units and of records
SEPARATOR = "\x1f"
END = "\x1e"
_PIECE = 1 << 20  # characters encoded at once: each takes about 20 bytes until it has its id
_LETTER_OF_ID = np.frombuffer(b"\0\0\0_\0\0\0ACGTN", dtype=np.uint8)  # 0: no letter; MASK is 3
_BASE_OF_ID = np.full(256, 4, dtype=np.uint8)
_BASE_OF_ID[FIRST_BASE:N_ID] = np.arange(4)
_ID_OF_BASE = np.array([7, 8, 9, 10, N_ID], dtype=np.uint8)


@runtime_checkable
class Tokenizer(Protocol):
    """The interface of all tokenizers."""

    name: str  # what reports call it
    vocab: Vocab  # the token ids, as a model sees them
    bos_id: int | None = None  # of the tokens at the beginning and the end of a text
    eos_id: int | None = None
    special_ids: tuple[
        int, ...
    ] = ()  # ids of special tokens that a model may emit, such as `bos_id` and `eos_id`

    @property
    def mask_letter(self) -> str:
        """How `decode` writes a masked position."""

    def encode(self, sequence: Any, /) -> TokenIds:
        """Token ids `(L,)` of a string; of DNA also of bytes and of Biopython's records."""

    def decode(self, ids: ArrayLike | Tensor, /) -> str:
        """The text of token ids `(L,)`."""

    def config(self) -> Config:
        """A plain dictionary from which `dnadiff.store.objects.build` makes the tokenizer again."""


class TextTokenizer(Tokenizer, Protocol):
    """A tokenizer of text, whose ids are stored in the cache."""

    @property
    def dtype(self) -> np.dtype:
        """The type of the stored ids."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides which ids a text gets."""

    def encode_batch(self, texts: Sequence[str], /) -> list[TokenIds]:
        """`encode` of each text."""
        return [self.encode(text) for text in texts]


@dataclass(frozen=True)
class DNATokenizer(Tokenizer):
    """Nucleotides as token ids.

    CLS 0, SEP 1, BOS 2, MASK 3, PAD 4, RESERVED 5, UNK 6, A 7, C 8, G 9, T 10, N 11. A model emits
    only A, C, G and T.

    Examples:
        >>> tokenizer = DNATokenizer()
        >>> tokenizer.encode("ACGTN").tolist()
        [7, 8, 9, 10, 11]
        >>> tokenizer.decode([7, 3, 10])
        'A_T'
    """

    buildable = True  # a checkpoint's configuration may name it

    name = "dna"
    mask_letter = "_"
    vocab = Vocab(
        size=12,
        mask_id=3,
        pad_id=4,
        never_emitted=(0, 1, 2, 3, 4, 5, 6, N_ID),
        complement=(0, 1, 2, 3, 4, 5, 6, 10, 9, 8, 7, N_ID),
    )

    def encode(self, sequence: DNASequence) -> TokenIds:
        """Token ids of a string, bytes, Biopython `Seq` or `SeqRecord`: `(L,)` uint8.

        Case is ignored. U becomes T, and the ambiguity codes (R, Y, K, M, S, W, B, D, H, V) become
        N.

        Raises:
            ValueError: if a letter is not a nucleotide; its position is counted from 1.
        """
        ids = ids_of(sequence)
        if len(ids) and ids.max() == NOT_A_NUCLEOTIDE:
            raise ValueError(not_a_nucleotide(sequence))
        return ids

    def decode(self, ids: ArrayLike | Tensor) -> str:
        """Letters of `ids (L,)`: A, C, G, T, N, and `_` for a masked position.

        Raises:
            ValueError: if an id has no letter (CLS, SEP, BOS, PAD, RESERVED, UNK, or outside the
                vocabulary).
        """
        array = one_sequence(ids)
        known = np.isin(array, np.flatnonzero(_LETTER_OF_ID))
        _refuse_ids(array, ~known, "A 7, C 8, G 9, T 10, N 11 and MASK 3")
        return _LETTER_OF_ID[array].tobytes().decode("ascii")

    def letters(self, ids: TokenIds) -> TokenIds:
        """ASCII codes of upper-case letters, without a copy in larger integers; same shape as
        `ids`, which all have a letter."""
        return _LETTER_OF_ID[ids]

    def bases(self, ids: ArrayLike) -> TokenIds:
        """A, C, G, T as 0, 1, 2, 3 and everything else as 4; same shape as `ids`."""
        return _BASE_OF_ID[np.asarray(ids)]

    def ids_from_bases(self, bases: ArrayLike) -> TokenIds:
        """The inverse of `bases`: 0, 1, 2, 3 to A, C, G, T and 4 to N; same shape."""
        return _ID_OF_BASE[np.asarray(bases)]

    def config(self) -> Config:
        return {"_target_": "dnadiff.data.tokenizer.DNATokenizer"}


def marks(tokenizer: Tokenizer) -> tuple[int, int]:
    """The ids of the tokens after a source and after a target, of pairs of texts.

    Raises:
        ValueError: if the tokenizer has none.
    """
    if (end := tokenizer.eos_id) is not None:
        return end, end
    try:
        (separator,), (end,) = (tokenizer.encode(mark).tolist() for mark in (SEPARATOR, END))
    except ValueError:
        raise ValueError(
            f"the tokenizer {tokenizer.name} has no token that ends a text, which data=pairs needs "
            "after a source; name one by tokenizer.eos, or set tokenizer=characters"
        ) from None
    return separator, end


def encoded(tokenizer: Tokenizer, sequence: DNASequence, where: str) -> TokenIds:
    """Token ids `(L,)` of a sequence of at least one letter.

    Raises:
        TypeError: if it is not a sequence.
        ValueError: if it is empty, or a letter is not in the alphabet. Both begin with `where`.
    """
    try:
        is_dna = tokenizer.vocab.complement is not None
        ids = tokenizer.encode(sequence if is_dna else text_of(sequence))
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{where}: {error}") from None
    if not len(ids):
        raise ValueError(f"{where} has an empty sequence; complete or remove it")
    return ids


@dataclass(unsafe_hash=True)
class CharTokenizer(TextTokenizer):
    """Characters of text as token ids: MASK 0, PAD 1, then the characters in the order of their
    code points.

    Args:
        characters: the alphabet, for example the text itself; order and repetition do not matter.
    """

    buildable = True  # a checkpoint's configuration may name it

    name = "characters"
    mask_letter = "\ufffd"

    characters: str

    def __post_init__(self) -> None:
        given = self.characters
        if not isinstance(given, str) or any("\ud800" <= c <= "\udfff" for c in given):
            raise ValueError(
                f"tokenizer.characters {given!r:.60} must be a string of characters; half of "
                "a surrogate pair is none"
            )
        self.characters = "".join(sorted(set(given)))
        if not self.characters:
            raise ValueError(
                "tokenizer.characters is empty; expected the characters that the text may contain"
            )
        self._code_points = _code_points(self.characters)
        self.vocab = Vocab(size=2 + len(self.characters), mask_id=0, pad_id=1, never_emitted=(0, 1))

    @property
    def dtype(self) -> np.dtype:
        highest = np.min_scalar_type(self.vocab.size - 1)
        return highest if highest.itemsize < 4 else np.dtype(np.int32)

    def encode(self, sequence: str) -> TokenIds:
        """Token ids of a string: `(L,)` uint8; uint16 for more than 254 characters, int32 for more
        than 65,534.

        Raises:
            ValueError: if a character is not in the alphabet; its position is counted from 1.
        """
        ids = np.empty(len(sequence), self.dtype)
        for start in range(0, len(sequence), _PIECE):
            points = _code_points(sequence[start : start + _PIECE])
            places = np.searchsorted(self._code_points, points).clip(max=len(self._code_points) - 1)
            unknown = start + np.flatnonzero(self._code_points[places] != points)
            if len(unknown):
                raise ValueError(
                    f"character {sequence[unknown[0]]!r} at position {unknown[0] + 1} is not among "
                    f"the {len(self.characters)} characters "
                    f"of this vocabulary; remove it, or train on a text that contains it"
                )
            ids[start : start + len(points)] = places + 2
        return ids

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(
            f"characters {self.characters}".encode("utf-8", "surrogatepass")
        ).hexdigest()

    def decode(self, ids: ArrayLike | Tensor) -> str:
        """Characters of `ids (L,)`; a masked position is U+FFFD.

        Raises:
            ValueError: if an id has no character (PAD, or outside the vocabulary).
        """
        array = one_sequence(ids)
        _refuse_ids(
            array,
            (array == self.vocab.pad_id) | (array >= self.vocab.size),
            f"MASK 0 and 2..{self.vocab.size - 1}",
        )
        points = np.concatenate([_code_points(self.mask_letter * 2), self._code_points])
        return points[array].astype("<u4").tobytes().decode("utf-32-le")

    def config(self) -> Config:
        return {"_target_": "dnadiff.data.tokenizer.CharTokenizer", "characters": self.characters}


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def one_sequence(ids: ArrayLike | Tensor) -> NDArray[np.int64]:
    """The ids to decode as an array `(L,)`.

    Raises:
        ValueError: if they have more than one dimension.
    """
    array = np.asarray(ids.cpu() if isinstance(ids, Tensor) else ids).astype(np.int64)
    if array.ndim != 1:
        raise ValueError(f"ids has shape {array.shape}; decode takes one sequence (L,) at a time")
    return array


def _refuse_ids(ids: NDArray[np.int64], wrong: NDArray[np.bool_], allowed: str) -> None:
    places = np.flatnonzero(wrong | (ids < 0))
    if len(places):
        raise ValueError(
            f"id {ids[places[0]]} at position {places[0] + 1} has no letter; the ids with a letter "
            f"are {allowed}"
        )
