"""The variant masked, everything else visible: one network call for all alternatives of a site,
without a Monte Carlo error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from dnadiff.genomics.variants.base import VariantMethod, log_ratio
from dnadiff.genomics.variants.network import Floats, Network
from dnadiff.genomics.variants.variant import TOKENIZER, Edit, ids_of_allele


class Masked(VariantMethod):
    """log p(alt base | rest) - log p(ref base | rest), the network's prediction at the masked site.

    For several bases (MNV) the chain rule over the bases that differ, from left to right on the
    strand that is read; bases between them stay visible. It has no random numbers, so no error; how
    consistent the network's conditionals are is not visible in it.
    """

    @override
    def llr(
        self, network: Network, edits: Sequence[Edit], at_sites: Floats
    ) -> tuple[Floats, Floats]:
        llr = np.full(at_sites.shape[:2], np.nan)
        for number, edit in enumerate(edits):
            if edit.is_snv:
                ref, alt = (
                    int(TOKENIZER.bases(ids_of_allele(allele))[0])
                    for allele in (edit.ref, edit.alt)
                )
                llr[:, number] = at_sites[:, number, alt] - at_sites[:, number, ref]
            else:
                llr[:, number] = [
                    self._of_several(network, edit, reverse) for reverse in network.strands
                ]
        return llr, np.full(llr.shape, np.nan)

    def _of_several(self, network: Network, edit: Edit, reverse: bool) -> float:
        self.check(edit)
        pair = network.pair(edit, reverse)
        here = np.flatnonzero(pair.ref != pair.alt)
        return float(log_ratio(network, pair, (here, here), np.arange(len(here))[None])[0])

    @override
    def check(self, edit: Edit) -> None:
        if edit.is_indel:
            raise ValueError(
                f"variant_method masked compares alleles of equal length, and those of {edit.name} "
                "differ in length; "
                "set variant_method to by_kind, block or window, or remove insertions and deletions"
            )
