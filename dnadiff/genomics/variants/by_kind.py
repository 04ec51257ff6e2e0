"""The default: another method for each kind of variant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.fields import Json
from dnadiff.genomics.variants.base import VariantMethod
from dnadiff.genomics.variants.network import Floats, Network
from dnadiff.genomics.variants.variant import Edit


class ByKind(VariantMethod):
    """Another method for each kind of variant.

    Args:
        snv: for single bases.
        mnv: for other replacements of equal length.
        indel: for insertions, deletions and replacements of another length.
        left_to_right: for all variants under a model that goes from left to right: autoregressive
            or block diffusion.
    """

    def __init__(
        self,
        snv: VariantMethod,
        mnv: VariantMethod,
        indel: VariantMethod,
        left_to_right: VariantMethod,
    ) -> None:
        self.snv, self.mnv, self.indel, self.left_to_right = snv, mnv, indel, left_to_right
        for key, method in vars(self).items():
            if not isinstance(method, VariantMethod):
                raise ValueError(
                    f"variant_method.{key} is {method!r}, not a method; choose masked, block, "
                    "window or log_prob"
                )

    def _of(self, edit: Edit) -> VariantMethod:
        return self.snv if edit.is_snv else self.indel if edit.is_indel else self.mnv

    @override
    def llr(
        self, network: Network, edits: Sequence[Edit], at_sites: Floats
    ) -> tuple[Floats, Floats]:
        llr, variance = np.full((2, len(network.strands), len(edits)), np.nan)
        for method in dict.fromkeys((self.snv, self.mnv, self.indel)):
            chosen = [number for number, edit in enumerate(edits) if self._of(edit) is method]
            if chosen:
                llr[:, chosen], variance[:, chosen] = method.llr(
                    network, [edits[i] for i in chosen], at_sites[:, chosen]
                )
        return llr, variance

    @override
    def for_model(self, denoiser: BaseDenoiser) -> VariantMethod:
        if denoiser.left_to_right:
            return self.left_to_right.for_model(denoiser)
        for method in (self.snv, self.mnv, self.indel):
            method.for_model(denoiser)
        return self

    @override
    def check(self, edit: Edit) -> None:
        self._of(edit).check(edit)

    @override
    def settings(self) -> dict[str, Json]:
        return {
            "method": self.name,
            **{kind: method.settings() for kind, method in vars(self).items()},
        }
