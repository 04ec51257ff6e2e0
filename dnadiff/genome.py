"""`python -m dnadiff.genome`: pack a genome into the cache, verify it, describe it, extract regions
of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from dnadiff.fields import Json, Natural
from dnadiff.options.base import Group, RegionOptions, Result, ShardedOptions, group
from dnadiff.options.command import command
from dnadiff.progress import table
from dnadiff.store.address import expand_user
from dnadiff.store.objects import build

if TYPE_CHECKING:
    from dnadiff.data.genome.datamodule import DNADataModule
    from dnadiff.jobs.job import Job

_SHOWN = 40  # records in the table


class GenomeOptions(RegionOptions, ShardedOptions):
    """Pack a genome into the cache, verify or describe it, or extract regions of it.

        python -m dnadiff.genome data.path=my.fa.gz
          lengths, GC, N, soft-masked bases, windows of each part
        python -m dnadiff.genome action=pack data=hg38
          downloads and packs; training then starts at once
        python -m dnadiff.genome action=verify data=hg38
          reads all of the packed form and compares checksums
        python -m dnadiff.genome action=extract data.path=my.fa.gz regions=genes.gtf.gz
          feature=CDS output=cds.fa
        python -m dnadiff.genome action=extract data.path=my.fa.gz 'regions="chr1:1001-2000:-"'
          output=one.fa

    See docs/genomes.md.
    """

    chooses_threads = False
    tokenizer: Group | None = group()
    data: Group = group("fasta")
    action: Literal["describe", "pack", "verify", "extract"] = "describe"
    """pack, verify, extract"""
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
        for key in ("regions", "feature", "spliced") if self.action != "extract" else ():
            if getattr(self, key):
                raise ValueError(
                    f"{key} belongs to action=extract; leave it out, or set action=extract"
                )
        return self


@command(GenomeOptions)
def genome(options: GenomeOptions) -> Result | list[Job]:
    """Run the action; packing with a list of the packed files is a job."""
    from dnadiff.data.genome.datamodule import PackJob, contents, extract
    from dnadiff.store.disk import check_output, write_json

    data = build(options.data, trust=None)
    if not data.opens_genome:
        raise ValueError(f"{data.name} is not DNA; choose data=fasta, ecoli, hg38 or sequences")
    start = time.monotonic()
    output = options.output
    content = {}
    if options.action == "pack":
        if output is not None:
            return [PackJob(data, expand_user(output), packed)]
        data.open()
        print(packed(data, time.monotonic() - start))
    elif options.action == "verify":
        total = 0
        for file in {str(file.folder): file for _, file in data.open().files}.values():
            total += file.verify()
            print(f"as it was written: {file.folder}")
        print(table([("bytes", f"{total:,}"), ("seconds", f"{time.monotonic() - start:.1f}")]))
    elif options.action == "extract":
        if options.regions is None:
            raise ValueError("regions is missing: give regions=my.bed")
        if output is None:
            raise ValueError("output is missing: give output=regions.fa")
        check_output(output, options.overwrite)
        count = options.into(extract, data=data)
        print(f"{count:,} sequences are in {output}")
    else:
        file = check_output(output, options.overwrite) if output else None
        content = contents(data)
        show(content)
        if file is not None:
            write_json(file, content)
            print(f"files are in {file}")
    return Result(content, () if output is None else (Path(output),))


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


def show(content: Mapping[str, Json]) -> None:
    """Print what a genome holds."""
    rows = content["records"]
    percent = ("gc", "n", "soft_masked")
    shown = [
        (row["name"], f"{row['length']:,}", *(f"{100 * row[key]:.2f}" for key in percent))
        for row in [*rows[:_SHOWN], content["all"]]
    ]
    print(table(shown, ("record", "bases", "GC %", "N %", "soft-masked %")))
    if len(rows) > _SHOWN:
        print(f"({len(rows) - _SHOWN} more records; output=FILE.json lists all)")
    print()
    if "problem" in content:
        return print(f"no windows: {content['problem']}")
    counts = {
        "bases": "bases",
        "intervals": "intervals",
        "too_short_bases": "bases in short intervals",
        "windows": "tiles",
        "left_out": "left out for N",
    }
    cells = [
        (part, *(f"{about[key]:,}" for key in counts)) for part, about in content["parts"].items()
    ]
    print(table(cells, (f"windows of {content['window']}", *counts.values())))
    print(
        f"split: {content['split']}, hash {content['split_hash']}; "
        f"{content['training_windows']:,} training windows may be drawn"
    )
    if content["leak"]:
        print(f"leak: {content['leak']}")


main = genome.main

if __name__ == "__main__":
    main()
