"""`python -m dnadiff.align`: align related genomes to a genome, and compute what a phylogeny says
of each of its bases."""

from typing import Literal

from dnadiff.fields import Positive, PositiveFraction
from dnadiff.jobs.job import Job
from dnadiff.options.base import Group, ShardedOptions, group
from dnadiff.options.command import command
from dnadiff.store.address import expand_user


class AlignOptions(ShardedOptions):
    """Align related genomes to a genome, and compute what a phylogeny says of each of its bases.

        python -m dnadiff.align genome=target.fa related='genomes/*.fa.gz' output=target.aln
        python -m dnadiff.align genome=target.fa related=multiz.maf output=target.aln tracks=target

    Other commands read the output with alignment=target.aln, and train with
    data.alignment=target.aln. A table (.tsv) and a picture (.png) of all genomes are written next
    to it: identity and coverage, the coverage by chance (of the same genome reversed, not
    complemented), paralogs, and why a genome was left out. See docs/alignment_format.md.
    """

    chooses_threads = False
    genome: str
    """FASTA, 2bit or GenBank: the target"""
    related: str | list[str]
    """other genomes, a file for each: names, folders, patterns, or a manifest (.tsv; its labels are
    the names); or alignments to the target: .maf, .paf with cs tags, .bam, aligned FASTA, .aln"""
    output: str
    """the alignment, .aln; .aln.xz: columns alone, in steps of .1 nats and without frequencies, to
    ship with a model"""
    each_record: bool = False
    """each record of a FASTA file is a genome, as of mitochondria"""
    engine: Group | None = group()
    """last, minimap2 or mappy; null: the first of these that is installed"""
    near_copies: PositiveFraction | None = 0.96
    """genomes of at least this identity are left out; null: none but the target itself"""
    tree: str | None = None
    """Newick file with a leaf for each genome that is used and one called target; null: neighbor
    joining"""
    kappa: Positive | None = None
    """rate of transitions over that of transversions; null: the likeliest of eight from 1 to 15"""
    gaps: Literal["missing", "state"] = "missing"
    """missing data, or a fifth state, which is better for genes of RNA"""
    tracks: str | None = None
    """beginning of the names of bigWig files: rate, depth, log posterior of the genome's base, and
    phase, a track of coding phase (needs pip install -e '.[tracks]')"""
    resume: bool = False
    """continue the unfinished output; near_copies, tree, gaps and kappa may be others"""


@command(AlignOptions)
def align(options: AlignOptions) -> list[Job]:
    """The alignment."""
    from dnadiff.genomics.alignment.work import AlignJob

    output = expand_user(options.output)
    return [options.into(AlignJob, output=output)]


main = align.main

if __name__ == "__main__":
    main()
