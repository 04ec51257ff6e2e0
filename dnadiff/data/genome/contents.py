"""What a genome holds: composition of its records, windows of its parts, and sequences of its
regions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dnadiff.data.genome.datamodule import DNADataModule
from dnadiff.data.genome.genome import Genome
from dnadiff.data.genome.packed import RecordInfo
from dnadiff.data.records import num_tokens
from dnadiff.fields import Json
from dnadiff.formats.regions import Region, names_of, read_bed, read_regions
from dnadiff.formats.sequences import Record, write_fasta


def contents(data: DNADataModule) -> dict[str, Json]:
    """Lengths and composition of each record, and the windows of each part or the reason why there
    are none."""
    genome = data.open()
    # A malformed BED file is an error; windows that do not fit are only reported.
    if data.split.bed:
        data.split(genome.names, list(genome.lengths.values()))
    if data.blacklist is not None:
        read_bed(data.blacklist, genome.lengths, skip_unknown=True)
    content = {
        "records": [_composition(row["name"], [row]) for row in genome.rows],
        "all": _composition("all", genome.rows),
    }
    parts: dict[str, Json] = {}
    try:
        data.prepare()
        about = data.describe()
        for part, intervals in data.intervals.items():
            bases, too_short = num_tokens(intervals), about["too_short_tokens"][part]
            tiles = data.test_windows(part) if too_short < bases else None
            parts[part] = {
                "bases": bases,
                "intervals": len(intervals),
                "too_short_bases": too_short,
                "windows": 0 if tiles is None else len(tiles),
                "left_out": 0 if tiles is None else tiles.left_out,
            }
        return content | {
            "window": data.length,
            "split": about["split"],
            "split_hash": about["split_hash"],
            "parts": parts,
            "training_windows": data.train_windows().num_starts,
            "leak": about.get("leak"),
        }
    except ValueError as error:
        return content | {"problem": str(error)}


def _composition(name: str, rows: Sequence[RecordInfo]) -> dict[str, Json]:
    """Total length of some records, GC content of the known bases, and fractions of N and of
    soft-masked bases."""
    length, unknown, gc, soft = (
        sum(row[key] for row in rows) for key in ("length", "unknown", "gc", "soft")
    )
    return {
        "name": name,
        "length": length,
        "gc": round(gc / max(length - unknown, 1), 6),
        "n": round(unknown / length, 6),
        "soft_masked": round(soft / length, 6),
    }


def extract(
    data: DNADataModule,
    regions: str | list[str],
    feature: str | None,
    output: str | Path,
    overwrite: bool,
) -> int:
    """Write the sequences of regions to FASTA, on their strand, with soft-masked bases in lower
    case; returns their number."""
    genome = data.open()
    found = read_regions(regions, genome.lengths, feature)
    return write_fasta(output, _records(genome, found), overwrite)


def _records(genome: Genome, regions: Sequence[Region]) -> Iterator[Record]:
    """A FASTA record for each region, named `chrom:first-last(strand)`, 1-based."""
    for name, region in zip(names_of(regions), regions):
        where = (region.chrom, region.start, region.end, region.strand)
        letters = genome.tokenizer.letters(genome.window(*where))
        letters[genome.soft_masked(*where)] |= 0x20  # lower case
        yield Record(name, " ".join(region.name.split()), letters.tobytes())
