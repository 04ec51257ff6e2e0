"""`python -m dnadiff.score`: the likelihood of each record of a FASTA file or region of a genome,
and the information content of each base."""

from dnadiff.fields import PositiveInt
from dnadiff.formats.tracks import is_big_wig
from dnadiff.jobs.job import Job
from dnadiff.options.base import BrowsedOptions, ModelOptions, PlacedOptions, ShardedOptions
from dnadiff.options.command import command
from dnadiff.store.address import expand_user


class ScoreOptions(PlacedOptions, ModelOptions, ShardedOptions, BrowsedOptions):
    """The likelihood of each record of a FASTA file or region of a genome, and the information
    content of each base.

        python -m dnadiff.score checkpoint=RUN input=x.fa output=scores.tsv
        python -m dnadiff.score checkpoint=RUN genome=g.fa regions=genes.bed output=scores.tsv
        python -m dnadiff.score checkpoint=RUN input=x.fa output=scores.tsv per_base=x.bw
        python -m dnadiff.score checkpoint=RUN genome=g.fa regions=genes.bed alignment=g.aln

    Columns: name, length, counted, nats_per_base, bits_per_base, se_mc, total_bits, and
    region_name if the regions have names. nats_per_base and bits_per_base are upper bounds on -log
    p for each counted base (exact for autoregressive models), total_bits is their sum over the
    record, and se_mc (nats per base) the Monte Carlo error. The printed summary has bits and nats,
    and the JSON file says what each column means. N and other letters except A, C, G and T are read
    but not counted; a record without any of these four gets nan.
    """

    shown_by = "per_base"
    input: str | None = None
    """FASTA, plain or gzip; or genome and regions"""
    output: str | None = None
    """null: scores.tsv in the run folder"""
    window: PositiveInt | None = None
    """bases; longer records are cut, null: the training window"""
    num_draws: PositiveInt = 8
    """network calls per window, even; an autoregressive model always makes one"""
    per_base: str | None = None
    """track of each base's information content given both sides: .bedgraph, .bedgraph.gz, or .bw
    (.bw needs pip install -e '.[tracks]')"""
    spacing: PositiveInt = 32
    """per_base: distance in bases between positions masked together"""
    stranded: bool = False
    """per_base: read strand + of the records alone, whatever the strand of a region"""
    resume: bool = False
    """continue the unfinished output"""


@command(ScoreOptions)
def score(options: ScoreOptions) -> list[Job]:
    """The table, and the track if there is one."""
    from dnadiff.data.genome.inputs import open_input
    from dnadiff.genomics.scores import ScoreJob, TrackJob

    for key in options.given("spacing", "stranded") if options.per_base is None else ():
        raise ValueError(
            f"{key} is for the information content of each base; give per_base= too, or leave "
            f"{key} out"
        )
    output = options.output_path("scores.tsv")
    per_base = None if options.per_base is None else expand_user(options.per_base)
    if per_base is not None:
        is_big_wig(per_base)  # refuses other formats first
    if per_base == output:
        raise ValueError(f"per_base and output are the same file, {output}; give each its own")
    model = options.loaded()
    window = model.window(options.window)
    source = options.into(open_input, fasta=options.input)
    source.align(model.columns_for(options.alignment))
    parts = {"model": model, "source": source, "window": window}
    found: list[Job] = [options.into(ScoreJob, **parts, output=output)]
    if per_base is not None:
        found.append(options.into(TrackJob, **parts, output=per_base))
    return found


main = score.main

if __name__ == "__main__":
    main()
