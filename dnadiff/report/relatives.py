"""A picture of the genomes that were aligned to a target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff.fields import Json
from dnadiff.plot.figures import figure, legend_below, rendered
from dnadiff.store.disk import write_bytes

if TYPE_CHECKING:
    from dnadiff.data.alignment import RelatedGenome


def draw_relatives(path: Path, genomes: Sequence[RelatedGenome]) -> None:
    """Write a PNG with identity, coverage, coverage by chance and paralogs of each genome, those
    with the highest coverage first; names of genomes that were left out are in parentheses."""
    rows = sorted(genomes, key=lambda each: -each.coverage)
    names = [f"({each.name})" if each.reason else each.name for each in rows]
    with figure(8, 1.2 + 0.3 * len(rows)) as (made, (axes,)):
        marks = {"identity": "s", "coverage": "o", "chance": "x", "paralogs": "+"}
        for name, mark in marks.items():
            values: Json = [getattr(each, name) for each in rows]  # None draws nothing
            axes.plot(values, range(len(rows)), mark, label=name)
        axes.set_yticks(range(len(rows)), names)
        axes.set(xlim=(-0.02, 1.02), ylim=(len(rows) - 0.4, -0.6), xlabel="share of the target")
        legend_below(axes)
    write_bytes(path, rendered(made, "png"))
