"""`python -m dnadiff.predict`: predictions of new sequences by the networks of a fine-tuned run, as
a table and a track."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff import commands
from dnadiff.checks import PositiveInt, expand_user, optional_integer
from dnadiff.config import SHARED, Config, Json, Keys
from dnadiff.progress import Progress, table

if TYPE_CHECKING:
    from dnadiff.design.output import ResumableOutput
    from dnadiff.shards.assignment import Assignment
    from dnadiff.supervised.ensemble import ClassifierEnsemble, SequenceFile
    from dnadiff.supervised.prediction_table import PredictionTable, PredictionWork
    from dnadiff.supervised.targets.base import TaskTarget

ROWS = "rows"  # name of the stream of shards
PARQUET = ".parquet"
TABLES = (".tsv", ".tsv.gz", PARQUET)
TRACKS = (".bedgraph", ".bedgraph.gz", ".bdg", ".bdg.gz")
log = logging.getLogger("dnadiff")
KEYS: Keys = {
    **SHARED,
    "input": str,
    "sequence_column": str,
    "name_column": str | None,
    "label_column": str | list[str] | None,
    "stride": PositiveInt | None,
    "per_seed": bool,
    "track": str | None,
    "track_class": str | None,
    "batch_size": PositiveInt | None,
}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Path:
    """Predict and return the table written."""
    from dnadiff.design.output import ResumableOutput, discard, temporary_path
    from dnadiff.design.provenance import is_complete
    from dnadiff.shards.assignment import assignment_of
    from dnadiff.shards.manifest import Task
    from dnadiff.store.disk import check_output
    from dnadiff.store.files import resolve
    from dnadiff.supervised import saved
    from dnadiff.supervised.prediction_table import PredictionTable, PredictionWork

    assignment = assignment_of(config, "predict", overrides)
    output = check_options(config, run_dir)
    resolve(config["input"])  # refuses a missing file before the networks are read
    model = saved.load(
        config["checkpoint"], config["trust"], commands.pick_device(config["accelerator"])
    )
    check_class(config, model)
    source = queries_of(config, model)
    labels = config["label_column"] is not None
    predictions = PredictionTable(
        model.target,
        model.seeds,
        config["window"] is not None,
        labels,
        labels or config["per_seed"],
    )
    check = partial(check_queries, source, config["track"] is not None)
    work, settings = (
        PredictionWork(model, source, predictions, config["batch_size"], check),
        settings_of(config, model),
    )
    if (folder := assignment.compute(output, {ROWS: Task(work, settings)})) is not None:
        return folder
    resumed = config["resume"] and temporary_path(output, "journal").is_file()
    if (
        config["resume"]
        and not resumed
        and is_complete(output, assignment.settings(ROWS, settings))
    ):
        check_track(config, output)
        log.info(
            f"{output} is complete already; to compute it again, set overwrite=true without resume"
        )
        return output
    if config["track"]:
        check_output(config["track"], config["overwrite"] or resumed)
    check_output(output, config["overwrite"] or resumed)
    count, longest = check()  # every error of the input comes before the networks run
    if longest > 4 * model.longest and config["window"] is None:
        log.warning(
            f"the longest sequence has {longest:,} bases, and the task {model.longest:,}; "
            f"window={model.longest} cuts it into windows"
        )
    if config["resume"] and not resumed:
        log.info(f"{output}: nothing to resume; starting a new file")
    settings = assignment.settings(ROWS, settings)
    stream = ResumableOutput(
        output, settings, config["resume"], config["overwrite"], assignment.interval
    )
    check_output(summary_path(output), config["overwrite"] or resumed)
    classify(work, stream, count, assignment)
    if (
        stream.part.exists()
    ):  # else a killed process has finished all files, and was removing temporary ones
        finish(config, model, stream, predictions, count)
    else:
        check_track(config, output)
    seal(output)
    discard(output)
    print(f"files are in {output}" + (f" and {config['track']}" if config["track"] else ""))
    return output


def check_options(config: Config, run_dir: Path) -> Path:
    """Check the options that need no model, and convert integers; the path of the table."""
    for key in ("window", "stride", "batch_size"):
        config[key] = optional_integer(key, config[key])
    output = expand_user(config["output"] or run_dir / "predictions.tsv")
    if not output.name.lower().endswith(TABLES):
        raise ValueError(
            f"output {output} is the name of another kind of file; give one that ends in "
            f"{', '.join(TABLES)}"
        )
    if config["resume"] and config["output"] is None:
        raise ValueError("resume=true needs output=, the file to resume")
    if config["stride"] is not None and config["window"] is None:
        raise ValueError(f"stride={config['stride']} needs window=, the bases in a window")
    if config["track_class"] is not None and config["track"] is None:
        raise ValueError(
            f"track_class={config['track_class']} needs track=, the bedGraph file to write"
        )
    if config["track"] is not None and not expand_user(config["track"]).name.lower().endswith(
        TRACKS
    ):
        raise ValueError(
            f"track {config['track']} has an unknown extension; it is written as bedGraph: "
            f"{', '.join(TRACKS)}"
        )
    return output


def check_class(config: Config, model: ClassifierEnsemble) -> None:
    """ValueError unless a track has a class of the model, or a target; the only one need not be
    named."""
    if config["track"] is not None and config["track_class"] is None and len(model.classes) == 1:
        config["track_class"] = model.classes[0]
    if config["track"] is not None and config["track_class"] not in model.classes:
        got = (
            "is missing"
            if config["track_class"] is None
            else f"{config['track_class']!r} is not a class of this model"
        )
        raise ValueError(
            f"track_class {got}; the track can be of {', '.join(map(repr, model.classes))}"
        )


def queries_of(config: Config, model: ClassifierEnsemble) -> SequenceFile:
    """What is predicted; ValueError for another number of label columns than the model predicts."""
    from dnadiff.supervised.ensemble import Columns, SequenceFile
    from dnadiff.supervised.tasks import as_names

    labels = None if config["label_column"] is None else as_names(config["label_column"])
    if labels is not None and len(labels) != len(model.target.label_columns):
        expected = (
            f"{len(model.target.label_columns)}, for {', '.join(model.classes)}"
            if model.target.takes_several
            else "1"
        )
        raise ValueError(
            f"label_column names {len(labels)} columns, and this model expects {expected}; name "
            "that many, in this order"
        )
    columns = Columns(config["sequence_column"], config["name_column"], labels)
    cut = {"window": config["window"], "stride": config["stride"], "limits": model.limits}
    return SequenceFile(config["input"], model.encode, model.target, columns, **cut)


def check_queries(
    source: SequenceFile, has_track: bool, first: int = 0, last: int | None = None
) -> tuple[int, int]:
    """Read everything that will be classified once; the number of predictions, and the bases of the
    longest.

    Args:
        first, last: only these queries; the last one is left out, None is all.

    Raises:
        ValueError: for input that cannot be classified, or, with a track, for records of one name,
            whose intervals would overlap.
    """
    from dnadiff.supervised.prediction_table import chrom_of

    count, longest, names = 0, 0, set()
    for query in islice(source, first, last):
        count, longest = count + 1, max(longest, len(query.ids))
        if has_track and query.start == 0:
            if (chrom := chrom_of(query.name)) in names:
                raise ValueError(
                    f"{source.path} has several records of the name {chrom}, which would overlap "
                    "in the track; set name_column to a column "
                    "of distinct names, leave name_column out to number the rows, or leave "
                    "track out"
                )
            names.add(chrom)
    return count, longest


def summary_path(output: Path) -> Path:
    """The JSON file next to a table."""
    return output.with_name(f"{output.name}.json")


def check_track(config: Config, output: Path) -> None:
    """ValueError if the run that completed the table did not write the track of this one, or the
    track is missing."""
    if not has_track(config, output):
        raise ValueError(
            f"{output} is complete, but the track {config['track']} is missing or of another class "
            "or run: start over with overwrite=true, "
            "without resume"
        )


def has_track(config: Config, output: Path) -> bool:
    """Whether the run that wrote the JSON file of the table also wrote the track that this one is
    to write, if any."""
    from dnadiff.store.disk import read_json

    if config["track"] is None:
        return True
    known, track = (
        read_json(summary_path(output), ("inputs",))["inputs"],
        expand_user(config["track"]),
    )
    if (
        not isinstance(known, Mapping)
        or known.get("track") is None
        or known.get("track_class") != config["track_class"]
    ):
        return False
    return track.is_file() and expand_user(known["track"]).resolve() == track.resolve()


def seal(output: Path) -> None:
    """Add the hash of the finished table to its JSON file, which is written before the table has
    its name."""
    from dnadiff.design.output import sha256
    from dnadiff.store.disk import read_json, write_json

    content = read_json(summary_path(output), ("settings",))
    write_json(summary_path(output), {"file": output.name, **content, "sha256": sha256(output)})


def settings_of(config: Config, model: ClassifierEnsemble) -> dict[str, Json]:
    """Everything that the rows depend on: only a table with the same can be resumed."""
    from dnadiff.design.output import sha256
    from dnadiff.store.files import resolve

    keys = ("sequence_column", "name_column", "label_column", "window", "stride", "per_seed")
    return {
        "input": sha256(resolve(config["input"])),
        "networks": [member.sha256 for member in model.members],
        **{key: config[key] for key in keys},
        "batch_size": config["batch_size"] or model.batch_size,
        "device": model.device.type,
    }


def classify(
    work: PredictionWork, stream: ResumableOutput, count: int, assignment: Assignment
) -> None:
    """Write the remaining rows, chunk by chunk."""
    model = work.model
    log.info(
        f"model: {model.path}, {model.target.summary}, seeds {', '.join(map(str, model.seeds))}; "
        f"{count:,} predictions"
    )
    if stream.done:
        log.info(f"resuming after {stream.done:,} predictions")
    bar = Progress(count, "predict", stream.done)
    work.report = bar.update
    predicted: Counter[str] = Counter(
        stream.notes.get("predicted")
    )  # sums may be of numbers that are not counts
    try:
        for result in assignment.results(ROWS, work, stream.done) if stream.done < count else ():
            predicted.update(result.about["predicted"])
            header = b"" if stream.done else work.table.header()
            stream.append(header + result.content, result.items, predicted=dict(predicted))
    finally:
        bar.close()
        stream.close()


def finish(
    config: Config,
    model: ClassifierEnsemble,
    stream: ResumableOutput,
    predictions: PredictionTable,
    count: int,
) -> None:
    """Write the track and the JSON file, then give the table its name, and print the summary."""
    from dnadiff.store.disk import write_json

    if config["track"]:
        predictions.write_track(stream.part, expand_user(config["track"]), config["track_class"])
    metrics = predictions.metrics(stream.part, count) if predictions.labels else None
    content = {
        "checkpoint": str(model.path),
        "task": model.task,
        "classes": model.classes,
        "seeds": model.seeds,
        "head_inputs": asdict(model.head_inputs),
        "predictions": count,
        "predicted": {name: stream.notes["predicted"].get(name, 0) for name in model.classes},
        "metrics": metrics,
        "columns": predictions.columns,
        "inputs": {
            key: config[key]
            for key in ("input", "label_column", "window", "stride", "track", "track_class")
        },
        "settings": stream.settings,
    }
    write_json(summary_path(stream.output), content)
    stream.finish(
        predictions.write_parquet if stream.output.name.lower().endswith(PARQUET) else None
    )
    show(content, metrics, model.target)


def show(
    content: Mapping[str, Json], metrics: Mapping[str, Json] | None, target: TaskTarget
) -> None:
    """Print how often each class was predicted, or the mean of each target, and the metrics."""
    from dnadiff.supervised.metrics import title

    kind = target.predicted_kind
    print(table(kind.summary_rows(content["predicted"], content["predictions"]), kind.tally_header))
    if metrics is None:
        return
    rows: list[tuple[str, ...]] = []
    for name in (target.primary, *target.shown):
        each, averaged = metrics["each_seed"][name], metrics["averaged"][name]
        rows.append(
            (
                title(name),
                _number(each["value"]),
                _interval(each),
                _number(averaged["value"]),
                _interval(averaged),
            )
        )
    print(
        "\n"
        + table(
            rows,
            ("metric", "mean of the seeds", "95 % interval", kind.averaged_name, "95 % interval"),
        )
    )


def _interval(found: Mapping[str, float]) -> str:
    return f"{_number(found['low'])} .. {_number(found['high'])}" if "low" in found else "-"


def _number(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.4f}"  # where a class has no items


def main() -> None:
    """The command line."""
    commands.run("predict", run, KEYS)


if __name__ == "__main__":
    main()
