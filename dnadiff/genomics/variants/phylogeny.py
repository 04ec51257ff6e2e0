"""Scores of the columns of an alignment, without a network."""

from typing import Any

import numpy as np

from dnadiff.formats.nucleotides import ids_of
from dnadiff.genomics.variants.methods import Estimate, Reading, VariantMethod
from dnadiff.genomics.variants.variant import TOKENIZER


class Phylogeny(VariantMethod):
    """log P(alt) - log P(ref), with P the posterior of the target's base given those of its
    relatives, by the phylogeny of the alignment (`dnadiff.genomics.phylogeny`).

    For several bases (MNV) the sum over them. There is no value where no relative has a base, and
    for insertions and deletions, which have no column.
    """

    name = "phylogeny"
    needs_model = False
    no_value = "an insertion or deletion, or no related genome is aligned"
    without_columns = "no data"

    def difference(self, read: Reading) -> Estimate:
        edit = read.edit
        network: Any = read.network  # an `AlignedGenome`
        if edit.surplus:
            return np.nan, np.nan
        found = network.at([(edit.record, place) for place in range(edit.start, edit.end)])[0]
        ref, alt = (TOKENIZER.bases(ids_of(each)) for each in (edit.ref, edit.alt))
        row = np.arange(len(found))
        return float((found[row, alt] - found[row, ref]).sum()), np.nan
