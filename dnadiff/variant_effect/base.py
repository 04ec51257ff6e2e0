"""The base classes of the methods that compute the log-likelihood ratio of a variant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from dnadiff.config import Json
from dnadiff.denoiser import BaseDenoiser
from dnadiff.process import AbsorbingProcess, Process, require
from dnadiff.variant_effect.network import Floats, Network
from dnadiff.variant_effect.pairs import Pair
from dnadiff.variant_effect.variant import Edit


class VariantMethod(ABC):
    """Base class of all methods.

    Attributes:
        for_left_to_right: whether it is for models that go from left to right (autoregressive or
            block diffusion) or for all others.
        process_type: of which process these models are.
    """

    buildable: ClassVar[bool] = True  # a configuration may name it (`dnadiff.config.locate`)
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
