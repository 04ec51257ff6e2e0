"""How the features of the positions of a sequence become its embedding."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor
from typing_extensions import override


class Pool(ABC):
    """Maps the features (L, D) of one sequence to its embedding; `per_position` if that has a row
    for each position."""

    per_position = False

    @abstractmethod
    def __call__(self, features: Tensor) -> Tensor:
        """(L, D) -> (D,), or (L, D) if `per_position`."""


class Mean(Pool):
    """The mean over positions."""

    @override
    def __call__(self, features: Tensor) -> Tensor:
        return features.mean(0)


class Max(Pool):
    """The maximum of each feature over positions."""

    @override
    def __call__(self, features: Tensor) -> Tensor:
        return features.amax(0)


class PerPosition(Pool):
    """All positions."""

    per_position = True

    @override
    def __call__(self, features: Tensor) -> Tensor:
        return features


POOLS: dict[str, type[Pool]] = {"mean": Mean, "max": Max, "none": PerPosition}


def pool_of(name: str) -> Pool:
    """The pool of that name; a ValueError if there is none."""
    if name not in POOLS:
        raise ValueError(f"pool {name!r} is not known; choose {', '.join(POOLS)}")
    return POOLS[name]()
