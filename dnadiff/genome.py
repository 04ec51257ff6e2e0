"""`python -m dnadiff.genome`: pack a genome into the cache, describe it, extract regions of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dnadiff import commands
from dnadiff.config import build
from dnadiff.progress import table

_SHOWN = 40  # records in the table


def run(config: dict[str, Any], run_dir: Path, overrides: Sequence[str]) -> Any:
    """Do what `action` says."""
    action = ACTIONS.get(config["action"])
    if action is None:
        raise ValueError(f"action {config['action']!r} is not known; choose {', '.join(ACTIONS)}")
    for key in ("regions", "feature") if config["action"] != "extract" else ():
        if config[key] is not None:
            raise ValueError(f"{key} belongs to action=extract; leave it out, or set action=extract")
    data = build(config["data"], trust=None)
    if not hasattr(data, "open"):
        raise ValueError(f"{data.name} is not DNA; choose data=fasta, ecoli, hg38 or sequences")
    return action(data, config)


def pack(data: Any, config: Mapping[str, Any]) -> list[str]:
    """Make sure that the cache holds the genome, and say where."""
    start = time.monotonic()
    genome = data.open()
    folders = list(dict.fromkeys(str(place[0].folder) for place in genome.records.places))
    print(table([("records", f"{len(genome.names):,}"), ("bases", f"{genome.total:,}"), ("seconds", f"{time.monotonic() - start:.1f}")]))
    print("\n".join(f"packed in {folder}" for folder in folders))
    return folders


def describe(data: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Lengths and composition of each record, and the windows of each part."""
    from dnadiff.data.files import check_output, write_json

    output = check_output(config["output"], config["overwrite"]) if config["output"] else None
    genome = data.open()
    check_files(data, genome.lengths)
    rows = [composition(row) for row in genome.rows]
    total = composition({key: sum(row[key] for row in genome.rows) for key in ("length", "unknown", "gc", "soft")} | {"name": "all"})
    content = {"records": rows, "all": total, **windows(data)}
    shown = [
        (r["name"], f"{r['length']:,}", *(f"{100 * r[key]:.2f}" for key in ("gc", "n", "soft_masked"))) for r in [*rows[:_SHOWN], total]
    ]
    print(table(shown, ("record", "bases", "GC %", "N %", "soft-masked %")))
    if len(rows) > _SHOWN:
        print(f"({len(rows) - _SHOWN} more records; output=FILE.json lists all)")
    print()
    if "problem" in content:
        print(f"no windows: {content['problem']}")
    else:
        parts = content["parts"]
        cells = [(part, f"{p['bases']:,}", f"{p['intervals']:,}", f"{p['windows']:,}", f"{p['left_out']:,}") for part, p in parts.items()]
        print(table(cells, (f"windows of {data.length}", "bases", "intervals", "tiles", "left out for N")))
        print(f"split: {content['split']}, hash {content['split_hash']}; {content['training_windows']:,} training windows may be drawn")
        if content.get("leak"):
            print(f"leak: {content['leak']}")
    if output is not None:
        write_json(output, content)
        print(f"files are in {output}")
    return content


def composition(row: Mapping[str, Any]) -> dict[str, Any]:
    """Length and shares of one record: GC of the known bases, N and soft-masked of all."""
    length, known = row["length"], max(row["length"] - row["unknown"], 1)
    return {
        "name": row["name"],
        "length": length,
        "gc": round(row["gc"] / known, 6),
        "n": round(row["unknown"] / length, 6),
        "soft_masked": round(row["soft"] / length, 6),
    }


def check_files(data: Any, lengths: Mapping[str, int]) -> None:
    """Refuse a BED that the user named and that is faulty; windows that merely do not fit are described as such.

    Raises:
        ValueError: naming file and line.
    """
    from dnadiff.data.genome.regions import read_bed

    if getattr(data.split, "bed", None):
        data.split(list(lengths), list(lengths.values()))
    if getattr(data, "blacklist", None) is not None:
        read_bed(data.blacklist, lengths, skip_unknown=True)


def windows(data: Any) -> dict[str, Any]:
    """How many windows each part holds, or why there are none."""
    try:
        data.prepare()
        about, parts = data.describe(), {}
        for part, intervals in data.intervals.items():
            tiles = data.test_windows(part) if any(i.end - i.start >= data.length for i in intervals) else None
            bases = sum(i.end - i.start for i in intervals)
            count, left_out = (0, 0) if tiles is None else (len(tiles), tiles.left_out)
            parts[part] = {"bases": bases, "intervals": len(intervals), "windows": count, "left_out": left_out}
        content = {"window": data.length, "split": about["split"], "split_hash": about["split_hash"], "parts": parts}
        return content | {"training_windows": data.train_windows().num_starts, "leak": about.get("leak")}
    except ValueError as error:
        return {"problem": str(error)}


def extract(data: Any, config: Mapping[str, Any]) -> int:
    """Write the sequences of regions to FASTA, strand respected, soft-masking in lower case."""
    from dnadiff.data.files import check_output
    from dnadiff.data.genome.fasta import write_fasta
    from dnadiff.data.genome.regions import read_regions

    for key, example in (("regions", "regions=my.bed"), ("output", "output=regions.fa")):
        if config[key] is None:
            raise ValueError(f"{key} is missing: give {example}")
    check_output(config["output"], config["overwrite"])
    genome = data.open()
    regions = read_regions(config["regions"], genome.lengths, config["feature"])
    count = write_fasta(config["output"], records(genome, regions), config["overwrite"])
    print(f"{count:,} sequences are in {config['output']}")
    return count


def records(genome: Any, regions: Sequence[Any]) -> Iterator[Any]:
    """A FASTA record for each region, called `chrom:first-last(strand)`, counted from 1."""
    from dnadiff.data.genome.fasta import Record

    seen: dict[str, int] = {}
    for region in regions:
        name = f"{region.chrom}:{region.start + 1}-{region.end}" + (f"({region.strand})" if region.strand != "." else "")
        seen[name] = seen.get(name, 0) + 1
        where = (region.chrom, region.start, region.end, region.strand)
        letters = bytearray(genome.tokenizer.decode(genome.window(*where)).encode())
        for place in genome.soft_masked(*where).nonzero()[0].tolist():
            letters[place] |= 0x20
        yield Record(name if seen[name] == 1 else f"{name}_{seen[name]}", " ".join(region.name.split()), bytes(letters))


ACTIONS = {"describe": describe, "pack": pack, "extract": extract}


def main() -> None:
    """The command line."""
    commands.run("genome", run)


if __name__ == "__main__":
    main()
