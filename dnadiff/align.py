"""`python -m dnadiff.align`: align related genomes to a genome, and compute what a phylogeny says of
each of its bases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Interval

from dnadiff.fields import Positive
from dnadiff.options.base import Group, ShardedOptions, group
from dnadiff.options.command import command
from dnadiff.store.address import expand_user
from dnadiff.store.objects import build

if TYPE_CHECKING:
    from dnadiff.jobs.job import Job


class AlignOptions(ShardedOptions):
    """Align related genomes to a genome, and compute what a phylogeny says of each of its bases.

        python -m dnadiff.align genome=target.fa related='genomes/*.fa.gz' output=target.aln
        python -m dnadiff.align genome=target.fa related=multiz.maf output=target.aln tracks=target

    Other commands read the output with alignment=target.aln, and train with
    data.alignment=target.aln. A table (.tsv) and a picture (.png) of all genomes are written next to
    it: identity and coverage, the coverage by chance (of the same genome reversed, not
    complemented), paralogs, and why a genome was left out. See docs/alignment_format.md.
    """

    chooses_threads: ClassVar[bool] = False
    genome: str
    """FASTA, 2bit or GenBank: the target"""
    related: str | list[str]
    """other genomes, a file for each: names, folders, patterns, or a manifest (.tsv; the label is the
    name); or alignments to the target: .maf, .paf with cs tags, .bam, aligned FASTA, .aln"""
    output: str
    """the alignment, .aln"""
    each_record: bool = False
    """each record of a FASTA file is a genome, as of mitochondria"""
    engine: Group | None = group()
    """last, minimap2 or mappy; null: the first of these that is installed"""
    near_copies: Annotated[float, Interval(gt=0, le=1)] | None = 0.96
    """genomes of at least this identity are left out; null: none but the target itself"""
    tree: str | None = None
    """Newick file with a leaf for each genome and one called target; null: neighbor joining"""
    kappa: Positive | None = None
    """rate of transitions over that of transversions; null: the likeliest of a few"""
    gaps: Literal["missing", "state"] = "missing"
    """missing data, or a fifth state, which is better for genes of RNA"""
    tracks: str | None = None
    """beginning of the names of bigWig files: rate, depth, log posterior of the genome's base, and
    phase, a track of coding phase (needs pip install -e '.[tracks]')"""
    resume: bool = False
    """continue the unfinished output"""


@command(AlignOptions)
def align(options: AlignOptions) -> list[Job]:
    """The alignment."""
    from dnadiff.data.genome.genome import Genome
    from dnadiff.genomics import trees
    from dnadiff.genomics.alignment import engines, work
    from dnadiff.report.relatives import draw_relatives
    from dnadiff.store.disk import content_hash
    from dnadiff.store.files import read_text, resolve

    output = expand_user(options.output)
    if output.suffix != ".aln":
        raise ValueError(f"output {output} has another format; its name must end in .aln")
    genome = Genome.open(options.genome)
    found = work.relatives(options.related, options.each_record, genome)
    engine = build(options.engine, trust=None) if options.engine else engines.installed()
    tree = None if options.tree is None else read_text(options.tree)
    if tree is not None:
        named = (each.name for each in found if not isinstance(each, work.Aligned))
        try:
            trees.read_newick(tree, [*named, work.TARGET])
        except ValueError as error:
            raise ValueError(f"tree {options.tree}: {error}") from None
    digests = {path: content_hash(resolve(path)) for path in {each.path for each in found}}
    return [
        work.AlignJob(
            work.Target(genome, engine),
            found,
            output,
            options.near_copies,
            tree,
            options.gaps == "state",
            options.kappa,
            {
                "genome": genome.digest,
                "related": [[each.name, digests[each.path]] for each in found],
                "engine": [engine.name, engine.version(), str(engine)],
                "tree": tree,
                **options.only("near_copies", "gaps", "kappa"),
            },
            draw_relatives,
            None if options.tracks is None else expand_user(options.tracks),
        )
    ]


main = align.main

if __name__ == "__main__":
    main()
