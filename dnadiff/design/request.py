"""Requests: the template of each sample to generate.

A request consists of free sequences (with motifs and a prompt), templates, or intervals of a genome
(`dnadiff.design.infill`). It gives the name and the template of sample i on demand, and
`dnadiff.design.generate` fills it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.checks import integer
from dnadiff.design.template import (
    Motif,
    Pattern,
    allowed_letters,
    dna_pattern,
    dna_tokenizer,
    read_motifs,
    template_pattern,
    text_pattern,
)
from dnadiff.draws import hash64

if TYPE_CHECKING:
    from dnadiff.data.tokenizer import Tokenizer


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
        motifs: see `dnadiff.design.template.read_motifs`.

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
    num_samples, length = integer("num_samples", num_samples), integer("length", length)
    if max_length is not None and length > max_length:
        raise ValueError(
            f"length {length} is more than this network takes; use at most {max_length}, "
            f"{otherwise}or train with a larger data.length"
        )
    return num_samples, length
