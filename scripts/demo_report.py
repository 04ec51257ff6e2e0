"""The page of the demo: what the bundled model does, stored results, and the training of a model of
its own."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from dnadiff.config import Json
from dnadiff.report import RunResults, figures, headlines, sections
from dnadiff.report.html import picture, section, table, write
from dnadiff.report.logo import logo

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
        with figures.style():
            figure = Figure(figsize=(10.5, 2.2), layout="constrained")
            for axes, heights, title in zip(
                figure.subplots(2, 1, gridspec_kw={"height_ratios": [2, 1]}),
                (shares, own),
                ("designs", "genome"),
            ):
                logo(axes, heights, len(shown), top=1.0)
                axes.set_ylabel(title)
                for edge in (SHOWN_FLANK, len(shown) - SHOWN_FLANK):
                    axes.axvline(edge - 0.5, color="#3D3D3D", lw=0.8, ls=":")
        return figure


def write_page(
    path: Path,
    designs: Designs,
    heat_map: Path,
    bundled: RunResults,
    own: RunResults,
    details: dict[str, Json],
    commands: Sequence[str],
) -> Path:
    """Write the page."""
    title = "dnadiff: a demonstration on E. coli"
    evaluation = bundled.evaluation or {}
    body = [
        f"<header><h1>{escape(title)}</h1><p>Designs, variant effects, likelihoods and a "
        "classifier of a model of <i>E. coli</i> that ships "
        f"with the package, and the training of a small one. {sections.NOTICE}</p></header>",
        design_section(designs),
        section(
            "Variants of a held-out gene",
            image(heat_map, "heat map of the first bases of a gene", heat_map_caption()),
        ),
        sections.main_results(bundled),
        sections.likelihood(evaluation, bundled.unit),
        sections.context(evaluation, bundled.unit, bundled.uniform_bits)
        if evaluation.get("curve")
        else "",
        sections.downstream(bundled.finetune) if bundled.finetune else "",
        stored_section(),
        sections.training(own.metrics, own.unit) if own.metrics else "",
        own_section(own),
        sections.about(own.evaluation, details),
        sections.footer(commands),
    ]
    return write(path, title, body)


def design_section(designs: Designs) -> str:
    """The designs in their flanks."""
    caption = (
        f"{len(designs.sequences)} designs of {designs.name}, conditioned on its flanks (outside "
        "the dotted lines). Height: share of designs. "
        f"{100 * designs.identity():.0f} % of the designed bases are those of the genome; 25 % is "
        "chance."
    )
    return section(
        "Designs in real flanks",
        picture(
            designs.figure(), "designs", f"designs of {designs.name} above the genome", caption
        ),
    )


def heat_map_caption() -> str:
    """What the colors mean."""
    return (
        "Log-likelihood ratio of each base (rows) to that of the genome (dots): red is less "
        "likely. Letters: information of the prediction."
    )


def stored_section() -> str:
    """A picture of results that were measured before."""
    caption = (
        "Stored, not measured by this run: test scores of classifiers by the number of "
        "training items (docs/results/fine_tuning.md)."
    )
    return (
        section(
            "Stored results", image(STORED, "test scores by the number of training items", caption)
        )
        if STORED.is_file()
        else ""
    )


def own_section(own: RunResults) -> str:
    """The headline numbers of the model that the demo trained."""
    rows = headlines(own)
    head = ("Result", "Value", "95 % interval", "How to read it")
    return (
        section("The model trained here", table(head, rows, numbers=(1, 2), kind="cards"))
        if rows
        else ""
    )


def image(path: Path, label: str, caption: str) -> str:
    """A PNG or SVG file inside the page."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    kind = "svg+xml" if path.suffix == ".svg" else "png"
    return (
        f'<figure><img alt="{escape(label)}" src="data:image/{kind};base64,{data}" '
        f'style="max-width:100%"><figcaption>{escape(caption)}</figcaption></figure>'
    )
