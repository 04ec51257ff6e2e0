"""Single sites in windows: which sites share a window, where they are masked together, and the
predictions at them."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Site: TypeAlias = tuple[str, int]  # record and 0-based position


class MaskedWindow(NamedTuple):
    """The window `[start, end)` of a record, and the sites in it that are masked together, in
    ascending order."""

    record: str
    start: int
    end: int
    sites: tuple[int, ...]


def site_windows(
    sites: Iterable[Site], lengths: Mapping[str, int], window: int, sites_per_window: int = 1
) -> list[MaskedWindow]:
    """Windows that have each site once.

    A site alone is in the middle of its window, except at the ends of a record. Sites that share a
    window are at least window // sites_per_window bases apart, also on records that are shorter
    than a window, and half of that from the ends of the window that are not ends of the record.

    Args:
        lengths: record name to length.
        window: bases that the network reads; a shorter record is read whole.
        sites_per_window: most sites in a window.
    """
    of_record: dict[str, set[int]] = {}
    for record, site in sites:
        of_record.setdefault(record, set()).add(site)
    found = []
    for record, positions in of_record.items():
        length = lengths[record]
        size = min(window, length)
        for group in _groups(sorted(positions), length, window, sites_per_window):
            start = group[0] - (size - 1 - (group[-1] - group[0])) // 2
            start = min(max(start, 0), length - size)
            found.append(MaskedWindow(record, start, start + size, tuple(group)))
    return found


def _groups(positions: Sequence[int], length: int, window: int, most: int) -> Iterator[list[int]]:
    """The positions (ascending, different) in groups that fit into a window, each with the first
    remaining position.

    In a run of consecutive positions every window is full but for those at the end of the run.
    """
    spacing = max(window // most, 1)
    margin, count = (spacing - 1) // 2, len(positions)
    following = list(range(count + 1))  # of each position: itself, or one after it that may be left

    def left(number: int) -> int:
        while following[number] != number:
            following[number] = following[following[number]]
            number = following[number]
        return number

    for number, first in enumerate(positions):
        if following[number] != number:
            continue
        following[number], group = number + 1, [first]
        low = max(first - margin, 0)
        while len(group) < most:
            other = left(bisect_left(positions, group[-1] + spacing))
            if other == count or min(positions[other] + margin + 1, length) - low > window:
                break
            following[other] = other + 1
            group.append(positions[other])
        yield group


class SitePredictions:
    """Predictions at many sites. A batch of windows is read when one of its sites is first asked
    for, and always as a whole.

    So the predictions do not depend on which of the sites are asked for, or in which order.

    Args:
        windows: of the sites.
        batch_size: windows in a network call.
        num_strands: K.
        predict: log-probabilities (K, S, 4) at the S sites of some windows of equal length.

    Attributes:
        shared: the sites that share their window with another.
    """

    def __init__(
        self,
        windows: Sequence[MaskedWindow],
        batch_size: int,
        num_strands: int,
        predict: Callable[[Sequence[MaskedWindow]], Floats],
    ) -> None:
        by_length = sorted(windows, key=lambda each: each.end - each.start)
        parts = [
            list(same)
            for _, same in itertools.groupby(by_length, key=lambda each: each.end - each.start)
        ]
        self.batches = [
            part[first : first + batch_size]
            for part in parts
            for first in range(0, len(part), batch_size)
        ]
        self.predict, self.read = predict, np.zeros(len(self.batches), bool)
        sizes = [sum(len(window.sites) for window in batch) for batch in self.batches]
        self.first, self.batch_of = np.cumsum([0, *sizes]), np.repeat(np.arange(len(sizes)), sizes)
        every = [
            (window.record, site)
            for batch in self.batches
            for window in batch
            for site in window.sites
        ]
        self.row = {site: row for row, site in enumerate(every)}
        self.values = np.full((num_strands, len(every), 4), np.nan)
        self.shared = [
            (window.record, site)
            for window in windows
            if len(window.sites) > 1
            for site in window.sites
        ]

    def at(self, sites: Sequence[Site]) -> Floats:
        """Log-probabilities of A, C, G and T at sites of the windows: (K, S, 4); NaN where the
        genome has N."""
        rows = np.array([self.row[site] for site in sites], np.int64)
        for batch in np.unique(self.batch_of[rows]):
            if not self.read[batch]:
                self.values[:, self.first[batch] : self.first[batch + 1]] = self.predict(
                    self.batches[batch]
                )
                self.read[batch] = True
        return self.values[:, rows]
