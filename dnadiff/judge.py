"""`python -m dnadiff.judge`: compare samples with held-out windows of the same number and length,
every metric with a real-vs-real baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dnadiff.fields import Natural
from dnadiff.options.base import Group, ShardedOptions, group
from dnadiff.options.command import command
from dnadiff.progress import log

if TYPE_CHECKING:
    from dnadiff.data.base import SequenceDataModule
    from dnadiff.jobs.job import Job


class JudgeOptions(ShardedOptions):
    """Compare samples with held-out windows of the same number and length, every metric with a
    real-vs-real baseline.

        python -m dnadiff.judge samples=x.fa checkpoint=RUN   the held-out part of the run's data
        python -m dnadiff.judge samples=x.fa data=ecoli       the held-out part of other data
        python -m dnadiff.judge samples=x.fa real=y.fa        windows of another file

    Copies are searched for in the training part of the checkpoint's own data, also with data= or
    real=; if its source names none (published weights), or without a checkpoint, in that of data=.

    Metrics: Jensen-Shannon divergence of 1-mers to 6-mers, variance of GC content, mutual
    information up to 100 bases, three-base period, open reading frames, 24-mers seen in training
    and the longest exact match (either strand), AUROC of a discriminator, and bits per base of
    real windows under a Markov model trained on the samples. A distance below the baseline is a
    warning: the samples are too similar to real windows.
    """

    tokenizer: Group | None = group()
    data: Group | None = group()
    samples: str
    """FASTA, plain or gzip; all records have the same length"""
    checkpoint: str | None = None
    """the run whose held-out part gives real windows, and whose training part is searched for
    copies"""
    real: str | None = None
    """FASTA file with real sequences"""
    part: str = "test"
    """valid"""
    order: Natural = 6
    """order of the Markov models trained on samples and on real windows"""
    num_splits: Annotated[int, Field(ge=20)] = 100
    """random sets of real windows for the baseline"""
    stranded: bool | None = None
    """true: k-mers of one strand; null: as the run's data, or both strands"""
    output: str | None = None
    """JSON file, with a picture of the same name; null: judge.json in the run folder"""
    seed: Natural = 0


@command(JudgeOptions)
def judge(options: JudgeOptions) -> list[Job]:
    """The metrics of the samples."""
    from dnadiff.genomics.metrics import memorization, sample_quality

    if options.checkpoint is None and options.real is None and not options.data:
        raise ValueError(
            "no real windows to compare with: give checkpoint=RUN, whose held-out part is read, "
            "data=, or real=y.fa"
        )
    samples = memorization.read_bases(options.samples)
    lengths = sorted({len(bases) for bases in samples})
    if len(lengths) > 1:
        raise ValueError(
            f"{options.samples}: records have {lengths[0]:,} to {lengths[-1]:,} bases; "
            "samples must have the same length, so cut them to it"
        )
    length = lengths[0]
    data, searched = sources(options)
    if options.real is not None or data is None:
        of_real = {}
        records = memorization.read_bases(str(options.real))
        real = memorization.cut(records, length)
        source = options.real
    else:
        of_real = {"data": data.describe()}
        real = memorization.held_out_windows(data, options.part, length)
        source = f"{data.name}, part {options.part}"
    number = memorization.num_training_bases(searched) if searched else 0
    if number > memorization.LARGEST:
        log.info(
            "copies of the training part are not searched for: an index is made of at most "
            f"{memorization.LARGEST:,} bases, and it has {number:,}"
        )
        searched = None
    training = None if searched is None else memorization.indexed(searched)
    log.info(
        f"{len(samples):,} samples of {length:,} bases; {len(real):,} real windows of {source}"
    )
    known = data or searched
    of_data = known is not None and known.stranded
    stranded = of_data if options.stranded is None else options.stranded
    settings = {"both_strands": not stranded, **options.only("order", "num_splits", "seed")}
    evaluator = sample_quality.SampleQualityEvaluator(samples, real, training, **settings)
    about = {
        "samples": {"path": options.samples, "number": len(samples)},
        "real": {"source": source, "number": len(evaluator.real), **of_real},
        "searched": None if searched is None else searched.describe(),
        "settings": settings,
    }
    digest = None if searched is None else searched.digest
    output = options.output_path("judge.json")
    return [sample_quality.JudgeJob(evaluator, output, about, settings, digest)]


def sources(options: JudgeOptions) -> tuple[SequenceDataModule | None, SequenceDataModule | None]:
    """The data that the real windows are cut from, and those whose training part is searched for
    copies; None where there are none.

    Copies are of the model's training data, also if `data` names others
    (`dnadiff.genomics.metrics.memorization.searched_data`).
    """
    from dnadiff.data import base, tokenizer
    from dnadiff.genomics.metrics import memorization

    given = options.data
    data = None
    if options.checkpoint is not None:
        model = options.loaded()
        memorization.check_dna(model)
        if given or options.real is None:
            data = memorization.dna_data(model, options.trust, given)
        return data, memorization.searched_data(model, data, options.trust)
    if given:
        data = base.run_data(None, tokenizer.DNATokenizer(), given=given)
        data.prepare()
    return data, data


main = judge.main

if __name__ == "__main__":
    main()
