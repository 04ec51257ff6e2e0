"""A block of bases around the variant, unmasked one by one in random orders, with everything else
visible."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from typing_extensions import override

from dnadiff.diffusion.draws import Draws
from dnadiff.fields import PositiveInt, Range, integer, optional_integer
from dnadiff.genomics.variants.base import Orders, PairMethod, log_ratio
from dnadiff.genomics.variants.network import Network
from dnadiff.genomics.variants.variant import Edit, Pair

_AROUND_SUBSTITUTIONS, _AROUND_INDELS = 4, 16  # bases


class Block(PairMethod):
    """Mean over random orders of log p(alt block | rest) - log p(ref block | rest) by the chain
    rule.

    The bases of the block are in the context of the variant, or the variant in theirs, depending on
    the order. For alleles of equal length the estimate differs from that of `window` only in that
    bases outside the block are always visible. For others both blocks hold equally many bases
    (`Pair.aligned`); what remains is the assumption that the rest of both windows is equally
    likely. The error is that of the mean over the orders.

    Args:
        block: bases around the alleles, half on each side. None is 4 around alleles of equal
            length, because more of them only add variance, and 16 around others.
        num_orders: orders per variant and strand; about `block` network calls each for a single
            base, twice as many for an indel.
    """

    def __init__(
        self, block: PositiveInt | None = None, num_orders: Annotated[int, Range(2)] = 4
    ) -> None:
        self.block, self.num_orders = (
            optional_integer("block", block),
            integer("num_orders", num_orders, 2),
        )

    @override
    def difference(
        self, network: Network, pair: Pair, edit: Edit, reverse: bool
    ) -> tuple[float, float]:
        size = self.block or (_AROUND_SUBSTITUTIONS if pair.equal else _AROUND_INDELS)
        places = pair.aligned(-(-size // 2))
        if places is None:
            return np.nan, np.nan
        orders = self.orders(len(places[0]), network.draws(edit, reverse, self.num_orders))
        ratios = log_ratio(network, pair, places, orders)
        return float(ratios.mean()), float(ratios.var(ddof=1) / len(ratios))

    def orders(self, count: int, draws: Draws) -> Orders:
        """Random orders of the places of a block: (R, count)."""
        return draws.uniform("order", count).argsort(-1).numpy()
