"""`python -m dnadiff.score`: the likelihood of each record of a FASTA file or region of a genome,
and the information content of each base."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff import commands
from dnadiff.checks import PositiveInt, expand_user, integer
from dnadiff.config import SHARED, Config, Keys

if TYPE_CHECKING:
    from dnadiff.jobs.job import Job

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
    from dnadiff.jobs.runner import RunOptions, run_jobs

    options = RunOptions.checked(
        "score",
        overrides,
        config["output"],
        shard=config["shard"],
        resume=config["resume"],
        overwrite=config["overwrite"],
    )
    for key in ("spacing", "stranded"):
        if config["per_base"] is None and any(o.startswith(f"{key}=") for o in overrides):
            raise ValueError(
                f"{key} is for the information content of each base; give per_base= too, or leave "
                f"{key} out"
            )
    return run_jobs(jobs(config, run_dir, overrides), options)


def jobs(config: Config, run_dir: Path, overrides: Sequence[str]) -> list[Job]:
    """The table, and the track if there is one."""
    from dnadiff.data.genome.inputs import open_input
    from dnadiff.genomics.scores import ScoreJob
    from dnadiff.genomics.tracks import TrackJob, format_of
    from dnadiff.weights import checkpoint

    for key, minimum in (("batch_size", 1), ("seed", 0), ("num_draws", 1), ("spacing", 1)):
        config[key] = integer(key, config[key], minimum)
    output = expand_user(config["output"] or run_dir / "scores.tsv")
    track = format_of(config["per_base"]) if config["per_base"] else None
    if track is not None and expand_user(config["per_base"]) == output:
        raise ValueError(f"per_base and output are the same file, {output}; give each its own")
    model = checkpoint.load(config["checkpoint"], config["trust"])
    model.denoiser.to(commands.pick_device(config["accelerator"]))
    shared = {
        "window": commands.check_window(config["window"], model),
        "batch_size": config["batch_size"],
    }
    source = open_input(config["input"], config["genome"], config["regions"], config["feature"])
    found: list[Job] = [
        ScoreJob(
            model, source, output, num_draws=config["num_draws"], seed=config["seed"], **shared
        )
    ]
    if track is not None:
        found.append(
            TrackJob(
                model,
                source,
                expand_user(config["per_base"]),
                track,
                spacing=config["spacing"],
                stranded=config["stranded"],
                **shared,
            )
        )
    return found


def main() -> None:
    """The command line."""
    commands.run("score", run, KEYS)


if __name__ == "__main__":
    main()
