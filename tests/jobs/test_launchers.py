"""Launchers run all shards, start killed ones again, and merge."""

import os
import re
import signal
import sys
import time

import pytest

from dnadiff.jobs import launcher
from dnadiff.jobs.launcher import Processes, Ray, ShardJob, failure
from dnadiff.jobs.shards import MergeMark

SAMPLE = (
    "num_samples=8",
    "batch_size=2",
    "length=20",
    "sampler.num_groups=4",
    "accelerator=cpu",
    "output=s.fa",
)


TOY = """
import os
import signal
from pathlib import Path

from dnadiff.options.base import Options
from dnadiff.options.command import command


class ToyOptions(Options):
    \"\"\"A command that ends in some way.\"\"\"

    chooses_threads = False
    code: str = ""
    killed: int = 0


@command(ToyOptions)
def toy(options):
    with Path("starts.txt").open("a") as file:
        file.write("x")
    if Path("starts.txt").stat().st_size <= options.killed:
        os.kill(os.getpid(), signal.SIGKILL)
    exec(options.code)
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """toy("print(1)", ...) are jobs that run this code, each in its own folder."""
    (tmp_path / "toy_of_launchers.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.chdir(tmp_path)

    def jobs(*codes, killed=0):
        found = []
        for number, code in enumerate(codes, 1):
            (folder := tmp_path / str(number)).mkdir(exist_ok=True)
            keys = ["plugins=[toy_of_launchers]", f'code="{code}"', f"killed={killed}"]
            log = str(tmp_path / f"{number}.log")
            found.append(ShardJob(f"{number}/{len(codes)}", "toy", keys, str(folder), log))
            killed = 0
        return found

    return jobs


def test_a_job_prints_to_its_log_and_returns_its_status(toy, tmp_path, capfd):
    codes = ("print('done')", "raise SystemExit(3)", "raise SystemExit('error: no')", "1 / 0")
    for one, status in zip(toy(*codes), (0, 3, 1, 1), strict=True):
        with capfd.disabled():
            assert launcher.run(one) == status
    logs = [(tmp_path / f"{number}.log").read_text() for number in (1, 2, 3, 4)]
    assert all(log.startswith(f"process {os.getpid()}") for log in logs)
    assert "done" in logs[0] and "ZeroDivisionError" in logs[3]


@pytest.mark.parametrize(("retries", "status"), [(2, 0), (1, -9)])
def test_the_job_of_a_killed_worker_is_started_again_up_to_a_number_of_times(toy, retries, status):
    jobs = toy("1", "2", "3", killed=2)
    found = {one.shard: status for one, status in Processes(3, retries, 2).statuses(jobs)}
    assert found == {"1/3": status, "2/3": 0, "3/3": 0}


def test_the_message_of_a_failed_shard_is_that_of_its_command(tmp_path):
    one = ShardJob("1/1", "toy", [], str(tmp_path), str(tmp_path / "1.log"))
    assert failure(one, -9).startswith("shard 1/1 was killed by signal 9 in all its starts")
    (tmp_path / "1.log").write_text("process 1\nerror: input: x.fa does not exist\n")
    assert failure(one, 1).startswith("input: x.fa does not exist (shard 1/1; ")
    assert failure(one, -9).startswith("shard 1/1 was killed")


RAY = """
from types import SimpleNamespace


class exceptions:
    class RayError(Exception):
        pass

    class WorkerCrashedError(RayError):
        pass


def get(found):
    if found == "1":
        raise exceptions.WorkerCrashedError
    raise exceptions.RayError("traceback\\nModuleNotFoundError: No module named 'dnadiff'")


def init(**options):
    pass


shutdown, cluster_resources = init, dict
task = SimpleNamespace(remote=lambda job: job.shard[0])


def wait(waiting):
    return waiting[:1], []


def remote(run):
    return SimpleNamespace(options=lambda **_: task)
"""


@pytest.mark.skipif("ray" in sys.modules, reason="the real Ray is imported")
def test_what_ray_cannot_run_is_named(toy, tmp_path):
    (tmp_path / "ray.py").write_text(RAY)
    first, second = toy("1", "2")
    try:
        statuses = Ray(2).statuses([first, second])
        assert next(statuses) == (first, -9)
        with pytest.raises(ValueError, match="shard 2/2: Ray could not run it"):
            next(statuses)
    finally:
        del sys.modules["ray"]


def test_shards_that_are_not_complete_are_run_and_a_complete_one_checks_the_configuration(
    cli, trained, tmp_path, monkeypatch, capfd
):
    ran = []

    class Here(Processes):
        def statuses(self, waiting):
            for one in waiting:
                ran.append(one.shard)
                with capfd.disabled():
                    yield one, launcher.run(one)

    monkeypatch.chdir(tmp_path)
    overrides = [f"checkpoint={trained}", *SAMPLE, "launcher=processes", "launcher.shards=3"]
    mark, folder = MergeMark(tmp_path / "s.fa"), tmp_path / "s.fa.shards"
    assert cli("sample", *overrides[:-2], "shard=2/3")[0] == 0
    with pytest.raises(ValueError, match=r"holds shards with seed=1, not 2; .*\(shard 1/3; "):
        Here(3).launch("sample", "s.fa", [*overrides, "seed=2"])
    ran.clear()
    Here(3).launch("sample", "s.fa", overrides)
    assert ran == ["1/3", "3/3"] and (tmp_path / "s.fa").exists() and not folder.exists()
    written = (tmp_path / "s.fa").read_bytes()
    for number in (1, 2, 3):
        (tmp_path / "s.fa").unlink(missing_ok=True)
        assert cli("sample", *overrides[:-2], f"shard={number}/3")[0] == 0
    # A merge was stopped when it had written the output.
    mark.set()
    (tmp_path / "s.fa").write_bytes(written)
    ran.clear()
    Here(3).launch("sample", "s.fa", overrides)
    assert ran == ["1/3"] and not folder.exists() and not mark.path.exists()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["processes", "ray"])
def test_a_killed_worker_does_not_change_a_byte(launcher, python, cli, trained, tmp_path):
    if launcher == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    assert (
        cli("sample", f"checkpoint={trained}", *SAMPLE[:-1], "num_samples=24", "output=whole.fa")[0]
        == 0
    )
    arguments = [
        f"checkpoint={trained}",
        *SAMPLE,
        "num_samples=24",
        f"launcher={launcher}",
        "launcher.shards=6",
        "launcher.workers=2",
    ]
    process = python("-m", "dnadiff.sample", *arguments, cwd=tmp_path)
    log, killed = tmp_path / "s.fa.shards" / "0002.log", 0
    while process.poll() is None and not killed:
        time.sleep(0.02)
        if log.exists() and (found := re.search(r"process (\d+)", log.read_text())):
            os.kill(int(found[1]), signal.SIGKILL)
            killed = int(found[1])
    assert process.wait() == 0, process.errors
    assert killed and (tmp_path / "s.fa").read_bytes() == (tmp_path / "whole.fa").read_bytes()
    assert not (tmp_path / "s.fa.shards").exists()
