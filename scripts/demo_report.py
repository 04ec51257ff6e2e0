"""The page of the demo: what the bundled model does, and the training of a model of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas
from matplotlib.figure import Figure

from dnadiff.plot import draw_logo, figure, saturation
from dnadiff.report import charts
from dnadiff.report.page import Page, Picture, Section, write

SHOWN_FLANK = 12  # bases on either side of a design


@dataclass(frozen=True)
class Designs:
    """Designs of an interval in its flanks.

    Attributes:
        sequences: windows with the flanks.
        real: the same window of the genome.
        start, end: of the interval in the window, 0-based and half-open.
        name: of the interval, as in a genome browser.
    """

    sequences: Sequence[str]
    real: str
    start: int
    end: int
    name: str

    def frequencies(self) -> np.ndarray:
        """Shares of A, C, G and T at each shown position (n, 4)."""
        shown = slice(self.start - SHOWN_FLANK, self.end + SHOWN_FLANK)
        letters = np.array([list(sequence[shown]) for sequence in self.sequences])
        return np.stack([(letters == base).mean(0) for base in "ACGT"], 1)

    def identity(self) -> float:
        """The mean share of designed bases that are those of the genome."""
        return float(
            np.mean(
                [
                    a == b
                    for each in self.sequences
                    for a, b in zip(each[self.start : self.end], self.real[self.start : self.end])
                ]
            )
        )

    def figure(self) -> Figure:
        """The designs as letters of frequency, above the genome."""
        shares = self.frequencies()
        shown = self.real[self.start - SHOWN_FLANK : self.end + SHOWN_FLANK]
        own = np.array([[float(base == letter) for letter in "ACGT"] for base in shown])
        ratios = {"height_ratios": [2, 1]}
        with figure(10.5, 2.2, 2, gridspec_kw=ratios) as (made, every):
            for axes, heights, title in zip(every, (shares, own), ("designs", "genome")):
                draw_logo(axes, heights, len(shown), top=1.0)
                axes.set_ylabel(title)
                for edge in (SHOWN_FLANK, len(shown) - SHOWN_FLANK):
                    axes.axvline(edge - 0.5, color="#3D3D3D", lw=0.8, ls=":")
        return made


def write_demo_page(
    path: Path,
    designs: Designs,
    variants: pandas.DataFrame,
    parts: Sequence[Page],
    commands: Sequence[str],
) -> Path:
    """Write the page: designs, the effects of variants of a region, and the pages of commands as
    sections."""
    shown = (
        f"{len(designs.sequences)} designs of {designs.name}, conditioned on its flanks (outside "
        f"the dotted lines). Height: share of designs. {100 * designs.identity():.0f} % of the "
        "designed bases are those of the genome; 25 % is chance."
    )
    effects = saturation(variants)
    meaning = "Log-likelihood ratio of each base to that of the genome: red is less likely."
    pictures = [
        Picture("designs", "designs above the genome", shown, designs.figure(), wide=True),
        Picture("variants", effects.name, meaning, charts.heat_map(effects), wide=True),
    ]
    sections = [
        Section(part.title, [part.sentence, *part.pictures, *[part.table] * bool(part.table)])
        for part in parts
    ]
    page = Page(
        "dnadiff: a demonstration on E. coli",
        "Designs, variant effects, likelihoods and a classifier of a model of E. coli that ships "
        "with the package, and the training of a small one.",
        pictures,
        sections=sections,
        commands=commands,
        synthetic=True,
    )
    return write(page, path)
