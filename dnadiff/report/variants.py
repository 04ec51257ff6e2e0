"""The page of `dnadiff.variants` for the rows of a file: how the effects are distributed, by
consequence where the VCF says it, and the strongest ones. Regions have heat maps
(`dnadiff.report.heat_map`)."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas

from dnadiff.data.genome.genome import Genome
from dnadiff.formats.regions import VcfSource, header_fields, open_source, read_regions
from dnadiff.genomics.variants.work import effects_of
from dnadiff.options.base import Result
from dnadiff.report import charts, heat_map
from dnadiff.report.page import Page, Picture, Section, Table, link
from dnadiff.store.address import expand_user

STRONGEST = 200  # alleles in the table
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
        genes = read_regions(options.genes, lengths, "gene") if options.genes else ()
        about = options.only("checkpoint", "alignment") | {
            "window": settings["window"],
            "predicted": settings.get("predicted"),
            "method": settings.get("variant_method", {}).get("method"),
        }
        about = {key: value for key, value in about.items() if value is not None}
        read = partial(effects_of, result.paths[0])
        return heat_map.page_of(expand_user(options.pages["report"]), read, regions, about, genes)
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
            f"The {len(rows):,} strongest of {len(known):,} alleles; {result.paths[0].name} has "
            f"all. {text}",
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
