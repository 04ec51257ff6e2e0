"""The page of saturation mutagenesis: an interactive heat map of each region, the same as letters
(also as PNG and SVG files), and the strongest variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas

from dnadiff.fields import Json
from dnadiff.formats.regions import Region
from dnadiff.plot import Saturation, heat_map, rendered, saturation
from dnadiff.progress import log
from dnadiff.report import charts
from dnadiff.report.page import Page, Picture, Section, Table
from dnadiff.store.disk import write_bytes

LARGEST = 1200  # positions in a picture
MAX_PICTURES = 50
MAX_VARIANTS = 200  # in the table
_MEANINGS = {
    "LLR": "Log-likelihood ratio of each allele to that of the genome: red is less likely.",
    "difference": "Change of the prediction by each allele: red is lower.",
}


def page_of(
    path: Path,
    read: Callable[..., pandas.DataFrame],
    regions: Sequence[Region],
    about: Mapping[str, Json],
    genes: Sequence[Region] = (),
) -> Page | None:
    """The page of the first regions that are not too long, None without a variant in them. Each
    figure is also written as a PNG and an SVG file next to `path`, where the page will be.

    Args:
        read: the alleles of the output file whose `chrom` and `pos` are among these.
        genes: drawn below the heat maps.
    """
    chosen = [r for r in regions if r.end - r.start <= LARGEST][:MAX_PICTURES]
    if left_out := len(regions) - len(chosen):
        limits = f"at most {MAX_PICTURES} regions of at most {LARGEST:,} bases are drawn"
        about = {**about, "regions without a heat map": f"{left_out:,} ({limits})"}
        log.info(f"{left_out:,} of {len(regions):,} regions have no heat map: {limits}")
    if not chosen:
        return None
    # A deletion may be written with the base before a region.
    frame = read(
        chrom={region.chrom for region in chosen},
        pos={place for region in chosen for place in range(region.start, region.end + 1)},
    )
    found = [saturation(frame, region[:3]) for region in chosen]
    found = [each for each in found if any(each.variants())]
    if not found:
        return None
    sections = []
    first: list[Picture] = []
    for number, each in enumerate(found, start=1):
        figure = heat_map(each, genes=genes)[0, 0].figure
        picture = path.with_name(f"{path.stem}_heat_map_{number}.png")
        write_bytes(picture, rendered(figure, "png", 1600))
        write_bytes(picture.with_suffix(".svg"), rendered(figure, "svg"))
        deletions = " Row -: the deletion of the base." * ("-" in each.rows)
        parts = [
            Picture(
                f"heat_map_{number}",
                f"Heat map of {each.name}: alleles x positions",
                f"{_MEANINGS[each.score]} Letters: the bases of the genome.{deletions} Zoom with "
                "the wheel; letters appear.",
                charts.heat_map(each, genes),
                wide=True,
            ),
            Picture(
                f"letters_{number}",
                f"Logo and heat map of {each.name}, in lines",
                f"{_letters(each)} Also in {picture.name} and {picture.stem}.svg.",
                figure,
                wide=True,
            ),
        ]
        first = first or parts
        sections.append(Section(each.name, parts))
    known = {
        f"{one.chrom}:{position:,} {base}>{allele}": values
        for one in found
        for position, base, allele, *values in one.variants()
    }
    strongest = sorted(known.items(), key=lambda row: -abs(row[1][0]))
    columns = 1 + found[0].has_information
    rows = [(name, *values[:columns]) for name, values in strongest[:MAX_VARIANTS]]
    head = ("Variant", found[0].unit, "information, bits")[: columns + 1]
    places = found[0].name if len(found) == 1 else f"{len(found)} regions"
    effect = f"LLR {rows[0][1]:.2f} nats" if found[0].score == "LLR" else f"{rows[0][1]:+.3g}"
    return Page(
        f"Saturation mutagenesis: {places}",
        f"Of {len(strongest):,} variants of {places}, {rows[0][0]} has the strongest effect: "
        f"{effect}.",
        first,
        Table(head, rows, f"The {len(rows):,} strongest variants of {len(strongest):,}."),
        sections[1:],
        made=about,
    )


def _letters(found: Saturation) -> str:
    if not found.has_information:
        return "Height of a letter: its contribution, minus the mean effect of the four bases."
    known = np.nanmean(found.information)
    return f"Height of a position: information of the prediction, {known:.3f} bits on average."
