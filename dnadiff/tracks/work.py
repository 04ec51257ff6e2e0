"""The information content of bases as bytes of a track, in units that do not depend on each
other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from typing_extensions import override

from dnadiff.data.genome.inputs import SequenceInput
from dnadiff.data.genome.pieces import Piece
from dnadiff.data.work import Result, Work
from dnadiff.likelihood.information import Information
from dnadiff.tracks.files import TrackFormat


class TrackWork(Work):
    """The values of all bases of some sites. Items are windows that predict their middle.

    Args:
        sites: disjoint pieces of the source, in order.
        track: turns values into bytes.
    """

    unit = "lists of up to 64 windows"

    def __init__(
        self,
        information: Information,
        source: SequenceInput,
        sites: Sequence[Piece],
        track: TrackFormat,
    ) -> None:
        self.information, self.source, self.sites, self.track = information, source, sites, track
        self.calls = information.spacing * (1 if information.stranded else 2)  # for each window

    @override
    def starts(self) -> list[int]:
        total = self.information.num_tiles(self.source, self.sites)
        return [*range(0, total, self.information.together), total]

    @override
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        for group in self.information.along(self.source, self.sites, start + skip):
            content = b"".join(
                self.track.pieces(tile.window.record, tile.low, values) for tile, values in group
            )
            bases = sum(tile.high - tile.low for tile, _ in group)
            self.report(len(group), bases * 2 * self.calls)
            yield Result(len(group), content, {"bases": bases})
