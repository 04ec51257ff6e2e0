"""Which part of its command's work this process does: all of it, one shard, or none because it
merges shards.

A command makes its works and calls `compute`, which computes a shard. Otherwise it reads `results`,
computed now or by shards, and writes its output from them: so merged shards give the bytes of a run
without shards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from dnadiff.checks import expand_user
from dnadiff.config import Config, Json
from dnadiff.data.work import Result, Work
from dnadiff.design.output import ResumableOutput, discard, first_difference
from dnadiff.progress import Progress
from dnadiff.shards.folder import ShardFolder
from dnadiff.shards.manifest import Manifest, Task, plain
from dnadiff.shards.part import packed
from dnadiff.shards.shard import Shard, without
from dnadiff.store.disk import check_output

_OWN = ("shard", "launcher", "resume", "overwrite")  # keys that say how a process is started
log = logging.getLogger("dnadiff")


class Assignment:
    """All of the work of a command; subclasses do less.

    Attributes:
        interval: seconds between two times at which an output is made safe against interruptions
            (`ResumableOutput`).
    """

    interval: ClassVar[float] = 0.0

    def compute(self, output: Path, tasks: Mapping[str, Task]) -> Path | None:
        """Compute a shard of each task; the folder of the shards. None if this process does not
        compute one, and writes the output."""
        return None

    def settings(self, stream: str, found: Mapping[str, Json]) -> Json:
        """The settings of an output, given those of this process."""
        return found

    def prepared(self, stream: str, work: Work) -> Json:
        """What `Work.prepare` returns."""
        return work.prepare()

    def results(self, stream: str, work: Work, skip: int = 0) -> Iterator[Result]:
        """The results of all items but the first `skip`."""
        return work.results(0, skip)


class Merging(Assignment):
    """None of the work: results come from shards."""

    interval = 5.0

    def __init__(self, folder: ShardFolder) -> None:
        self.folder, self.manifest = folder, folder.check_complete()

    @override
    def settings(self, stream: str, found: Mapping[str, Json]) -> Json:
        """Those of the shards; a ValueError if the weights or inputs have changed since. The device
        may be another one."""
        was = self.manifest.streams[stream].settings
        if (
            differs := first_difference(without_device(was), without_device(plain(found)))
        ) is not None:
            key, before, now = differs
            raise ValueError(
                f"{self.folder.path} holds shards with {key}={before}, and it is {now} now; merge "
                "with the files of the shards"
            )
        return was

    @override
    def prepared(self, stream: str, work: Work) -> Json:
        return self.manifest.streams[stream].prepared

    @override
    def results(self, stream: str, work: Work, skip: int = 0) -> Iterator[Result]:
        for result in self.folder.results(self.manifest, stream, skip):
            yield result
            work.report(result.items, 0)


def without_device(settings: Json) -> Json:
    """Settings, and those inside them, without the device of a network."""
    if not isinstance(settings, Mapping):
        return settings
    return {key: without_device(value) for key, value in settings.items() if key != "device"}


class OneShard(Assignment):
    """One shard, which is resumed if its process was stopped, and left alone if it is complete."""

    def __init__(self, command: str, shard: Shard, overrides: Sequence[str]) -> None:
        self.command, self.shard, self.overrides = command, shard, without(overrides, _OWN)

    @override
    def compute(self, output: Path, tasks: Mapping[str, Task]) -> Path:
        folder = ShardFolder.of(output)
        manifest = folder.join(self.command, self.shard, self.overrides, tasks)
        if not folder.is_complete(self.shard, manifest.fingerprint):
            streams = {
                name: self._stream(folder, manifest, name, task.work)
                for name, task in tasks.items()
            }
            folder.complete(self.shard, manifest.fingerprint, streams)
            print(
                f"shard {self.shard}: {streams[next(iter(streams))].done:,} items are in "
                f"{folder.path}"
            )
        else:
            print(f"shard {self.shard} is complete already in {folder.path}")
        for path in (folder.manifest_path, *(folder.part(self.shard, name) for name in tasks)):
            discard(path)  # what a killed process left
        return folder.path

    def _stream(
        self, folder: ShardFolder, manifest: Manifest, name: str, work: Work
    ) -> ResumableOutput:
        items, path = manifest.streams[name].items, folder.part(self.shard, name)
        start, total = (
            items[self.shard.number - 1],
            items[self.shard.number] - items[self.shard.number - 1],
        )
        has_journal = path.with_name(f".{path.name}.journal").is_file()
        stream = ResumableOutput(
            path,
            {"fingerprint": manifest.fingerprint, "shard": str(self.shard)},
            True,
            overwrite=not has_journal,
        )
        work.check(start, start + total)
        if stream.done:
            log.info(f"shard {self.shard}: resuming after {stream.done:,} of {total:,} items")
        bar = Progress(total, f"{self.command} {self.shard}", stream.done)
        work.report, work.prepared = bar.update, manifest.streams[name].prepared
        try:
            if not stream.bytes and not stream.complete:
                stream.append(b"", 0)  # a shard without items is an empty file
            for result in work.results(start, stream.done) if stream.done < total else ():
                stream.append(packed(result), result.items)
                if stream.done >= total:
                    break
        finally:
            bar.close()
            stream.close()
        stream.finish()
        return stream


def assignment_of(config: Config, command: str, overrides: Sequence[str]) -> Assignment:
    """What the keys `shard`, `output` and `overwrite` of a command say that this process does.

    Raises:
        ValueError: if `shard` is not valid, or there is no `output`.
        FileExistsError: if a shard of an output that exists is asked for without `overwrite`.
    """
    if config["shard"] is None:
        return Assignment()
    if isinstance(config["shard"], ShardFolder):  # set by `python -m dnadiff.merge`
        return Merging(config["shard"])
    shard = Shard.parse(config["shard"])
    if config["output"] is None:
        raise ValueError(f"shard={shard} needs output=, the same for all shards")
    check_output(expand_user(config["output"]), config["overwrite"])
    return OneShard(command, shard, overrides)
