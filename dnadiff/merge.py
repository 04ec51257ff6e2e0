"""`python -m dnadiff.merge`: the output of a command from its shards, byte for byte as without
shards."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff.fields import Json
from dnadiff.options.base import Options, Result, ShardedOptions
from dnadiff.options.command import Command, command, command_names, named, result_of
from dnadiff.options.compose import yaml_file
from dnadiff.progress import log
from dnadiff.store.address import expand_user
from dnadiff.store.objects import PACKAGE, config_dir, locate

if TYPE_CHECKING:
    from dnadiff.jobs.shards import Manifest, MergeMark, ShardFolder


class MergeOptions(Options):
    """The output of a command from its shards, byte for byte as without shards.

        python -m dnadiff.score checkpoint=RUN input=x.fa output=scores.tsv shard=1/3
        python -m dnadiff.score checkpoint=RUN input=x.fa output=scores.tsv shard=2/3
        python -m dnadiff.score checkpoint=RUN input=x.fa output=scores.tsv shard=3/3
          anywhere, in any order
        python -m dnadiff.merge output=scores.tsv

    score, variants, embed, sample, predict, genome action=pack and judge have shards. A shard that
    is missing or damaged is named. Merging reads the checkpoint and the input again and runs no
    network: it needs no GPU. See docs/scaling.md.
    """

    chooses_threads = False
    output: str
    """the output= of all shards; other files of the command, such as per_base=, are written too"""
    shards: str | None = None
    """folder of the shards; null: OUTPUT.shards"""
    keep: bool = False
    """keep the shards"""
    fetch: bool = False
    """fetch what the shards were computed from, if it is on other machines and not in the cache"""


@command(MergeOptions)
def merge(options: MergeOptions) -> Result:
    """Merge and return the output."""
    from dnadiff.store.remote import reading_cache

    with reading_cache(not options.fetch):
        return result_of(merged(options))


def merged(options: MergeOptions) -> Path:
    """The output, from what is on this machine."""
    from dnadiff.jobs import job, runner, shards
    from dnadiff.store.disk import check_output

    output = expand_user(options.output)
    given = options.shards
    folder = shards.ShardFolder(expand_user(given)) if given else shards.ShardFolder.of(output)
    mark = shards.MergeMark(output)
    is_repeated = mark.path.exists()
    if mark.has_output and not folder.path.exists():  # stopped while it removed them
        return finish(mark, folder)
    if given is None and not folder.path.exists() and output.exists():
        raise FileExistsError(
            f"{output} is complete already, and {folder.path} with its shards does not exist"
        )
    manifest = folder.check_complete()
    if len(different := folder.environments()) > 1:
        log.warning(
            "shards were computed in different environments, and numbers may differ in their last "
            f"digits: {'; '.join(different)}"
        )
    resume = mark.is_under_way and not options.overwrite
    check_output(output, options.overwrite or resume)
    found, chosen = command_of(options, manifest, folder, resume)
    jobs = found.function(chosen)
    assert isinstance(jobs, list)  # what has shards
    if not resume:
        mark.set()
    # A job that is written at once writes its output last. What is next to it was refused by the
    # first merge, or written by it.
    repeated = is_repeated and not isinstance(jobs[0], job.ResumableJob)
    run_options = runner.RunOptions(
        manifest.command,
        manifest.overrides,
        resume,
        options.overwrite or repeated,
        merged=folder,
    )
    try:
        found.write_page(chosen, result_of(runner.run_jobs(jobs, run_options)))
    except FileExistsError:
        if not resume:
            mark.remove()
        raise
    return finish(mark, None if options.keep else folder)


def finish(mark: MergeMark, folder: ShardFolder | None) -> Path:
    """Remove the shards and the mark; what is left when this is interrupted, the next start
    removes."""
    if folder is not None:
        if folder.path.exists() and (others := folder.others()):
            log.warning(
                f"{folder.path} is left, because no shard wrote {', '.join(others[:4])} in it"
            )
        elif folder.path.exists():
            # A name of its own: a folder of an earlier merge may be left, for example with files
            # that a network file system still holds.
            folder.path.rename(
                folder.path.with_name(f".{folder.path.name}.{uuid.uuid4().hex}.removed")
            )
        name = re.compile(rf"\.{re.escape(folder.path.name)}(\.[0-9a-f]+)?\.removed")
        for unwanted in folder.path.parent.iterdir():
            if name.fullmatch(unwanted.name):
                shutil.rmtree(unwanted, ignore_errors=True)
    mark.remove()
    print(f"{mark.output} is complete")
    return mark.output


def command_of(
    options: MergeOptions, manifest: Manifest, folder: ShardFolder, resume: bool
) -> tuple[Command[...], ShardedOptions]:
    """The command that the shards are of, and its options for merging them: no network runs, so
    they need no GPU.

    Raises:
        ValueError: if the manifest is of no command with shards, or names modules or classes that
            are neither in a YAML file nor trusted.
    """
    found = named(manifest.command) if manifest.command in command_names() else None
    if found is None or not issubclass(found.options, ShardedOptions):
        raise ValueError(
            f"{folder.manifest_path} is of {manifest.command!r}, which has no shards; remove its "
            "folder and start over"
        )
    for given in manifest.overrides:
        if given.startswith("plugins=") and given not in options.arguments:
            raise ValueError(f"the shards were computed with {given}; if you trust it, add it here")
    chosen = found.compose(manifest.overrides, options.run_dir, options.config_folder)
    settings = dict(chosen)
    files = [
        p for root in (config_dir(), options.config_folder) if root for p in root.rglob("*.yaml")
    ]
    known = {target for path in files for target in targets_of(yaml_file(path))}
    for target in targets_of(settings):
        if target not in known:
            locate(target, (PACKAGE, *options.trust))
    set_here = {
        "output": options.output,
        "overwrite": options.overwrite,
        "resume": resume,
        "trust": options.trust,
        "accelerator": "cpu",
        "reward": on_cpu(settings.get("reward")),
    }
    changed = {key: value for key, value in set_here.items() if key in settings}
    return found, chosen.model_copy(update=changed)


def on_cpu(settings: Json) -> Json:
    """The settings of a reward, and of those inside it, with the CPU in place of every other
    device."""
    if not isinstance(settings, Mapping):
        return settings
    return {key: "cpu" if key == "device" else on_cpu(value) for key, value in settings.items()}


def targets_of(config: Json) -> Iterator[str]:
    """Every `_target_` in a configuration."""
    if isinstance(config, Mapping):
        if "_target_" in config:
            yield config["_target_"]
        config = list(config.values())
    for value in config if isinstance(config, list) else ():
        yield from targets_of(value)


main = merge.main

if __name__ == "__main__":
    main()
