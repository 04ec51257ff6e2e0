"""`python -m dnadiff.explain`: which bases a prediction depends on, and their motifs."""

from typing import Any, Self

from pydantic import model_validator

from dnadiff.fields import Name, PositiveInt
from dnadiff.formats.motifs import known_motifs
from dnadiff.formats.tracks import is_big_wig
from dnadiff.jobs.job import Job
from dnadiff.options.base import (
    Accelerator,
    BrowsedOptions,
    Checkpoint,
    PlacedOptions,
    ShardedOptions,
)
from dnadiff.options.command import command
from dnadiff.store.address import expand_user
from dnadiff.supervised import runs


class ExplainOptions(PlacedOptions, BrowsedOptions, ShardedOptions):
    """Which bases a prediction depends on: the effect of every substitution, and motifs.

        python -m dnadiff.explain checkpoint=FINETUNE_RUN input=x.fa output=y.npz
        python -m dnadiff.explain checkpoint=FINETUNE_RUN genome=g.fa regions=r.bed target=CLASS
          per_base=y.bw report=y.html output=y.npz
        python -m dnadiff.explain checkpoint=FINETUNE_RUN input=x.fa motifs=JASPAR_FILE
        python -m dnadiff.explain checkpoint=ecoli genome=g.fa regions=r.bed discover=true

    In-silico mutagenesis: the effect of a base is the prediction for the sequence with this base
    minus that for the sequence itself, on the scale of log-odds or values. The contribution of a
    base is minus the mean effect of a random base in its place. Of a pretrained model, effects are
    log p(base) - log p(base of the sequence) with the position masked. OUTPUT has both as arrays,
    and two files next to it are the input of TF-MoDISco's command line. See docs/explaining.md.
    """

    shown_by = "per_base"
    checkpoint: Checkpoint
    input: str | None = None
    """FASTA, plain or gzip; or genome and regions"""
    target: Name | None = None
    """of a fine-tuned run: the class or column that is explained; null: the only one, or the second
    of two classes"""
    seeds: PositiveInt | None = None
    """of a fine-tuned run: explain the mean of so many of its networks; null: of all"""
    per_base: str | None = None
    """track of the contributions: .bedgraph, .bedgraph.gz, or .bw (.bw needs pip install -e
    '.[tracks]')"""
    discover: bool = False
    """find motifs by TF-MoDISco (needs pip install -e '.[explain]')"""
    motifs: str | list[str] | None = None
    """known motifs to compare with: a file in JASPAR format, or IUPAC letters, as in
    '[TTGACA,TATAAT]'; sets discover"""
    batch_size: PositiveInt | None = None
    """null: as the test items of the task were predicted; 32 for a pretrained model"""
    output: str | None = None
    """.npz; null: explained.npz in the run folder, with a JSON file next to it"""
    resume: bool = False
    """resume an interrupted run; the output is byte-identical to that of an uninterrupted one"""
    accelerator: Accelerator = "auto"

    @model_validator(mode="after")
    def _values_can_be_read(self) -> Self:
        if self.output is not None and not self.output.lower().endswith(".npz"):
            raise ValueError(f"output {self.output} must end in .npz, the format that is written")
        if self.per_base is not None:
            is_big_wig(self.per_base)  # refuses other formats
        return self


@command(ExplainOptions)
def explain(options: ExplainOptions) -> list[Job]:
    """The file of effects, with its track and motifs."""
    from dnadiff.supervised import attribution, ensemble, predictions

    known = known_motifs(options.motifs)
    is_fine_tuned = runs.is_fine_tuned(options.checkpoint)
    for key in options.given("target", "seeds") if not is_fine_tuned else ():
        raise ValueError(
            f"{key} belongs to a fine-tuned run, and {options.checkpoint} is a pretrained model; "
            f"leave {key} out"
        )
    model: Any
    if is_fine_tuned:
        model = ensemble.load(options.checkpoint, options.trust, options.device)
        if (options.seeds or 0) > (number := len(model.members)):
            raise ValueError(
                f"seeds {options.seeds} must be at most {number}, the number of networks of this "
                "run; leave seeds out for all"
            )
        model.members = model.members[: options.seeds]
    else:
        model = options.loaded()
    source = options.into(predictions.open_input, fasta=options.input)
    source.align(model.columns_for(options.alignment))
    explainer: attribution.Explainer
    if is_fine_tuned:
        for name, length in zip(source.names, source.lengths):
            model.limits.check(name, length, length)
        target = model.classes[model.number_of(options.target)]
        size = options.batch_size or model.batch_size
        explainer = attribution.Mutagenesis(
            model.contrasts(target, size),
            model.target.contrast_name(target),
            len(model.members),
            {
                "networks": [member.sha256 for member in model.members],
                "target": target,
                "device": model.device.type,
            },
        )
    else:
        size = options.batch_size or 32
        explainer = attribution.MaskedBases(model, source, size)
    return [
        attribution.ExplainJob(
            explainer,
            source,
            options.output_path("explained.npz"),
            None if options.per_base is None else expand_user(options.per_base),
            known if known or options.discover else None,
            {"batch_size": size, **options.only("per_base", "discover", "motifs")},
        )
    ]


main = explain.main

if __name__ == "__main__":
    main()
