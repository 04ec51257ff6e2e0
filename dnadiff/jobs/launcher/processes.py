"""Shards in processes on this machine. A process runs one shard after another; if it is killed,
another one takes over its shard."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from typing_extensions import override

from dnadiff.fields import Natural, PositiveInt
from dnadiff.jobs.launcher.base import Launcher, ShardJob, as_text


class Processes(Launcher):
    """Runs shards on this machine.

    Args:
        shards: how many.
        workers: processes at a time. They share the processors, unless OMP_NUM_THREADS says how
            many threads each has.
        retries: see `Launcher`.
    """

    def __init__(self, shards: PositiveInt, workers: PositiveInt = 2, retries: Natural = 2) -> None:
        super().__init__(shards, retries)
        self.workers = int(workers)

    @override
    def statuses(self, jobs: Sequence[ShardJob]) -> Iterator[tuple[ShardJob, int]]:
        waiting: queue.SimpleQueue[ShardJob] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[ShardJob, int]] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        workers = [
            _Worker(min(self.workers, len(jobs))) for _ in range(min(self.workers, len(jobs)))
        ]
        for worker in workers:
            threading.Thread(target=self._serve, args=(worker, waiting, done), daemon=True).start()
        try:
            for _ in jobs:
                yield done.get()
        finally:
            for worker in workers:
                worker.stop()

    def _serve(
        self,
        worker: _Worker,
        waiting: queue.SimpleQueue[ShardJob],
        done: queue.SimpleQueue[tuple[ShardJob, int]],
    ) -> None:
        while not worker.stopped:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return worker.stop()
            status = -1
            for _ in range(self.retries + 1):
                status = worker.run(job)
                if status >= 0 or worker.stopped:
                    break
            done.put((job, status))


class _Worker:
    """A process for jobs, started when it is needed first, and again after it was killed."""

    def __init__(self, count: int) -> None:
        threads = (
            max(1, len(os.sched_getaffinity(0)) // count)
            if sys.platform == "linux"
            else max(1, (os.cpu_count() or 1) // count)
        )
        self.environment = {"OMP_NUM_THREADS": str(threads)} | os.environ
        self.process: subprocess.Popen[str] | None = None
        self.stopped, self._lock = False, threading.Lock()

    def run(self, job: ShardJob) -> int:
        """The status of a job; negative if the process was killed."""
        with self._lock:
            if self.stopped:
                return -1
            if self.process is None:
                command = [sys.executable, "-m", "dnadiff.jobs.launcher.base"]
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=self.environment,
                    start_new_session=True,
                )
            process = self.process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(as_text(job))
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:  # it was killed while it waited
            answer = ""
        if answer:
            return int(answer)
        status, self.process = process.wait(), None
        return status if status < 0 else -1

    def stop(self) -> None:
        """End the process."""
        with self._lock:
            self.stopped = True
            if self.process is not None:
                self.process.kill()
                self.process.wait()
