"""The base classes of the methods that compute the log-likelihood ratio of a variant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.process import AbsorbingProcess, Process, require
from dnadiff.fields import Json
from dnadiff.genomics.variants.network import Bools, Floats, Network
from dnadiff.genomics.variants.variant import Edit, Pair, Places


class VariantMethod(ABC):
    """Base class of all methods.

    Attributes:
        for_left_to_right: whether it is for models that go from left to right (autoregressive or
            block diffusion) or for all others.
        process_type: of which process these models are.
    """

    buildable: ClassVar[bool] = True  # a configuration may name it (`dnadiff.store.objects.locate`)
    for_left_to_right: ClassVar[bool] = False
    process_type: ClassVar[type[Process]] = AbsorbingProcess

    @abstractmethod
    def llr(
        self, network: Network, edits: Sequence[Edit], at_sites: Floats
    ) -> tuple[Floats, Floats]:
        """log p(alt) - log p(ref) in nats of n variants on each of the K strands, and the variance
        of these estimates: (K, n) both.

        The variance is NaN for a method without a Monte Carlo error, and 0 for an exact result.

        Args:
            at_sites: (K, n, 4) log-probabilities at the first base of each variant, masked alone.
        """

    def for_model(self, denoiser: BaseDenoiser) -> VariantMethod:
        """The method for a model; raises ValueError if there is none, or a setting that the model
        needs is not valid."""
        if self.for_left_to_right != denoiser.left_to_right:
            model, other = (
                ("a left-to-right", "log_prob")
                if denoiser.left_to_right
                else ("a masked diffusion", "masked, block or window")
            )
            raise ValueError(
                f"variant_method {self.name} cannot use {model} model; set variant_method to "
                f"{other}, or leave it out"
            )
        require(f"variant_method {self.name}", denoiser, self.process_type)
        return self

    def check(self, edit: Edit) -> None:
        """Raise ValueError for a variant that this method has no answer for."""

    @property
    def name(self) -> str:
        """The name of its module, which is its name on the command line."""
        return type(self).__module__.rpartition(".")[2]

    def settings(self) -> dict[str, Json]:
        """Its name and arguments."""
        return {"method": self.name, **vars(self)}


class PairMethod(VariantMethod):
    """A method that compares the windows of both alleles, one variant at a time."""

    @override
    def llr(
        self, network: Network, edits: Sequence[Edit], at_sites: Floats
    ) -> tuple[Floats, Floats]:
        found = [
            [self.difference(network, network.pair(edit, reverse), edit, reverse) for edit in edits]
            for reverse in network.strands
        ]
        values = np.array(found, dtype=np.float64).reshape(len(network.strands), len(edits), 2)
        return values[..., 0], values[..., 1]

    @abstractmethod
    def difference(
        self, network: Network, pair: Pair, edit: Edit, reverse: bool
    ) -> tuple[float, float]:
        """log p(alt) - log p(ref) on one strand, and its variance."""


def check_method(method: object, denoiser: BaseDenoiser) -> VariantMethod:
    """`for_model` of a method; raises ValueError if it is not a method."""
    if not isinstance(method, VariantMethod):
        raise ValueError(
            f"variant_method is a {type(method).__name__}, not a method; choose by_kind, masked, "
            "block, window or log_prob"
        )
    return method.for_model(denoiser)


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
