"""Heat maps of saturation mutagenesis: positions x alleles, with the information content as letters
above."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dnadiff.formats.regions import Region
from dnadiff.genomics.variants.work import picture_of
from dnadiff.report import figures
from dnadiff.report.page import write_page

Result = Mapping[str, str | int | float]  # an allele of an output file
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

log = logging.getLogger("dnadiff")
ROWS = ("A", "C", "G", "T", "-")
LARGEST = 1200  # positions in a picture
MAX_PICTURES = 50


@dataclass
class Saturated:
    """The effects of all variants of a region.

    Attributes:
        llr: (n, 5) of A, C, G, T and the deletion of the base; NaN where there is none, 0 for the
            base itself.
        information: (n,) bits.
        bases: (n,) letters of the genome; N where there is no variant.
    """

    region: Region
    llr: np.ndarray
    information: np.ndarray
    bases: list[str]

    @classmethod
    def empty(cls, region: Region) -> Saturated:
        """A region without variants."""
        size = region.end - region.start
        return cls(region, np.full((size, len(ROWS)), np.nan), np.full(size, np.nan), ["N"] * size)

    @property
    def name(self) -> str:
        """1-based, as in genome browsers."""
        return f"{self.region.chrom}:{self.region.start + 1}-{self.region.end}"

    def add(self, position: int, result: Result) -> None:
        """Put in one allele, as it is in the output, at a position of the record (0-based) in the
        region."""
        place, ref = position - self.region.start, str(result["ref"])
        if len(ref) > 1:
            self.llr[place, -1] = result["LLR"]
            return
        self.llr[place, ROWS.index(str(result["alt"]))] = result["LLR"]
        self.llr[place, ROWS.index(ref)], self.bases[place] = 0.0, ref
        self.information[place] = result["information"]

    def probabilities(self) -> np.ndarray:
        """Shares of A, C, G and T at each position (n, 4), from the ratios; NaN where there is no
        variant."""
        weight = np.exp(self.llr[:, :4])
        return weight / weight.sum(1, keepdims=True)


def drawn(regions: Sequence[Region]) -> list[Region]:
    """The first regions that are not too long for a picture, at most `MAX_PICTURES`."""
    return [region for region in regions if region.end - region.start <= LARGEST][:MAX_PICTURES]


def collect(results: Iterable[Result], regions: Sequence[Region]) -> list[Saturated]:
    """The effects of each region from the alleles of an output file, in time proportional to
    both."""
    found = [Saturated.empty(region) for region in regions]
    at: dict[tuple[str, int], list[Saturated]] = {}
    for each in found:
        for position in range(each.region.start, each.region.end):
            at.setdefault((each.region.chrom, position), []).append(each)
    for result in results:
        for position in _positions(result):
            for each in at.get((str(result["chrom"]), position), ()):
                each.add(position, result)
    return found


def _positions(result: Result) -> Sequence[int]:
    """Where an allele belongs, 0-based: an SNV to its base, a deletion to the base that is
    missing."""
    ref, alt, pos = str(result["ref"]), str(result["alt"]), int(result["pos"])
    if len(ref) == 1:
        return (pos - 1,)
    # A deletion is written with the base before it, or at the first position of the record with the
    # base after it.
    is_first, is_second = pos == 1 and ref[1] == alt, ref[0] == alt
    return [pos - 1] * is_first + [pos] * is_second


def heat_map(saturated: Saturated) -> Figure:
    """The picture of a region, in lines of 60 positions."""
    from matplotlib.figure import Figure

    size = len(saturated.bases)
    lines = -(-size // figures.LINE)
    finite = np.abs(saturated.llr[np.isfinite(saturated.llr)])
    limit = max(float(np.percentile(finite, 99)), 1e-3) if len(finite) else 1.0
    with figures.style():
        figure = Figure(figsize=(10.5, 1.9 * lines + 0.3), layout="constrained")
        grid = figure.subplots(
            2 * lines, 1, squeeze=False, gridspec_kw={"height_ratios": [1, 1.4] * lines}
        )[:, 0]
        for line in range(lines):
            part = slice(line * figures.LINE, min((line + 1) * figures.LINE, size))
            _letters(grid[2 * line], saturated, part)
            image = _effects(grid[2 * line + 1], saturated, part, limit)
        figure.suptitle(saturated.name, fontsize=9.5, fontweight="bold")
        figure.colorbar(image, ax=list(grid), label="LLR (nats)", fraction=0.02, pad=0.01)
    return figure


def _letters(axes: Axes, saturated: Saturated, part: slice) -> None:
    bits = np.maximum(saturated.information[part], 0)[:, None]
    figures.logo(axes, saturated.probabilities()[part] * bits, figures.LINE)


def _effects(axes: Axes, saturated: Saturated, part: slice, limit: float) -> Any:
    rows = len(ROWS) if np.isfinite(saturated.llr[:, -1]).any() else len(ROWS) - 1
    values = saturated.llr[part, :rows].T
    image = axes.imshow(
        values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
    )
    first = saturated.region.start + part.start + 1
    places = [i for i in range(values.shape[1]) if (first + i) % 10 == 0]
    axes.set(
        xlim=(-0.5, figures.LINE - 0.5),
        yticks=range(rows),
        yticklabels=ROWS[:rows],
        xticks=places,
        xticklabels=[f"{first + i:,}" for i in places],
    )
    own = [(i, ROWS.index(base)) for i, base in enumerate(saturated.bases[part]) if base in ROWS]
    axes.plot([i for i, _ in own], [row for _, row in own], ".", color="#3D3D3D", ms=2.5)
    axes.grid(False)
    return image


def write_heat_maps(
    page: Path, found: Sequence[Saturated], about: Mapping[str, object]
) -> list[Path]:
    """A PNG for each region next to the page, named after it, and the page with all of them;
    returns the files written."""
    drawn = [(each.name, heat_map(each), _mean(each)) for each in found]
    written = [
        figures.save(figure, picture_of(page, number), pixels=1600)
        for number, (_, figure, _) in enumerate(drawn, start=1)
    ]
    write_page(page, "saturation", title="Saturation mutagenesis", about=about, regions=drawn)
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
        print(
            "heat maps are in "
            f"{', '.join(map(str, write_heat_maps(page, collect(read(), chosen), about)))}"
        )


def _mean(saturated: Saturated) -> str:
    known = saturated.information[np.isfinite(saturated.information)]
    return (
        f"Mean information {float(known.mean()):.3f} bits."
        if len(known) and math.isfinite(known.mean())
        else ""
    )
