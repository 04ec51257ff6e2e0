"""Weighted sums of rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from typing_extensions import override

from dnadiff.design.reward import Reward, Values
from dnadiff.fields import checked


@checked
class WeightedSum(Reward):
    """The sum of weight times reward over named terms. With the weights 1 and -1 it is a
    difference, as for activity in one cell type.

    Args:
        terms: rewards by name.
        weights: of each term, by name; missing ones are 1.

    Raises:
        ValueError: if there is no term, or a weight without a term.
    """

    def __init__(
        self, terms: Mapping[str, Reward], weights: Mapping[str, float] | None = None
    ) -> None:
        self.terms, self.weights = dict(terms), dict(weights or {})
        if not self.terms or not all(isinstance(term, Reward) for term in self.terms.values()):
            raise ValueError(
                "reward.terms are rewards by name, such as {promoter: {_target_: ...}}; give at "
                "least one"
            )
        if unknown := [name for name in self.weights if name not in self.terms]:
            raise ValueError(
                f"reward.weights.{unknown[0]} has no term; the terms are {', '.join(self.terms)}"
            )

    def _weighted(self) -> list[tuple[Reward, float]]:
        return [(term, self.weights.get(name, 1.0)) for name, term in self.terms.items()]

    @override
    def check_length(self, length: int) -> None:
        for term in self.terms.values():
            term.check_length(length)

    @override
    def inputs(self) -> dict[str, str]:
        return {
            path: digest for term in self.terms.values() for path, digest in term.inputs().items()
        }

    @override
    def __call__(self, sequences: Sequence[str]) -> Values:
        return np.sum([weight * term(sequences) for term, weight in self._weighted()], axis=0)

    @property
    @override
    def has_gradient(self) -> bool:
        return all(term.has_gradient for term in self.terms.values())

    @override
    def gradient(self, sequences: Sequence[str]) -> tuple[Values, Values]:
        found = [(weight, *term.gradient(sequences)) for term, weight in self._weighted()]
        return np.sum([w * value for w, value, _ in found], axis=0), np.sum(
            [w * slope for w, _, slope in found], axis=0
        )
