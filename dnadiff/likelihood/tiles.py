"""Overlapping windows, so that each base is predicted where its window has context on both
sides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dnadiff.data.genome.pieces import Piece


class SiteWindow(NamedTuple):
    """A window, and the positions [low, high) of its record that are predicted in it."""

    window: Piece
    low: int
    high: int


def tiles(sites: Iterable[Piece], lengths: Sequence[int], window: int) -> Iterator[SiteWindow]:
    """Windows of `window` bases that predict every position of `sites` once, in order.

    At most half of a window is predicted, in its middle, so that each base has at least a quarter
    of the window, rounded down, as context on each side, or all that its record has. A record of at
    most `window` bases is one window.

    Args:
        sites: disjoint pieces of the records, in order.
        lengths: bases of each record.
    """
    core = max(window // 2, 1)
    for record, start, end in sites:
        length = lengths[record]
        if length <= window:
            yield SiteWindow(Piece(record, 0, length), start, end)
            continue
        count = -(-(end - start) // core)
        for i in range(count):
            low, high = start + (end - start) * i // count, start + (end - start) * (i + 1) // count
            first = min(max((low + high - window) // 2, 0), length - window)
            yield SiteWindow(Piece(record, first, first + window), low, high)
