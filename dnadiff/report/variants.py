"""The page of `dnadiff.variants` for the rows of a file: how the effects are distributed, by
consequence where the VCF says it, and the strongest ones. Regions have heat maps: an interactive
one of each, and the same as letters (also as PNG and SVG files)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas

from dnadiff.data.genome.genome import Genome
from dnadiff.fields import Json
from dnadiff.formats.regions import (
    Region,
    VcfSource,
    header_fields,
    open_source,
    read_gtf,
    read_regions,
)
from dnadiff.genomics.variants.work import effects_of
from dnadiff.options.base import Result
from dnadiff.plot import Saturation, heat_map, rendered, saturation
from dnadiff.progress import log
from dnadiff.report import charts
from dnadiff.report.page import Page, Picture, Section, Table, link
from dnadiff.store.address import expand_user
from dnadiff.store.disk import write_bytes

LARGEST = 1200  # positions in a picture
MAX_PICTURES = 50
_MEANINGS = {
    "LLR": "Log-likelihood ratio of each allele to that of the genome: red is less likely.",
    "difference": "Change of the prediction by each allele: red is lower.",
}
STRONGEST = 200  # alleles in a table
_GROUPS = 6  # in the picture; the rarer ones are one
_PURINES = "AG"
# Annotations of VEP and of SnpEff, and how they call the consequence.
_ANNOTATIONS = {"CSQ": "Consequence", "ANN": "Annotation"}
_SHOWN = ("SE", "SE_seeds", "percentile", "LLR_calibrated", "information", "depth")


def page(result: Result, options: Any) -> Page | None:
    """The page of a finished file of effects: of regions, one with heat maps."""
    settings = result.content["settings"]
    if options.saturate is not None:
        lengths = Genome(options.genome).lengths
        regions = read_regions(options.saturate, lengths, options.feature)
        genes = read_gtf(options.genes, "gene", lengths, symbols=True) if options.genes else ()
        about = options.only("checkpoint", "alignment") | {
            "window": settings["window"],
            "predicted": settings.get("predicted"),
            "method": settings.get("variant_method", {}).get("method"),
        }
        about = {key: value for key, value in about.items() if value is not None}
        read = partial(effects_of, result.paths[0])
        return heat_maps(expand_user(options.pages["report"]), read, regions, about, genes)
    frame = effects_of(result.paths[0])
    value = "LLR" if "LLR" in frame else "difference"
    unit = "LLR (nats)" if value == "LLR" else f"{value} of predictions (ALT minus REF)"
    frame["change"] = frame["ref"] + ">" + frame["alt"]
    frame["place"] = frame["chrom"] + ":" + frame["pos"].map("{:,}".format)
    annotation, frame["group"] = groups_of(Path(options.vcf), frame)
    known = frame[frame[value].notna()].rename(columns={value: unit})
    counts = result.skipped | {"no value": result.without_value}
    left_out = [[reason, count] for reason, count in counts.items() if count]
    sections = [Section("Left out", [Table(("reason", "alleles"), left_out)])] * bool(left_out)
    sentence = f"No allele of {result.content['rows']:,} rows has a value."
    pictures = []
    table = None
    if len(known):
        values, groups = known[unit], known["group"]
        order = values.abs().sort_values(ascending=False, kind="stable").index
        first = known.loc[order[0]]
        sentence = (
            f"{len(known):,} alleles in {result.content['rows']:,} rows: {unit} from "
            f"{values.min():.2f} to {values.max():.2f}, median {values.median():.2f}; the "
            f"strongest is {first.place} {first.change} with {first[unit]:.2f}."
        )
        common = groups.value_counts().index[:_GROUPS]
        drawn = known.assign(group=groups.where(groups.isin(common), "others"))
        caption = f"Percent of the alleles of each {annotation}; dashed lines are means."
        pictures = [
            Picture(
                "effects",
                f"Histograms of {unit} by {annotation}",
                caption,
                charts.histogram(drawn, unit, "group"),
                wide=True,
            )
        ]
        shown = [unit, *(name for name in _SHOWN if name in known and known[name].notna().any())]
        named = ["id"] * bool((known["id"] != ".").any())
        columns = ["place", "change", *named, *shown, "group"]
        head = {"change": "REF>ALT", "group": annotation}
        rows = known.loc[order[:STRONGEST], columns].rename(columns=head)
        text = "Places are links to the genome browser."
        if options.browser is None:
            text = "browser=x.html makes places links to a genome browser."
        else:
            pages = {key: expand_user(path) for key, path in options.pages.items()}
            address = quote(os.path.relpath(pages["browser"], pages["report"].parent))
            linked = [link(place, f"{address}#{place}") for place in rows["place"]]
            rows["place"] = pandas.Series(linked, rows.index, object)
        table = Table.of(
            rows,
            f"The strongest alleles first, {len(rows):,} of {len(known):,}; "
            f"{result.paths[0].name} has all. {text}",
        )
    made = options.only("checkpoint", "vcf", "genome") | {
        "window": settings["window"],
        "alleles": result.alleles,
        "training part": result.training_part,
    }
    return Page("Effects of variants", sentence, pictures, table, sections, made)


def groups_of(path: Path, frame: pandas.DataFrame) -> tuple[str, list[str]]:
    """What alleles are grouped by, and the group of each row of a frame that was made of a file:
    the first consequence that VEP (CSQ) or SnpEff (ANN) names, else the kind of change."""
    source = open_source(path)
    found = {}
    for line in source.header if isinstance(source, VcfSource) else ():
        fields = header_fields(line, "INFO")
        name = _ANNOTATIONS.get(fields.get("ID", ""))
        form = fields.get("Description", "").rpartition(":")[2]  # Format: Allele|Consequence|...
        parts = re.split(r"\s*\|\s*", form.strip(" '"))
        if name in parts and "Allele" in parts:
            found[fields["ID"]] = parts.index("Allele"), parts.index(name)
    if not found:
        return "kind of change", list(map(kind_of_change, frame["ref"], frame["alt"]))
    [(key, (allele, consequence)), *_] = found.items()
    rows = iter(source)
    row = next(rows)
    groups = []
    for wanted in frame[["chrom", "pos", "id", "ref", "alt"]].itertuples(index=False):
        while row[1:5] != tuple(wanted[:4]) or wanted.alt not in row.alts:
            row = next(rows)
        entries = [entry.split("|") for entry in row.info.get(key, ())]
        alts = {wanted.alt, wanted.alt[1:] or "-"}  # VEP leaves the first base out
        of_allele = [each for each in entries if each[allele : allele + 1] in ([x] for x in alts)]
        texts = [text for each in of_allele or entries for text in each[consequence:][:1]]
        groups.append(next(iter(texts), "").partition("&")[0] or "none")
    return f"consequence ({key})", groups


def kind_of_change(ref: str, alt: str) -> str:
    """Transition, transversion, MNV, insertion, deletion."""
    if len(ref) != len(alt):
        return "insertion" if len(ref) < len(alt) else "deletion"
    if len(ref) > 1:
        return "MNV"
    same = (ref.upper() in _PURINES) == (alt.upper() in _PURINES)
    return "transition" if same else "transversion"


def heat_maps(
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
    rows = [(name, *values[:columns]) for name, values in strongest[:STRONGEST]]
    head = ("Variant", found[0].unit, "information, bits")[: columns + 1]
    places = found[0].name if len(found) == 1 else f"{len(found)} regions"
    effect = f"LLR {rows[0][1]:.2f} nats" if found[0].score == "LLR" else f"{rows[0][1]:+.3g}"
    return Page(
        f"Saturation mutagenesis: {places}",
        f"Of {len(strongest):,} variants of {places}, {rows[0][0]} has the strongest effect: "
        f"{effect}.",
        first,
        Table(head, rows, f"The strongest variants first, {len(rows):,} of {len(strongest):,}."),
        sections[1:],
        made=about,
    )


def _letters(found: Saturation) -> str:
    if not found.has_information:
        return "Height of a letter: its contribution, minus the mean effect of the four bases."
    known = np.nanmean(found.information)
    return f"Height of a position: information of the prediction, {known:.3f} bits on average."
