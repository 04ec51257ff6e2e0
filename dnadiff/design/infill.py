"""Infilling: intervals of a genome or of a sequence that are designed again, conditioned on their
flanks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.checks import integer
from dnadiff.design.request import Request, Target, Templates
from dnadiff.design.template import FREE, Pattern

if TYPE_CHECKING:
    from dnadiff.data.genome.genome import Genome
    from dnadiff.data.tokenizer import Tokenizer
    from dnadiff.formats.regions import Region

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
    start, end = integer("start", start, 0), integer("end", end)
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
