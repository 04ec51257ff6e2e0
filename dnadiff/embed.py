"""`python -m dnadiff.embed`: the network's features of each sequence of a FASTA file, or of each
region of a genome, as one file."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dnadiff import commands
from dnadiff.checks import PositiveInt, integer, optional_integer
from dnadiff.config import SHARED, Config, Keys
from dnadiff.progress import Progress, table

if TYPE_CHECKING:
    from dnadiff.shards.assignment import Assignment
    from dnadiff.supervised.embedding_files import Vectors
    from dnadiff.supervised.features import EmbeddingWork

VECTORS = "vectors"  # name of the stream of shards
log = logging.getLogger("dnadiff")
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
    from dnadiff.data.genome.inputs import open_input
    from dnadiff.likelihood.curve import fingerprint
    from dnadiff.shards.assignment import assignment_of
    from dnadiff.shards.manifest import Task
    from dnadiff.store.disk import check_output
    from dnadiff.supervised import embedding_files as files
    from dnadiff.supervised.features import Embedder, EmbeddingWork, pool_of
    from dnadiff.weights import checkpoint

    assignment = assignment_of(config, "embed", overrides)
    output = check_output(config["output"] or run_dir / "embeddings.npz", config["overwrite"])
    batch_size, pool = integer("batch_size", config["batch_size"]), pool_of(config["pool"])
    kind = files.format_of(output, pool.per_position)
    has_regions = config["genome"] is not None
    if not has_regions and not isinstance(config["input"], str):
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
    layer = optional_integer("layer", config["layer"])
    embedder = Embedder(model.denoiser, pool, layer, config["stranded"], config["dtype"])
    fasta, regions = (None, config["input"]) if has_regions else (config["input"], None)
    source = open_input(fasta, config["genome"], regions, config["feature"], key="input")
    embedder.check_lengths(source)
    settings = {key: config[key] for key in ("pool", "layer", "stranded", "dtype")} | {
        "model": fingerprint(model.denoiser)
    }
    work = EmbeddingWork(embedder, source, batch_size)
    depends = settings | {
        "input": source.digest,
        "batch_size": batch_size,
        "device": next(model.denoiser.parameters()).device.type,
    }
    if (folder := assignment.compute(output, {VECTORS: Task(work, depends)})) is not None:
        return folder
    assignment.settings(VECTORS, depends)  # refuses shards of others
    about = files.EmbeddingTable(
        source.names,
        source.regions,
        embedder.width,
        embedder.dtype,
        pool.per_position,
        settings,
        source.region_names,
    )
    log.info(
        f"model: {model.path}; {len(source.names):,} sequences of {min(source.lengths):,} to "
        f"{max(source.lengths):,} bases"
    )
    files.write(output, kind, about, counted(work, assignment), config["overwrite"])
    vector = (
        f"{embedder.width} {embedder.dtype.name} per {'base' if pool.per_position else 'sequence'}"
    )
    print(
        table(
            [
                ("sequences", f"{len(source.names):,}"),
                ("bases", f"{sum(source.lengths):,}"),
                ("numbers", vector),
            ]
        )
    )
    print(f"files are in {output}")
    return output


def counted(work: EmbeddingWork, assignment: Assignment) -> Iterator[Vectors]:
    """The embeddings in groups, with a progress bar."""
    bar = Progress(len(work.source.names), "embed")
    work.report = bar.update
    try:
        done = 0
        for result in assignment.results(VECTORS, work):
            yield work.vectors(result, done)
            done += result.items
    finally:
        bar.close()


def main() -> None:
    """The command line."""
    commands.run("embed", run, KEYS)


if __name__ == "__main__":
    main()
