"""Templates as a user writes them: IUPAC letters, motifs at positions, `[MASK]` in text.

Each becomes a `Pattern`: given token ids, the mask elsewhere, and the bases that are allowed at
each masked position. `dnadiff.design.constraint` makes samplers respect it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.tokenizer import DNATokenizer

if TYPE_CHECKING:
    from dnadiff.data.tokenizer import Tokenizer

# One bit for each base that an IUPAC letter allows: A 1, C 2, G 4, T 8.
CODES = dict(zip("ACGTURYSWKMBDHVN", (1, 2, 4, 8, 8, 5, 10, 6, 9, 12, 3, 14, 13, 11, 7, 15)))
FREE = 15
LETTER = {code: letter for letter, code in CODES.items() if letter != "U"}
_MOTIF = re.compile(r"([^@]*)@([+-]?\d+)(?::([+-]))?")
_MASK = re.compile(r"\[MASK(?:\*(\d+))?\]")
_MAX_MASKS = (
    10_000_000  # in one [MASK*n]: longer than any network accepts, but small enough for memory
)

_CODE_OF_BYTE = np.zeros(256, np.uint8)
for _letter, _code in CODES.items():
    _CODE_OF_BYTE[[ord(_letter), ord(_letter.lower())]] = _code
_COMPLEMENT = np.array(
    [sum(8 >> bit for bit in range(4) if code >> bit & 1) for code in range(16)], np.uint8
)
_BASES_IN = np.array([bin(code).count("1") for code in range(16)])


class Pattern(NamedTuple):
    """The template of a sequence.

    Attributes:
        ids: (L,) int64, the mask where tokens are to be generated.
        codes: (L,) uint8, the bases allowed at a masked position, one bit each; 15 is any base.
        letters: (L,) uint8, the given letters in their case; 0 elsewhere. None for text.
    """

    ids: NDArray[np.int64]
    codes: NDArray[np.uint8]
    letters: NDArray[np.uint8] | None = None


class Motif(NamedTuple):
    """A motif at a position.

    Attributes:
        text: as the user wrote it.
        codes: its IUPAC codes on the forward strand.
        start: its position; negative counts from the end.
    """

    text: str
    codes: NDArray[np.uint8]
    start: int

    def first(self, length: int) -> int:
        """Its first position in a sequence of `length` bases; a ValueError if it exceeds the
        sequence."""
        first = self.start + length if self.start < 0 else self.start
        if first < 0 or first + len(self.codes) > length:
            raise ValueError(
                f"motif {self.text} covers {first} to {first + len(self.codes)} (0-based, "
                f"half-open), outside a sequence of {length} bases; "
                "move it, or set length"
            )
        return first


def codes_of(text: str, what: str) -> NDArray[np.uint8]:
    """The codes (L,) of IUPAC letters in either case; others are a ValueError that names `what` and
    the first one's 1-based position."""
    codes = _CODE_OF_BYTE[np.frombuffer(text.encode("ascii", "replace"), np.uint8)]
    if len(wrong := np.flatnonzero(codes == 0)):
        raise ValueError(
            f"{what}: {text[wrong[0]]!r} at position {wrong[0] + 1} is not an IUPAC letter; "
            f"allowed are {', '.join(CODES)}"
        )
    return codes


def read_motifs(motif: str | Sequence[str] | None) -> list[Motif]:
    """Motifs written `MOTIF@start` or `MOTIF@start:strand`; others are a ValueError.

    The start is the leftmost position on the forward strand, 0-based; negative counts from the end.
    On strand "-" the sequence has the reverse complement of the motif there.
    """
    if motif is None:
        return []
    if not isinstance(motif, (str, list, tuple)):
        raise ValueError(
            f"motif {motif!r} must be a string or a list of strings, such as "
            "'motif=[TATAAT@100,CCAAT@-40:-]'"
        )
    found = []
    for one in [motif] if isinstance(motif, str) else motif:
        match = _MOTIF.fullmatch(str(one).strip())
        if match is None or not match[1]:
            raise ValueError(
                f"motif {one!r} cannot be read; write MOTIF@start or MOTIF@start:strand, as in "
                "TATAAT@100 or CCAAT@-40:-"
            )
        codes = codes_of(match[1], f"motif {one}")
        found.append(
            Motif(
                str(one).strip(),
                _COMPLEMENT[codes[::-1]] if match[3] == "-" else codes,
                int(match[2]),
            )
        )
    return found


def dna_pattern(
    tokenizer: Tokenizer,
    length: int,
    letters: str = "",
    motifs: Sequence[Motif] = (),
    what: str = "template",
) -> Pattern:
    """The pattern of IUPAC `letters` followed by N, with motifs on top; errors call the letters
    `what`.

    A character that is not an IUPAC letter, a motif outside of the sequence, and contradictory
    constraints are a ValueError.
    """
    if len(letters) > length:
        raise ValueError(
            f"prompt has {len(letters)} letters and length is {length}; set length to more than "
            "that"
        )
    codes = np.full(length, FREE, np.uint8)
    codes[: len(letters)] = codes_of(letters, what)
    owner: dict[int, str] = {}
    for motif in motifs:
        for position, code in enumerate(motif.codes.tolist(), motif.first(length)):
            both = codes[position] & code
            if not both:
                other = owner.get(position, f"the {what}")
                raise ValueError(
                    f"motif {motif.text} contradicts {other} at position {position} (0-based) of "
                    f"{length} bases: "
                    f"{LETTER[code]} against {LETTER[int(codes[position])]}; move or change one"
                )
            codes[position] = both
            if code != FREE:
                owner[position] = f"motif {motif.text}"
    return _with_codes(tokenizer, codes, letters)


def template_pattern(tokenizer: Tokenizer, text: str, motifs: Sequence[Motif]) -> Pattern:
    """The pattern of a template: IUPAC letters with motifs for a model of DNA, text with `[MASK]`
    for others."""
    if tokenizer.vocab.complement is not None:
        return dna_pattern(tokenizer, len(text), text, motifs)
    if motifs:
        raise ValueError("motif is for models of DNA; for text write the words into the template")
    return text_pattern(tokenizer, text)


def _with_codes(tokenizer: Tokenizer, codes: NDArray[np.uint8], letters: str) -> Pattern:
    fixed = _BASES_IN[codes] == 1
    bases = np.log2(np.where(fixed, codes, 1)).astype(np.int64)
    ids = np.where(
        fixed,
        dna_tokenizer(tokenizer).ids_from_bases(bases).astype(np.int64),
        tokenizer.vocab.mask_id,
    )
    shown = np.where(fixed, np.frombuffer(b"ACGT", np.uint8)[bases], 0).astype(np.uint8)
    given = np.frombuffer(letters.encode("ascii", "replace"), np.uint8)
    named = _BASES_IN[_CODE_OF_BYTE[given]] == 1
    shown[: len(given)] |= np.where(named, given & 0x20, 0).astype(np.uint8)
    return Pattern(ids, codes, shown)


def text_pattern(tokenizer: Tokenizer, text: str, length: int | None = None) -> Pattern:
    """The pattern of a text with `[MASK]`, or `[MASK*20]`, where tokens are to be generated.

    It continues with masks up to `length` tokens; None ends with the text. Characters that are not
    in the vocabulary, a text longer than `length`, and too many masks are a ValueError.
    """
    mask_id, at = tokenizer.vocab.mask_id, 0
    parts: list[NDArray] = []
    for match in _MASK.finditer(text):
        if match[1] and (len(match[1]) > 18 or int(match[1]) > _MAX_MASKS):
            raise ValueError(
                f"{match[0][:40]} is more than can be generated at once; write at most "
                f"[MASK*{_MAX_MASKS}]"
            )
        parts += [
            _encoded(tokenizer, text[at : match.start()]),
            np.full(int(match[1] or 1), mask_id),
        ]
        at = match.end()
    ids = np.concatenate([*parts, _encoded(tokenizer, text[at:])]).astype(np.int64)
    if length is not None:
        if len(ids) > length:
            raise ValueError(
                f"prompt has {len(ids)} tokens and length is {length}; set length to more than that"
            )
        ids = np.concatenate([ids, np.full(length - len(ids), mask_id)])
    return Pattern(ids, np.full(len(ids), FREE, np.uint8))


def _encoded(tokenizer: Tokenizer, text: str) -> NDArray[np.int64]:
    return np.asarray(tokenizer.encode(text) if text else [], dtype=np.int64)


def dna_tokenizer(tokenizer: Tokenizer) -> DNATokenizer:
    """The tokenizer, if it is one of DNA; a ValueError if it is one of text."""
    if not isinstance(tokenizer, DNATokenizer):
        raise ValueError(
            f"IUPAC letters are for models of DNA, and the alphabet of this one is {tokenizer.name}"
        )
    return tokenizer


def allowed_letters(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """The tokens that each IUPAC code allows, (16, V); for text, all rows allow every token."""
    vocab = tokenizer.vocab
    table = np.zeros((16, vocab.size), bool)
    table[:, list(vocab.emitted)] = True
    if vocab.complement is None:
        return table
    for code in range(1, 16):
        table[code] = False
        table[
            code,
            [
                int(dna_tokenizer(tokenizer).ids_from_bases([base])[0])
                for base in range(4)
                if code >> base & 1
            ],
        ] = True
    return table


def gc_bounds(codes: NDArray[np.uint8]) -> tuple[int, int]:
    """The minimum and the maximum number of G and C that `codes (L,)` allow."""
    return int((codes & 9 == 0).sum()), int((codes & 6 != 0).sum())
