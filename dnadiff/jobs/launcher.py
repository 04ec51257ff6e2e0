"""Launchers run all shards of a command that are not complete, and merge them: in processes of this
machine, or as tasks of Ray (extra `ray`). As a program, this file runs one shard after another as
they arrive on standard input."""

import importlib
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from dnadiff.fields import Natural, NonNegative, Positive, PositiveInt, checked_dataclass
from dnadiff.jobs.shards import MergeMark, Shard, ShardFolder, without
from dnadiff.progress import Progress, log, quoted
from dnadiff.store.address import expand_user
from dnadiff.store.disk import check_output
from dnadiff.store.objects import optional_package
from dnadiff.store.processes import num_cores


class ShardJob(NamedTuple):
    """A shard of a command.

    Attributes:
        shard: as on the command line.
        command: its name.
        arguments: of the command line.
        folder: in which it is started.
        log: the file that gets what it prints.
    """

    shard: str
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
        try:
            importlib.import_module("dnadiff.__main__").main([job.command, *job.arguments])
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


@dataclass
class Launcher(ABC):
    """Runs all shards of a command that are not complete, then merges them.

    Args:
        shards: how many.
        retries: of a shard whose process was killed. A command that refuses its input is not tried
            again.
    """

    shards: PositiveInt
    retries: Natural = 2

    @abstractmethod
    def statuses(self, jobs: Sequence[ShardJob]) -> Iterator[tuple[ShardJob, int]]:
        """Run jobs, each up to `retries` times more if its process is killed; each with its exit
        status, negative if it was killed."""

    def launch(
        self,
        command: str,
        output: str | None,
        overrides: Sequence[str],
        *,
        shard: object = None,
        overwrite: bool = False,
        config_folder: Path | None = None,
    ) -> None:
        """Run a command.

        Args:
            output: the file that it writes.
            overrides: arguments of its command line, with secrets, which only the shards get.
            shard: None; a launcher runs all shards.
            config_folder: the user's own folder of YAML files.

        Raises:
            ValueError: if a shard fails, with its message.
            SystemExit: if merging fails, which prints why.
        """
        if shard is not None:
            raise ValueError(
                f"shard={shard} and launcher= exclude each other: a launcher runs all "
                "shards; leave one out"
            )
        if output is None:
            raise ValueError("launcher= needs output=, the file to write")
        path = expand_user(output)
        mark = MergeMark(path)
        folder = ShardFolder.of(path)
        check_output(path, overwrite or mark.is_under_way)
        own = [f"--config-dir={config_folder}"] * (config_folder is not None)
        given = without(overrides, ("hydra", "launcher", "shard", "overwrite"))
        # shards do not write the output
        replaces = f"overwrite={str(overwrite or mark.has_output).lower()}"
        run_dir = f"hydra.run.dir={quoted(str(folder.path / 'run'))}"
        jobs = [
            ShardJob(
                str(each),
                command,
                [*own, *given, replaces, f"shard={each}", run_dir],
                os.getcwd(),
                str(folder.log(each).absolute()),
            )
            for each in self._unfinished(folder)
        ]
        # Otherwise all that is left is to remove files.
        if not mark.has_output or folder.path.exists():
            bar = Progress(len(jobs), f"{command}, shards")
            try:
                for job, status in self.statuses(jobs):
                    if status:
                        raise ValueError(failure(job, status))
                    bar.update()
            finally:
                bar.close()
        merging = [
            f"output={quoted(str(path))}",
            f"overwrite={str(overwrite).lower()}",
            "fetch=true",
            *(each for each in given if each.startswith(("trust=", "plugins="))),
        ]
        # In this process, which knows complete addresses.
        importlib.import_module("dnadiff.__main__").main(["merge", *own, *merging])

    def _unfinished(self, folder: ShardFolder) -> list[Shard]:
        """The shards to run; the first one of complete ones, which refuses another configuration
        than that of the shards."""
        numbers = list(range(1, self.shards + 1))
        if folder.manifest_path.exists() and folder.manifest.count == self.shards:
            missing = folder.missing()
            if complete := self.shards - len(missing):
                log.info(f"{complete:,} of {self.shards:,} shards are complete already")
            numbers = missing or [1]
        return [Shard(number, self.shards) for number in numbers]


def failure(job: ShardJob, status: int) -> str:
    """Why a shard failed, in one line: the message of its command, if there is one."""
    log = Path(job.log)
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    if status > 0 and errors:
        message = errors[-1].removeprefix("error: ")
        return f"{message} (shard {job.shard}; {job.log} has what it printed)"
    killed = f"was killed by signal {-status} in all its starts"
    how = killed if status < 0 else f"ended with status {status}"
    return f"shard {job.shard} {how}; {job.log} has what it printed"


@checked_dataclass
class Processes(Launcher):
    """Runs shards on this machine. A process runs one shard after another; if it is killed, another
    one takes over its shard.

    Args:
        shards, retries: see `Launcher`.
        workers: processes at a time. They share the processors, unless OMP_NUM_THREADS says how
            many threads each has.
    """

    workers: PositiveInt = 2

    def statuses(self, jobs: Sequence[ShardJob]) -> Iterator[tuple[ShardJob, int]]:
        count = min(self.workers, len(jobs))
        workers = [_Worker(max(1, num_cores() // count)) for _ in range(count)]
        idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()

        def status(job: ShardJob) -> tuple[ShardJob, int]:
            worker = idle.get()
            last = -1
            for _ in range(self.retries + 1):
                last = worker.run(job)
                if 0 <= last != 128 + signal.SIGTERM or worker.stopped:
                    break
            idle.put(worker)
            return job, last

        for worker in workers:
            idle.put(worker)
        pool = ThreadPoolExecutor(count)
        try:
            for future in as_completed([pool.submit(status, job) for job in jobs]):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.stop()


class _Worker:
    """A process for jobs, started when it is needed first, and again after it was killed."""

    def __init__(self, threads: int) -> None:
        self.environment = {"OMP_NUM_THREADS": str(threads)} | os.environ
        self.process: subprocess.Popen[str] | None = None
        self.stopped = False
        self._lock = threading.Lock()

    def run(self, job: ShardJob) -> int:
        """The status of a job; negative if the process was killed."""
        with self._lock:
            if self.stopped:
                return -1
            self.process = process = self.process or subprocess.Popen(
                [sys.executable, "-m", "dnadiff.jobs.launcher"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self.environment,
                start_new_session=True,
            )
        assert process.stdin is not None and process.stdout is not None
        try:
            print(json.dumps(job), file=process.stdin, flush=True)
            answer = process.stdout.readline()
        except OSError:  # it was killed while it waited
            answer = ""
        if answer:
            return int(answer)
        status = process.wait()
        self.process = None
        return min(status, -1)

    def stop(self) -> None:
        """End the process."""
        with self._lock:
            self.stopped = True
            if self.process is not None:
                self.process.kill()
                self.process.wait()


@checked_dataclass
class Ray(Launcher):
    """Runs shards on Ray, on a cluster or on this machine, which starts the task of a killed
    process again. All machines see the same files under the same paths.

    Args:
        shards: how many.
        retries: see `Launcher`.
        address: of the cluster; `auto` is one that runs on this machine, None starts Ray here for
            the time of the command.
        workers: without an address, processes at a time.
        cpus, gpus: of the cluster, for each shard. Ray gives a process as many threads as
            processors.

    Raises:
        ValueError: if Ray is not installed.
    """

    address: str | None = None
    workers: PositiveInt = 2
    cpus: Positive = 1
    gpus: NonNegative = 0

    def __post_init__(self) -> None:
        library()

    def statuses(self, jobs: Sequence[ShardJob]) -> Iterator[tuple[ShardJob, int]]:
        ray = library()
        is_local = self.address is None
        local = {"num_cpus": self.workers * self.cpus, "include_dashboard": False}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            address=self.address or "local", log_to_driver=False, **(local if is_local else {})
        )
        try:
            most = ray.cluster_resources().get("GPU", 0.0)
            if is_local and most < self.gpus:
                raise ValueError(
                    f"launcher.gpus {self.gpus} is more than the {most:g} of this machine; set it "
                    "to that or less"
                )
            task = ray.remote(run).options(
                num_cpus=self.cpus, num_gpus=self.gpus, max_retries=self.retries
            )
            waiting = {task.remote(job): job for job in jobs}
            while waiting:
                for found in ray.wait(list(waiting))[0]:
                    job = waiting.pop(found)
                    try:
                        status = ray.get(found)
                    except ray.exceptions.WorkerCrashedError:
                        status = -9
                    except ray.exceptions.RayError as error:
                        # A machine without dnadiff, out of memory, ...
                        reason = (str(error).strip().splitlines() or [""])[-1]
                        raise ValueError(
                            f"shard {job.shard}: Ray could not run it ({type(error).__name__}: "
                            f"{reason[:200]})"
                        ) from error
                    yield job, status
        finally:
            ray.shutdown()


def library() -> ModuleType:
    """The package `ray`; raises ValueError if it is not installed."""
    return optional_package("ray", "launcher=ray", "ray", "; or use launcher=processes")


def main() -> None:
    """Answer each job with its status."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(run(ShardJob(*json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
