"""`python -m dnadiff.genome`: pack a genome into the cache, verify it, describe it, extract regions
of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from dnadiff.fields import Json, Natural
from dnadiff.options.base import Group, Result, ShardedOptions, group
from dnadiff.options.command import command
from dnadiff.progress import table
from dnadiff.store.address import expand_user
from dnadiff.store.objects import build

if TYPE_CHECKING:
    from dnadiff.data.base import SequenceDataModule
    from dnadiff.data.genome.datamodule import DNADataModule
    from dnadiff.data.genome.genome import Genome
    from dnadiff.data.genome.packed import RecordInfo
    from dnadiff.formats.regions import Region
    from dnadiff.formats.sequences import Record
    from dnadiff.jobs.job import Job

_SHOWN = 40  # records in the table


class GenomeOptions(ShardedOptions):
    """Pack a genome into the cache, verify or describe it, or extract regions of it.

    python -m dnadiff.genome data.path=my.fa.gz                       lengths, GC, N, soft-masked
    bases, windows of each part python -m dnadiff.genome action=pack data=hg38
    downloads and packs; training then starts at once python -m dnadiff.genome action=verify
    data=hg38                  reads all of the packed form and compares checksums python -m
    dnadiff.genome action=extract data.path=my.fa.gz regions=genes.gtf.gz feature=CDS output=cds.fa
    python -m dnadiff.genome action=extract data.path=my.fa.gz 'regions="chr1:1001-2000:-"'
    output=one.fa
    """

    chooses_threads: ClassVar[bool] = False
    tokenizer: Group | None = group()
    data: Group = group("fasta")
    action: Literal["describe", "pack", "verify", "extract"] = "describe"
    """pack, verify, extract"""
    regions: str | list[str] | None = None
    """extract: a BED, GTF or GFF file, chr:first-last, a record, or a list of these"""
    feature: str | None = None
    """extract: third column of the GTF or GFF rows that are wanted"""
    output: str | None = None
    """extract: the FASTA file; describe and pack: a JSON file, null: none"""
    seed: Natural = 1

    @model_validator(mode="after")
    def _keys_belong_to_the_action(self) -> Self:
        if self.shard is not None and self.action != "pack":
            raise ValueError(
                f"shard={self.shard} is for action=pack; leave it out, or set action=pack"
            )
        if self.output is not None and self.action == "verify":
            raise ValueError("action=verify writes no file; leave output out")
        for key in ("regions", "feature") if self.action != "extract" else ():
            if getattr(self, key) is not None:
                raise ValueError(
                    f"{key} belongs to action=extract; leave it out, or set action=extract"
                )
        return self


@command(GenomeOptions)
def genome(options: GenomeOptions) -> Result | list[Job]:
    """Run the action; packing with a list of the packed files is a job."""
    data = genome_data(options.data)
    if options.action == "pack" and options.output is not None:
        from dnadiff.data.genome.datamodule import PackJob

        return [PackJob(data, expand_user(options.output), packed)]
    content = ACTIONS[options.action](data, options)
    output = [] if options.output is None else [Path(options.output)]
    return Result(content if isinstance(content, dict) else {}, tuple(output))


def genome_data(described: Group) -> DNADataModule:
    """The data module of a genome."""
    data = build(described, trust=None)
    if not data.opens_genome:
        raise ValueError(f"{data.name} is not DNA; choose data=fasta, ecoli, hg38 or sequences")
    return data


def pack(data: DNADataModule, options: GenomeOptions) -> list[str]:
    """Pack the genome into the cache unless it is there already, and print its folders."""
    start = time.monotonic()
    genome = data.open()
    print(packed(data, time.monotonic() - start))
    return list(dict.fromkeys(str(file.folder) for _, file in genome.files))


def packed(data: DNADataModule, seconds: float) -> str:
    """What is printed of a packed genome."""
    genome = data.open()
    folders = list(dict.fromkeys(str(file.folder) for _, file in genome.files))
    rows = [
        ("records", f"{len(genome.names):,}"),
        ("bases", f"{genome.total:,}"),
        ("seconds", f"{seconds:.1f}"),
    ]
    lines = [table(rows), *(f"packed in {folder}" for folder in folders[:_SHOWN])]
    if len(folders) > _SHOWN:
        lines.append(f"({len(folders) - _SHOWN:,} more folders in {Path(folders[0]).parent})")
    return "\n".join(lines)


def verify(data: SequenceDataModule, options: GenomeOptions) -> int:
    """Compare every byte of the packed genome with its checksums, and return the number of
    bytes."""
    start = time.monotonic()
    total = 0
    for file in {str(file.folder): file for _, file in data.open().files}.values():
        total += file.verify()
        print(f"as it was written: {file.folder}")
    print(table([("bytes", f"{total:,}"), ("seconds", f"{time.monotonic() - start:.1f}")]))
    return total


def describe(data: SequenceDataModule, options: GenomeOptions) -> dict[str, Json]:
    """Lengths and composition of each record, and the windows of each part."""
    from dnadiff.formats.regions import read_bed
    from dnadiff.store.disk import check_output, write_json

    output = check_output(options.output, options.overwrite) if options.output else None
    genome = data.open()
    if (
        data.split.bed
    ):  # a malformed BED file is an error; windows that do not fit are only reported
        data.split(genome.names, list(genome.lengths.values()))
    if data.blacklist is not None:
        read_bed(data.blacklist, genome.lengths, skip_unknown=True)
    rows = [composition(row["name"], [row]) for row in genome.rows]
    total = composition("all", genome.rows)
    content = {"records": rows, "all": total, **windows(data)}
    percent = ("gc", "n", "soft_masked")
    shown = [
        (row["name"], f"{row['length']:,}", *(f"{100 * row[key]:.2f}" for key in percent))
        for row in [*rows[:_SHOWN], total]
    ]
    print(table(shown, ("record", "bases", "GC %", "N %", "soft-masked %")))
    if len(rows) > _SHOWN:
        print(f"({len(rows) - _SHOWN} more records; output=FILE.json lists all)")
    print()
    if "problem" in content:
        print(f"no windows: {content['problem']}")
    else:
        counts = ("bases", "intervals", "too_short_bases", "windows", "left_out")
        cells = [
            (part, *(f"{about[key]:,}" for key in counts))
            for part, about in content["parts"].items()
        ]
        print(
            table(
                cells,
                (
                    f"windows of {data.length}",
                    "bases",
                    "intervals",
                    "bases in short intervals",
                    "tiles",
                    "left out for N",
                ),
            )
        )
        print(
            f"split: {content['split']}, hash {content['split_hash']}; "
            f"{content['training_windows']:,} training windows may be drawn"
        )
        if content.get("leak"):
            print(f"leak: {content['leak']}")
    if output is not None:
        write_json(output, content)
        print(f"files are in {output}")
    return content


def composition(name: str, rows: Sequence[RecordInfo]) -> dict[str, Json]:
    """Total length of some records, GC content of the known bases, and fractions of N and of
    soft-masked bases."""
    length, unknown = sum(row["length"] for row in rows), sum(row["unknown"] for row in rows)
    return {
        "name": name,
        "length": length,
        "gc": round(sum(row["gc"] for row in rows) / max(length - unknown, 1), 6),
        "n": round(unknown / length, 6),
        "soft_masked": round(sum(row["soft"] for row in rows) / length, 6),
    }


def windows(data: SequenceDataModule) -> dict[str, Json]:
    """The number of windows of each part, or the reason why there are none."""
    from dnadiff.data.records import num_tokens

    try:
        data.prepare()
        about = data.describe()
        parts: dict[str, Json] = {}
        for part, intervals in data.intervals.items():
            bases = num_tokens(intervals)
            too_short = about["too_short_tokens"][part]
            tiles = data.test_windows(part) if too_short < bases else None
            count, left_out = (0, 0) if tiles is None else (len(tiles), tiles.left_out)
            parts[part] = {
                "bases": bases,
                "intervals": len(intervals),
                "too_short_bases": too_short,
                "windows": count,
                "left_out": left_out,
            }
        content = {
            "window": data.length,
            "split": about["split"],
            "split_hash": about["split_hash"],
            "parts": parts,
        }
        return content | {
            "training_windows": data.train_windows().num_starts,
            "leak": about.get("leak"),
        }
    except ValueError as error:
        return {"problem": str(error)}


def extract(data: SequenceDataModule, options: GenomeOptions) -> int:
    """Write the sequences of regions to FASTA: on their strand, with soft-masked bases in lower
    case."""
    from dnadiff.formats.fasta import write_fasta
    from dnadiff.formats.regions import read_regions
    from dnadiff.store.disk import check_output

    if options.regions is None:
        raise ValueError("regions is missing: give regions=my.bed")
    if options.output is None:
        raise ValueError("output is missing: give output=regions.fa")
    check_output(options.output, options.overwrite)
    genome = data.open()
    regions = read_regions(options.regions, genome.lengths, options.feature)
    count = write_fasta(options.output, records(genome, regions), options.overwrite)
    print(f"{count:,} sequences are in {options.output}")
    return count


def records(genome: Genome, regions: Sequence[Region]) -> Iterator[Record]:
    """A FASTA record for each region, named `chrom:first-last(strand)`, 1-based."""
    from dnadiff.formats.regions import names_of
    from dnadiff.formats.sequences import Record

    for name, region in zip(names_of(regions), regions):
        where = (region.chrom, region.start, region.end, region.strand)
        letters = genome.tokenizer.letters(genome.window(*where))
        letters[genome.soft_masked(*where)] |= 0x20  # lower case
        yield Record(name, " ".join(region.name.split()), letters.tobytes())


ACTIONS: dict[str, Callable[..., Json]] = {
    "describe": describe,
    "pack": pack,
    "verify": verify,
    "extract": extract,
}

main = genome.main

if __name__ == "__main__":
    main()
