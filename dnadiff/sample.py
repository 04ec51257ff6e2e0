"""`python -m dnadiff.sample`: sequences from a trained model, to FASTA or text: free, from
templates and motifs, or within a genome."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dnadiff import commands
from dnadiff.checks import Natural, NonNegative, PositiveInt, Range, boolean, expand_user, integer
from dnadiff.config import SHARED, Config, Json, Keys, build
from dnadiff.design import options, reward_options
from dnadiff.design.records import check_suffix, header_of, text_record, writer_of
from dnadiff.progress import Progress, duration, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dnadiff.design.generate import ConditionalSampler
    from dnadiff.design.output import ResumableOutput
    from dnadiff.design.request import Request
    from dnadiff.design.work import SampleWork
    from dnadiff.metrics.memorization import TrainingIndex
    from dnadiff.model import Model
    from dnadiff.report.designs import DesignPage
    from dnadiff.sampler.base import Sampler
    from dnadiff.shards.assignment import Assignment

SAMPLES = "samples"  # name of the stream of shards
TOTALS: dict[str, Json] = {
    "nfe": 0,
    "rows": 0,
    "tokens": 0,
    "gc": [0, 0],
    "seconds": 0.0,
    "tilt": None,
    "sessions": 0,
}
log = logging.getLogger("dnadiff")
KEYS: Keys = {
    **SHARED,
    "length": PositiveInt | str | None,
    "template": str | None,
    "motif": str | list[str] | None,
    "prompt": str | None,
    "infill": str | list[str] | None,
    "feature": str | None,
    "genome": str | None,
    "write": str,
    "gc": Annotated[float, Range(above=0, below=1)] | None,
    "resample": bool,
    "proposals": PositiveInt | None,
    "copies": bool,
    "label": str | int | list[str | int] | None,
    "guidance": NonNegative,
    "start": str | None,
    "target": float | None,
    "beta": NonNegative,
    "num_draws": Natural,
    "report": str | None,
    "real": str | None,
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Path:
    """Sample and return the file written."""
    from dnadiff.design.output import ResumableOutput, discard
    from dnadiff.design.provenance import is_complete
    from dnadiff.design.work import SampleWork
    from dnadiff.metrics import memorization
    from dnadiff.model import Model
    from dnadiff.shards.assignment import assignment_of
    from dnadiff.shards.manifest import Task
    from dnadiff.weights import checkpoint

    check_options(config)
    assignment = assignment_of(config, "sample", overrides)
    reward_options.check(config)
    options.check_settings(config["sampler"])
    device = commands.pick_device(config["accelerator"])
    model = Model(checkpoint.load(config["checkpoint"], config["trust"]), device)
    is_dna = model.tokenizer.vocab.complement is not None
    output = expand_user(config["output"] or run_dir / ("samples.fa" if is_dna else "samples.txt"))
    check_suffix(output, is_dna)
    if config["resume"] and config["output"] is None:
        raise ValueError("resume=true needs output=, the file to resume")
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
    written = header_of(generator.sampler, config), writer_of(output)
    work = SampleWork(
        generator, request, config["seed"], config["batch_size"], *written, weighted, config["gc"]
    )
    if (folder := assignment.compute(output, {SAMPLES: Task(work, kept)})) is not None:
        return folder
    kept = assignment.settings(SAMPLES, kept)
    complete = config["resume"] and is_complete(output, kept)
    page = _page(config, generator, request, model, complete or _is_begun(config, output))
    if complete:
        discard(output)  # of a process that was stopped while it removed them
        print(
            f"{output} is complete already"
            + (" (python -m dnadiff.copies looks for copies in it)" if config["copies"] else "")
        )
        if page is not None:
            page.write(output, overrides)
        return output
    if config["resume"] and not _is_begun(config, output):
        log.info(f"{output}: nothing to resume; starting a new file")
    stream = ResumableOutput(
        output, kept, config["resume"], config["overwrite"], assignment.interval
    )
    generate(config, model, work, stream, assignment)
    finish(config, model, request, generator.sampler, stream, index)
    if page is not None:
        page.write(output, overrides)
    return output


def _is_begun(config: Config, output: Path) -> bool:
    """Whether `resume=true` finds an unfinished file."""
    from dnadiff.design.output import temporary_path

    return config["resume"] and temporary_path(output, "journal").is_file()


def _page(
    config: Config, generator: ConditionalSampler, request: Request, model: Model, resumed: bool
) -> DesignPage | None:
    """The page of `report=`; its import loads Lightning, which sampling does not need."""
    if config["report"] is None:
        return None
    from dnadiff.design.designer import Designer
    from dnadiff.report.designs import open_page

    assert isinstance(generator, Designer)  # `reward_options.check` refuses report= without one
    return open_page(
        config["report"],
        generator,
        request,
        model.loaded,
        trust=config["trust"],
        real=config["real"],
        num_samples=config["num_samples"],
        batch_size=config["batch_size"],
        seed=config["seed"],
        replace=config["overwrite"] or resumed,
    )


def check_options(config: Config) -> None:
    """Check the options that need no model, and convert integers; raises ValueError naming the
    key."""
    for key, minimum in (("num_samples", 1), ("batch_size", 1), ("seed", 0), ("proposals", 1)):
        if config[key] is not None:
            config[key] = integer(key, config[key], minimum)
    for key in ("resample", "copies", "resume", "overwrite"):
        boolean(key, config[key])
    for key in ("prompt", "output"):
        if config[key] is not None and not isinstance(config[key], (str, Path)):
            raise ValueError(
                f"{key} {config[key]!r} must be a string; put it into quotes, as in "
                f"'{key}=\"1984\"'"
            )
    if config["proposals"] is not None:
        if not config["resample"]:
            raise ValueError(
                "proposals are what resample=true chooses from; set it, or leave proposals out"
            )
        if (proposals := config["proposals"]) < (drawn := config["num_samples"]):
            raise ValueError(
                f"proposals {proposals} are fewer than the num_samples {drawn} drawn from them; "
                "set more"
            )
    if config["write"] not in tuple(options.WRITE_WHOLE):
        raise ValueError(f"write {config['write']!r} is not known; choose window or designed")
    if not options.WRITE_WHOLE[config["write"]] and config["infill"] is None:
        raise ValueError(
            "write=designed is for infill=, which has flanks to leave out; leave write out"
        )
    for one, other in (
        ("template", "prompt"),
        ("infill", "template"),
        ("infill", "prompt"),
        ("infill", "motif"),
    ):
        if config[one] is not None and config[other]:
            raise ValueError(f"{one} and {other} exclude each other; leave one out")
    if (config["infill"] is None) != (config["genome"] is None):
        raise ValueError("infill=regions.bed and genome=g.fa belong together; give both")
    if config["feature"] is not None and config["infill"] is None:
        raise ValueError(
            "feature chooses rows of a GTF or GFF file of infill=; give infill and genome, or "
            "leave feature out"
        )


def generate(
    config: Config, model: Model, work: SampleWork, stream: ResumableOutput, assignment: Assignment
) -> None:
    """Generate and write the remaining batches."""
    request, sampler = work.request, work.generator.sampler
    low, high = request.lengths
    span = f"{high} tokens" if low == high else f"{low} to {high} tokens"
    calls = (
        ""
        if reward_options.is_design(config)
        else f", at most {sampler.num_steps_for(high)} network calls per batch"
    )
    if work.weighted and model.denoiser.block_size is not None:
        calls += ", and one for each token that is fixed in a later block"
    log.info(
        f"model: {model.path}; {len(request)} sequences of {span} by "
        f"{work.header['sampler']}{calls}"
    )
    started = {
        "sampler_options": config["sampler"]
    }  # `options.sampler_settings` of a resumed file reads them
    totals = (
        TOTALS
        | started
        | (reward_options.TOTALS if reward_options.is_design(config) else {})
        | stream.notes
    )
    totals["sessions"] += 1
    if stream.done:
        log.info(f"resuming after {stream.done:,} sequences")
    if config["gc"] is not None and not stream.complete:
        calibrate(work, totals, assignment)
    start, bar = time.monotonic(), Progress(len(request), "sample", stream.done)
    work.report = bar.update
    try:
        for result in assignment.results(SAMPLES, work, stream.done):
            for key in ("nfe", "rows", "tokens", "seconds"):
                totals[key] += result.about[key]
            if config["gc"] is not None:
                totals["gc"] = [a + b for a, b in zip(totals["gc"], result.about["gc"])]
            if reward_options.is_design(config):
                reward_options.add_totals(totals, result.about)
            stream.append(result.content, result.items, **totals)
            rate = (stream.done - bar.initial) / max(time.monotonic() - start, 1e-9)
            bar.update(
                0, 0, **{"sequences/s": f"{rate:.2f}", "network calls": f"{totals['nfe']:,}"}
            )
    finally:
        bar.close()
        stream.close()


def calibrate(work: SampleWork, totals: Json, assignment: Assignment) -> None:
    """Set the tilt for the target GC, calibrated now or, for a resumed file or shards, when they
    were started."""
    if totals["tilt"] is None:
        start = time.monotonic()
        found = assignment.prepared(SAMPLES, work)
        totals["tilt"] = {
            "log_odds": found["log_odds"],
            "pilot": found["pilot"],
            "pilot_calls": found["calls"],
        }
        for key, value in (
            ("nfe", found["calls"]),
            ("rows", found["rows"]),
            ("seconds", time.monotonic() - start),
        ):
            totals[key] += value
        log.info(
            f"gc: the pilot reaches {found['pilot']:.4f} with log-odds {found['log_odds']:+.4f} "
            f"for G and C ({found['calls']} network calls)"
        )
    work.prepared = totals["tilt"]


def finish(
    config: Config,
    model: Model,
    request: Request,
    sampler: Sampler,
    stream: ResumableOutput,
    index: Callable[[], TrainingIndex] | None,
) -> None:
    """Resample if requested, give the file its name, write the JSON file next to it, and print the
    closing table."""
    from dnadiff.design import provenance
    from dnadiff.design.output import discard
    from dnadiff.metrics import memorization

    output, totals = stream.output, stream.notes
    written, compressed = len(request), provenance.is_compressed(stream.output)
    extra: dict[str, Json] = {}
    part = stream.part if stream.part.exists() else output
    if writer_of(output) is not text_record and provenance.has_weights(part, compressed):
        extra["weights"] = provenance.summarize_weights(
            provenance.weights(part, compressed), request.each
        )
    gc = totals["gc"]
    if config["resample"]:  # which also changes the GC
        gc = provenance.resample(
            stream.part, output, request.each, config["num_samples"], config["seed"]
        )
        written = request.num_groups * config["num_samples"]
        extra["weights"] |= {"resampled": config["num_samples"]}
    else:
        stream.finish()
    if config["gc"] is not None:
        extra = {
            "gc": {"target": config["gc"], "reached": gc[0] / max(gc[1], 1), **totals["tilt"]},
            **extra,
        }
    if (
        index is not None
    ):  # the longest exact match of each record with the training part, either strand
        extra["copies"] = memorization.summary(memorization.of_file(output, index()))
    if reward_options.is_design(config):
        extra["design"] = reward_options.summary(config, totals, len(request), output)
    content = {
        "records": written,
        "model": {
            "checkpoint": str(model.path),
            "sha256": stream.settings["model"],
            "step": model.step,
        },
        "sampler": provenance.sampler_name(sampler),
        "sampler_settings": provenance.sampler_settings(sampler),
        "sampler_options": totals.get(
            "sampler_options"
        ),  # as given, with defaults that depend on the model left open
        # Upper limit of the network calls that fill the masks of a batch; methods of designs make
        # more.
        **(
            {}
            if reward_options.is_design(config)
            else {"steps": sampler.num_steps_for(request.lengths[1])}
        ),
        "network_calls": totals["nfe"],
        "rows": totals["rows"],
        "tokens": totals["tokens"],
        "seconds": round(totals["seconds"], 3),
        "sessions": totals["sessions"],
        "seed": config["seed"],
        **extra,
        "inputs": provenance.inputs(config),
        "settings": stream.settings,
    }
    provenance.write(output, content)
    discard(output)
    show(config, content, len(request))
    print(f"files are in {output} and {provenance.json_path(output)}")


def show(config: Config, content: Json, generated: int) -> None:
    """Print the closing table."""
    seconds, pilot = (
        content["seconds"],
        f"; {content['gc']['pilot_calls']:,} of them set the GC" if "gc" in content else "",
    )
    rows: list[tuple[str, ...]] = [
        ("sequences", f"{content['records']:,} of {content['tokens'] / generated:,.0f} tokens"),
        ("sampler", f"{content['sampler']}, seed {config['seed']}"),
        (
            "network calls",
            f"{content['network_calls']:,} ({content['rows']:,} sequences in them{pilot})",
        ),
        ("time", duration(seconds)),
        ("sequences/s", f"{generated / max(seconds, 1e-9):.2f}"),
    ]
    if "gc" in content:
        rows.append(("GC", f"{content['gc']['reached']:.4f}, target {content['gc']['target']:g}"))
    if "design" in content:
        rows += reward_options.rows(content["design"], generated)
    if "weights" in content:
        w = content["weights"]
        size = w["effective_size"]
        rows.append(
            (
                "effective sample size",
                f"{size['mean']:.1f} of {w['proposals']:,}"
                + (", resampled" if "resampled" in w else ""),
            )
        )
        rows.append(
            (
                "log normalizing constant"
                if "design" in content
                else "log mass of the constraints",
                f"{w['log_mass']['mean']:.2f} nats",
            )
        )
    if "copies" in content:
        longest = content["copies"]["longest"]
        rows.append(
            (
                "longest match with training",
                f"{longest['max']} bases, {longest['mean']:.1f} on average",
            )
        )
    print(table(rows))


def main() -> None:
    """The command line."""
    commands.run("sample", run, KEYS)


if __name__ == "__main__":
    main()
