"""The error of several sites per window, measured at some sites that are also predicted alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from dnadiff.variant_effect.network import NUM_BASES
from dnadiff.variant_effect.site_windows import Floats

AUDITED = (
    64  # sites that share a window and are also predicted alone: until this many have been compared
)


@dataclass
class Audit:
    """The error of several sites per window against one: the root of the mean squared difference of
    log-probability ratios, in nats.

    Attributes:
        squared, count: sum of the squared differences, and their number.
        shared: sites that were predicted in a window with others.
    """

    squared: float = 0.0
    count: int = 0
    shared: int = 0

    @property
    def rms(self) -> float:
        """Root mean square."""
        return math.sqrt(self.squared / max(self.count, 1))

    @property
    def sites(self) -> int:
        """Sites that were compared."""
        return self.count // NUM_BASES

    @property
    def values(self) -> list[float]:
        """What the constructor takes."""
        return [self.squared, self.count, self.shared]

    def include(self, other: Audit) -> None:
        """Add what another part of the rows found: all sites that share a window, and comparisons
        until there are `AUDITED`."""
        self.shared += other.shared
        if self.sites < AUDITED:
            self.squared, self.count = self.squared + other.squared, self.count + other.count

    def add(self, several: Floats, single: Floats) -> Self:
        """Compare predictions (K, S, 4): differences to each site's mean over the bases."""
        both = [each - each.mean(-1, keepdims=True) for each in (several, single)]
        difference = (both[0] - both[1]).mean(0)
        known = np.isfinite(difference)
        self.squared += float((difference[known] ** 2).sum())
        self.count += int(known.sum())
        return self
