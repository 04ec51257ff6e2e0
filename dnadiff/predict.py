"""`python -m dnadiff.predict`: predictions of new sequences by the networks of a fine-tuned run, as
a table and a track."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff import commands
from dnadiff.checks import PositiveInt, expand_user, optional_integer
from dnadiff.config import SHARED, Config, Keys

if TYPE_CHECKING:
    from dnadiff.jobs.job import Job
    from dnadiff.supervised.ensemble import ClassifierEnsemble, SequenceFile

TABLES = (".tsv", ".tsv.gz", ".parquet")
TRACKS = (".bedgraph", ".bedgraph.gz", ".bdg", ".bdg.gz")
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
    from dnadiff.jobs.runner import RunOptions, run_jobs

    options = RunOptions.checked(
        "predict",
        overrides,
        config["output"],
        shard=config["shard"],
        resume=config["resume"],
        overwrite=config["overwrite"],
    )
    return run_jobs(jobs(config, run_dir, overrides), options)


def jobs(config: Config, run_dir: Path, overrides: Sequence[str]) -> list[Job]:
    """The table of predictions, with its track."""
    from dnadiff.store.files import resolve
    from dnadiff.supervised import saved
    from dnadiff.supervised.prediction_table import PredictionTable, PredictJob

    output = check_options(config, run_dir)
    resolve(config["input"])  # refuses a missing file before the networks are read
    model = saved.load(
        config["checkpoint"], config["trust"], commands.pick_device(config["accelerator"])
    )
    check_class(config, model)
    labels = config["label_column"] is not None
    predictions = PredictionTable(
        model.target,
        model.seeds,
        config["window"] is not None,
        labels,
        labels or config["per_seed"],
    )
    keys = ("sequence_column", "name_column", "label_column", "window", "stride", "per_seed")
    shown = ("input", "label_column", "window", "stride", "track", "track_class")
    return [
        PredictJob(
            model,
            queries_of(config, model),
            predictions,
            output,
            batch_size=config["batch_size"],
            track=None if config["track"] is None else expand_user(config["track"]),
            track_class=config["track_class"],
            settings={key: config[key] for key in keys},
            inputs={key: config[key] for key in shown},
        )
    ]


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


def main() -> None:
    """The command line."""
    commands.run("predict", run, KEYS)


if __name__ == "__main__":
    main()
