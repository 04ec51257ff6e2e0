"""Shards as tasks of Ray (extra `ray`), on a cluster or on this machine. All machines see the same
files under the same paths."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from types import ModuleType

from typing_extensions import override

from dnadiff.fields import Natural, NonNegative, Positive, PositiveInt
from dnadiff.jobs.launcher.base import Launcher, ShardJob, run


class Ray(Launcher):
    """Runs shards on Ray, which starts the task of a killed process again.

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

    def __init__(
        self,
        shards: PositiveInt,
        retries: Natural = 2,
        address: str | None = None,
        workers: PositiveInt = 2,
        cpus: Positive = 1,
        gpus: NonNegative = 0,
    ) -> None:
        super().__init__(shards, retries)
        self.address, self.workers, self.cpus, self.gpus = address, int(workers), cpus, gpus
        library()

    @override
    def statuses(self, jobs: Sequence[ShardJob]) -> Iterator[tuple[ShardJob, int]]:
        ray = library()
        local = (
            {"num_cpus": self.workers * self.cpus, "include_dashboard": False}
            if self.address is None
            else {}
        )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address=self.address or "local", log_to_driver=False, **local)
        try:
            if (
                self.address is None
                and (most := ray.cluster_resources().get("GPU", 0.0)) < self.gpus
            ):
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
                    except (
                        ray.exceptions.RayError
                    ) as error:  # a machine without dnadiff, out of memory, ...
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
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ValueError(
            "launcher=ray needs the package ray: pip install -e '.[ray]' in the checkout; or use "
            "launcher=processes"
        ) from error
