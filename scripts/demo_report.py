"""The page of the demo: what the bundled model does, stored results, and the training of a model of
its own."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from run_sections import TEMPLATES, RunResults

from dnadiff.fields import Json
from dnadiff.report.page import figure, logo, write_page

STORED = Path(__file__).parents[1] / "docs" / "label_efficiency.svg"
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
                logo(axes, heights, len(shown), top=1.0)
                axes.set_ylabel(title)
                for edge in (SHOWN_FLANK, len(shown) - SHOWN_FLANK):
                    axes.axvline(edge - 0.5, color="#3D3D3D", lw=0.8, ls=":")
        return made


def write_demo_page(
    path: Path,
    designs: Designs,
    heat_map: Path,
    bundled: RunResults,
    own: RunResults,
    details: dict[str, Json],
    commands: Sequence[str],
) -> Path:
    """Write the page."""
    TEMPLATES.filters["data_address"] = data_address
    return write_page(
        path,
        TEMPLATES.get_template("demo_report.html.j2"),
        title="dnadiff: a demonstration on E. coli",
        designs=designs,
        heat_map=heat_map,
        stored=STORED,
        bundled=bundled,
        own=own,
        details=details,
        commands=commands,
    )


def data_address(path: Path) -> str:
    """A PNG or SVG file as an address that contains it."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f"data:image/{'svg+xml' if path.suffix == '.svg' else 'png'};base64,{data}"
