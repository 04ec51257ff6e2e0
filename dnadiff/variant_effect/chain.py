"""The chain rule over a few places of a window, with everything else visible: log p(alt) - log
p(ref) in given orders."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnadiff.variant_effect.network import Bools, Floats, Network
from dnadiff.variant_effect.pairs import Pair, Places

Orders = NDArray[np.int64]


class _Steps(NamedTuple):
    """Steps of one allele in one order."""

    number: int  # of the order
    order: Orders
    allele: int  # whose bases are visible and predicted: 0 for REF, 1 for ALT
    first: int

    @property
    def chosen(self) -> Orders:
        """The pairs of places that are predicted."""
        return self.order[self.first :]


def log_ratio(
    network: Network, pair: Pair, places: tuple[Places, Places], orders: Orders
) -> Floats:
    """Sum over the steps of log p(alt base | visible) - log p(ref base | visible), for each order:
    (R,).

    At step s of an order the places order[0..s-1] are visible and order[s] is predicted. All other
    bases of the window are visible. For alleles of equal length the steps before the first place at
    which they differ cost the same and are left out, and there one network call serves both.

    Args:
        places: n places of each window that belong together, `Pair.aligned`.
        orders: (R, n) permutations of 0..n-1.
    """
    tokens = [ids[where].astype(np.int64) for ids, where in zip((pair.ref, pair.alt), places)]
    differs = tokens[0] != tokens[1]
    steps = []
    for number, order in enumerate(orders):
        first = int(np.argmax(differs[order])) if pair.equal else 0
        steps += [
            _Steps(number, order, 0, first),
            _Steps(number, order, 1, first + 1 if pair.equal else 0),
        ]
    masked = chain.from_iterable(
        _hidden(each, places[each.allele], len(pair.ref)) for each in steps
    )  # together they can be large
    allele = [each.allele for each in steps for _ in each.chosen]
    asked = [int(places[each.allele][i]) for each in steps for i in each.chosen]
    found = network.at_places((pair.ref, pair.alt), allele, masked, asked)
    ratios, row = np.zeros(len(orders)), 0
    for each in steps:
        here = found[row : row + len(each.chosen)]
        sign = 1 if each.allele else -1
        ratios[each.number] += (
            sign * here[np.arange(len(here)), tokens[each.allele][each.chosen]].sum()
        )
        if pair.equal and not each.allele:  # the shared first step
            ratios[each.number] += here[0, tokens[1][each.chosen[0]]]
        row += len(here)
    return ratios


def _hidden(steps: _Steps, places: Places, length: int) -> Iterator[Bools]:
    """What is masked at each step: (L,)."""
    for step in range(steps.first, len(steps.order)):
        hidden = np.zeros(length, bool)
        hidden[places[steps.order[step:]]] = True
        yield hidden
