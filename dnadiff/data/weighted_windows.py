"""Training windows that are drawn more often from some records than from others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.data.n_runs import NRuns
from dnadiff.data.shuffle import bits, uniform
from dnadiff.data.windows import UniformWindows
from dnadiff.draws import hash64


class WeightedWindows(UniformWindows):
    """Random windows that are drawn from a record in proportion to its weight and its number of
    starts, uniformly among these.

    Args:
        weights: for each record how often its starts are drawn, relative to those of others,
            `(number of records,)`.

    The other arguments, and items, are those of `RandomWindows`.

    Raises:
        ValueError: as `RandomWindows`, or if no record of a weight above 0 has a window.
    """

    def __init__(self, weights: NDArray[np.float64], *args: Any, **options: Any) -> None:
        self._weights = weights
        super().__init__(*args, **options)

    @override
    def _index_windows(self, n_runs: NRuns | None, max_count: int) -> int:
        count = super()._index_windows(n_runs, max_count)
        starts = np.diff(self._last, prepend=0)
        self._mass = np.cumsum(self._weights[self._record] * starts)
        if count and not self._mass[-1]:
            raise ValueError(
                "every window for training is of a file with weight 0 in the manifest; give "
                "another file a weight above 0"
            )
        return count

    @override
    def _places(
        self, key: int, index: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        mass = uniform(key, index) * self._mass[-1]
        found = np.minimum(
            np.searchsorted(self._mass, mass, "right"), np.searchsorted(self._mass, self._mass[-1])
        )
        first = np.where(found > 0, self._last[found - 1], 0)
        number = first + (bits(hash64(key, "start"), index) >> np.uint64(1)).astype(np.int64) % (
            self._last[found] - first
        )
        return self._record[found], number + self._shift[found]
