"""Runs the jobs of a command: what exists already, resuming, shards, merging, progress and the
files next to an output, once for all commands.

A process computes all of its jobs, or one shard of them, or merges shards. Merging writes outputs
from the results of shards as computing does from new ones: so it gives the bytes of a run without
shards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dnadiff.jobs.job import Job, Result, ResumableJob
from dnadiff.jobs.journal import (
    ResumableOutput,
    discard,
    first_difference,
    head_of,
    is_complete,
    json_path,
    plain,
    temporary_path,
)
from dnadiff.jobs.shards import Shard, ShardFolder, packed, without
from dnadiff.progress import Progress, log
from dnadiff.store.address import expand_user
from dnadiff.store.disk import check_output, write_json
from dnadiff.store.objects import without_key

_OWN = ("shard", "launcher", "resume", "overwrite")  # keys that say how a process is started
_MERGE_INTERVAL = 5.0  # seconds between two times at which a merged output is made safe


@dataclass(frozen=True)
class RunOptions:
    """How jobs are run.

    Attributes:
        command: whose jobs they are.
        overrides: arguments of its command line.
        resume: resume unfinished outputs, and leave complete ones alone.
        overwrite: replace what exists.
        shard: the part that this process computes; None is everything.
        merged: shards whose results are written instead of computing them.
    """

    command: str
    overrides: Sequence[str] = ()
    resume: bool = False
    overwrite: bool = False
    shard: Shard | None = None
    merged: ShardFolder | None = None

    @classmethod
    def checked(
        cls,
        command: str,
        overrides: Sequence[str],
        output: str | Path | None,
        *,
        shard: str | None = None,
        resume: bool = False,
        overwrite: bool = False,
        named: bool = False,
    ) -> RunOptions:
        """Options from a command line, checked before anything is loaded; `named` says that the
        user named the run folder, which has the output then.

        Raises:
            ValueError: if `shard` is not valid, or it or `resume` comes without an output.
            FileExistsError: if the output exists, unless it may be resumed or replaced.
        """
        part = None if shard is None else Shard.parse(shard)
        if output is None and part is not None:
            raise ValueError(f"shard={part} needs output=, the same for all shards")
        if output is None and resume and not named:
            raise ValueError("resume=true needs output=, the file to resume")
        if output is not None:
            check_output(expand_user(output), overwrite or (resume and part is None))
        return cls(command, overrides, resume, overwrite, part)


def run_jobs(jobs: Sequence[Job], options: RunOptions) -> Path:
    """Run the jobs of a command, whose shards are in a folder next to the output of the first one.

    Returns:
        The output of the first job, or the folder of the shards if this process computed one.

    Raises:
        FileExistsError: if an output exists, and is neither resumed nor replaced.
        ValueError: if an output was started with other settings, or the input is not valid.
    """
    if options.shard is not None:
        return _compute_shard(jobs, options.shard, options)
    if (folder := options.merged) is not None:
        manifest = folder.check_complete()
        for job in jobs:
            stream = manifest.streams[job.stream]
            was = without_key(stream.settings, "device")
            now = without_key(plain(job.settings), "device")
            if (differs := first_difference(was, now, job.earlier)) is not None:
                key, before, after = differs
                raise ValueError(
                    f"{folder.path} holds shards with {key}={before}, and it is {after} now; "
                    "merge with the files of the shards"
                )
            job.settings = stream.settings
            job.prepared = stream.prepared
    waiting = [job for job in jobs if not _is_complete(job, options)]
    for job in waiting:
        job.check()
    streams = {}
    for job in waiting:
        if isinstance(job, ResumableJob):
            streams[job.stream] = _opened(job, options)
        else:
            for file in (job.output, *job.side_files):
                check_output(file, options.overwrite)
    for job in waiting:
        if isinstance(job, ResumableJob):
            _complete(job, streams[job.stream], options)
        else:
            job.begin()
            start = time.monotonic()
            with _progress(job, job.label, job.total):
                job.write(_results(job, 0, options.merged))
            print(job.closing(time.monotonic() - start))
    return jobs[0].output


def _results(job: Job, skip: int, merged: ShardFolder | None) -> Iterator[Result]:
    if skip and skip >= job.total:
        return
    if merged is None:
        yield from job.results(0, skip)
        return
    for result in merged.results(job.stream, skip):
        yield result
        job.report(result.items, 0)


@contextmanager
def _progress(job: Job, label: str, total: int, done: int = 0) -> Iterator[None]:
    bar = Progress(total, label, done, unit=job.items, calls=job.calls)
    job.report = bar.update
    try:
        yield
    finally:
        bar.close()


def _is_complete(job: Job, options: RunOptions) -> bool:
    """Whether resuming finds that nothing is left to do.

    Raises:
        FileExistsError: if a file has the name of the output that can be neither resumed nor
            replaced.
    """
    output = job.output
    if not options.resume or not output.is_file():
        return False
    if not isinstance(job, ResumableJob):
        return True  # of a merge, whose output was written last
    if not is_complete(output, job.settings, job.earlier):
        if options.overwrite or temporary_path(job.collected, "journal").is_file():
            return False
        about = json_path(output)
        known = (
            f"{about.name} names other settings or bytes"
            if about.exists()
            else f"there is no {about.name} (earlier versions wrote none)"
        )
        raise FileExistsError(
            f"{output} exists, and {known}: start over with overwrite=true, or choose another name"
        )
    _discard(job)  # of a process that was stopped while it removed them
    job.found_complete()
    print(f"{output} is complete already; to compute it again, set overwrite=true without resume")
    return True


def _discard(job: ResumableJob) -> None:
    for path in {job.output, job.collected}:
        discard(path)
    if job.collected != job.output:
        job.collected.unlink(missing_ok=True)


def _opened(job: ResumableJob, options: RunOptions) -> ResumableOutput:
    """The file that a job continues or starts."""
    has_journal = options.resume and temporary_path(job.collected, "journal").is_file()
    if options.resume and not has_journal:
        log.info(f"{job.output}: nothing to resume; starting a new file")
    for file in (job.output, json_path(job.output), *job.side_files):
        check_output(file, options.overwrite or has_journal)
    stream = ResumableOutput(
        job.collected,
        {key: value for key, value in job.settings.items() if key not in job.of_convert},
        options.resume,
        options.overwrite,
        job.earlier,
        _MERGE_INTERVAL if options.merged is not None else 0.0,
        job.bgzip,
        job.output,
        job.items,
    )
    job.resume(stream.done, stream.notes)
    if job.output.exists() and not stream.done and not stream.complete:
        stream.append_packed(b"", 0, {})  # marks it as unfinished before anything is computed
    return stream


def _complete(job: ResumableJob, stream: ResumableOutput, options: RunOptions) -> None:
    """Write the remaining results and what is next to the output. What is done when the output is
    complete is repeated if it is interrupted."""
    start = time.monotonic()
    if stream.done:
        log.info(f"resuming after {stream.done:,} {job.items}")
    if not stream.complete:
        job.begin()
        try:
            with _progress(job, job.label, job.total, job.position):
                for result in _results(job, job.position, options.merged):
                    content, count = job.fold(result)
                    header = b"" if stream.bytes else job.header()
                    stream.append(header + content, count, **job.totals)
                if not stream.bytes:  # an empty .gz file is not a valid one
                    stream.append(job.header(), 0, **job.totals)
        finally:
            stream.close()
    seconds = time.monotonic() - start
    stream.finish(job.convert if job.converts else None)
    about = job.finish(stream.batches)
    head = head_of(job.output)
    write_json(json_path(job.output), {**head, **about, "settings": job.settings})
    _discard(job)
    print(job.closing(seconds))
    job.after()


def _compute_shard(jobs: Sequence[Job], shard: Shard, options: RunOptions) -> Path:
    """Compute one shard, which is resumed if its process was stopped, and left alone if it is
    complete."""
    folder = ShardFolder.of(jobs[0].output)
    manifest = folder.join(options.command, shard, without(options.overrides, _OWN), jobs)
    fingerprint = manifest.fingerprint
    if folder.is_complete(shard, fingerprint):
        print(f"shard {shard} is complete already in {folder.path}")
    else:
        streams = {}
        for job in jobs:
            about = manifest.streams[job.stream]
            path = folder.part(shard, job.stream)
            start, end = about.items[shard.number - 1 : shard.number + 1]
            settings = {"fingerprint": fingerprint, "shard": str(shard)}
            replace = not temporary_path(path, "journal").is_file()
            streams[job.stream] = stream = ResumableOutput(path, settings, True, replace)
            if start < end:
                job.check(start, end)
            if stream.done:
                log.info(f"shard {shard}: resuming after {stream.done:,} of {end - start:,} items")
            job.prepared = about.prepared
            try:
                with _progress(job, f"{options.command} {shard}", end - start, stream.done):
                    if not stream.bytes and not stream.complete:
                        stream.append(b"", 0)  # a shard without items is an empty file
                    left = end - start - stream.done
                    for result in job.results(start, stream.done) if left else ():
                        stream.append(packed(result), result.items)
                        if stream.done >= end - start:
                            break
            finally:
                stream.close()
            stream.finish()
        folder.complete(shard, fingerprint, streams)
        done = streams[jobs[0].stream].done
        print(f"shard {shard}: {done:,} items are in {folder.path}")
    for path in (folder.manifest_path, *(folder.part(shard, job.stream) for job in jobs)):
        discard(path)  # what a killed process left
    return folder.path
