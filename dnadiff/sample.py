"""`python -m dnadiff.sample`: sequences from a trained model, to FASTA or text: free, from
templates and motifs, within a genome, or designed for a reward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from pydantic import SkipValidation, model_validator

from dnadiff.fields import (
    InnerFraction,
    Json,
    JsonDict,
    Natural,
    NonNegative,
    PositiveFraction,
    PositiveInt,
)
from dnadiff.options.base import Group, ModelOptions, PlacedOptions, Reported, ShardedOptions, group
from dnadiff.options.command import command
from dnadiff.progress import log
from dnadiff.store.objects import PACKAGE, build, check, without_key

if TYPE_CHECKING:
    from dnadiff.design.method.base import DesignMethod
    from dnadiff.design.request import Request
    from dnadiff.jobs.job import Job
    from dnadiff.model import Model

T = TypeVar("T")
# What samples depend on, besides names of files.
VALUES = (
    *("num_samples", "batch_size", "seed", "label", "guidance", "length", "motif", "prompt"),
    *("gc", "resample", "proposals", "write"),
)
CONDITIONS = (
    *("motif", "prompt", "label", "feature", "spliced", "template", "infill", "genome"),
    *("start", "start_t", "regions", "alignment", "input"),
)


class SampleOptions(PlacedOptions, ModelOptions, ShardedOptions, Reported):
    """Write synthetic sequences from a trained model.

        python -m dnadiff.sample checkpoint=RUN num_samples=100 length=512 output=samples.fa
        python -m dnadiff.sample checkpoint=latest sampler=first_hitting
        python -m dnadiff.sample checkpoint=RUN num_samples=8 infill=regions.bed genome=g.fa
          output=designs.fa
        python -m dnadiff.sample checkpoint=RUN num_samples=200 regions=gene.bed genome=g.fa
          alignment=g.aln output=genes.fa
        python -m dnadiff.sample checkpoint=RUN num_samples=10000 output=x.fa.gz resume=true
        python -m dnadiff.sample checkpoint=RUN start=x.fa start_t=0.2 output=y.fa
        python -m dnadiff.sample checkpoint=RUN input=sources.txt output=targets.jsonl
        python -m dnadiff.sample checkpoint=RUN reward=motif reward.motif=TATAAT method=smc
          output=designs.fa

    See docs/designing.md and docs/guided_design.md.
    """

    sampler: Group = group("grouped")
    """grouped, first_hitting, ancestral, confidence, semi_ar (any length), ...; without it the one
    that fits the model"""
    reward: Group = group("none")
    """what designs are optimized for: gc, motif, restriction_sites, homopolymer, predicted (by a
    fine-tuned run), weighted (a sum of rewards)"""
    method: Group = group("best_of_n")
    """best_of_n, smc, svdd, classifier_guidance, metropolis, resample_move"""
    num_samples: PositiveInt = 16
    """number of sequences; with templates or intervals, for each of them; for each source of input=
    1 unless it is set"""
    length: PositiveInt | str | None = None
    """tokens, or a range to draw from such as 200:1000; with infill the window that the network
    reads; null: the training window"""
    template: str | None = None
    """FASTA of IUPAC letters (DNA), or a text file with [MASK] or [MASK*20] (text)"""
    motif: str | list[str] | None = None
    """'motif=[TATAAT@100,CCAAT@-40:-]': MOTIF@start[:strand], 0-based, negative from the end"""
    prompt: str | None = None
    """the beginning of each sequence"""
    input: str | None = None
    """sources of a model of data=pairs, one in each line, or a file of pairs: writes their
    targets"""
    length_beam: PositiveInt = 3
    """with input=: lengths of the target that are tried; the best by the bound per token is kept"""
    infill: str | list[str] | None = None
    """BED (or GTF, GFF, chr1:1001-2000) of intervals to design again"""
    regions: str | list[str] | None = None
    """as infill, without flanks: sequences of their lengths, guided by the columns of alignment="""
    write: Literal["window", "designed"] = "window"
    """infill: window (with flanks) or designed (without)"""
    gc: InnerFraction | None = None
    """target mean fraction of G and C, calibrated on a pilot batch"""
    resample: bool | None = None
    """draw records by importance weights (docs/designing.md); null: designs whose beta is not a
    number"""
    proposals: PositiveInt | None = None
    """samples that resample draws num_samples from, for each target; null: as many, or twice as
    many if beta is not a number"""
    copies: bool | None = None
    """report the longest exact match of each record with the training part, either strand; null:
    of designs, if the training data are here and have at most 10 million bases"""
    output: str | None = None
    """.fa, .fa.gz (DNA), .txt, .jsonl, .txt.gz (text); null: samples.fa or samples.txt in the run
    folder; with a JSON file next to it"""
    resume: bool = False
    """resume an unfinished output="""
    label: str | int | list[str | int] | dict[str, str | float] | None = None
    """what to condition on, for models trained with labels or values: yeast, [yeast,promoter],
    {activity:2.5}"""
    guidance: NonNegative = 1.0
    """weight of the label: above 1 amplifies its effect"""
    start: str | None = None
    """FASTA (or a text) of sequences to change: with start_t=, by sampler=gibbs or self_correction,
    or for a reward by method=metropolis; with template= only its free positions"""
    start_t: PositiveFraction | None = None
    """time of the noise that is added to start= and reverted; 1 leaves nothing of it"""
    target: float | None = None
    """a value that the reward approaches; null: as large as possible"""
    beta: SkipValidation[float | str] = "auto"  # `Beta.parse` checks it
    """with a reward: inverse temperature; larger values weight the reward more against the model;
    auto: the mean reward is the quantile 0.9 of unguided samples; q0.95; 2sd: 2 / their sd"""
    pilot: Natural | None = None
    """with a reward: unguided samples, which choose beta; null: 256, 512 for methods without
    weights, 64 if beta is a number"""
    judge: str | None = None
    """with a reward: a fine-tuned run of one class or value that is not optimized; the page has its
    predictions of designs and of unguided samples"""
    num_draws: Natural = 8
    """with a reward, or several lengths of input=: network calls for the bound on each
    log-probability; 0 leaves it out, and with input= tries one length"""
    real: str | None = None
    """of the page: FASTA of real sequences to compare with; null: held-out windows of the model's
    data"""

    @model_validator(mode="after")
    def _keys_belong_together(self) -> Self:
        intervals = self.regions or self.infill
        is_chosen = self.reward and isinstance(self.beta, str) and self.resample is None
        rows = "rows of a GTF or GFF file of infill= or regions=, with genome="
        for key, needed, what in (
            ("proposals", self.resample or is_chosen, "resample=true, which chooses from them"),
            ("write", self.infill, "infill=, which has flanks to leave out"),
            ("real", self.report, "the page of report=, which compares samples with it"),
            ("alignment", intervals, "bases of genome= in regions= or infill="),
            ("start_t", self.start, "sequences of start=, to which it adds noise"),
            ("feature", intervals, rows),
            ("spliced", intervals, rows),
        ):
            if getattr(self, key) not in (None, False, "window") and not needed:
                raise ValueError(f"{key} is for {what}; give that too, or leave {key} out")
        if self.proposals is not None and self.proposals < self.num_samples:
            raise ValueError(
                f"proposals {self.proposals} are fewer than the num_samples {self.num_samples} "
                "drawn from them; set more"
            )
        exclusive = {
            "input": (*CONDITIONS[:-1], "length", "gc", "resample", "reward"),
            "template": ("prompt", "length"),
            "start": ("infill", "regions", "length", "prompt", "motif"),
            "start_t": ("reward",),
            "infill": ("template", "prompt", "motif", "spliced"),
            "regions": ("infill", "template", "prompt", "motif", "length"),
        }
        for one, others in exclusive.items():
            for other in others:
                if getattr(self, one) is not None and getattr(self, other):
                    raise ValueError(f"{one} and {other} exclude each other; leave one out")
        if (intervals is None) != (self.genome is None):
            raise ValueError(
                "infill=regions.bed (or regions=) and genome=g.fa belong together; give both"
            )
        return self


@command(SampleOptions)
def sample(options: SampleOptions) -> list[Job]:
    """The file of samples."""
    from dnadiff.design import designs, generate, pilot, predicted, reward, samples, translation
    from dnadiff.design.method.base import Designer
    from dnadiff.genomics.metrics import memorization
    from dnadiff.model import Model, names_of
    from dnadiff.store import disk, files

    def content(name: Json) -> Json:
        """The hash of a file; other values, such as the region chr1:1-2000, as they are."""
        is_file = isinstance(name, str) and files.is_file(name)
        return disk.hash_file(files.resolve(name)) if is_file else name

    method = check_design(options)
    pilot.Beta.parse(options.beta)
    samples.check_settings(options.sampler)
    model = Model(options.loaded(), options.device)
    is_dna = model.loaded.is_dna
    output = options.output_path(f"samples.{'fa' if is_dna else 'txt'}")
    samples.check_suffix(output, is_dna)
    if options.input is None:
        if (model.loaded.config.get("data") or {}).get("lengths"):
            log.warning("trained on pairs: without input=sources.txt this model writes free text")
        request = make_request(options, model)
    else:
        each = options.num_samples if any(options.given("num_samples")) else 1
        beam = options.length_beam if options.num_draws else 1
        request = translation.read_sources(options.input, model.loaded, each, beam)
    sampler = model.sampler_options(options)
    resample = bool(options.resample)
    resumed = output if options.resume else None
    settings = samples.continued_sampler(
        sampler,
        model.loaded,
        model.stored_curve,
        request.lengths,
        resumed,
        options.overwrite,
    )
    generator = model.conditional_sampler(
        build(settings, trust=None), request, options.label, options.guidance, options.start_t
    )
    if method is None:
        generator.check_start(request)
    if isinstance(request, translation.Sources):
        generator = translation.Translator(generator, request, options.num_draws)
    if options.gc is not None:
        generate.check_gc(options.gc, request, model.tokenizer)
        generator = generator.with_tilt(1.0)  # calibrated after all other checks
    index = None
    if options.copies:
        index = memorization.indexed(memorization.training_data(model.loaded, options.trust))
    elif options.copies is None and method is not None and is_dna:
        index = memorization.default_index(model.loaded, options.trust)
    optional = set_keys(options, "start", "start_t", "feature", "spliced", "regions")
    if options.input is not None:
        optional |= options.only("input", "length_beam", "num_draws")
        optional["num_samples"] = request.each
    settings_of_output = {
        "model": disk.hash_file(model.path),
        **options.only(*VALUES),
        "resample": resample,
        **{k: content(v) for k, v in {**options.only("template", "infill"), **optional}.items()},
        **({"alignment": request.alignment.identity} if request.alignment else {}),
        "genome": None if request.genome is None else request.genome.digest,
        "lengths": list(request.lengths),
        "sampler": settings,
        "device": model.device.type,
    }
    real: list[Any] = []
    if options.real is not None and is_dna:
        shown = (target.shown for target in request.evenly_spaced())
        real = memorization.real_windows(options.real, min(end - start for start, end in shown))
    kind: type[samples.SampleJob] = samples.SampleJob
    of_design: dict[str, Any] = {}
    of_method: JsonDict = {}
    if method is not None:
        of_method = {"method": options.method["_target_"].split(".")[-2]}
        of_method |= options.only("beta") if method.uses_beta else {}
        given = options.only("reward", "target", "method", "beta")
        if not method.uses_beta and any(options.given("beta")):
            log.info(f"beta is not used by {of_method['method']}")
        built = chosen(options, "reward", reward.Reward)
        goal = reward.as_reward(built, options.target)
        generator.num_draws = options.num_draws
        if index is not None:
            generator.longest_match = index.longest_match
        if options.judge is not None:
            generator.judge = predicted.PredictedReward(options.judge, trust=options.trust)
            settings_of_output["judge"] = generator.judge.inputs()
        generator = made = Designer(generator, method, goal, options.beta)
        beta = made.beta
        has_weights = bool(made.has_weights(request)) and is_dna
        if options.resample is None:
            resample = options.proposals is not None or (beta.is_automatic and has_weights)
        if resample and beta.is_automatic:
            request.each = options.proposals or 2 * options.num_samples
            settings_of_output |= {"resample": True, "proposals": request.each}
        made.check_request(request, options.batch_size)
        log.info(
            "designs are statistical samples without any claim of function; screen them before "
            "synthesis (RESPONSIBLE_USE.md)"
        )
        settings_of_output |= {
            # Whether a reward may be loaded does not change its values.
            **{key: without_key(value, "trust") for key, value in given.items()},
            "num_draws": options.num_draws,
            "reward_inputs": built.inputs(),
            "copies": index is not None,
        }
        size = beta.pilot_size(options.pilot, has_weights)
        settings_of_output |= {"pilot": size} if beta.is_automatic else {}
        kind = designs.DesignJob
        about = given | options.only("start") | ({} if method.uses_beta else {"beta": None})
        of_design |= {"pilot": size, "design": about, "real": real}
    weighted = generate.check_weights(generator, request, resample, is_dna)
    label = options.label
    changed = {
        "label": None if label is None else ",".join(names_of(label)),
        **options.only("guidance", "gc", "start_t"),
    }
    fields = SampleOptions.model_fields
    # The calls are those of the batch, known afterwards.
    header = {
        "sampler": samples.sampler_name(generator.sampler),
        "calls": 0,
        **samples.header_settings(generator.sampler),
        **{key: value for key, value in changed.items() if value != fields[key].default},
    }
    return [
        options.into(
            kind,
            model=model.loaded,
            generator=generator,
            request=request,
            output=output,
            header_of_records=header | of_method | options.only("seed"),
            weighted=weighted,
            resampled=options.num_samples if resample else None,
            settings=settings_of_output,
            started=sampler,
            inputs=set_keys(options, *CONDITIONS),
            index=index,
            **of_design,
        )
    ]


def check_design(options: SampleOptions) -> DesignMethod | None:
    """Check the options of designs; the method, or None without a reward. Raises ValueError naming
    the key."""
    if not options.reward:
        draws = () if options.input is not None else ("num_draws",)
        for key in options.given("target", "beta", "pilot", "method", "judge", *draws):
            raise ValueError(
                f"{key} is for designs; set reward= too, such as reward=gc (docs/guided_design.md)"
            )
        return None
    from dnadiff.design.method.base import DesignMethod

    if options.gc is not None:
        raise ValueError(
            "gc and reward exclude each other; set reward=gc target=0.5, or add "
            "+reward@reward.terms.gc=gc to reward=weighted"
        )
    method = chosen(options, "method", DesignMethod)
    if options.resample and not method.has_weights:
        raise ValueError(
            f"resample=true needs a method with importance weights, and {type(method).__name__} "
            "has none; set method=smc, svdd or resample_move"
        )
    return method


def chosen(options: SampleOptions, key: str, kind: type[T]) -> T:
    """The object of this kind that a config group describes; a ValueError if it is none."""
    config = getattr(options, key)
    check(config, (PACKAGE, *options.trust))
    made = build(config, trust=None)  # an address on the command line is fetched
    if not isinstance(made, kind):
        raise ValueError(
            f"{key} {config.get('_target_')} is not a {kind.__name__} ({kind.__module__})"
        )
    return made


def set_keys(options: SampleOptions, *keys: str) -> JsonDict:
    """Those of the keys that are set, with their values."""
    return {key: x for key, x in options.only(*keys).items() if x not in (None, False)}


def make_request(options: SampleOptions, model: Model) -> Request:
    """The request that the options describe; raises ValueError if they contradict each other or the
    model."""
    from dnadiff.design import request as requests

    tokenizer = model.tokenizer
    each = options.proposals or options.num_samples
    motifs = requests.read_motifs(options.motif)
    patterns = None
    if options.template is not None:
        patterns = list(requests.read_patterns(options.template, tokenizer, motifs))
    if options.start is not None:
        allowed = None if patterns is None else [pattern for _, pattern in patterns]
        given = requests.read_starts(options.start, tokenizer)
        return requests.starting_from(tokenizer, given, options.num_samples, allowed)
    if patterns is not None:
        return requests.Templates(patterns, each, tokenizer.vocab.mask_id)
    intervals = options.regions or options.infill
    alignment = model.loaded.columns_for(options.alignment)
    if intervals is not None:
        genome, regions = options.into(requests.read_intervals, infill=intervals)
        if alignment is not None:
            alignment.check(genome, regions)
    if options.regions is not None:
        return requests.Infill(genome, regions, each, None, alignment=alignment)
    low, high = requests.length_range(options.length or model.length)
    if intervals is None:
        prompt = options.prompt or ""
        return requests.Free(tokenizer, each, (low, high), options.seed, prompt, motifs)
    model.check_infill()
    if low != high:
        raise ValueError(
            f"length={options.length}: intervals are read in windows of one length; set "
            "length to a number"
        )
    return requests.Infill(genome, regions, each, low, options.write == "window", alignment)


main = sample.main

if __name__ == "__main__":
    main()
