"""`python -m dnadiff.embed`: the network's features of each sequence of a FASTA file, or of each
region of a genome, as one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dnadiff import commands
from dnadiff.checks import PositiveInt, expand_user, integer, optional_integer
from dnadiff.config import SHARED, Config, Keys

if TYPE_CHECKING:
    from dnadiff.jobs.job import Job

KEYS: Keys = {
    **SHARED,
    "input": str | list[str],
    "genome": str | None,
    "feature": str | None,
    "pool": Literal["mean", "max", "none"],
    "layer": PositiveInt | None,
    "stranded": bool,
    "dtype": Literal["float32", "float16"],
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Path:
    """Embed and return the file written."""
    from dnadiff.jobs.runner import RunOptions, run_jobs

    options = RunOptions.checked(
        "embed",
        overrides,
        config["output"],
        shard=config["shard"],
        overwrite=config["overwrite"],
    )
    return run_jobs(jobs(config, run_dir, overrides), options)


def jobs(config: Config, run_dir: Path, overrides: Sequence[str]) -> list[Job]:
    """The file of all embeddings."""
    from dnadiff.data.genome.inputs import open_input
    from dnadiff.genomics.embeddings import EmbedJob, check_format
    from dnadiff.weights import checkpoint

    output = expand_user(config["output"] or run_dir / "embeddings.npz")
    check_format(output, config["pool"])
    if config["genome"] is None and not isinstance(config["input"], str):
        raise ValueError(
            f"input {config['input']!r} is a list of regions; give their genome as well: "
            "genome=g.fa"
        )
    model = checkpoint.load(config["checkpoint"], config["trust"])
    if model.tokenizer.vocab.complement is None:
        raise ValueError(
            f"input is read as DNA, but {model.path} was trained on text; give a model of DNA"
        )
    model.denoiser.to(commands.pick_device(config["accelerator"]))
    of_genome = config["genome"] is not None
    fasta, regions = (None, config["input"]) if of_genome else (config["input"], None)
    source = open_input(fasta, config["genome"], regions, config["feature"], key="input")
    return [
        EmbedJob(
            model,
            source,
            output,
            batch_size=integer("batch_size", config["batch_size"]),
            pool=config["pool"],
            layer=optional_integer("layer", config["layer"]),
            stranded=config["stranded"],
            dtype=config["dtype"],
        )
    ]


def main() -> None:
    """The command line."""
    commands.run("embed", run, KEYS)


if __name__ == "__main__":
    main()
