"""The page of `explain`: the bases that matter, in the sequences with the largest contributions and
on average, and the motifs with their places."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas
from numpy import ndarray

from dnadiff import plot
from dnadiff.options.base import Result
from dnadiff.plot import Saturation, information
from dnadiff.report import charts
from dnadiff.report.page import Page, Picture, Section, Table
from dnadiff.store.disk import read_npz

_STRONGEST = 5  # sequences that are drawn
_WIDEST = 480  # bases of one that are drawn
_LOGOS = 6
_PLACED = 4  # motifs in the picture of their places


def page(result: Result, options: Any) -> Page:
    """The page of a finished file."""
    found = read_npz(result.paths[0])
    motifs, unit = result.content.get("motifs", []), result.content["unit"]
    strength = np.abs(found["hypothetical"] * found["one_hot"]).sum(-1)  # (N, L)
    first, *others = _strongest(found, strength, f"effect on {unit}")
    counted = np.arange(strength.shape[1]) < found["lengths"][:, None]
    means = strength.sum(0) / counted.sum(0)
    average = "mean absolute contribution"
    mean = pandas.DataFrame({"position": np.arange(len(means)) + 1, average: means})
    text = "Where the bases matter, averaged over the sequences that have the position."
    drawn = charts.lines(mean, "position", average)
    pictures = [first, Picture("mean", f"{average} of each position", text, drawn)]
    sites = [
        {"start in the sequence": start + 1, "motif and strand": f"{motif['name']} {strand}"}
        for motif in motifs[:_PLACED]
        for _, start, _, strand in motif["sites"]
    ]
    if sites:
        drawn = charts.histogram(pandas.DataFrame(sites), *sites[0])
        text = "Starts of the sites, in % of those of each motif and strand; dashed: means."
        pictures.append(Picture("places", "Where the motifs are", text, drawn))
    for motif in motifs[:_LOGOS]:
        count = len(motif["sites"])
        heights = information(count * np.array(motif["matrix"]))
        logo = plot.logo(heights, unit="bits").figure
        text = f"{motif['name']}: {count:,} sites."
        pictures.append(Picture(motif["name"], f"logo of {motif['consensus']}", text, logo))
    ends = "; no motif was found" if "motifs" in result.content else ""
    if motifs:
        ends = f"; {len(motifs)} motifs, first {motifs[0]['consensus']}"
    return Page(
        "Explanation",
        f"{len(strength):,} sequences: the bases that {unit} depends on{ends}.",
        pictures,
        _table(motifs) if motifs else None,
        [Section("Further sequences with large contributions", others)] if others else [],
        made=options.only("checkpoint", "target", "seeds") | {"effects on": unit},
    )


def _strongest(found: dict[str, ndarray], strength: ndarray, unit: str) -> Iterator[Picture]:
    """The sequences with the largest contributions, as letters above the effects."""
    bases = np.where(found["one_hot"].any(-1), found["one_hot"].argmax(-1), 4)
    for number in np.argsort(-strength.sum(1), kind="stable")[:_STRONGEST].tolist():
        size = int(found["lengths"][number])
        start = int(strength[number].argmax()) - _WIDEST // 2
        start = max(min(start, size - _WIDEST), 0)
        part = number, slice(start, min(start + _WIDEST, size))
        effects = np.pad(found["effects"][part], ((0, 0), (0, 1)), constant_values=np.nan)
        letters = (found["hypothetical"] * found["one_hot"])[part]
        unknown = np.full(len(effects), np.nan)
        texts = [*np.array([*"ACGTN"])[bases[part]]]
        name = str(found["name"][number])
        shown = Saturation(name, start, effects, texts, letters, unit, unknown)
        text = (
            f"{name}. Letters: contributions, minus the mean effect of the four bases; upwards "
            "they raise the prediction. Colors: the effect of each other base, red lowers it."
        )
        figure = plot.heat_map(shown)[0, 0].figure
        label = f"Contributions and effects of the bases of {name}"
        yield Picture(f"sequence_{number}", label, text, figure, wide=True)


def _table(motifs: list[dict[str, Any]]) -> Table:
    rows = []
    for motif in motifs:
        sites = motif["sites"]
        forward = sum(strand == "+" for *_, strand in sites)
        place = float(np.median([start + 1 for _, start, _, _ in sites]))
        known = [motif.get(key) for key in ("match", "match_strand", "E")]
        rows.append([motif["name"], motif["consensus"], len(sites), forward, place, *known])
    head = ("motif", "consensus", "sites", "on strand +", "median start", "most like", "", "E")
    return Table(head, rows)
