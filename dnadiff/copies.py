"""`python -m dnadiff.copies`: the longest exact match of each record of a FASTA file with a model's
training part, on either strand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dnadiff import commands
from dnadiff.config import SHARED, Config, Json, Keys
from dnadiff.progress import table

COLUMNS = ("name", "length", "longest_match", "seen_24mers")
KEYS: Keys = {**SHARED, "input": str}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> dict[str, Json]:
    """Search the training part and return the summary."""
    from dnadiff.metrics import memorization
    from dnadiff.store.disk import atomic_write, check_output
    from dnadiff.store.files import resolve
    from dnadiff.weights import checkpoint

    output = check_output(config["output"] or run_dir / "copies.tsv", config["overwrite"])
    resolve(config["input"])  # refuses a missing file before the training part is read
    model = checkpoint.load(config["checkpoint"], config["trust"])
    data = memorization.training_data(model, config["trust"], config.get("data"))
    found = memorization.of_file(config["input"], memorization.indexed(data))
    with atomic_write(output, config["overwrite"]) as file:
        file.write(("\t".join(COLUMNS) + "\n").encode())
        file.writelines(
            f"{m.name}\t{m.length}\t{m.longest}\t{m.seen:.6f}\n".encode() for m in found
        )
    content = memorization.summary(found)
    rows: list[tuple[str, ...]] = [
        ("records", f"{content['records']:,}"),
        ("longest match, mean", f"{content['longest']['mean']:.1f} bases"),
        (
            "longest match, maximum",
            f"{content['longest']['max']} bases, in {content['longest']['record']}",
        ),
        (
            "24-mers seen in training",
            "none in the records" if content["seen"] is None else f"{100 * content['seen']:.3f} %",
        ),
    ]
    print(table(rows))
    print(f"files are in {output}")
    return content


def main() -> None:
    """The command line."""
    commands.run("copies", run, KEYS)


if __name__ == "__main__":
    main()
