"""What launchers share: which shards are left, what a shard's command line is, errors, merging; as
a program, one shard after another as they arrive on standard input."""

from __future__ import annotations

import importlib
import json
import logging
import os
import platform
import subprocess
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dnadiff.fields import Config, Natural, PositiveInt
from dnadiff.jobs.shards import MergeMark, Shard, ShardFolder, without
from dnadiff.progress import Progress
from dnadiff.store.address import expand_user
from dnadiff.store.disk import check_output
from dnadiff.store.objects import quoted

log = logging.getLogger("dnadiff")


class ShardJob(NamedTuple):
    """A shard of a command.

    Attributes:
        command: its name.
        arguments: of the command line.
        folder: in which it is started.
        log: the file that gets what it prints.
    """

    shard: Shard
    command: str
    arguments: list[str]
    folder: str
    log: str


def run(job: ShardJob) -> int:
    """Run a job; its exit status."""
    os.chdir(job.folder)
    Path(job.log).parent.mkdir(parents=True, exist_ok=True)
    with printed_to(job.log):
        print(f"process {os.getpid()} on {platform.node()}", flush=True)
        sys.argv = [f"dnadiff.{job.command}", *job.arguments]
        try:
            importlib.import_module(f"dnadiff.{job.command}").main()
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
            return 1
    return 0


@contextmanager
def printed_to(path: str) -> Iterator[None]:
    """Append what this process prints to a file."""
    kept = [os.dup(number) for number in (1, 2)]
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        for number in (1, 2):
            os.dup2(file, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in zip((1, 2), kept):
            os.dup2(original, number)
            os.close(original)
        os.close(file)


def as_text(job: ShardJob) -> str:
    """A job as a line of JSON."""
    _, *others = job
    return json.dumps([[job.shard.number, job.shard.count], *others]) + "\n"


def from_text(line: str) -> ShardJob:
    """The job of a line."""
    shard, *others = json.loads(line)
    return ShardJob(Shard(*shard), *others)


class Launcher(ABC):
    """Runs all shards of a command that are not complete, then merges them.

    Args:
        shards: how many.
        retries: of a shard whose process was killed. A command that refuses its input is not tried
            again.
    """

    def __init__(self, shards: PositiveInt, retries: Natural = 2) -> None:
        self.shards, self.retries = int(shards), int(retries)

    @abstractmethod
    def statuses(self, jobs: Sequence[ShardJob]) -> Iterator[tuple[ShardJob, int]]:
        """Run jobs, each up to `retries` times more if its process is killed; each with its exit
        status, negative if it was killed."""

    def launch(
        self, command: str, config: Config, overrides: Sequence[str], config_folder: Path | None
    ) -> None:
        """Run a command.

        Args:
            overrides: arguments of its command line.
            config_folder: the user's own folder of YAML files.

        Raises:
            ValueError: if a shard fails, with its message.
            SystemExit: if merging fails, which prints why.
        """
        if config["shard"] is not None:
            raise ValueError(
                f"shard={config['shard']} and launcher= exclude each other: a launcher runs all "
                "shards; leave one out"
            )
        if config["output"] is None:
            raise ValueError("launcher= needs output=, the file to write")
        output = expand_user(config["output"])
        mark = MergeMark(output)
        check_output(output, config["overwrite"] or mark.is_under_way)
        folder, own = (
            ShardFolder.of(output),
            [f"--config-dir={config_folder}"] * (config_folder is not None),
        )
        given = without(overrides, ("launcher", "shard", "overwrite"))
        # shards do not write the output
        replaces = f"overwrite={str(config['overwrite'] or mark.has_output).lower()}"
        jobs = [
            ShardJob(
                shard,
                command,
                [
                    *own,
                    *given,
                    replaces,
                    f"shard={shard}",
                    f"hydra.run.dir={quoted(str(folder.path / 'run'))}",
                ],
                os.getcwd(),
                str(folder.log(shard).absolute()),
            )
            for shard in self._unfinished(folder)
        ]
        if (
            not mark.has_output or folder.path.exists()
        ):  # otherwise all that is left is to remove files
            self._run(command, jobs)
        merging = [f"output={quoted(str(output))}", f"overwrite={str(config['overwrite']).lower()}"]
        merging += [o for o in given if o.startswith("trust=")]
        status = subprocess.run(
            [sys.executable, "-m", "dnadiff.merge", *own, *merging], check=False
        ).returncode
        if status:
            raise SystemExit(status)

    def _unfinished(self, folder: ShardFolder) -> list[Shard]:
        """The shards to run; the first one of complete ones, which refuses another configuration
        than that of the shards."""
        numbers = list(range(1, self.shards + 1))
        if folder.manifest_path.exists() and (manifest := folder.read()).count == self.shards:
            missing = folder.missing(manifest)
            if len(missing) < self.shards:
                log.info(
                    f"{self.shards - len(missing):,} of {self.shards:,} shards are complete already"
                )
            numbers = missing or [1]
        return [Shard(number, self.shards) for number in numbers]

    def _run(self, command: str, jobs: Sequence[ShardJob]) -> None:
        bar = Progress(len(jobs), f"{command}, shards")
        try:
            for job, status in self.statuses(jobs):
                if status:
                    raise ValueError(failure(job, status))
                bar.update()
        finally:
            bar.close()


def failure(job: ShardJob, status: int) -> str:
    """Why a shard failed, in one line: the message of its command, if there is one."""
    lines = (
        Path(job.log).read_text(encoding="utf-8", errors="replace").splitlines()
        if Path(job.log).exists()
        else []
    )
    message = next(
        (line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), ""
    )
    if status > 0 and message:
        return f"{message} (shard {job.shard}; {job.log} has what it printed)"
    how = (
        f"was killed by signal {-status} in all its starts"
        if status < 0
        else f"ended with status {status}"
    )
    return f"shard {job.shard} {how}; {job.log} has what it printed"


def main() -> None:
    """Answer each job with its status."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(f"{run(from_text(line))}\n")
        answers.flush()


if __name__ == "__main__":
    main()
