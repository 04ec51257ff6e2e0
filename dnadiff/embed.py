"""`python -m dnadiff.embed`: the network's features of each sequence of a FASTA file, or of each
region of a genome, as one file."""

from typing import Literal

from dnadiff.fields import PositiveInt
from dnadiff.jobs.job import Job
from dnadiff.options.base import Accelerator, Checkpoint, PlacedOptions, Reported, ShardedOptions
from dnadiff.options.command import command


class EmbedOptions(PlacedOptions, ShardedOptions, Reported):
    """The network's features of each sequence, for classifiers, clustering and search.

        python -m dnadiff.embed checkpoint=RUN input=x.fa output=e.npz
        python -m dnadiff.embed checkpoint=RUN input=genes.bed genome=g.fa output=e.parquet
        python -m dnadiff.embed checkpoint=RUN input=genes.bed genome=g.fa alignment=g.aln

    Each file also holds name, chrom, start, end (0-based, half-open) and strand of each sequence,
    and region_name if the regions have names, in the order of the input.
    """

    checkpoint: Checkpoint
    input: str | list[str] | None = None
    """FASTA, plain or gzip; with genome also what regions= takes"""
    output: str | None = None
    """.npz, .parquet or .h5ad; null: embeddings.npz in the run folder"""
    pool: Literal["mean", "max", "none"] = "mean"
    """mean or max over the positions of a sequence; none: a vector for each position"""
    layer: PositiveInt | None = None
    """features after this many layers, null: all"""
    metadata: str | None = None
    """of the page: table (.csv, .tsv) with a column name; its next column colors the points"""
    stranded: bool = False
    """read the given strand alone; otherwise both are averaged"""
    dtype: Literal["float32", "float16"] = "float32"
    """or float16"""
    batch_size: PositiveInt = 32
    """sequences in a batch"""
    resume: bool = False
    """resume an interrupted run; the output is byte-identical to that of an uninterrupted one"""
    accelerator: Accelerator = "auto"
    """where the network computes"""


@command(EmbedOptions)
def embed(options: EmbedOptions) -> list[Job]:
    """The file of all embeddings."""
    from dnadiff.data.genome.inputs import open_input
    from dnadiff.report.embed import read_metadata
    from dnadiff.supervised.embeddings import EmbedJob, writer_of

    output = options.output_path("embeddings.npz")
    writer_of(output, options.pool)
    if options.report and options.pool == "none":
        raise ValueError(
            f"report {options.report} draws one vector for each sequence; set pool=mean or pool=max"
        )
    if options.metadata is not None:
        if not options.report:
            raise ValueError(
                f"metadata {options.metadata} is for the page of report=; give that too"
            )
        read_metadata(options.metadata)  # refuses a wrong file
    if isinstance(options.input, list) and options.genome is None:
        raise ValueError(
            f"input {options.input!r} is a list of regions; give their genome as well: genome=g.fa"
        )
    model = options.loaded()
    if not model.is_dna:
        raise ValueError(
            f"input is read as DNA, but {model.path} was trained on text; give a model of DNA"
        )
    placed = {"fasta": options.input}
    if options.genome is not None and options.regions is None:
        placed = {"fasta": None, "regions": options.input, "key": "input"}
    source = options.into(open_input, **placed)
    source.align(model.columns_for(options.alignment))
    return [options.into(EmbedJob, model=model, source=source, output=output)]


main = embed.main

if __name__ == "__main__":
    main()
