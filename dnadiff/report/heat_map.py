"""Heat maps of saturation mutagenesis: positions x alleles, with the information content as letters
above."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dnadiff.formats.regions import Region
from dnadiff.genomics.variants.work import picture_of
from dnadiff.progress import log
from dnadiff.report.page import LINE, REAL, figure, logo, mark_tens, rendered, write_page
from dnadiff.store.disk import write_bytes

Result = Mapping[str, str | int | float]  # an allele of an output file
if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = ("A", "C", "G", "T", "-")
LARGEST = 1200  # positions in a picture
MAX_PICTURES = 50


@dataclass
class Saturated:
    """The effects of all variants of a region, first none.

    Attributes:
        llr: (n, 5) of A, C, G, T and the deletion of the base; NaN where there is none, 0 for the
            base itself.
        information: (n,) bits.
        bases: (n,) letters of the genome; N where there is no variant.
    """

    region: Region

    def __post_init__(self) -> None:
        size = self.region.end - self.region.start
        self.llr = np.full((size, len(ROWS)), np.nan)
        self.information = np.full(size, np.nan)
        self.bases = ["N"] * size

    @property
    def name(self) -> str:
        """1-based, as in genome browsers."""
        return f"{self.region.chrom}:{self.region.start + 1}-{self.region.end}"

    def add(self, position: int, result: Result) -> None:
        """Put in one allele, as it is in the output, at a position of the record (0-based) in the
        region."""
        place = position - self.region.start
        ref = str(result["ref"])
        if len(ref) > 1:
            self.llr[place, -1] = result["LLR"]
            return
        self.llr[place, ROWS.index(str(result["alt"]))] = result["LLR"]
        self.llr[place, ROWS.index(ref)], self.bases[place] = 0.0, ref
        self.information[place] = result["information"]


def drawn(regions: Sequence[Region]) -> list[Region]:
    """The first regions that are not too long for a picture, at most `MAX_PICTURES`."""
    return [region for region in regions if region.end - region.start <= LARGEST][:MAX_PICTURES]


def collect(results: Iterable[Result], regions: Sequence[Region]) -> list[Saturated]:
    """The effects of each region from the alleles of an output file, in time proportional to
    both."""
    found = [Saturated(region) for region in regions]
    at: dict[tuple[str, int], list[Saturated]] = defaultdict(list)
    for each in found:
        for position in range(each.region.start, each.region.end):
            at[each.region.chrom, position].append(each)
    for result in results:
        ref = str(result["ref"])
        alt = str(result["alt"])
        pos = int(result["pos"])
        # 0-based, an SNV belongs to its base, a deletion to the base that is missing. A deletion is
        # written with the base before it, or at the first position of the record with the base
        # after it.
        is_snv = len(ref) == 1
        places = [pos - 1] * (is_snv or (pos == 1 and ref[1] == alt))
        places += [pos] * (not is_snv and ref[0] == alt)
        for position in places:
            for each in at.get((str(result["chrom"]), position), ()):
                each.add(position, result)
    return found


def heat_map(saturated: Saturated) -> Figure:
    """The picture of a region, in lines of 60 positions: the letters of each line above the
    effects."""
    llr = saturated.llr
    size = len(saturated.bases)
    lines = -(-size // LINE)
    finite = np.abs(llr[np.isfinite(llr)])
    limit = max(float(np.percentile(finite, 99)), 1e-3) if len(finite) else 1.0
    rows = ROWS if np.isfinite(llr[:, -1]).any() else ROWS[:-1]
    weight = np.exp(llr[:, :4])
    bits = np.maximum(saturated.information, 0)[:, None]
    letters = weight / weight.sum(1, keepdims=True) * bits
    ratios = {"height_ratios": [1, 1.4] * lines}
    with figure(10.5, 1.9 * lines + 0.3, 2 * lines, gridspec_kw=ratios) as (made, grid):
        for first, above, axes in zip(range(0, size, LINE), grid[::2], grid[1::2]):
            part = slice(first, first + LINE)
            logo(above, letters[part], LINE)
            values = llr[part, : len(rows)].T
            image = axes.imshow(
                values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
            )
            axes.set(xlim=(-0.5, LINE - 0.5), yticks=range(len(rows)), yticklabels=rows)
            mark_tens(axes, saturated.region.start + first + 1, values.shape[1])
            bases = enumerate(saturated.bases[part])
            own = [(i, ROWS.index(base)) for i, base in bases if base in ROWS]
            axes.plot([i for i, _ in own], [row for _, row in own], ".", color=REAL, ms=2.5)
            axes.grid(False)
        made.suptitle(saturated.name, fontsize=9.5, fontweight="bold")
        made.colorbar(image, ax=grid, label="LLR (nats)", fraction=0.02, pad=0.01)
    return made


def write_heat_maps(
    page: Path, found: Sequence[Saturated], about: Mapping[str, object]
) -> list[Path]:
    """A PNG for each region next to the page, named after it, and the page with all of them;
    returns the files written."""
    regions = []
    written = []
    for number, each in enumerate(found, start=1):
        known = each.information[np.isfinite(each.information)]
        mean = f"Mean information {known.mean():.3f} bits." if len(known) else ""
        regions.append((each.name, heat_map(each), mean))
        written.append(picture_of(page, number))
        write_bytes(written[-1], rendered(regions[-1][1], "png", 1600))
    write_page(page, "saturation", title="Saturation mutagenesis", about=about, regions=regions)
    return [*written, page]


def draw_regions(
    page: Path,
    regions: Sequence[Region],
    read: Callable[[], Iterable[Result]],
    about: Mapping[str, object],
) -> None:
    """Write the page with the heat maps of the first regions that are not too long; `read` returns
    the alleles of the output file."""
    chosen = drawn(regions)
    if left_out := len(regions) - len(chosen):
        limits = f"at most {MAX_PICTURES} regions of at most {LARGEST:,} bases are drawn"
        about = {**about, "regions without a heat map": f"{left_out:,} ({limits})"}
        log.info(f"{left_out:,} of {len(regions):,} regions have no heat map: {limits}")
    if chosen:
        written = write_heat_maps(page, collect(read(), chosen), about)
        print(f"heat maps are in {', '.join(map(str, written))}")
