"""`python -m dnadiff.score`: the likelihood of each record of a FASTA file or region of a genome, and the information content of each base."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff import commands
from dnadiff.checks import PositiveInt, expand_user, integer
from dnadiff.config import SHARED, Config, Json, Keys
from dnadiff.progress import Progress, table

if TYPE_CHECKING:
    from dnadiff.checkpoint import Loaded
    from dnadiff.data.genome.inputs import SequenceInput
    from dnadiff.design.output import ResumableOutput
    from dnadiff.likelihood.records import RecordScore
    from dnadiff.tracks.files import TrackFormat

COLUMNS = ("name", "length", "counted", "nats_per_base", "bits_per_base", "se_mc", "total_bits")
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
    from dnadiff import checkpoint
    from dnadiff.data.files import check_output
    from dnadiff.data.genome.inputs import open_input
    from dnadiff.likelihood.information import check_denoiser
    from dnadiff.likelihood.monte_carlo import check_num_draws, is_exact
    from dnadiff.likelihood.stored_curve import fingerprint
    from dnadiff.tracks.files import format_of

    output = check_output(config["output"] or run_dir / "scores.tsv", config["overwrite"] or config["resume"])
    if config["resume"] and config["output"] is None:
        raise ValueError("resume=true needs output=, the file to resume")
    for key, minimum in (("batch_size", 1), ("seed", 0), ("num_draws", 1), ("spacing", 1)):
        config[key] = integer(key, config[key], minimum)
    track = format_of(config["per_base"]) if config["per_base"] else None
    if track is not None and expand_user(config["per_base"]) == output:
        raise ValueError(f"per_base and output are the same file, {output}; give each its own")
    model = checkpoint.load(config["checkpoint"], config["trust"])
    if not is_exact(model.denoiser):
        check_num_draws(config["num_draws"])
    device = commands.pick_device(config["accelerator"])
    model.denoiser.to(device)
    config["window"] = commands.check_window(config["window"], model)
    if track is not None:
        check_denoiser(model.denoiser)
    source = open_input(config["input"], config["genome"], config["regions"], config["feature"])
    settings = {"model": fingerprint(model.denoiser), "input": source.digest, "device": device}
    settings |= {key: config[key] for key in ("window", "batch_size")}
    of_table = settings | {key: config[key] for key in ("num_draws", "seed")}
    stream = resumable(output, output, of_table, config)
    of_track = None
    if track is not None:  # checked before anything is computed
        path, of_sites = expand_user(config["per_base"]), settings | {key: config[key] for key in ("spacing", "stranded")}
        of_track = resumable(path, track.collected_in(path), of_sites, config)
    if stream is not None:
        write_table(config, model, source, stream)
        print(f"files are in {output}")
    if track is not None and of_track is not None:
        write_track(config, model, source, of_track, track)
        print(f"the track is in {config['per_base']}")
    return output


def resumable(output: Path, collected: Path, settings: Json, config: Config) -> ResumableOutput | None:
    """The output `collected`, from which the file `output` is made; None if resuming finds that nothing is left to do."""
    from dnadiff.data.files import check_output
    from dnadiff.design.output import ResumableOutput, discard, temporary_path

    has_journal = temporary_path(collected, "journal").is_file()
    if config["resume"] and output.is_file() and not has_journal:
        discard(collected)  # of a process that was stopped while it removed them
        if collected != output:
            collected.unlink(missing_ok=True)
        log.info(f"{output} is complete already; to compute it again, set overwrite=true without resume")
        return None
    if config["resume"] and not has_journal:
        log.info(f"{output}: nothing to resume; starting a new file")
    check_output(output, config["overwrite"] or has_journal)
    return ResumableOutput(collected, settings, config["resume"], config["overwrite"])


def write_table(config: Config, model: Loaded, source: SequenceInput, stream: ResumableOutput) -> None:
    """Score the remaining records, and print the totals."""
    from dnadiff.design.output import discard
    from dnadiff.likelihood.monte_carlo import is_exact
    from dnadiff.likelihood.records import RecordScores

    window, batch_size, num_draws, seed = (config[key] for key in ("window", "batch_size", "num_draws", "seed"))

    def progress(windows: int) -> None:
        bar.update(windows, windows * window * (1 if is_exact(model.denoiser) else num_draws))

    scores = RecordScores(model.denoiser, model.process, source, window, batch_size, num_draws, seed, progress)
    totals, lengths = stream.notes.get("totals", TOTALS), source.lengths
    if stream.notes:
        scores.restore(stream.notes["state"])
        log.info(f"resuming after {stream.done:,} records")
    log.info(f"model: {model.path}; {len(source.names):,} records in {scores.num_windows:,} windows of at most {window} bases")
    bar = Progress(scores.num_windows, "score", scores.pieces_done)
    header = "\t".join(COLUMNS) + "\n"
    try:
        for completed in scores:
            text = "" if stream.bytes else header
            for number, found in enumerate(completed, stream.done):
                text += row(source.names[number], lengths[number], found)
                totals = {key: value + getattr(found, key) for key, value in totals.items()}
            stream.append(text.encode(), len(completed), state=scores.state(), totals=totals)
    finally:
        bar.close()
        stream.close()
    stream.finish()
    discard(stream.output)
    bases = max(totals["counted"], 1)
    rows: list[tuple[str, ...]] = [
        ("records", f"{len(source.names):,}"),
        ("bases counted", f"{totals['counted']:,.0f} of {sum(lengths):,}"),
        ("bits per base", f"{totals['nats'] / bases / math.log(2):.4f}"),
        ("se_mc (bits)", f"{math.sqrt(totals['variance']) / bases / math.log(2):.4f}"),
    ]
    print(table(rows))


def row(name: str, length: int, score: RecordScore) -> str:
    """A line of the table; nan for a record without a countable base."""
    per_base = score.nats / score.counted if score.counted else math.nan
    se = math.sqrt(score.variance) / score.counted if score.counted else math.nan
    numbers = (per_base, per_base / math.log(2), se, score.nats / math.log(2))
    return "\t".join([name, str(length), f"{score.counted:.0f}", *(f"{x:.6f}" for x in numbers)]) + "\n"


def write_track(config: Config, model: Loaded, source: SequenceInput, stream: ResumableOutput, kind: type[TrackFormat]) -> None:
    """Write the remaining information content of each base."""
    from dnadiff.likelihood.information import Information

    source, sites = source.sites()
    track = kind([(region.chrom, region.end) for region in source.regions])
    stranded = config["stranded"] or model.denoiser.backbone.reads_both_strands  # which predicts the same for both
    information = Information(model.denoiser, model.process, config["window"], config["spacing"], stranded, config["batch_size"])
    total = sum(piece.end - piece.start for piece in sites)
    done = stream.notes.get("bases", 0)
    log.info(f"per_base: {total:,} bases, {config['spacing']} network calls per window{'' if stranded else ' and strand'}")
    bar = Progress(total, "per_base", done)
    try:
        if not stream.bytes and not stream.complete:
            stream.append(b"", 0)  # a track without a known base is an empty file
        for group in information.along(source, sites, stream.done):
            content = b"".join(track.pieces(tile.window.record, tile.low, values) for tile, values in group)
            bases = sum(tile.high - tile.low for tile, _ in group)
            done += bases
            stream.append(content, len(group), bases=done)
            bar.update(bases, bases * 2 * config["spacing"] * (1 if stranded else 2))
    finally:
        bar.close()
        stream.close()
    track.finish(stream, expand_user(config["per_base"]))


def main() -> None:
    """The command line."""
    commands.run("score", run, KEYS)


if __name__ == "__main__":
    main()
