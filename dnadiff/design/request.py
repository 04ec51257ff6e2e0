"""Requests: the template of each sample to generate, as a user writes it.

A request consists of free sequences (with motifs and a prompt), templates (IUPAC letters, or text
with `[MASK]`), or intervals of a genome that are designed again within their flanks. It gives the
name and the `Pattern` of sample i on demand: given token ids, the mask elsewhere, and the bases
that are allowed at each masked position. `dnadiff.design.generate` fills it, and
`dnadiff.design.conditioning` makes samplers respect it."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.data.genome.genome import Genome
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.draws import hash64
from dnadiff.fields import Natural, PositiveInt, check_value
from dnadiff.formats.regions import Region, read_regions
from dnadiff.formats.sequences import read_sequences
from dnadiff.store.address import shown
from dnadiff.store.files import open_text

if TYPE_CHECKING:
    from dnadiff.data.tokenizer import Tokenizer


# One bit for each base that an IUPAC letter allows: A 1, C 2, G 4, T 8.
CODES = dict(zip("ACGTURYSWKMBDHVN", (1, 2, 4, 8, 8, 5, 10, 6, 9, 12, 3, 14, 13, 11, 7, 15)))
FREE = 15
LETTER = {code: letter for letter, code in CODES.items() if letter != "U"}
_MOTIF = re.compile(r"([^@]*)@([+-]?\d+)(?::([+-]))?")
log = logging.getLogger("dnadiff")
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


class Target(NamedTuple):
    """The template of one sample.

    Attributes:
        name: name of the record.
        pattern: given and masked positions.
        shown: (start, end) of the part that is written.
        designed: (start, end) of the part that a GC target applies to.
        about: further entries of the record's header.
        start: (L,) tokens of the sequence to begin with, for methods that change a given one; None
            begins with a sample.
    """

    name: str
    pattern: Pattern
    shown: tuple[int, int]
    designed: tuple[int, int]
    about: dict[str, str]
    start: NDArray[np.int64] | None = None


class Request(ABC):
    """The templates of all samples: `num_groups` groups of `each` samples; sample i is in group i
    // each."""

    num_groups: int
    each: int

    def __len__(self) -> int:
        return self.num_groups * self.each

    @abstractmethod
    def __getitem__(self, number: int) -> Target:
        """The template of sample `number` (0-based)."""

    @property
    @abstractmethod
    def lengths(self) -> tuple[int, int]:
        """Tokens in the shortest and in the longest sample."""

    def first_of_groups(self) -> Iterator[Target]:
        """The first sample of each group."""
        return (self[group * self.each] for group in range(self.num_groups))

    def distinct(self) -> Iterator[Target]:
        """Samples that include every pattern of fixed tokens and partial letters: the first of each
        group."""
        return self.first_of_groups()

    def evenly_spaced(self, maximum: int = 256) -> list[Target]:
        """At most `maximum` samples, evenly spaced over the request."""
        return [
            self[i]
            for i in np.unique(
                np.linspace(0, len(self) - 1, min(maximum, len(self))).astype(int)
            ).tolist()
        ]


class Free(Request):
    """Sequences of one length, or of lengths drawn uniformly from a range, with motifs and a
    prompt.

    Args:
        num_samples: number of sequences.
        length: tokens, or the (shortest, longest) length.
        seed: the length of sample i depends on (seed, i).
        prompt: beginning of every sequence: IUPAC letters, or text with `[MASK]`.
        motifs: see `read_motifs`.

    Raises:
        ValueError: if the constraints contradict each other at a length that is drawn, or leave
            nothing to generate.
    """

    num_groups = 1

    def __init__(
        self,
        tokenizer: Tokenizer,
        num_samples: int,
        length: int | tuple[int, int],
        seed: int = 1,
        prompt: str = "",
        motifs: Sequence[Motif] = (),
    ) -> None:
        self.each, self.seed = num_samples, seed
        self._lengths = length if isinstance(length, tuple) else (int(length), int(length))
        is_text = tokenizer.vocab.complement is None
        if is_text and motifs:
            raise ValueError(
                "motif is for models of DNA; for text give prompt= or a template with [MASK]"
            )

        @lru_cache(maxsize=64)
        def pattern(length: int) -> Pattern:
            return (
                text_pattern(tokenizer, prompt, length)
                if is_text
                else dna_pattern(tokenizer, length, prompt, motifs, "prompt")
            )

        self._pattern, self._has_motifs = pattern, bool(motifs)
        lengths = (
            sorted({self._length(i) for i in range(num_samples)}) if motifs else [self._lengths[0]]
        )
        for n in lengths:
            check_has_masks(
                pattern(n),
                tokenizer.vocab.mask_id,
                f"{'motif' if motifs else 'prompt'} at length {n}",
            )

    def _length(self, number: int) -> int:
        low, high = self._lengths
        return low + hash64(self.seed, "length", number) % (high - low + 1)

    @override
    def __getitem__(self, number: int) -> Target:
        length = self._length(number)
        return Target(f"sample_{number + 1}", self._pattern(length), (0, length), (0, length), {})

    @override
    def distinct(self) -> Iterator[Target]:
        """The first sample of each length, which decides where motifs overlap; without motifs the
        first sample."""
        first = {self._length(i): i for i in reversed(range(self.each if self._has_motifs else 1))}
        return (self[i] for i in first.values())

    @property
    @override
    def lengths(self) -> tuple[int, int]:
        return self._lengths


class Templates(Request):
    """Given patterns, each filled `each` times.

    Args:
        patterns: (name, pattern) pairs; each has a masked position.
        each: samples of each.
        mask_id: the id of the mask.
        designed: see `Target`; None is the whole sequence.
        start: tokens (L,) that each sample starts from, for methods that change given sequences.
    """

    def __init__(
        self,
        patterns: Sequence[tuple[str, Pattern]],
        each: int,
        mask_id: int,
        designed: tuple[int, int] | None = None,
        start: Sequence[NDArray[np.int64]] | None = None,
    ) -> None:
        for name, pattern in patterns:
            check_has_masks(pattern, mask_id, f"template {name}")
        self.patterns, self.num_groups, self.each, self.designed = (
            list(patterns),
            len(patterns),
            each,
            designed,
        )
        self.start = start

    @override
    def __getitem__(self, number: int) -> Target:
        name, pattern = self.patterns[number // self.each]
        span = (0, len(pattern.ids))
        start = None if self.start is None else self.start[number]
        return Target(
            f"{name}_{number % self.each + 1}", pattern, span, self.designed or span, {}, start
        )

    @property
    @override
    def lengths(self) -> tuple[int, int]:
        lengths = [len(pattern.ids) for _, pattern in self.patterns]
        return min(lengths), max(lengths)


def check_has_masks(pattern: Pattern, mask_id: int, what: str) -> None:
    """Raise a ValueError if a pattern has no masked position; the message calls the pattern
    `what`."""
    if not (pattern.ids == mask_id).any():
        way = "[MASK] for it" if pattern.letters is None else "letters such as N"
        raise ValueError(
            f"{what} leaves nothing to generate; give {way}"
            if len(pattern.ids)
            else f"{what} is empty"
        )


def from_text(
    tokenizer: Tokenizer,
    num_samples: int,
    length: int | None,
    seed: int,
    template: str | None,
    motif: str | Sequence[str] | None,
    prompt: str,
) -> Request:
    """The request for samples of one template given as text, or without a template for free
    sequences of `length` tokens.

    Contradictory constraints, and a template together with a length, are a ValueError.
    """
    prompt = prompt or ""
    for name, text in (("template", template), ("prompt", prompt)):
        if text is not None and not isinstance(text, str):
            raise ValueError(f"{name} {text!r} must be a string")
    motifs = read_motifs(motif)
    if template is None:
        if length is None:
            raise ValueError("length is missing; give a length or a template")
        return Free(tokenizer, num_samples, length, seed, prompt, motifs)
    if prompt or length is not None:
        raise ValueError(
            "a template defines the beginning and the length of a sequence; leave prompt and "
            "length out"
        )
    return Templates(
        [("template", template_pattern(tokenizer, template, motifs))],
        num_samples,
        tokenizer.vocab.mask_id,
    )


def starting_from(
    tokenizer: Tokenizer,
    sequences: Sequence[tuple[str, str]],
    each: int,
    patterns: Sequence[Pattern] | None = None,
) -> Request:
    """The request for `each` changed versions of given (name, sequence) pairs of DNA.

    `patterns` say which positions may change, one for all sequences or one for each; None is every
    position. Letters that they do not allow, or that are not A, C, G or T where a sequence may
    change, are a ValueError; so is another length.
    """
    found, starts = [], []
    if patterns is not None and len(patterns) not in (1, len(sequences)):
        raise ValueError(
            f"template has {len(patterns)} records and start {len(sequences)} sequences; give one "
            "template for all, or one for each"
        )
    for number, (name, text) in enumerate(sequences):
        if patterns is None:
            pattern = dna_pattern(dna_tokenizer(tokenizer), len(text))
        else:
            pattern = patterns[min(number, len(patterns) - 1)]
        if len(pattern.ids) != len(text):
            raise ValueError(
                f"start: {name} has {len(text)} bases and no template of that length; give one "
                "template for all sequences, or one for each"
            )
        ids = tokenizer.encode(text).astype(np.int64)
        free = pattern.ids == tokenizer.vocab.mask_id
        fits = np.where(free, allowed_letters(tokenizer)[pattern.codes, ids], ids == pattern.ids)
        if len(wrong := np.flatnonzero(~fits)):
            letter, position = tokenizer.decode(ids[wrong[:1]]), wrong[0] + 1
            raise ValueError(
                f"start: {name} has {letter} at position {position}, which its template does not "
                "allow there"
            )
        found.append((name, pattern))
        starts += [ids] * each
    if not found:
        raise ValueError("start: there is no sequence; give at least one")
    return Templates(found, each, tokenizer.vocab.mask_id, start=starts)


def check_request(
    max_length: int | None, num_samples: int, length: int, otherwise: str = ""
) -> tuple[int, int]:
    """The number and the length of samples as integers; a length of more than `max_length` (None is
    any) is a ValueError.

    Its message gives `otherwise`, which ends in a comma, as what the user can do about it.
    """
    num_samples, length = (
        check_value("num_samples", num_samples, PositiveInt),
        check_value("length", length, PositiveInt),
    )
    if max_length is not None and length > max_length:
        raise ValueError(
            f"length {length} is more than this network takes; use at most {max_length}, "
            f"{otherwise}or train with a larger data.length"
        )
    return num_samples, length


REVERSE = "-"  # the strand
UNSTRANDED = "."


class Infill(Request):
    """Intervals of a genome, designed again within their flanks.

    The network reads `length` bases with the interval in the middle, shifted inward at the ends of
    a record; on strand "-" it reads the reverse complement. Names are those of the intervals
    (`chrom:first-last(strand)`, 1-based) with the number of the design.

    Args:
        genome: the genome.
        regions: the intervals; one that is longer than `length` is a ValueError.
        each: designs for each interval.
        length: bases that the network reads.
        whole: write whole windows; False writes only the designed part.
    """

    def __init__(
        self, genome: Genome, regions: Sequence[Region], each: int, length: int, whole: bool = True
    ) -> None:
        self.genome, self.regions, self.each, self.length, self.whole = (
            genome,
            list(regions),
            each,
            length,
            whole,
        )
        self.num_groups, self.names = len(self.regions), []
        count: dict[str, int] = {}
        for region in self.regions:
            size = region.end - region.start
            if size > length:
                where = f"{region.chrom}:{region.start + 1}-{region.end}"
                raise ValueError(
                    f"infill: {where} has {size} bases, more than the {length} that are read at "
                    "once; set length to include its flanks too"
                )
            strand = "" if region.strand == UNSTRANDED else f"({region.strand})"
            name = f"{region.chrom}:{region.start + 1}-{region.end}{strand}"
            count[name] = count.get(name, 0) + 1
            self.names.append(name if count[name] == 1 else f"{name}_{count[name]}")
        self._target = lru_cache(maxsize=64)(self._make_target)

    def _make_target(self, group: int) -> Target:
        region, tokenizer = self.regions[group], self.genome.tokenizer
        low, high = window_around(
            region.start, region.end, self.genome.lengths[region.chrom], self.length
        )
        where = (region.chrom, low, high, region.strand)
        first = high - region.end if region.strand == REVERSE else region.start - low
        last = first + region.end - region.start
        ids = np.asarray(self.genome.window(*where)).astype(np.int64)
        letters = np.frombuffer(tokenizer.decode(ids).encode(), np.uint8) | np.where(
            self.genome.soft_masked(*where), 0x20, 0
        )
        about = {"window": f"{region.chrom}:{low + 1}-{high}"}
        if self.whole:
            about["designed"] = f"{first + 1}-{last}"
        if region.name:
            about["region"] = "_".join(region.name.split())
        shown = (0, len(ids)) if self.whole else (first, last)
        pattern = masked_interval(tokenizer, ids, letters.astype(np.uint8), first, last)
        return Target(self.names[group], pattern, shown, (first, last), about)

    @override
    def __getitem__(self, number: int) -> Target:
        target = self._target(number // self.each)
        return target._replace(name=f"{target.name}_{number % self.each + 1}")

    @property
    @override
    def lengths(self) -> tuple[int, int]:
        lengths = [min(self.length, self.genome.lengths[region.chrom]) for region in self.regions]
        return min(lengths), max(lengths)


def infill_sequence(
    tokenizer: Tokenizer, sequence: str, start: int, end: int, n: int, length: int
) -> tuple[Request, int]:
    """The request for `n` designs of [start, end) in a sequence, and the position in the sequence
    at which its window begins.

    An interval that is empty, not in the sequence, or longer than `length` is a ValueError.
    """
    start, end = check_value("start", start, Natural), check_value("end", end, PositiveInt)
    if not 0 <= start < end <= len(sequence):
        raise ValueError(
            f"start {start} and end {end} must be an interval in the sequence of {len(sequence)} "
            "letters (0-based, half-open)"
        )
    if end - start > length:
        raise ValueError(
            f"[{start}, {end}) is longer than the {length} tokens that are read at once; set "
            "length to include its flanks too"
        )
    low, high = window_around(start, end, len(sequence), length)
    ids = tokenizer.encode(sequence[low:high]).astype(np.int64)
    pattern = masked_interval(tokenizer, ids, np.zeros(len(ids), np.uint8), start - low, end - low)
    return Templates(
        [("infill", pattern)], n, tokenizer.vocab.mask_id, (start - low, end - low)
    ), low


def window_around(start: int, end: int, total: int, length: int) -> tuple[int, int]:
    """The window of `length` positions, in a record of `total`, with [start, end) in the middle;
    shifted inward at the ends."""
    length = min(length, total)
    low = min(max((start + end - length) // 2, 0), total - length)
    return low, low + length


def masked_interval(
    tokenizer: Tokenizer, ids: NDArray[np.int64], letters: NDArray[np.uint8], start: int, end: int
) -> Pattern:
    """The pattern of `ids (L,)` with [start, end) masked."""
    inside = np.zeros(len(ids), bool)
    inside[start:end] = True
    codes = np.full(len(ids), FREE, np.uint8)
    return Pattern(
        np.where(inside, tokenizer.vocab.mask_id, ids),
        codes,
        np.where(inside, 0, letters).astype(np.uint8),
    )


def read_patterns(
    path: str, tokenizer: Tokenizer, motifs: Sequence[Motif]
) -> Iterator[tuple[str, Pattern]]:
    """Name and pattern of each record of a FASTA file of IUPAC letters, or of a text file as a
    whole."""
    if tokenizer.vocab.complement is None:
        with open_text(path) as file:
            texts = [("sample", file.read().removesuffix("\n"))]
    else:
        texts = read_starts(path)
    for name, text in texts:
        try:
            pattern = template_pattern(tokenizer, text, motifs)
        except ValueError as error:
            raise ValueError(f"{shown(path)}: {error}") from None
        yield name, pattern


def read_starts(path: str) -> list[tuple[str, str]]:
    """Name and letters of each record of a FASTA file."""
    return [(record.name, record.sequence.decode("ascii")) for record in read_sequences(path)]


def length_range(length: int | str) -> tuple[int, int]:
    """The shortest and the longest length of `512` or `200:1000`; raises ValueError for others."""
    if isinstance(length, str) and ":" in length:
        low, _, high = length.partition(":")
        if not (low.strip().isdigit() and high.strip().isdigit()) or not 1 <= int(low) <= int(high):
            raise ValueError(
                f"length {length!r} cannot be parsed; write a number, or SHORTEST:LONGEST such as "
                "200:1000"
            )
        return int(low), int(high)
    number = check_value("length", length, PositiveInt)
    return number, number


def read_intervals(
    genome_path: str, infill: str | list[str], feature: str | None
) -> tuple[Genome, list[Region]]:
    """The genome and the intervals to design; raises ValueError naming file and line."""
    genome = Genome.open(genome_path)
    regions = read_regions(infill, genome.lengths, feature)
    used = {region.chrom for region in regions}
    if ambiguous := [
        row["name"] for row in genome.rows if row["name"] in used and row["ambiguous"][0]
    ]:
        log.warning(
            f"{', '.join(ambiguous[:8])}: ambiguity codes (R, Y, ...) are read and written as N"
        )
    return genome, regions
