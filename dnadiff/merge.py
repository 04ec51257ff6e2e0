"""`python -m dnadiff.merge`: the output of a command from its shards, byte for byte as without
shards."""

from __future__ import annotations

import glob
import importlib
import logging
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff import commands
from dnadiff.checks import boolean, expand_user
from dnadiff.config import PACKAGE, SHARED, Config, Json, Keys, config_dir, locate

if TYPE_CHECKING:
    from dnadiff.jobs.job import Job
    from dnadiff.jobs.shards import Manifest, MergeMark, ShardFolder

log = logging.getLogger("dnadiff")
KEYS: Keys = {**SHARED, "output": str, "shards": str | None, "keep": bool}


def run(config: Config, run_dir: Path, overrides: Sequence[str]) -> Path:
    """Merge and return the output."""
    from dnadiff.jobs.job import ResumableJob
    from dnadiff.jobs.runner import RunOptions, run_jobs
    from dnadiff.jobs.shards import MergeMark, ShardFolder
    from dnadiff.store.disk import check_output

    for key in ("keep", "overwrite"):
        boolean(key, config[key])
    output = expand_user(config["output"])
    folder = (
        ShardFolder(expand_user(config["shards"])) if config["shards"] else ShardFolder.of(output)
    )
    mark = MergeMark(output)
    is_repeated = mark.path.exists()
    if mark.has_output and not folder.path.exists():  # stopped while it removed them
        return finish(mark, folder)
    if config["shards"] is None and not folder.path.exists() and output.exists():
        raise FileExistsError(
            f"{output} is complete already, and {folder.path} with its shards does not exist"
        )
    manifest = folder.check_complete()
    if len(different := folder.environments(manifest)) > 1:
        log.warning(
            "shards were computed in different environments, and numbers may differ in their last "
            f"digits: {'; '.join(different)}"
        )
    resume = mark.is_under_way and not config["overwrite"]
    check_output(output, config["overwrite"] or resume)
    jobs = jobs_of(config, manifest, folder, run_dir, resume)
    if not resume:
        mark.set()
    # A job that is written at once writes its output last. What is next to it was refused by the
    # first merge, or written by it.
    repeated = is_repeated and not isinstance(jobs[0], ResumableJob)
    options = RunOptions(
        manifest.command,
        manifest.overrides,
        resume,
        config["overwrite"] or repeated,
        merged=folder,
    )
    try:
        run_jobs(jobs, options)
    except FileExistsError:
        if not resume:
            mark.remove()
        raise
    return finish(mark, None if config["keep"] else folder)


def finish(mark: MergeMark, folder: ShardFolder | None) -> Path:
    """Remove the shards and the mark; what is left when this is interrupted, the next start
    removes."""
    if folder is not None:
        if folder.path.exists():
            # A name of its own: a folder of an earlier merge may be left, for example with files
            # that a network file system still holds.
            folder.path.rename(
                folder.path.with_name(f".{folder.path.name}.{uuid.uuid4().hex}.removed")
            )
        for unwanted in folder.path.parent.glob(f".{glob.escape(folder.path.name)}.*removed"):
            shutil.rmtree(unwanted, ignore_errors=True)
    mark.remove()
    print(f"{mark.output} is complete")
    return mark.output


def jobs_of(
    config: Config, manifest: Manifest, folder: ShardFolder, run_dir: Path, resume: bool
) -> Sequence[Job]:
    """The jobs that the shards are of, for merging them: no network runs, so they need no GPU.

    Raises:
        ValueError: if the manifest is of no command with shards, or names classes that are neither
            in a YAML file nor trusted.
    """
    is_known = manifest.command in commands.COMMANDS
    command = importlib.import_module(f"dnadiff.{manifest.command}" if is_known else "dnadiff")
    if not hasattr(command, "jobs"):
        raise ValueError(
            f"{folder.manifest_path} is of {manifest.command!r}, which has no shards; remove its "
            "folder and start over"
        )
    settings = commands.recompose(manifest.command, manifest.overrides)
    known = {
        target
        for root in filter(None, (config_dir(), commands.parse(sys.argv[1:])[0]))
        for target in targets_in(root)
    }
    for target in targets_of(settings):
        if target not in known:
            locate(target, (PACKAGE, *config["trust"]))
    given = {
        "output": config["output"],
        "overwrite": config["overwrite"],
        "resume": resume,
        "trust": config["trust"],
        "accelerator": "cpu",
        "reward": on_cpu(settings.get("reward")),
    }
    settings |= {key: value for key, value in given.items() if key in settings}
    return command.jobs(settings, run_dir, manifest.overrides)


def on_cpu(settings: Json) -> Json:
    """The settings of a reward, and of those inside it, with the CPU in place of every other
    device."""
    if not isinstance(settings, Mapping):
        return settings
    return {key: "cpu" if key == "device" else on_cpu(value) for key, value in settings.items()}


def targets_of(config: Json) -> Iterator[str]:
    """Every `_target_` in a configuration."""
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if key == "_target_":
            yield value
    for value in (
        config.values()
        if isinstance(config, Mapping)
        else config
        if isinstance(config, list)
        else ()
    ):
        yield from targets_of(value)


def targets_in(folder: Path) -> Iterator[str]:
    """Every `_target_` in the YAML files of a folder."""
    import yaml

    for path in folder.rglob("*.yaml"):
        yield from targets_of(yaml.safe_load(path.read_text(encoding="utf-8")))


def main() -> None:
    """The command line."""
    commands.run("merge", run, KEYS)


if __name__ == "__main__":
    main()
