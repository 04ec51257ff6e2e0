"""One shard of a command, run in this process; as a program, one job after another as they arrive
on standard input."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dnadiff.shards.shard import Shard


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
    return json.dumps(job._replace(shard=tuple(vars(job.shard).values()))) + "\n"  # type: ignore[arg-type]


def from_text(line: str) -> ShardJob:
    """The job of a line."""
    shard, *others = json.loads(line)
    return ShardJob(Shard(*shard), *others)


def main() -> None:
    """Answer each job with its status."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(f"{run(from_text(line))}\n")
        answers.flush()


if __name__ == "__main__":
    main()
