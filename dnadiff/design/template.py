"""What a sequence shall hold, as a user writes it: IUPAC letters, motifs at places, `[MASK]` in text.

Everything becomes a `Pattern`, one for each length: the ids that are given, the mask elsewhere, and which bases a masked position may
hold. How a sampler is made to keep it is the business of `dnadiff.design.constraint`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# One bit for each base an IUPAC letter stands for: A 1, C 2, G 4, T 8.
CODES = dict(zip("ACGTURYSWKMBDHVN", (1, 2, 4, 8, 8, 5, 10, 6, 9, 12, 3, 14, 13, 11, 7, 15)))
FREE = 15
LETTER = {code: letter for letter, code in CODES.items() if letter != "U"}
_MOTIF = re.compile(r"([^@]*)@([+-]?\d+)(?::([+-]))?")
_MASK = re.compile(r"\[MASK(?:\*(\d+))?\]")
_MOST_MASKS = 10_000_000  # in one [MASK*n]: what no network reads, and still fits into memory

_CODE_OF_BYTE = np.zeros(256, np.uint8)
for _letter, _code in CODES.items():
    _CODE_OF_BYTE[[ord(_letter), ord(_letter.lower())]] = _code
_COMPLEMENT = np.array([sum(8 >> bit for bit in range(4) if code >> bit & 1) for code in range(16)], np.uint8)
_BASES_IN = np.array([bin(code).count("1") for code in range(16)])


class Pattern(NamedTuple):
    """What a sequence of one length holds.

    Attributes:
        ids: (L,) int64, the mask where something is to be generated.
        codes: (L,) uint8, which bases a masked position may hold, a bit for each; 15 is any letter.
        letters: (L,) uint8, the letters that were given, in the case in which they were; 0 elsewhere. None for text.
    """

    ids: NDArray[np.int64]
    codes: NDArray[np.uint8]
    letters: NDArray[np.uint8] | None = None


class Motif(NamedTuple):
    """A motif at a place: `text` as it was written, its `codes` as the forward strand has them, `start` as it was given."""

    text: str
    codes: NDArray[np.uint8]
    start: int

    def first(self, length: int) -> int:
        """Its first position in a sequence of `length` bases.

        Raises:
            ValueError: if it does not lie inside.
        """
        first = self.start + length if self.start < 0 else self.start
        if first < 0 or first + len(self.codes) > length:
            raise ValueError(
                f"motif {self.text} covers {first} to {first + len(self.codes)} (0-based, half-open), outside a sequence of {length} bases; "
                "move it, or set length"
            )
        return first


def codes_of(text: str, what: str) -> NDArray[np.uint8]:
    """The codes of IUPAC letters in either case: (L,).

    Raises:
        ValueError: naming `what` and the first letter that is none, its position counted from 1.
    """
    codes = _CODE_OF_BYTE[np.frombuffer(text.encode("ascii", "replace"), np.uint8)]
    if len(wrong := np.flatnonzero(codes == 0)):
        raise ValueError(f"{what}: {text[wrong[0]]!r} at position {wrong[0] + 1} is not an IUPAC letter; allowed are {', '.join(CODES)}")
    return codes


def read_motifs(motif: str | Sequence[str] | None) -> list[Motif]:
    """Motifs written `MOTIF@start` or `MOTIF@start:strand`.

    Start is the leftmost position on the forward strand, counted from 0, or from the end if negative. On strand "-" the reverse
    complement of the motif stands there.

    Raises:
        ValueError: if one cannot be read.
    """
    if motif is None:
        return []
    if not isinstance(motif, (str, list, tuple)):
        raise ValueError(f"motif {motif!r} is not text; write 'motif=[TATAAT@100,CCAAT@-40:-]'")
    found = []
    for one in [motif] if isinstance(motif, str) else motif:
        match = _MOTIF.fullmatch(str(one).strip())
        if match is None or not match[1]:
            raise ValueError(f"motif {one!r} cannot be read; write MOTIF@start or MOTIF@start:strand, as in TATAAT@100 or CCAAT@-40:-")
        codes = codes_of(match[1], f"motif {one}")
        found.append(Motif(str(one).strip(), _COMPLEMENT[codes[::-1]] if match[3] == "-" else codes, int(match[2])))
    return found


def dna_pattern(tokenizer: Any, length: int, letters: str = "", motifs: Sequence[Motif] = (), what: str = "template") -> Pattern:
    """The pattern of IUPAC `letters` at the beginning, N behind them, with motifs on top; errors call the letters `what`.

    Raises:
        ValueError: for a letter that is no IUPAC letter, a motif outside, or constraints that no base fulfils.
    """
    if len(letters) > length:
        raise ValueError(f"prompt has {len(letters)} letters and length is {length}; set length to more than that")
    codes = np.full(length, FREE, np.uint8)
    codes[: len(letters)] = codes_of(letters, what)
    owner: dict[int, str] = {}
    for motif in motifs:
        for position, code in enumerate(motif.codes.tolist(), motif.first(length)):
            both = codes[position] & code
            if not both:
                other = owner.get(position, f"the {what}")
                raise ValueError(
                    f"motif {motif.text} contradicts {other} at position {position} (0-based) of {length} bases: "
                    f"{LETTER[code]} against {LETTER[int(codes[position])]}; move or change one"
                )
            codes[position] = both
            if code != FREE:
                owner[position] = f"motif {motif.text}"
    return with_codes(tokenizer, codes, letters)


def with_codes(tokenizer: Any, codes: NDArray[np.uint8], letters: str = "") -> Pattern:
    """The pattern of `codes (L,)`; `letters` lend their case to the bases that they name."""
    fixed = _BASES_IN[codes] == 1
    bases = np.log2(np.where(fixed, codes, 1)).astype(np.int64)
    ids = np.where(fixed, tokenizer.ids_from_bases(bases).astype(np.int64), tokenizer.vocab.mask_id)
    shown = np.where(fixed, np.frombuffer(b"ACGT", np.uint8)[bases], 0).astype(np.uint8)
    given = np.frombuffer(letters.encode("ascii", "replace"), np.uint8)
    named = _BASES_IN[_CODE_OF_BYTE[given]] == 1
    shown[: len(given)] |= np.where(named, given & 0x20, 0).astype(np.uint8)
    return Pattern(ids, codes, shown)


def text_pattern(tokenizer: Any, text: str, length: int | None = None) -> Pattern:
    """The pattern of a text with `[MASK]`, or `[MASK*20]`, where something is to be generated.

    Args:
        tokenizer: of a text model.
        text: what stands at the beginning.
        length: tokens in all, free behind the text; None ends with the text.

    Raises:
        ValueError: for characters that the vocabulary does not have, a text longer than `length`, or a number of masks beyond reason.
    """
    mask_id, parts, at = tokenizer.vocab.mask_id, [], 0
    for match in _MASK.finditer(text):
        if match[1] and (len(match[1]) > 18 or int(match[1]) > _MOST_MASKS):
            raise ValueError(f"{match[0][:40]} is more than can be generated at once; write at most [MASK*{_MOST_MASKS}]")
        parts += [_encoded(tokenizer, text[at : match.start()]), np.full(int(match[1] or 1), mask_id)]
        at = match.end()
    ids = np.concatenate([*parts, _encoded(tokenizer, text[at:])]).astype(np.int64)
    if length is not None:
        if len(ids) > length:
            raise ValueError(f"prompt has {len(ids)} tokens and length is {length}; set length to more than that")
        ids = np.concatenate([ids, np.full(length - len(ids), mask_id)])
    return Pattern(ids, np.full(len(ids), FREE, np.uint8))


def _encoded(tokenizer: Any, text: str) -> NDArray[np.int64]:
    return np.asarray(tokenizer.encode(text) if text else [], dtype=np.int64)


def allowed_letters(tokenizer: Any) -> NDArray[np.bool_]:
    """For each code the letters of the vocabulary that it allows: (16, V) for DNA, one row for each code and all alike for text."""
    vocab = tokenizer.vocab
    table = np.zeros((16, vocab.size), bool)
    table[:, list(vocab.emitted)] = True
    if vocab.complement is None:
        return table
    for code in range(1, 16):
        table[code] = False
        table[code, [int(tokenizer.ids_from_bases([base])[0]) for base in range(4) if code >> base & 1]] = True
    return table


def gc_bounds(codes: NDArray[np.uint8]) -> tuple[int, int]:
    """The fewest and the most G and C that `codes (L,)` allow."""
    return int((codes & 9 == 0).sum()), int((codes & 6 != 0).sum())
