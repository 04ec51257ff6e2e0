"""A genome browser in one page: igv.js (Robinson et al. 2023, extra `browser`) with the bases, the
values or variants that a command wrote, and its regions, which are all in the page."""

import base64
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from dnadiff.data.genome.genome import Genome
from dnadiff.formats import tracks
from dnadiff.formats.regions import Region, listing, read_regions, records_of
from dnadiff.genomics.variants.work import effects_of
from dnadiff.options.base import Result
from dnadiff.plot import SCORES
from dnadiff.progress import log
from dnadiff.report.page import Page, Picture
from dnadiff.store.address import expand_user
from dnadiff.store.objects import optional_package

WHOLE = 6_000_000  # bases of the records that are shown as a whole, together
AROUND = 10_000  # bases on each side of a place that are shown of a larger record
PLACES = 200  # of larger records, as many as the page of variants has links
ROWS = 1_000_000  # of a track, at most; the first ones
# The address of a link ends in #chrom:position of the genome.
_START = """
const browser = document.getElementById("igv");
const config = JSON.parse(browser.previousElementSibling.textContent);
const bare = name => name.replace(/^chr/, "");
const locus = () => {
  const [, chrom, text] = /^#(.+):([0-9,]+)$/.exec(decodeURIComponent(location.hash)) || [];
  const place = Number((text || "").replaceAll(",", ""));
  for (const [name, [record, low, end]] of Object.entries(config.windows))
    if (chrom && bare(record) === bare(chrom) && low < place && place <= end)
      return `${name}:${Math.max(place - low - 150, 1)}-${place - low + 150}`;
  return config.locus;
};
igv.createBrowser(browser, {...config, locus: locus()})
  .then(view => addEventListener("hashchange", () => view.search(locus())))
  .catch(error => { browser.textContent = `The browser could not be drawn: ${error.message}`; });"""
# Records of the page by name: their record of the genome, first base from 0, one past the last.
Windows: TypeAlias = Mapping[str, tuple[str, int, int]]


class _Browser(Picture):
    """Its content is the configuration of igv.js."""

    @property
    def drawn(self) -> Markup:
        content = htmlsafe_json_dumps(self.content)
        return Markup(f'<script type="application/json">{content}</script><div id="igv"></div>')


def library() -> str:
    """The script; raises ValueError if it is not installed."""
    module: Any = optional_package("igv_notebook", "browser: igv.js", "browser")
    text = (Path(module.__file__).parent / "js" / "igv.min.js").read_text(encoding="utf-8")
    return text.replace("</script", "<\\/script")


def page(result: Result, options: Any) -> Page | None:
    """The page of the track of a finished command, or of its variants if it has none; None, with a
    message, without any rows."""
    genome = Genome(options.genome or options.input)
    path = result.paths[0]
    kind = "variant", "vcf"
    if options.shown_by:
        path = expand_user(getattr(options, options.shown_by))
        kind = "wig", "bedgraph"
        rows = read_track(path)
    else:
        rows = strongest_first(effects_of(path), genome.lengths, str(path))
    if rows.empty:
        log.warning(f"{path.name} has no rows to show; {options.browser} is not written")
        return None
    shown = [(path.name, *kind, rows)]
    regions: Sequence[Region] = ()
    if what := getattr(options, "regions", None) or getattr(options, "saturate", None):
        regions = read_regions(what, genome.lengths, options.feature)
        shown.append(("regions", "annotation", "bed", pandas.DataFrame(regions).iloc[:, :4]))
    windows = windows_of(rows, genome.lengths)
    fasta = "".join(f">{name}\n{genome[x][low:high]}\n" for name, (x, low, high) in windows.items())
    named = [
        {"name": name, "type": kind, "format": form, "url": address(inside(rows, windows, form))}
        for name, kind, form, rows in shown
    ]
    config = {
        "reference": {"id": "genome", "fastaURL": address(fasta), "indexed": False},
        "loadDefaultGenomes": False,
        "tracks": named,
        "windows": windows,
    }
    name, (chrom, low, high) = next(iter(windows.items()))  # of the first row
    first = last = int(rows["start"].iloc[0])
    if options.shown_by:  # a track is shown along its first region
        inside_of = [x for x in regions if x.chrom == chrom and x.start <= first < x.end]
        last = min(max((x.end for x in inside_of), default=first), high)
    config["locus"] = f"{name}:{max(first - low - 149, 1)}-{last - low + 151}"
    text = f"{len(rows):,} rows of {path.name} on {listing(windows)}"
    if set(windows) - set(genome.lengths):
        text += "; parts of large records have their positions in the names"
    return Page(
        f"Genome browser: {path.name}",
        f"{text}.",
        [_Browser("browser", f"Genome browser with {path.name}", "", config, wide=True)],
        made=options.only("checkpoint", "genome"),
        script=library() + _START,
    )


def read_track(path: Path) -> pandas.DataFrame:
    """The first rows of a bedGraph or bigWig file; start and end are 0-based, half-open."""
    names = ["chrom", "start", "end", "value"]
    if not tracks.is_big_wig(path):
        return pandas.read_csv(path, sep="\t", names=names, nrows=ROWS)
    with tracks.library().open(str(path)) as file:
        rows = (
            (chrom, *each)
            for chrom, length in file.chroms().items()
            for first in range(0, length, ROWS)
            for each in file.intervals(chrom, first, min(first + ROWS, length)) or ()
        )
        return pandas.DataFrame(islice(rows, ROWS), columns=names)


def strongest_first(
    effects: pandas.DataFrame, lengths: Mapping[str, int], where: str
) -> pandas.DataFrame:
    """Alleles with the columns of VCF, the names of the genome's records, and start from 0: those
    with the strongest effects first; `where` begins the message about an unknown record."""
    value = next(name for name in SCORES if name in effects)
    rows = effects.sort_values(value, key=np.abs, ascending=False, kind="stable")
    names = records_of(rows["chrom"].unique(), lengths, where)
    return (
        rows[["chrom", "pos", "id", "ref", "alt"]]
        .assign(
            chrom=rows["chrom"].map(names),
            pos=rows["pos"] - 1,
            qual=".",
            filter=".",
            info=rows[value].map(f"{value}={{:.4g}}".format),
        )
        .rename(columns={"pos": "start"})
    )


def windows_of(rows: pandas.DataFrame, lengths: Mapping[str, int]) -> Windows:
    """The records with rows, as a whole if they are small, or else parts of them around the first
    rows."""
    found: dict[str, tuple[str, int, int]] = {}
    room, left = WHOLE, PLACES
    middles = (rows["start"] / AROUND).round().astype(int) * AROUND
    for chrom, middle in dict.fromkeys(zip(rows["chrom"], middles)):
        length = lengths[chrom]
        if chrom in found:
            continue
        if length <= room:
            found[chrom] = chrom, 0, length
            room -= length
        elif left:
            low = max(middle - AROUND, 0)
            end = min(middle + AROUND, length)
            found[f"{chrom}_{low + 1}_{end}"] = chrom, low, end
            left -= 1
    return found


def inside(rows: pandas.DataFrame, windows: Windows, form: str) -> str:
    """The rows in these windows in a format, with places in the windows."""
    is_vcf = form == "vcf"
    last = "start" if is_vcf else "end"
    texts = ["##fileformat=VCFv4.2\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"] * is_vcf
    for name, (chrom, low, high) in windows.items():
        is_after = rows[last] > low - is_vcf
        part = rows[(rows["chrom"] == chrom) & (rows["start"] < high) & is_after]
        moved = {x: part[x].clip(low, high) - low + is_vcf for x in {"start", last}}
        part = part.assign(chrom=name, **moved).sort_values("start", kind="stable")
        texts.append(part.to_csv(sep="\t", header=False, index=False, float_format="%.4g"))
    return "".join(texts)


def address(text: str) -> str:
    """A text as an address that contains it."""
    return f"data:text/plain;base64,{base64.b64encode(text.encode()).decode()}"
