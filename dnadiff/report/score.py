"""The page of `score`: how likely the records are, and the whole table."""

from __future__ import annotations

from typing import Any

from dnadiff.options.base import Result
from dnadiff.report import charts
from dnadiff.report.page import Page, Picture, Table


def page(result: Result, options: Any) -> Page:
    """The page of the table of the output."""
    frame = result.frame
    known = frame[frame["counted"] > 0]
    named = known.rename(columns={"bits_per_base": "bits per base", "length": "length, bases"})
    pictures = []
    if len(known) > 1:
        pictures = [
            Picture(
                "distribution",
                "distribution of bits per base over the records",
                "Bits per base of the records; the dashed line is their mean.",
                charts.histogram(named, "bits per base"),
            ),
            Picture(
                "lengths",
                "bits per base of each record by its length",
                "Each point is a record; hover for its name.",
                charts.scatter(
                    named,
                    "length, bases",
                    "bits per base",
                    tooltip=("name", "length, bases", "bits per base", "se_mc"),
                ),
            ),
        ]
    bases = int(known["counted"].sum())
    mean = known["total_bits"].sum() / max(bases, 1)
    sentence = f"{len(frame):,} records, {bases:,} bases: {mean:.3f} bits per base."
    caption = "Upper bounds on -log2 p; exact for autoregressive models. se_mc is in nats per base."
    return Page(
        "Likelihood of sequences",
        sentence,
        pictures,
        Table.of(frame, caption),
        made=result.content.get("settings", {}),
    )
