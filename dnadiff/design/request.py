"""Requests: the template of each sample to generate, as a user writes it.

A request consists of free sequences (with motifs and a prompt), templates (IUPAC letters, or text
with `[MASK]`), or intervals of a genome that are designed again within their flanks. It gives the
name and the `Pattern` of sample i on demand: given token ids, the mask elsewhere, and the bases
that are allowed at each masked position. `dnadiff.design.generate` fills it, and
`dnadiff.design.conditioning` makes samplers respect it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy import ndarray

from dnadiff.data.genome.genome import Genome
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.draws import hash64
from dnadiff.fields import Natural, PositiveInt, check_value
from dnadiff.formats.regions import Region, names_of, read_regions
from dnadiff.formats.sequences import read_sequences
from dnadiff.genomics.metrics.composition import evenly_spaced
from dnadiff.progress import log
from dnadiff.store.address import shown
from dnadiff.store.files import read_text

if TYPE_CHECKING:
    from dnadiff.data.alignment import Alignment
    from dnadiff.data.tokenizer import Tokenizer


# One bit for each base that an IUPAC letter allows: A 1, C 2, G 4, T 8.
CODES = dict(zip("ACGTURYSWKMBDHVN", (1, 2, 4, 8, 8, 5, 10, 6, 9, 12, 3, 14, 13, 11, 7, 15)))
FREE = 15
LETTER = {code: letter for letter, code in CODES.items() if letter != "U"}
_MOTIF = re.compile(r"([^@]+)@([+-]?\d+)(?::([+-]))?")
_MASK = re.compile(r"\[MASK(?:\*(\d+))?\]")
# In one [MASK*n]: longer than any network accepts, but small enough for memory.
_MAX_MASKS = 10_000_000

_CODE_OF_BYTE = np.zeros(256, np.uint8)
for _letter, _code in CODES.items():
    _CODE_OF_BYTE[[ord(_letter), ord(_letter.lower())]] = _code
_COMPLEMENT = np.array([int(f"{code:04b}"[::-1], 2) for code in range(16)], np.uint8)
_BASES_IN = np.array([code.bit_count() for code in range(16)])


class Pattern(NamedTuple):
    """The template of a sequence.

    Attributes:
        ids: (L,) int64, the mask where tokens are to be generated.
        codes: (L,) uint8, the bases allowed at a masked position, one bit each; 15 is any base.
        letters: (L,) uint8, the given letters in their case; 0 elsewhere. None for text.
    """

    ids: ndarray
    codes: ndarray
    letters: ndarray | None = None


class Motif(NamedTuple):
    """A motif at a position.

    Attributes:
        text: as the user wrote it.
        codes: its IUPAC codes on the forward strand.
        start: its position; negative counts from the end.
    """

    text: str
    codes: ndarray
    start: int

    def first(self, length: int) -> int:
        """Its first position in a sequence of `length` bases; a ValueError if it exceeds the
        sequence."""
        first = self.start + length if self.start < 0 else self.start
        if first < 0 or first + len(self.codes) > length:
            raise ValueError(
                f"motif {self.text} covers {first} to {first + len(self.codes)} (0-based, "
                f"half-open), outside a sequence of {length} bases; move it, or set length"
            )
        return first


def codes_of(text: str, what: str) -> ndarray:
    """The codes (L,) of IUPAC letters in either case; others are a ValueError that names `what` and
    the first one's 1-based position."""
    codes = _CODE_OF_BYTE[list(text.encode("ascii", "replace"))]
    if not codes.all():
        wrong = int(codes.argmin())
        raise ValueError(
            f"{what}: {text[wrong]!r} at position {wrong + 1} is not an IUPAC letter; "
            f"allowed are {', '.join(CODES)}"
        )
    return codes


def read_motifs(motif: str | Sequence[str] | None) -> list[Motif]:
    """Motifs written `MOTIF@start` or `MOTIF@start:strand`; others are a ValueError.

    The start is the leftmost position on the forward strand, 0-based; negative counts from the end.
    On strand "-" the sequence has the reverse complement of the motif there.
    """
    found = []
    for one in [motif] if isinstance(motif, str) else motif or ():
        text = one.strip()
        match = _MOTIF.fullmatch(text)
        if match is None:
            raise ValueError(
                f"motif {one!r} cannot be read; write MOTIF@start or MOTIF@start:strand, as in "
                "TATAAT@100 or CCAAT@-40:-"
            )
        codes = codes_of(match[1], f"motif {one}")
        on_strand = _COMPLEMENT[codes[::-1]] if match[3] == "-" else codes
        found.append(Motif(text, on_strand, int(match[2])))
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
    codes[: len(letters)] = given = codes_of(letters, what)
    owner: dict[int, str] = {}
    for motif in motifs:
        for position, code in enumerate(motif.codes.tolist(), motif.first(length)):
            before = int(codes[position])
            if not before & code:
                raise ValueError(
                    f"motif {motif.text} contradicts {owner.get(position, f'the {what}')} at "
                    f"position {position} (0-based) of {length} bases: {LETTER[code]} against "
                    f"{LETTER[before]}; move or change one"
                )
            codes[position] = before & code
            if code != FREE:
                owner[position] = f"motif {motif.text}"
    fixed = _BASES_IN[codes] == 1
    bases = np.log2(np.where(fixed, codes, 1)).astype(int)
    ids = dna_tokenizer(tokenizer).ids_from_bases(bases).astype(np.int64)
    shown = np.where(fixed, np.frombuffer(b"ACGT", np.uint8)[bases], 0).astype(np.uint8)
    is_lower = np.frombuffer(letters.encode(), np.uint8) & 0x20
    shown[: len(letters)] |= np.where(_BASES_IN[given] == 1, is_lower, 0).astype(np.uint8)
    return Pattern(np.where(fixed, ids, tokenizer.vocab.mask_id), codes, shown)


def pattern_of(
    tokenizer: Tokenizer,
    text: str,
    motifs: Sequence[Motif] = (),
    length: int | None = None,
    what: str = "template",
) -> Pattern:
    """The pattern of a text that masks continue up to `length`, None ends with it: IUPAC letters
    with motifs for a model of DNA, text with `[MASK]` for others; errors call it `what`.

    Motifs for a model of text, and more letters than can be generated at once, are a ValueError.
    """
    if len(text) > _MAX_MASKS:
        raise ValueError(
            f"a {what} of {len(text):,} letters is more than can be generated at once; cut it to "
            f"{_MAX_MASKS:,}, or give infill= and genome="
        )
    if tokenizer.vocab.complement is not None:
        return dna_pattern(tokenizer, len(text) if length is None else length, text, motifs, what)
    if motifs:
        raise ValueError(
            "motif is for models of DNA; for text give prompt= or a template with [MASK]"
        )
    return text_pattern(tokenizer, text, length)


def text_pattern(tokenizer: Tokenizer, text: str, length: int | None = None) -> Pattern:
    """The pattern of a text with `[MASK]`, or `[MASK*20]`, where tokens are to be generated.

    It continues with masks up to `length` tokens; None ends with the text. Characters that are not
    in the vocabulary, a text longer than `length`, and too many masks are a ValueError.
    """
    mask_id = tokenizer.vocab.mask_id
    words, *masks = _MASK.split(text)
    ids: list[int] = tokenizer.encode(words).tolist() if words else []
    for count, words in zip(masks[::2], masks[1::2]):
        if count and (len(count) > 18 or int(count) > _MAX_MASKS):
            raise ValueError(
                f"{f'[MASK*{count}]'[:40]} is more than can be generated at once; write at most "
                f"[MASK*{_MAX_MASKS}]"
            )
        ids += [mask_id] * int(count or 1)
        ids += tokenizer.encode(words).tolist() if words else []
    if length is not None:
        if len(ids) > length:
            raise ValueError(
                f"prompt has {len(ids)} tokens and length is {length}; set length to more than that"
            )
        ids += [mask_id] * (length - len(ids))
    return Pattern(np.array(ids, np.int64), np.full(len(ids), FREE, np.uint8))


def dna_tokenizer(tokenizer: Tokenizer) -> DNATokenizer:
    """The tokenizer, if it is one of DNA; a ValueError if it is one of text."""
    if not isinstance(tokenizer, DNATokenizer):
        raise ValueError(
            f"IUPAC letters are for models of DNA, and the alphabet of this one is {tokenizer.name}"
        )
    return tokenizer


def allowed_letters(tokenizer: Tokenizer) -> ndarray:
    """The tokens that each IUPAC code allows, (16, V); for text, all rows allow every token."""
    table = np.zeros((16, tokenizer.vocab.size), bool)
    if isinstance(tokenizer, DNATokenizer):
        bits = np.arange(16)[:, None] >> np.arange(4) & 1
        table[:, tokenizer.ids_from_bases(range(4))] = bits
    else:
        table[:, list(tokenizer.vocab.emitted)] = True
    return table


def gc_bounds(codes: ndarray) -> tuple[int, int]:
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
        columns: (L, CHANNELS) of an alignment of related genomes, which the sample is conditioned
            on; None: none.
    """

    name: str
    pattern: Pattern
    shown: tuple[int, int]
    designed: tuple[int, int]
    about: dict[str, str]
    start: ndarray | None = None
    columns: ndarray | None = None


class Request(ABC):
    """The templates of all samples: `num_groups` groups of `each` samples; sample i is in group i
    // each. `lengths` are the tokens in the shortest and in the longest sample, and `columns` (L,
    CHANNELS) of an alignment are those of every sample, or each has its own in `alignment`."""

    num_groups: int
    each: int
    lengths: tuple[int, int]
    columns: ndarray | None = None
    genome: Genome | None = None  # of intervals
    alignment: Alignment | None = None
    flanks: tuple[str, str] | None = None  # letters on both sides of what is designed

    def __len__(self) -> int:
        return self.num_groups * self.each

    @abstractmethod
    def __getitem__(self, number: int) -> Target:
        """The template of sample `number` (0-based)."""

    def first_of_groups(self) -> Iterator[Target]:
        """The first sample of each group."""
        return (self[group * self.each] for group in range(self.num_groups))

    def distinct(self) -> Iterator[Target]:
        """Samples that include every pattern of fixed tokens and partial letters: the first of each
        group."""
        return self.first_of_groups()

    def placed(self, target: Target, text: str) -> str:
        """The text of a sample, or, with `flanks`, the sequence that its designed part is in."""
        return text if self.flanks is None else text[slice(*target.designed)].join(self.flanks)

    def evenly_spaced(self) -> list[Target]:
        """At most 256 samples, evenly spaced over the request."""
        return [self[number] for number in evenly_spaced(len(self), 256).tolist()]


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
        self.each = num_samples
        self.seed = seed
        self.motifs = motifs
        self.lengths = length if isinstance(length, tuple) else (length, length)
        self.tokenizer = tokenizer
        self.prompt = prompt
        lengths = sorted(self._number_of_length()) if motifs else self.lengths[:1]
        for n in lengths:
            what = f"{'motif' if motifs else 'prompt'} at length {n}"
            check_has_masks(self._pattern(n), tokenizer.vocab.mask_id, what)

    def _pattern(self, length: int) -> Pattern:
        return pattern_of(self.tokenizer, self.prompt, self.motifs, length, "prompt")

    def _length(self, number: int) -> int:
        low, high = self.lengths
        return low + hash64(self.seed, "length", number) % (high - low + 1)

    def _number_of_length(self) -> dict[int, int]:
        """The first sample of each length; without motifs, the first sample."""
        numbers = range(self.each if self.motifs else 1)
        return {self._length(i): i for i in reversed(numbers)}

    def __getitem__(self, number: int) -> Target:
        span = (0, self._length(number))
        name = f"sample_{number + 1}"
        pattern = self._pattern(span[1])
        return Target(name, pattern, span, span, {}, columns=self.columns)

    def distinct(self) -> Iterator[Target]:
        """The first sample of each length, which decides where motifs overlap."""
        return map(self.__getitem__, self._number_of_length().values())


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
        start: Sequence[ndarray] | None = None,
    ) -> None:
        for name, pattern in patterns:
            check_has_masks(pattern, mask_id, f"template {name}")
        self.patterns = list(patterns)
        self.num_groups = len(patterns)
        self.each = each
        self.designed = designed
        self.start = start
        lengths = [len(pattern.ids) for _, pattern in patterns]
        self.lengths = min(lengths), max(lengths)

    def __getitem__(self, number: int) -> Target:
        group, place = divmod(number, self.each)
        name, pattern = self.patterns[group]
        name = f"{name}_{place + 1}"
        span = (0, len(pattern.ids))
        start = None if self.start is None else self.start[number]
        return Target(name, pattern, span, self.designed or span, {}, start, self.columns)


def check_has_masks(pattern: Pattern, mask_id: int, what: str) -> None:
    """Raise a ValueError if a pattern has no masked position; the message calls the pattern
    `what`."""
    if not len(pattern.ids):
        raise ValueError(f"{what} is empty")
    if not (pattern.ids == mask_id).any():
        way = "[MASK] for it" if pattern.letters is None else "letters such as N"
        raise ValueError(f"{what} leaves nothing to generate; give {way}")


def starting_from(
    tokenizer: Tokenizer,
    sequences: Sequence[tuple[str, str]],
    each: int,
    patterns: Sequence[Pattern] | None = None,
) -> Request:
    """The request for `each` changed versions of given (name, sequence) pairs.

    `patterns` say which positions may change, one for all sequences or one for each; None is every
    position. Letters that they do not allow, or that are not A, C, G or T where a sequence of DNA
    may change, are a ValueError; so is another length.
    """
    if not sequences:
        raise ValueError("start: there is no sequence; give at least one")
    encoded = [tokenizer.encode(text).astype(np.int64) for _, text in sequences]
    if patterns is None:
        patterns = [pattern_of(tokenizer, "", (), len(ids)) for ids in encoded]
    if len(patterns) == 1:
        patterns = [*patterns] * len(sequences)
    if len(patterns) != len(sequences):
        raise ValueError(
            f"template has {len(patterns)} records and start {len(sequences)} sequences; give one "
            "template for all, or one for each"
        )
    for (name, _), ids, pattern in zip(sequences, encoded, patterns):
        if len(pattern.ids) != len(ids):
            unit = "tokens" if tokenizer.vocab.complement is None else "bases"
            raise ValueError(
                f"start: {name} has {len(ids)} {unit} and no template of that length; give one "
                "template for all sequences, or one for each"
            )
        allowed = allowed_letters(tokenizer)[pattern.codes, ids]
        fits = np.where(pattern.ids == tokenizer.vocab.mask_id, allowed, ids == pattern.ids)
        if not fits.all():
            wrong = int(fits.argmin())
            raise ValueError(
                f"start: {name} has {tokenizer.decode(ids[[wrong]])} at position {wrong + 1}, "
                "which its template does not allow there"
            )
    named = [(name, pattern) for (name, _), pattern in zip(sequences, patterns)]
    starts = [ids for ids in encoded for _ in range(each)]
    return Templates(named, each, tokenizer.vocab.mask_id, start=starts)


class Infill(Request):
    """Intervals of a genome, designed again within their flanks.

    The network reads `length` bases with the interval in the middle, shifted inward at the ends of
    a record; on strand "-" it reads the reverse complement. Names are those of the intervals
    (`chrom:first-last(strand)`, 1-based) with the number of the design.

    Args:
        genome: the genome.
        regions: the intervals; one that is longer than `length` is a ValueError.
        each: designs for each interval.
        length: bases that the network reads; None: those of the interval alone, which may be
            spliced.
        whole: write whole windows; False writes only the designed part.
        alignment: whose columns guide the designs; None: none.
    """

    genome: Genome

    def __init__(
        self,
        genome: Genome,
        regions: Sequence[Region],
        each: int,
        length: int | None,
        whole: bool = True,
        alignment: Alignment | None = None,
    ) -> None:
        self.genome = genome
        self.regions = regions
        self.num_groups = len(regions)
        self.each = each
        self.length = length
        self.whole = whole
        self.alignment = alignment
        lengths = [min(length or region.size, genome.lengths[region.chrom]) for region in regions]
        self.lengths = min(lengths), max(lengths)
        self.names = names_of(regions)
        for name, region in zip(self.names, regions):
            if length is not None and region.size > length:
                raise ValueError(
                    f"infill: {name} has {region.size} bases, more than the {length} that are read "
                    "at once; set length to include its flanks too"
                )

    def __getitem__(self, number: int) -> Target:
        group = number // self.each
        genome = self.genome
        region = where = self.regions[group]
        first = 0
        if self.length is not None:
            low, high = window_around(
                region.start, region.end, genome.lengths[region.chrom], self.length
            )
            where = region._replace(start=low, end=high)
            first = high - region.end if region.strand == "-" else region.start - low
        last = first + region.size
        ids = where.joined(genome.window).astype(np.int64)
        upper = np.frombuffer(genome.tokenizer.decode(ids).encode(), np.uint8)
        letters = upper | np.where(where.joined(genome.soft_masked), 0x20, 0).astype(np.uint8)
        about = {"window": f"{where.chrom}:{where.start + 1}-{where.end}"}
        if self.whole:
            about["designed"] = f"{first + 1}-{last}"
        if region.name:
            about["region"] = "_".join(region.name.split())
        shown = (0, len(ids)) if self.whole else (first, last)
        pattern = masked_interval(genome.tokenizer, ids, letters, first, last)
        name = f"{self.names[group]}_{number % self.each + 1}"
        columns = None if self.alignment is None else self.alignment.batch([where])[0]
        return Target(name, pattern, shown, (first, last), about, columns=columns)


def infill_sequence(
    tokenizer: Tokenizer,
    sequence: str,
    start: int,
    end: int,
    n: int,
    length: int,
    columns: ndarray | None,
) -> Request:
    """The request for `n` designs of [start, end) in a sequence, with the `columns` of it.

    An interval that is empty, not in the sequence, or longer than `length` is a ValueError.
    """
    start = check_value("start", start, Natural)
    end = check_value("end", end, PositiveInt)
    if not start < end <= len(sequence):
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
    designed = (start - low, end - low)
    pattern = masked_interval(tokenizer, ids, np.zeros(len(ids), np.uint8), *designed)
    request = Templates([("infill", pattern)], n, tokenizer.vocab.mask_id, designed)
    request.columns = None if columns is None else columns[low:high]
    request.flanks = sequence[:start], sequence[end:]
    return request


def window_around(start: int, end: int, total: int, length: int) -> tuple[int, int]:
    """The window of `length` positions, in a record of `total`, with [start, end) in the middle;
    shifted inward at the ends."""
    length = min(length, total)
    low = min(max((start + end - length) // 2, 0), total - length)
    return low, low + length


def masked_interval(
    tokenizer: Tokenizer, ids: ndarray, letters: ndarray, start: int, end: int
) -> Pattern:
    """The pattern of `ids (L,)` with [start, end) masked."""
    ids = ids.copy()
    letters = letters.copy()
    ids[start:end], letters[start:end] = tokenizer.vocab.mask_id, 0
    return Pattern(ids, np.full(len(ids), FREE, np.uint8), letters)


def read_patterns(
    path: str, tokenizer: Tokenizer, motifs: Sequence[Motif]
) -> Iterator[tuple[str, Pattern]]:
    """Name and pattern of each record of a FASTA file of IUPAC letters, or of a text file as a
    whole."""
    for name, text in read_starts(path, tokenizer):
        try:
            yield name, pattern_of(tokenizer, text, motifs)
        except ValueError as error:
            raise ValueError(f"{shown(path)}: {error}") from None


def read_starts(path: str, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Name and letters of each record of a FASTA file, or a text file as a whole."""
    if tokenizer.vocab.complement is None:
        return [("sample", read_text(path).removesuffix("\n"))]
    return [(record.name, record.sequence.decode("ascii")) for record in read_sequences(path)]


def length_range(length: int | str) -> tuple[int, int]:
    """The shortest and the longest length of `512` or `200:1000`; raises ValueError for others."""
    if isinstance(length, int):
        return length, length
    match = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", length)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(
            f"length {length!r} cannot be parsed; write a number, or SHORTEST:LONGEST such as "
            "200:1000"
        )
    return int(match[1]), int(match[2])


def read_intervals(
    genome: str, infill: str | list[str], feature: str | None, spliced: bool
) -> tuple[Genome, list[Region]]:
    """The genome and the intervals to design; raises ValueError naming file and line."""
    opened = Genome(genome)
    regions = read_regions(infill, opened.lengths, feature, spliced)
    used = {region.chrom for region in regions}
    names = [row["name"] for row in opened.rows if row["name"] in used and row["ambiguous"][0]]
    if names:
        log.warning(
            f"{', '.join(names[:8])}: ambiguity codes (R, Y, ...) are read and written as N"
        )
    return opened, regions
