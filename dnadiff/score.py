"""`python -m dnadiff.score`: the likelihood of each record of a FASTA file or region of a genome,
and the information content of each base."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff import commands
from dnadiff.checks import PositiveInt, expand_user, integer
from dnadiff.config import SHARED, Config, Json, Keys
from dnadiff.progress import Progress, table

if TYPE_CHECKING:
    from dnadiff.data.genome.inputs import SequenceInput
    from dnadiff.design.output import ResumableOutput
    from dnadiff.likelihood.records import RecordScore, WindowScores
    from dnadiff.shards.assignment import Assignment
    from dnadiff.tracks.files import TrackFormat
    from dnadiff.tracks.work import TrackWork
    from dnadiff.weights.loaded import Loaded

COLUMNS = ("name", "length", "counted", "nats_per_base", "bits_per_base", "se_mc", "total_bits")
REGION_NAME = "region_name"  # last column, if the regions have names in their file
TABLE, TRACK = "table", "per_base"  # names of the streams of shards
TOTALS: dict[str, Json] = {"nats": 0.0, "variance": 0.0, "counted": 0.0}
log = logging.getLogger("dnadiff")
KEYS: Keys = {
    **SHARED,
    "input": str | None,
    "genome": str | None,
    "regions": str | list[str] | None,
    "feature": str | None,
    "num_draws": PositiveInt,
    "per_base": str | None,
    "spacing": PositiveInt,
    "stranded": bool,
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Path:
    """Score and return the table written."""
    from dnadiff.data.genome.inputs import open_input
    from dnadiff.likelihood.estimators import check_num_draws, is_exact
    from dnadiff.likelihood.information import check_denoiser
    from dnadiff.shards.assignment import assignment_of
    from dnadiff.shards.manifest import Task
    from dnadiff.store.disk import check_output
    from dnadiff.tracks.files import format_of
    from dnadiff.weights import checkpoint

    assignment = assignment_of(config, "score", overrides)
    output = check_output(
        config["output"] or run_dir / "scores.tsv", config["overwrite"] or config["resume"]
    )
    if config["resume"] and config["output"] is None:
        raise ValueError("resume=true needs output=, the file to resume")
    for key, minimum in (("batch_size", 1), ("seed", 0), ("num_draws", 1), ("spacing", 1)):
        config[key] = integer(key, config[key], minimum)
    track = format_of(config["per_base"]) if config["per_base"] else None
    if unused := [
        key
        for key in ("spacing", "stranded")
        if track is None and any(o.startswith(f"{key}=") for o in overrides)
    ]:
        raise ValueError(
            f"{unused[0]} is for the information content of each base; give per_base= too, or "
            f"leave {unused[0]} out"
        )
    if (
        track is not None
        and check_output(config["per_base"], config["overwrite"] or config["resume"]) == output
    ):
        raise ValueError(f"per_base and output are the same file, {output}; give each its own")
    model = checkpoint.load(config["checkpoint"], config["trust"])
    if not is_exact(model.denoiser):
        check_num_draws(config["num_draws"])
    model.denoiser.to(commands.pick_device(config["accelerator"]))
    config["window"] = commands.check_window(config["window"], model)
    if track is not None:
        check_denoiser(model.denoiser)
    source = open_input(config["input"], config["genome"], config["regions"], config["feature"])
    scores, track_work = (
        work_of_table(config, model, source),
        None if track is None else work_of_track(config, model, source, track),
    )
    columns: dict[str, Json] = (
        {} if source.region_names is None else {"columns": [*COLUMNS, REGION_NAME]}
    )
    tasks = {
        TABLE: Task(scores, settings_of(config, model, source, ("num_draws", "seed")) | columns)
    }
    if track_work is not None:
        tasks[TRACK] = Task(track_work, settings_of(config, model, source, ("spacing", "stranded")))
    if (folder := assignment.compute(output, tasks)) is not None:
        return folder
    stream = resumable(
        output,
        output,
        assignment.settings(TABLE, tasks[TABLE].settings),
        assignment.interval,
        config,
    )
    of_track = None
    if track is not None:  # checked before anything is computed
        path, settings = (
            expand_user(config["per_base"]),
            assignment.settings(TRACK, tasks[TRACK].settings),
        )
        of_track = resumable(path, track.collected_in(path), settings, assignment.interval, config)
    if stream is not None:
        write_table(config, model, source, stream, scores, assignment)
        print(f"files are in {output}")
    if track_work is not None and of_track is not None:
        write_track(config, of_track, track_work, assignment)
        print(f"the track is in {config['per_base']}")
    return output


def work_of_table(config: Config, model: Loaded, source: SequenceInput) -> WindowScores:
    """The likelihoods of all windows."""
    from dnadiff.likelihood.records import WindowScores

    return WindowScores(
        model.denoiser,
        model.process,
        source,
        config["window"],
        config["batch_size"],
        config["num_draws"],
        config["seed"],
    )


def work_of_track(
    config: Config, model: Loaded, source: SequenceInput, track: type[TrackFormat]
) -> TrackWork:
    """The information content of all bases."""
    from dnadiff.likelihood.information import Information
    from dnadiff.tracks.work import TrackWork

    source, sites = source.sites()
    stranded = (
        config["stranded"] or model.denoiser.backbone.reads_both_strands
    )  # which predicts the same for both
    information = Information(
        model.denoiser,
        model.process,
        config["window"],
        config["spacing"],
        stranded,
        config["batch_size"],
    )
    return TrackWork(
        information, source, sites, track([(region.chrom, region.end) for region in source.regions])
    )


def settings_of(
    config: Config, model: Loaded, source: SequenceInput, keys: Sequence[str]
) -> dict[str, Json]:
    """Everything that an output depends on, with `keys` of the configuration that only this one
    does."""
    from dnadiff.likelihood.curve import fingerprint

    device = next(model.denoiser.parameters()).device.type
    found = {"model": fingerprint(model.denoiser), "input": source.digest, "device": device}
    return found | {key: config[key] for key in ("window", "batch_size", *keys)}


def resumable(
    output: Path, collected: Path, settings: Mapping[str, Json], interval: float, config: Config
) -> ResumableOutput | None:
    """The output `collected`, from which the file `output` is made; None if resuming finds that
    nothing is left to do.

    Raises:
        FileExistsError: if the file exists, unless it can be resumed or replaced.
    """
    from dnadiff.design.output import ResumableOutput, discard, temporary_path
    from dnadiff.design.provenance import is_complete, json_path
    from dnadiff.store.disk import check_output

    has_journal = temporary_path(collected, "journal").is_file()
    if config["resume"] and output.is_file() and not has_journal:
        if is_complete(output, settings):
            discard(collected)  # of a process that was stopped while it removed them
            if collected != output:
                collected.unlink(missing_ok=True)
            log.info(
                f"{output} is complete already; to compute it again, set overwrite=true without "
                "resume"
            )
            return None
        if not config["overwrite"]:
            about = json_path(output)
            known = (
                f"{about.name} names other settings or bytes"
                if about.exists()
                else f"there is no {about.name} (earlier versions wrote none)"
            )
            raise FileExistsError(
                f"{output} exists, and {known}: start over with overwrite=true, or choose another "
                "name"
            )
    if config["resume"] and not has_journal:
        log.info(f"{output}: nothing to resume; starting a new file")
    for file in (output, json_path(output)):
        check_output(file, config["overwrite"] or has_journal)
    stream = ResumableOutput(collected, settings, config["resume"], config["overwrite"], interval)
    if (
        output.exists() and not stream.done and not stream.complete
    ):  # marks it as unfinished before anything is computed
        stream.append_packed(b"", 0, {})
    return stream


def write_table(
    config: Config,
    model: Loaded,
    source: SequenceInput,
    stream: ResumableOutput,
    work: WindowScores,
    assignment: Assignment,
) -> None:
    """Score the remaining records, and print the totals."""
    from dnadiff.design.output import discard
    from dnadiff.design.provenance import write_settings
    from dnadiff.likelihood.records import RecordSums

    totals, lengths = stream.notes.get("totals", TOTALS), source.lengths
    sums = RecordSums(source, config["window"], stream.notes.get("state"))
    work.known = sums.pieces, sums.windows
    if stream.notes:
        log.info(f"resuming after {stream.done:,} records")
    log.info(
        f"model: {model.path}; {len(source.names):,} records in {work.num_windows:,} windows of at "
        f"most {config['window']} bases"
    )
    bar = Progress(work.num_windows, "score", sums.pieces)
    work.report = bar.update
    region_names = source.region_names
    header = "\t".join(COLUMNS if region_names is None else (*COLUMNS, REGION_NAME)) + "\n"
    try:
        for result in assignment.results(TABLE, work, sums.pieces):
            text, completed = "" if stream.bytes else header, sums.add(result)
            for number, found in enumerate(completed, stream.done):
                text += row(
                    source.names[number],
                    lengths[number],
                    found,
                    None if region_names is None else region_names[number],
                )
                totals = {key: value + getattr(found, key) for key, value in totals.items()}
            stream.append(text.encode(), len(completed), state=sums.state(), totals=totals)
    finally:
        bar.close()
        stream.close()
    stream.finish()
    bases = totals["counted"] or math.nan
    means = {
        "bits_per_base": totals["nats"] / bases / math.log(2),
        "se_mc_bits": math.sqrt(totals["variance"]) / bases / math.log(2),
    }
    write_settings(
        stream.output,
        stream.settings,
        records=len(source.names),
        counted=int(totals["counted"]),
        **means,
    )
    discard(stream.output)
    rows: list[tuple[str, ...]] = [
        ("records", f"{len(source.names):,}"),
        ("bases counted", f"{totals['counted']:,.0f} of {sum(lengths):,}"),
        ("bits per base", f"{means['bits_per_base']:.4f}"),
        ("se_mc (bits)", f"{means['se_mc_bits']:.4f}"),
    ]
    print(table(rows))


def row(name: str, length: int, score: RecordScore, region_name: str | None = None) -> str:
    """A line of the table; nan for a record without a countable base."""
    per_base = score.nats / score.counted if score.counted else math.nan
    se = math.sqrt(score.variance) / score.counted if score.counted else math.nan
    numbers = (per_base, per_base / math.log(2), se, score.nats / math.log(2))
    last = [] if region_name is None else [region_name]
    return (
        "\t".join(
            [name, str(length), f"{score.counted:.0f}", *(f"{x:.6f}" for x in numbers), *last]
        )
        + "\n"
    )


def write_track(
    config: Config, stream: ResumableOutput, work: TrackWork, assignment: Assignment
) -> None:
    """Write the remaining information content of each base."""
    total, done = sum(piece.end - piece.start for piece in work.sites), stream.notes.get("bases", 0)
    strands = "" if work.information.stranded else " and strand"
    log.info(f"per_base: {total:,} bases, {config['spacing']} network calls per window{strands}")
    bar = Progress(work.information.num_tiles(work.source, work.sites), "per_base", stream.done)
    work.report = bar.update
    try:
        for result in assignment.results(TRACK, work, stream.done):
            done += result.about["bases"]
            stream.append(result.content, result.items, bases=done)
        if (
            not stream.bytes and not stream.complete
        ):  # no base has a value; an empty .gz file is not a valid one
            stream.append(b"", 0, bases=done)
    finally:
        bar.close()
        stream.close()
    work.track.finish(stream, expand_user(config["per_base"]))


def main() -> None:
    """The command line."""
    commands.run("score", run, KEYS)


if __name__ == "__main__":
    main()
