"""`python -m dnadiff.sample`: sequences from a trained model, to FASTA or text: free, from
templates and motifs, or within a genome."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from dnadiff.checks import expand_user
from dnadiff.config import Json, build
from dnadiff.design import options, reward_options
from dnadiff.design.records import check_suffix, header_of
from dnadiff.fields import Natural, NonNegative, PositiveInt
from dnadiff.options.base import Group, ModelOptions, ShardedOptions, group
from dnadiff.options.command import job_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from dnadiff.jobs.job import Job


class SampleOptions(ModelOptions, ShardedOptions):
    """Write synthetic sequences from a trained model.

    python -m dnadiff.sample checkpoint=RUN num_samples=100 length=512 output=samples.fa
    python -m dnadiff.sample checkpoint=latest sampler=first_hitting
    python -m dnadiff.sample checkpoint=RUN num_samples=8 infill=regions.bed genome=g.fa
    output=designs.fa python -m dnadiff.sample checkpoint=RUN num_samples=10000 output=x.fa.gz
    resume=true python -m dnadiff.sample checkpoint=RUN reward=motif reward.motif=TATAAT method=smc
    output=designs.fa
    """

    sampler: Group = group(
        "grouped",
        "grouped, first_hitting, ancestral, confidence, semi_ar (any length), ... (grouped);",
    )
    reward: Group = group(
        "none", "what designs are optimized for: gc, motif, restriction_sites, homopolymer,"
    )
    method: Group = group(
        "best_of_n", "best_of_n, smc, svdd, classifier_guidance, metropolis, resample_move"
    )
    num_samples: PositiveInt = Field(
        16, description="number of sequences; with templates or intervals, for each of them"
    )
    length: PositiveInt | str | None = Field(
        None,
        description=(
            "tokens, or a range to draw from such as 200:1000; with infill the window "
            "that "
            "the network reads; null: the training window"
        ),
    )
    template: str | None = Field(
        None,
        description="FASTA of IUPAC letters (DNA), or a text file with [MASK] or [MASK*20] (text)",
    )
    motif: str | list[str] | None = Field(
        None,
        description=(
            "'motif=[TATAAT@100,CCAAT@-40:-]': MOTIF@start[:strand], 0-based, negative from the end"
        ),
    )
    prompt: str | None = Field(None, description="the beginning of each sequence")
    infill: str | list[str] | None = Field(
        None, description="BED (or GTF, GFF, chr1:1001-2000) of intervals to design again"
    )
    feature: str | None = Field(
        None, description="infill: rows of a GTF or GFF file with this third column; null: all"
    )
    genome: str | None = Field(
        None,
        description=(
            "intervals (BED) and their genome (FASTA): designs conditioned on the real flanks"
        ),
    )
    write: Literal["window", "designed"] = Field(
        "window", description="infill: window (with flanks) or designed (without)"
    )
    gc: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="target mean fraction of G and C, calibrated on a pilot batch"
    )
    resample: bool = Field(
        False,
        description="resample by importance weights from this many proposals (docs/designing.md)",
    )
    proposals: PositiveInt | None = Field(
        None,
        description=(
            "samples that resample draws num_samples from, for each target; null: the same number"
        ),
    )
    copies: bool = Field(
        False,
        description=(
            "report the longest exact match of each record with the training part, either strand"
        ),
    )
    output: str | None = Field(
        None,
        description=(
            ".fa, .fa.gz (DNA), .txt, .jsonl, .txt.gz (text); null: samples.fa or "
            "samples.txt in the run folder; with a JSON file next to it"
        ),
    )
    resume: bool = Field(False, description="resume an unfinished output=")
    label: str | int | list[str | int] | None = Field(
        None, description="label to condition on, for models trained with labels"
    )
    guidance: NonNegative = Field(
        1.0, description="weight of the label: above 1 amplifies its effect"
    )
    start: str | None = Field(
        None,
        description=(
            "FASTA of sequences to change, for method=metropolis; with template= only its "
            "free positions"
        ),
    )
    target: float | None = Field(
        None, description="a value that the reward approaches; null: as large as possible"
    )
    beta: NonNegative = Field(
        10.0,
        description=(
            "with a reward: inverse temperature; larger values weight the reward more "
            "against the model"
        ),
    )
    num_draws: Natural = Field(
        8,
        description=(
            "with a reward: network calls for the bound on the log-probability of each "
            "design; 0 leaves it out"
        ),
    )
    report: str | None = Field(
        None,
        description=".html page about designs: reward against likelihood, logo, k-mers, diversity",
    )
    real: str | None = Field(
        None,
        description=(
            "of the page: FASTA of real sequences to compare with; null: held-out windows "
            "of the model's data"
        ),
    )

    @model_validator(mode="after")
    def _keys_belong_together(self) -> Self:
        if self.proposals is not None and not self.resample:
            raise ValueError(
                "proposals are what resample=true chooses from; set it, or leave proposals out"
            )
        if self.proposals is not None and self.proposals < self.num_samples:
            raise ValueError(
                f"proposals {self.proposals} are fewer than the num_samples {self.num_samples} "
                "drawn from them; set more"
            )
        if self.write == "designed" and self.infill is None:
            raise ValueError(
                "write=designed is for infill=, which has flanks to leave out; leave write out"
            )
        for one, other in (
            ("template", "prompt"),
            ("infill", "template"),
            ("infill", "prompt"),
            ("infill", "motif"),
        ):
            if getattr(self, one) is not None and getattr(self, other):
                raise ValueError(f"{one} and {other} exclude each other; leave one out")
        if (self.infill is None) != (self.genome is None):
            raise ValueError("infill=regions.bed and genome=g.fa belong together; give both")
        if self.feature is not None and self.infill is None:
            raise ValueError(
                "feature chooses rows of a GTF or GFF file of infill=; give infill and genome, or "
                "leave feature out"
            )
        return self


@job_command(SampleOptions)
def sample(chosen: SampleOptions) -> list[Job]:
    """The file of samples."""
    from dnadiff.design import provenance
    from dnadiff.design.work import SampleJob
    from dnadiff.jobs.journal import temporary_path
    from dnadiff.metrics import memorization
    from dnadiff.model import Model
    from dnadiff.weights import checkpoint

    config = chosen.model_dump()
    reward_options.check(config)
    options.check_settings(config["sampler"])
    device = chosen.device
    model = Model(checkpoint.load(config["checkpoint"], config["trust"]), device)
    is_dna = model.tokenizer.vocab.complement is not None
    output = expand_user(
        chosen.output or chosen.run_dir / ("samples.fa" if is_dna else "samples.txt")
    )
    check_suffix(output, is_dna)
    model.conditioned(config["label"], config["guidance"])
    request = options.make_request(config, model)
    settings = options.sampler_settings(config, model, request, output)
    generator = model.conditional_sampler(
        build(settings, trust=None), request, config["label"], config["guidance"]
    )
    if config["gc"] is not None:
        from dnadiff.design.generate import check_gc

        config["gc"] = check_gc(config["gc"], request, model.tokenizer)
        generator = generator.with_tilt(1.0)  # calibrated after all other checks
    training = (
        memorization.training_data(model.loaded, config["trust"]) if config["copies"] else None
    )
    index = (
        None if training is None else cache(lambda: memorization.indexed(training))
    )  # made when it is needed first, once
    design: dict[str, Json] = {}
    if reward_options.is_design(config):
        search = None if index is None else lambda bases: index().longest_match(bases)
        generator, design = reward_options.make_designer(config, generator, request, search)
    weighted = options.check_weights(config, generator, request, is_dna)
    kept = options.output_settings(config, model, request, settings) | design
    page: Callable[[], object] | None = None
    if config["report"] is not None and config["shard"] is None:
        from dnadiff.design.designer import Designer
        from dnadiff.report.designs import open_page  # loads Lightning

        assert isinstance(generator, Designer)  # `reward_options.check` refuses report= without one
        found = output.is_file() or temporary_path(output, "journal").is_file()
        opened = open_page(
            config["report"],
            generator,
            request,
            model.loaded,
            trust=config["trust"],
            real=config["real"],
            num_samples=config["num_samples"],
            batch_size=config["batch_size"],
            seed=config["seed"],
            replace=config["overwrite"] or (config["resume"] and found),
        )
        page = partial(opened.write, output, chosen.overrides)
    return [
        SampleJob(
            model.loaded,
            generator,
            request,
            output,
            seed=config["seed"],
            batch_size=config["batch_size"],
            header=header_of(generator.sampler, config),
            weighted=weighted,
            gc=config["gc"],
            resampled=config["num_samples"] if config["resample"] else None,
            settings=kept,
            started=config["sampler"],
            inputs=provenance.inputs(config),
            index=index,
            design=reward_options.Summary(config) if design else None,
            page=page,
        )
    ]


main = sample.main

if __name__ == "__main__":
    main()
