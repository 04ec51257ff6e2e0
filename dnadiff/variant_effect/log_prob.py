"""log p of the window with each allele under an autoregressive model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from dnadiff.variant_effect.base import VariantMethod
from dnadiff.variant_effect.network import NUM_BASES, Floats, Network
from dnadiff.variant_effect.variant import TOKENIZER, Edit


class LogProb(VariantMethod):
    """log p(window with ALT) - log p(window with REF) by the chain rule, exact: its error is 0.

    For an indel the windows have equal length. There is no value if one of them has more N, because its sum would have fewer terms.
    """

    causal: ClassVar[bool] = True

    @override
    def llr(self, network: Network, edits: Sequence[Edit], at_sites: Floats) -> tuple[Floats, Floats]:
        found = []
        for reverse in network.strands:
            pairs = [network.pair(edit, reverse) for edit in edits]
            ref, alt = network.window_log_probs([p.ref for p in pairs]), network.window_log_probs([p.alt for p in pairs])
            equal = [(TOKENIZER.bases(p.ref) < NUM_BASES).sum() == (TOKENIZER.bases(p.alt) < NUM_BASES).sum() for p in pairs]
            found.append(np.where(equal, alt - ref, np.nan))
        return np.stack(found), np.zeros((len(found), len(edits)))
