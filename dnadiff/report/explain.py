"""The page of `explain`: the bases that matter, in one sequence and on average, and the motifs."""

from typing import Any

import numpy as np
import pandas

from dnadiff.options.base import Result
from dnadiff.report import charts
from dnadiff.report.page import Page, Picture, Table, logo_figure
from dnadiff.store.disk import read_npz

_LOGOS = 6


def page(result: Result, options: Any) -> Page:
    """The page of a finished file."""
    found = read_npz(result.paths[0])
    motifs = result.content.get("motifs", [])
    unit = result.content["unit"]
    each = (found["hypothetical"] * found["one_hot"]).sum(-1)  # contributions (N, L)
    strength = np.abs(each)
    order = np.argsort(-strength.sum(1), kind="stable")
    first = order[0]
    size = found["lengths"][first]
    letters = np.array([*"ACGT"])[found["one_hot"].argmax(-1)]
    position = np.arange(1, strength.shape[1] + 1)
    columns = {"position": position, "contribution": each[first], "base": letters[first]}
    frame = pandas.DataFrame(columns)[:size]
    mean = pandas.DataFrame({"position": position, "mean": strength.mean(0)})
    titles = {"position": "position in the sequence", "mean": "mean |contribution|"}
    pictures = [
        Picture(
            "strongest",
            f"contributions in {found['name'][first]}",
            f"{found['name'][first]}, with the largest contributions: minus the mean effect of "
            "another base in its place.",
            chart=charts.scatter(
                frame, "position", "contribution", "base", tuple(frame), titles=titles
            ),
        ),
        Picture(
            "mean",
            "mean absolute contribution of each position",
            "Where the bases matter: the absolute contribution, averaged over all sequences.",
            chart=charts.lines(mean, "position", "mean", titles=titles),
        ),
    ]
    rows: list[list[Any]] = []
    for motif in motifs:
        matrix, sites = np.array(motif["matrix"]), motif["sites"]
        if len(rows) < _LOGOS:
            bits = 2 + (matrix * np.log2(np.maximum(matrix, 1e-9))).sum(1, keepdims=True)
            name, text = motif["name"], f"{motif['name']}, {len(sites):,} sites."
            label = f"logo of {motif['consensus']}"
            pictures.append(Picture(name, label, text, logo_figure(matrix * bits)))
        forward = sum(strand == "+" for *_, strand in sites)
        place = np.median([start for _, start, _, _ in sites])
        known = [motif.get(key) for key in ("match", "match_strand", "E")]
        rows.append([motif["name"], motif["consensus"], len(sites), forward, float(place), *known])
    head = ("motif", "consensus", "sites", "on strand +", "median start", "most like", "", "E")
    ends = f"; {len(motifs)} motifs, first {motifs[0]['consensus']}" if motifs else ""
    return Page(
        "Explanation",
        f"{len(order):,} sequences: the bases that {unit} depends on{ends}.",
        pictures,
        Table(head, rows) if motifs else None,
        made=options.only("checkpoint", "target", "seeds") | {"effects on": unit},
    )
