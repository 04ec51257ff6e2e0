"""`python -m dnadiff.variants`: effects of variants from a VCF file, a table, or of all variants of
some regions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dnadiff import commands
from dnadiff.checks import PositiveInt, expand_user
from dnadiff.config import SHARED, Config, Json, Keys, build
from dnadiff.progress import Progress, table
from dnadiff.variant_effect import options

if TYPE_CHECKING:
    from dnadiff.design.output import ResumableOutput
    from dnadiff.formats.regions import Region
    from dnadiff.shards.assignment import Assignment
    from dnadiff.variant_effect.base import VariantMethod
    from dnadiff.variant_effect.effects import RowScorer
    from dnadiff.variant_effect.extra_outputs import ExtraOutputs
    from dnadiff.variant_effect.network import Network
    from dnadiff.variant_effect.sources import VariantSource
    from dnadiff.variant_effect.summary import InputSummary
    from dnadiff.variant_effect.training_part import TrainingPart
    from dnadiff.variant_effect.variant import Reference
    from dnadiff.variant_effect.work import VariantWork
    from dnadiff.variant_effect.writers import Writer
    from dnadiff.weights.loaded import Loaded

ROWS = "rows"  # name of the stream of shards
log = logging.getLogger("dnadiff")
KEYS: Keys = {
    **SHARED,
    "vcf": str | None,
    "genome": str,
    "saturate": str | list[str] | None,
    "feature": str | None,
    "deletions": bool,
    "on_mismatch": Literal["error", "skip", "flag"],
    "stranded": bool,
    "sites_per_window": PositiveInt,
    "block": PositiveInt | None,
    "num_orders": PositiveInt,
    "L2": bool,
    "dependency": str | None,
    "dependency_span": PositiveInt,
    "report": str | None,
    "target": str | None,
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Path:
    """Score the variants and return the file written."""
    from dnadiff.report.heat_map import draw_regions
    from dnadiff.shards.assignment import assignment_of
    from dnadiff.shards.manifest import Task
    from dnadiff.supervised import runs
    from dnadiff.variant_effect.base import check_method
    from dnadiff.variant_effect.effects import COLUMNS, Scorer
    from dnadiff.variant_effect.summary import FLAG, SKIP, summarize
    from dnadiff.variant_effect.training_part import training_part
    from dnadiff.variant_effect.variant import Alleles
    from dnadiff.variant_effect.work import VariantWork
    from dnadiff.variant_effect.writers import writer_of
    from dnadiff.weights import checkpoint

    options.check(config)
    assignment = assignment_of(config, "variants", overrides)
    output = expand_user(config["output"] or run_dir / "variants.tsv")
    if runs.is_fine_tuned(config["checkpoint"]):
        return compare_predictions(config, output, assignment)
    if config["target"] is not None:
        raise ValueError(
            f"target={config['target']} belongs to a fine-tuned run, and {config['checkpoint']} is "
            "a pretrained one; leave it out"
        )
    writer = writer_of(
        output, (*COLUMNS, *(["L2"] if config["L2"] else [])), config["on_mismatch"] == FLAG
    )
    method = build(config["variant_method"], trust=None)
    model = checkpoint.load(config["checkpoint"], config["trust"])
    network = open_network(config, model)
    method = check_method(method, network.denoiser)
    source, regions = open_variants(config, network.reference)
    training = training_part(model, network.reference, config["trust"])
    alleles = Alleles(network.reference, network.window, config["on_mismatch"] == SKIP)
    summarized = partial(
        summarize,
        alleles=alleles,
        method=method,
        training=training,
        mismatch_is_error=options.mismatch_is_error(config),
    )
    work = VariantWork(Scorer(network, method, alleles, config["L2"]), source, writer, summarized)
    settings = output_settings(config, model, network, method, source, regions)
    if (folder := assignment.compute(output, {ROWS: Task(work, settings)})) is not None:
        return folder
    summary, settings = summarized(source), assignment.settings(ROWS, settings)
    writer.check_order(source, summary.is_sorted, output)
    extras = extra_outputs(config, run_dir, network, summary)
    extras.check(output, config["overwrite"] or config["resume"])
    about = {
        "checkpoint": str(config["checkpoint"]),
        "method": method.name,
        "window": network.window,
    }
    draw = partial(draw_regions, regions=regions, read=lambda: writer.read(output), about=about)
    if (stream := open_output(config, writer, output, settings, assignment.interval)) is None:
        if (
            config["report"] is not None or not regions
        ):  # a page in the folder of an earlier run is not drawn again
            extras.missing().write(draw)
        return output
    return score(work, stream, summary, training, assignment, lambda: extras.write(draw))


def compare_predictions(config: Config, output: Path, assignment: Assignment) -> Path:
    """Score the variants by the predictions of a fine-tuned run; the file written."""
    from dnadiff.data.genome.genome import Genome
    from dnadiff.shards.manifest import Task
    from dnadiff.supervised import saved
    from dnadiff.variant_effect.predicted import PREDICTED_COLUMNS, GenomeWindows, PredictedScorer
    from dnadiff.variant_effect.summary import FLAG, SKIP, summarize
    from dnadiff.variant_effect.training_part import TrainingPart
    from dnadiff.variant_effect.variant import Alleles
    from dnadiff.variant_effect.work import VariantWork
    from dnadiff.variant_effect.writers import writer_of

    options.check_fine_tuned(config)
    writer = writer_of(output, PREDICTED_COLUMNS, config["on_mismatch"] == FLAG)
    model = saved.load(
        config["checkpoint"], config["trust"], commands.pick_device(config["accelerator"])
    )
    predict, window = (
        model.contrasts(config["target"], config["batch_size"]),
        model.window_of(config["window"]),
    )
    target = model.classes[model.number_of(config["target"])]
    writer.predicted = model.target.contrast_name(target)
    reference = Genome.open(config["genome"])
    source, regions = open_variants(config, reference)
    alleles = Alleles(
        reference,
        window,
        config["on_mismatch"] == SKIP,
        fixed_length=model.limits.fixed is not None,
    )
    training = TrainingPart({}, {}, "not known of a fine-tuned run")
    summarized = partial(
        summarize,
        alleles=alleles,
        method=None,
        training=training,
        mismatch_is_error=options.mismatch_is_error(config),
    )
    work = VariantWork(
        PredictedScorer(predict, GenomeWindows(window, reference), alleles),
        source,
        writer,
        summarized,
    )
    settings = {
        "networks": [member.sha256 for member in model.members],
        "device": model.device.type,
        **input_settings(config, reference, window, regions),
        **{key: config[key] for key in ("deletions", "on_mismatch", "batch_size")},
        "target": target,
        "predicted": writer.predicted,
    }
    if (folder := assignment.compute(output, {ROWS: Task(work, settings)})) is not None:
        return folder
    summary, settings = summarized(source), assignment.settings(ROWS, settings)
    writer.check_order(source, summary.is_sorted, output)
    log.info(f"predictions are {writer.predicted}")
    stream = open_output(config, writer, output, settings, assignment.interval)
    return output if stream is None else score(work, stream, summary, training, assignment)


def open_output(
    config: Config, writer: Writer, output: Path, settings: Mapping[str, Json], interval: float
) -> ResumableOutput | None:
    """The output; None if resuming finds that it is complete."""
    from dnadiff.design.bgzip import BgzipOutput
    from dnadiff.design.output import ResumableOutput, discard, is_compressed
    from dnadiff.design.provenance import is_complete

    if config["resume"] and is_complete(output, settings):
        discard(output)
        print(f"{output} is complete already")
        return None
    kind = BgzipOutput if writer.bgzip and is_compressed(output) else ResumableOutput
    return kind(output, settings, config["resume"], config["overwrite"], interval)


def score(
    work: VariantWork,
    stream: ResumableOutput,
    summary: InputSummary,
    training: TrainingPart,
    assignment: Assignment,
    write_extras: Callable[[], None] = lambda: None,
) -> Path:
    """Score the remaining rows, write everything, and print the closing table; the file written."""
    from dnadiff.variant_effect.closing_table import closing_rows

    start = time.monotonic()
    generate(work, stream, summary, assignment)
    seconds = time.monotonic() - start
    if not work.writer.convert(stream.part, stream.output):
        stream.finish()
    write_extras()
    write_about(work.scorer, stream, summary, training)
    print(table(closing_rows(summary, training, work.scorer, seconds)))
    print(f"files are in {stream.output}")
    return stream.output


def open_network(config: Config, model: Loaded) -> Network:
    """The model on its device, with the genome."""
    from dnadiff.data.genome.genome import Genome
    from dnadiff.variant_effect.network import Network

    model.denoiser.to(commands.pick_device(config["accelerator"]))
    window = commands.check_window(config["window"], model)
    settings = {key: config[key] for key in ("batch_size", "stranded", "sites_per_window", "seed")}
    return Network.checked(
        model.denoiser, model.process, Genome.open(config["genome"]), window=window, **settings
    )


def open_variants(config: Config, genome: Reference) -> tuple[VariantSource, list[Region]]:
    """The variants, and the regions whose variants they all are."""
    from dnadiff.formats.regions import read_regions
    from dnadiff.variant_effect.saturation import Saturation
    from dnadiff.variant_effect.sources import open_source

    if config["saturate"] is None:
        return open_source(config["vcf"]), []
    regions = read_regions(config["saturate"], genome.lengths, config["feature"])
    if config["stranded"] and (reverse := sum(region.strand == "-" for region in regions)):
        raise ValueError(
            f"stranded=true reads the strand of the genome alone, and {reverse} of {len(regions)} "
            "regions of saturate have strand -; "
            "leave stranded out, which averages both strands, or remove these regions"
        )
    return Saturation(regions, genome, config["deletions"]), regions


def extra_outputs(
    config: Config, run_dir: Path, network: Network, summary: InputSummary
) -> ExtraOutputs:
    """The files next to the scores."""
    from dnadiff.variant_effect.extra_outputs import ExtraOutputs

    matrix = None if config["dependency"] is None else expand_user(config["dependency"])
    page = (
        None
        if config["saturate"] is None
        else expand_user(config["report"] or run_dir / "report.html")
    )
    return ExtraOutputs(network, summary, matrix, config["dependency_span"], page)


def output_settings(
    config: Config,
    model: Loaded,
    network: Network,
    method: VariantMethod,
    source: VariantSource,
    regions: Sequence[Region],
) -> dict[str, Json]:
    """Everything that the contents of the output depend on."""
    from dnadiff.weights.tensors import fingerprint

    keys = ("deletions", "on_mismatch", "stranded", "sites_per_window", "L2", "batch_size", "seed")
    return {
        "model": fingerprint(model.denoiser),
        "device": network.device.type,
        **input_settings(config, network.reference, network.window, regions),
        "variant_method": method.settings(),
        **{key: config[key] for key in keys},
    }


def input_settings(
    config: Config, reference: Reference, window: int, regions: Sequence[Region]
) -> dict[str, Json]:
    """What is read, of the settings that the contents of the output depend on."""
    from dnadiff.design.output import sha256
    from dnadiff.store.files import resolve

    variants = [list(region[:3]) for region in regions] or sha256(resolve(config["vcf"]))
    return {"variants": variants, "genome": reference.digest, "window": window}


def generate(
    work: VariantWork, stream: ResumableOutput, summary: InputSummary, assignment: Assignment
) -> None:
    """Score and write the remaining rows."""
    from dnadiff.variant_effect.effects import Audit

    scorer, writer = work.scorer, work.writer
    log.info(
        f"{summary.alleles:,} alleles in {summary.rows:,} rows, windows of {scorer.network.window} "
        f"bases, method {scorer.method_name}"
    )
    if stream.done:
        log.info(f"resuming after {stream.done:,} rows")
    bar = Progress(summary.rows, "variants", stream.done)
    audit, missing = Audit(*stream.notes.get("audit", ())), stream.notes.get("missing", 0)
    work.report, scorer.audited = bar.update, audit.sites
    content = (
        b""
        if stream.done
        else writer.header(work.source, summary.contigs(scorer.network.reference.lengths))
    )
    try:
        for result in assignment.results(ROWS, work, stream.done):
            audit.include(Audit(*result.about["audit"]))
            missing += result.about["missing"]
            stream.append(
                content + result.content, result.items, audit=audit.values, missing=missing
            )
            content = b""
    finally:
        bar.close()
        stream.close()
    scorer.audit, scorer.num_missing = audit, missing


def write_about(
    scorer: RowScorer, stream: ResumableOutput, summary: InputSummary, training: TrainingPart
) -> None:
    """Write the JSON file next to the finished output, which cannot be resumed afterwards."""
    from dnadiff.design.output import discard
    from dnadiff.design.provenance import write_settings

    audit = scorer.audit
    write_settings(
        stream.output,
        stream.settings,
        **summary.counts(),
        without_value=scorer.num_missing,
        in_training_part=summary.in_training if training.known else None,
        training_part=training.note,
        sites_per_window_error={
            "rms": audit.rms,
            "sites": audit.sites,
            "shared_sites": audit.shared,
        }
        if audit.shared
        else None,
    )
    discard(stream.output)


def main() -> None:
    """The command line."""
    commands.run("variants", run, KEYS)


if __name__ == "__main__":
    main()
