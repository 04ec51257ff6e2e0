"""Sequences as they are asked for: what each sample of a request shall hold.

A request is free sequences (with motifs and a prompt), templates, or intervals of a genome in their flanks (`Infill`). It says for
sample i what it is called and what it holds, and keeps nothing of samples that are done. How letters are written is in
`dnadiff.design.template`; `dnadiff.design.generate` fills requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnadiff.design.template import FREE, Motif, Pattern, dna_pattern, read_motifs, text_pattern
from dnadiff.draws import hash64


class Target(NamedTuple):
    """One sample to be made.

    Attributes:
        name: of the record.
        pattern: what it holds.
        shown: (start, end) of what is written.
        designed: (start, end) of what is to have the GC that is asked for.
        about: what its header says besides.
    """

    name: str
    pattern: Pattern
    shown: tuple[int, int]
    designed: tuple[int, int]
    about: dict[str, Any]


class Request(ABC):
    """What each sample shall hold. `num_groups` targets, each wanted `each` times; sample i belongs to target i // each."""

    num_groups: int
    each: int

    def __len__(self) -> int:
        return self.num_groups * self.each

    @abstractmethod
    def __getitem__(self, number: int) -> Target:
        """What sample `number` (from 0) shall be."""

    @property
    @abstractmethod
    def lengths(self) -> tuple[int, int]:
        """Tokens in the shortest and in the longest sample."""

    def evenly_spaced(self, most: int = 256) -> list[Target]:
        """Samples spread evenly over the request."""
        return [self[i] for i in np.unique(np.linspace(0, len(self) - 1, min(most, len(self))).astype(int)).tolist()]


class Free(Request):
    """Sequences of one length, or of lengths drawn evenly from a range, with motifs and a given beginning.

    Args:
        tokenizer: of the model.
        num_samples: how many.
        length: tokens, or the (shortest, longest).
        seed: the length of sample i depends on (seed, i).
        prompt: what stands at the beginning: IUPAC letters, or text with `[MASK]`.
        motifs: see `dnadiff.design.template.read_motifs`.

    Raises:
        ValueError: if they cannot all be kept at some length that is drawn, or leave nothing to generate.
    """

    num_groups = 1

    def __init__(
        self,
        tokenizer: Any,
        num_samples: int,
        length: int | tuple[int, int],
        seed: int = 1,
        prompt: str = "",
        motifs: Sequence[Motif] = (),
    ) -> None:
        self.each, self.seed = num_samples, seed
        self._lengths = (int(length), int(length)) if isinstance(length, Integral) else length
        if tokenizer.vocab.complement is None and motifs:
            raise ValueError("motif is for models of DNA; for text give prompt= or a template with [MASK]")

        @lru_cache(maxsize=64)
        def pattern(length: int) -> Pattern:
            if tokenizer.vocab.complement is None:
                return text_pattern(tokenizer, prompt, length)
            return dna_pattern(tokenizer, length, prompt, motifs, "prompt")

        self._pattern = pattern
        drawn = sorted({self._length(i) for i in range(num_samples)}) if motifs else [self._lengths[0]]
        for length in drawn:
            refuse_nothing_free(pattern(length), tokenizer.vocab.mask_id, f"the {'motifs' if motifs else 'prompt'} and length {length}")

    def _length(self, number: int) -> int:
        low, high = self._lengths
        return low + hash64(self.seed, "length", number) % (high - low + 1)

    def __getitem__(self, number: int) -> Target:
        length = self._length(number)
        return Target(f"sample_{number + 1}", self._pattern(length), (0, length), (0, length), {})

    @property
    def lengths(self) -> tuple[int, int]:
        """See `Request.lengths`."""
        return self._lengths


class Templates(Request):
    """Given patterns, each filled `each` times.

    Args:
        patterns: with their names.
        each: samples of each.
        mask_id: of the vocabulary.
        designed: see `Target`; None is all of it.

    Raises:
        ValueError: if one leaves nothing to generate.
    """

    def __init__(self, patterns: Sequence[tuple[str, Pattern]], each: int, mask_id: int, designed: tuple[int, int] | None = None) -> None:
        for name, pattern in patterns:
            refuse_nothing_free(pattern, mask_id, f"template {name}")
        self.patterns, self.num_groups, self.each, self.designed = list(patterns), len(patterns), each, designed

    def __getitem__(self, number: int) -> Target:
        name, pattern = self.patterns[number // self.each]
        whole = (0, len(pattern.ids))
        return Target(f"{name}_{number % self.each + 1}", pattern, whole, self.designed or whole, {})

    @property
    def lengths(self) -> tuple[int, int]:
        """See `Request.lengths`."""
        lengths = [len(pattern.ids) for _, pattern in self.patterns]
        return min(lengths), max(lengths)


class Infill(Request):
    """Intervals of a genome, designed anew in the flanks that they have there.

    The network reads `length` bases with the interval in their middle, or as near to it as the record allows; on strand "-" the other
    strand. Names are those of the intervals (`chrom:first-last(strand)`, counted from 1) with the number of the design.

    Args:
        genome: has `lengths`, `window` and `soft_masked` (`dnadiff.data.genome.genome.Genome`).
        regions: intervals with `chrom`, `start`, `end`, `strand`, `name`.
        each: designs for each interval.
        length: bases that the network reads.
        whole: whether whole windows are written, or the designed part alone.

    Raises:
        ValueError: if an interval does not fit into `length`.
    """

    def __init__(self, genome: Any, regions: Sequence[Any], each: int, length: int, whole: bool = True) -> None:
        self.genome, self.regions, self.each, self.length, self.whole = genome, list(regions), each, length, whole
        self.num_groups, self.names = len(self.regions), []
        seen: dict[str, int] = {}
        for region in self.regions:
            if region.end - region.start > length:
                raise ValueError(
                    f"infill: {region.chrom}:{region.start}-{region.end} has {region.end - region.start} bases, more than the {length} "
                    "that are read at once; set length to that and its flanks"
                )
            strand = "" if region.strand == "." else f"({region.strand})"
            name = f"{region.chrom}:{region.start + 1}-{region.end}{strand}"
            seen[name] = seen.get(name, 0) + 1
            self.names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
        self._target = lru_cache(maxsize=64)(self._made)

    def _made(self, group: int) -> Target:
        region, tokenizer = self.regions[group], self.genome.tokenizer
        low, high = window_around(region.start, region.end, self.genome.lengths[region.chrom], self.length)
        where = (region.chrom, low, high, region.strand)
        first = high - region.end if region.strand == "-" else region.start - low
        last = first + region.end - region.start
        ids = np.asarray(self.genome.window(*where)).astype(np.int64)
        letters = np.frombuffer(tokenizer.decode(ids).encode(), np.uint8) | np.where(self.genome.soft_masked(*where), 0x20, 0)
        about = {"window": f"{region.chrom}:{low + 1}-{high}"}
        if self.whole:
            about["designed"] = f"{first + 1}-{last}"
        if region.name:
            about["region"] = "_".join(region.name.split())
        shown = (0, len(ids)) if self.whole else (first, last)
        return Target(self.names[group], opened(tokenizer, ids, letters.astype(np.uint8), first, last), shown, (first, last), about)

    def __getitem__(self, number: int) -> Target:
        target = self._target(number // self.each)
        return target._replace(name=f"{target.name}_{number % self.each + 1}")

    @property
    def lengths(self) -> tuple[int, int]:
        """See `Request.lengths`."""
        lengths = [min(self.length, self.genome.lengths[region.chrom]) for region in self.regions]
        return min(lengths), max(lengths)


def window_around(start: int, end: int, total: int, length: int) -> tuple[int, int]:
    """The `length` positions of a record of `total` that have [start, end) in their middle, moved inward at its ends."""
    length = min(length, total)
    low = min(max((start + end - length) // 2, 0), total - length)
    return low, low + length


def opened(tokenizer: Any, ids: NDArray[np.int64], letters: NDArray[np.uint8], start: int, end: int) -> Pattern:
    """The pattern that keeps `ids (L,)` but for [start, end)."""
    inside = np.zeros(len(ids), bool)
    inside[start:end] = True
    codes = np.full(len(ids), FREE, np.uint8)
    return Pattern(np.where(inside, tokenizer.vocab.mask_id, ids), codes, np.where(inside, 0, letters).astype(np.uint8))


def refuse_nothing_free(pattern: Pattern, mask_id: int, what: str) -> None:
    """Refuse a pattern without a mask.

    Raises:
        ValueError: naming `what` leaves none.
    """
    if not (pattern.ids == mask_id).any():
        way = "[MASK] for it" if pattern.letters is None else "letters such as N"
        raise ValueError(f"{what} leave nothing to generate; give {way}" if len(pattern.ids) else f"{what} is empty")


def from_text(
    tokenizer: Any,
    num_samples: int,
    length: int | None,
    default: int,
    seed: int,
    template: str | None,
    motif: str | Sequence[str] | None,
    prompt: str,
) -> Request:
    """The request that one template as text makes, or without it free sequences of `length`, or `default`, tokens.

    Raises:
        ValueError: for what cannot be kept, and for a length beside a template.
    """
    prompt = prompt or ""
    for name, text in (("template", template), ("prompt", prompt)):
        if text is not None and not isinstance(text, str):
            raise ValueError(f"{name} {text!r} is not text; give one string")
    motifs = read_motifs(motif)
    if template is None:
        return Free(tokenizer, num_samples, default if length is None else length, seed, prompt, motifs)
    if prompt or length is not None:
        raise ValueError("template says what stands where and how long a sequence is; leave prompt and length out")
    if tokenizer.vocab.complement is not None:
        pattern = dna_pattern(tokenizer, len(template), template, motifs)
    elif motifs:
        raise ValueError("motif is for models of DNA; for text write the words into the template")
    else:
        pattern = text_pattern(tokenizer, template)
    return Templates([("template", pattern)], num_samples, tokenizer.vocab.mask_id)


def check_request(max_length: int | None, num_samples: int, length: int, otherwise: str = "") -> None:
    """Refuse numbers and lengths that cannot be served, before anything is computed.

    Args:
        max_length: longest sequence that the network takes, None for any.
        num_samples: asked for.
        length: asked for.
        otherwise: what else can be done about a length, ending in a comma.

    Raises:
        ValueError: naming the value and the limit.
    """
    for name, number in (("num_samples", num_samples), ("length", length)):
        if isinstance(number, bool) or not isinstance(number, Integral):
            raise ValueError(f"{name} {number!r} must be a whole number")
    if num_samples < 1:
        raise ValueError(f"num_samples {num_samples} must be at least 1")
    if length < 1:
        raise ValueError(f"length {length} must be at least 1 token")
    if max_length is not None and length > max_length:
        raise ValueError(
            f"length {length} is more than this network takes; use at most {max_length}, {otherwise}or train with a larger data.length"
        )
