"""Scores of the columns of an alignment, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dnadiff.data.alignment import Alignment
from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.vocab import DEPTH, POSTERIOR
from dnadiff.formats.nucleotides import ids_of
from dnadiff.genomics.variants.methods import Floats, Masked, Site
from dnadiff.genomics.variants.variant import TOKENIZER, Edit, Reference


@dataclass(frozen=True)
class AlignedGenome:
    """What stands in the place of a network: the predictions of an alignment for its target.

    Attributes:
        stranded: give the values of one strand alone; those of both are the same.
    """

    denoiser: ClassVar[None] = None
    window = 0
    sites_per_window = 1
    left_to_right = False
    shared: ClassVar[Sequence[Site]] = ()

    reference: Reference
    alignment: Alignment
    stranded: bool = False

    @property
    def strands(self) -> tuple[bool, ...]:
        """As of a `Network`."""
        return (False,) if self.stranded else (False, True)

    def site_predictions(self, sites: object) -> AlignedGenome:
        """Nothing is computed beforehand."""
        return self

    def at(self, sites: Sequence[Site]) -> Floats:
        """Log-probabilities of A, C, G and T at sites: (K, S, 4); NaN where nothing is aligned."""
        found = [self.alignment.columns(record, place, place + 1)[0] for record, place in sites]
        columns = np.array(found, np.float64)
        known = np.where(columns[:, DEPTH:] > 0, columns[:, POSTERIOR], np.nan)
        return np.stack([known] * len(self.strands))


class Phylogeny(Masked):
    """log P(alt) - log P(ref), with P the posterior of the target's base given those of its
    relatives, by the phylogeny of the alignment (`dnadiff.genomics.phylogeny`).

    For several bases (MNV) the sum over them. There is no value where no relative has a base, and
    for insertions and deletions, which have no column.
    """

    name = "phylogeny"
    needs_model = False
    no_value = "an insertion or deletion, or no related genome is aligned"
    without_columns = "no data"

    def reader(self, reference: Any, alignment: str | None, stranded: bool) -> AlignedGenome:
        if alignment is None:
            raise ValueError(
                "variant_method phylogeny reads an alignment of the genome with its relatives, and "
                "none is given; set alignment= to a file of dnadiff.align"
            )
        opened = Alignment.open(alignment)
        opened.check(reference)
        return AlignedGenome(reference, opened, stranded)

    def difference(self, network: Any, edit: Edit, reverse: bool) -> tuple[float, float]:
        if edit.surplus:
            return np.nan, np.nan
        found = network.at([(edit.record, place) for place in range(edit.start, edit.end)])[0]
        ref, alt = (TOKENIZER.bases(ids_of(each)) for each in (edit.ref, edit.alt))
        row = np.arange(len(found))
        return float((found[row, alt] - found[row, ref]).sum()), np.nan

    def check(self, edit: Edit) -> None:
        """Nothing is refused."""

    def for_model(self, denoiser: BaseDenoiser | None) -> Phylogeny:
        if denoiser is not None:
            raise ValueError(
                "variant_method phylogeny reads no model, and cannot be a part of by_kind; choose "
                "masked, block or window there"
            )
        return self
