"""All variants of some regions (saturation mutagenesis), as a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat

from typing_extensions import override

from dnadiff.formats.regions import Region
from dnadiff.variant_effect.sources import VariantSource
from dnadiff.variant_effect.variant import TOKENIZER, Reference, Row

_BASES = "ACGT"
_PIECE = 1 << 16  # bases that are read together


class Saturation(VariantSource):
    """Every SNV of some regions, and every deletion of one base if requested; positions with N are
    left out.

    A deletion is written with the base before it, as in VCF, or at the first position with the base
    after it. Overlapping regions give their variants repeatedly.
    """

    def __init__(
        self, regions: Sequence[Region], reference: Reference, deletions: bool = False
    ) -> None:
        self.name, self.regions, self.reference, self.deletions = (
            "saturate",
            list(regions),
            reference,
            deletions,
        )

    @override
    def __iter__(self) -> Iterator[Row]:
        return chain.from_iterable(map(self._rows, self._pieces()))

    @override
    def between(self, first: int, last: int | None = None) -> Iterator[Row]:
        pieces, skip = self._pieces(), first
        for piece in pieces:
            if (number := self._num_bases(piece) * len(self._alleles(piece))) > skip:
                rest = chain(self._rows(piece), chain.from_iterable(map(self._rows, pieces)))
                return islice(rest, skip, None if last is None else last - first + skip)
            skip -= number
        return iter(())

    @override
    def num_alleles(self) -> Iterator[tuple[int, int]]:
        for piece in self._pieces():
            yield from chain.from_iterable(
                repeat([(number, 0) for number in self._alleles(piece)], self._num_bases(piece))
            )

    def _pieces(self) -> Iterator[Region]:
        """The regions, in pieces that fit into memory."""
        for region in self.regions:
            for first in range(region.start, region.end, _PIECE):
                yield region._replace(start=first, end=min(first + _PIECE, region.end))

    def _num_bases(self, piece: Region) -> int:
        letters = TOKENIZER.decode(self.reference.window(piece.chrom, piece.start, piece.end))
        return sum(map(letters.count, _BASES))

    def _alleles(self, piece: Region) -> tuple[int, ...]:
        """The alternative alleles of each row of a base."""
        snv = len(_BASES) - 1
        return (1, snv) if self.deletions and self.reference.lengths[piece.chrom] > 1 else (snv,)

    def _rows(self, piece: Region) -> Iterator[Row]:
        chrom, length = piece.chrom, self.reference.lengths[piece.chrom]
        low = max(piece.start - 1, 0)
        letters = TOKENIZER.decode(self.reference.window(chrom, low, min(piece.end + 1, length)))
        for place in range(piece.start, piece.end):
            base = letters[place - low]
            if base not in _BASES:
                continue
            where = f"saturate: {chrom}:{place + 1}"
            if (
                self.deletions and length > 1
            ):  # first: its POS is that of the base before, and VCF must be sorted
                yield self._deletion(chrom, place, letters, low, where)
            yield Row(where, chrom, place + 1, ".", base, tuple(b for b in _BASES if b != base))

    def _deletion(self, chrom: str, place: int, letters: str, low: int, where: str) -> Row:
        at = place - low
        if place:
            return Row(where, chrom, place, ".", letters[at - 1 : at + 1], (letters[at - 1],))
        return Row(where, chrom, 1, ".", letters[:2], (letters[1],))
