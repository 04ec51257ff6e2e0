"""Launchers run all shards, start killed ones again, and merge."""

import os
import re
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from dnadiff.jobs.launcher import base
from dnadiff.jobs.launcher.base import ShardJob, as_text, failure, from_text
from dnadiff.jobs.launcher.processes import Processes
from dnadiff.jobs.launcher.ray import Ray
from dnadiff.jobs.shards import MergeMark, Shard

SAMPLE = (
    "num_samples=8",
    "batch_size=2",
    "length=20",
    "sampler.num_groups=4",
    "accelerator=cpu",
    "output=s.fa",
)


def jobs(tmp_path, count, command="toy"):
    return [
        ShardJob(
            Shard(i, count), command, [f"shard={i}"], str(tmp_path), str(tmp_path / f"{i}.log")
        )
        for i in range(1, count + 1)
    ]


def test_a_job_is_written_and_read(tmp_path):
    (one,) = jobs(tmp_path, 1)
    assert from_text(as_text(one)) == one


def test_a_job_prints_to_its_log_and_returns_its_status(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [])
    for status, code in (
        (0, "print('done')"),
        (3, "raise SystemExit(3)"),
        (1, "raise SystemExit('error: no')"),
        (1, "1 / 0"),
    ):
        module = type("module", (), {"main": staticmethod(lambda code=code: exec(code))})
        monkeypatch.setattr(base.importlib, "import_module", lambda name, module=module: module)
        (one,) = jobs(tmp_path, 1)
        with capfd.disabled():
            assert base.run(one) == status
    text = (tmp_path / "1.log").read_text()
    assert (
        text.count(f"process {os.getpid()}") == 4 and "done" in text and "ZeroDivisionError" in text
    )


@pytest.mark.parametrize(("retries", "status"), [(2, 0), (1, -9)])
def test_the_job_of_a_killed_worker_is_started_again_up_to_a_number_of_times(
    tmp_path, monkeypatch, retries, status
):
    left, lock = {1: 2}, threading.Lock()

    def run(worker, one):
        with lock:
            left[one.shard.number] = left.get(one.shard.number, 0) - 1
            return -9 if left[one.shard.number] >= 0 else 0

    monkeypatch.setattr("dnadiff.jobs.launcher.processes._Worker.run", run)
    found = {
        one.shard.number: status
        for one, status in Processes(4, 2, retries).statuses(jobs(tmp_path, 4))
    }
    assert found == {1: status, 2: 0, 3: 0, 4: 0}


def test_the_message_of_a_failed_shard_is_that_of_its_command(tmp_path):
    (one,) = jobs(tmp_path, 1)
    assert failure(one, -9).startswith("shard 1/1 was killed by signal 9 in all its starts")
    (tmp_path / "1.log").write_text("process 1\nerror: input: x.fa does not exist\n")
    assert failure(one, 1).startswith("input: x.fa does not exist (shard 1/1; ")
    assert failure(one, -9).startswith("shard 1/1 was killed")


def test_what_ray_cannot_run_is_named(tmp_path, monkeypatch):
    errors = type(
        "exceptions",
        (),
        {
            "RayError": (error := type("RayError", (Exception,), {})),
            "WorkerCrashedError": type("Crashed", (error,), {}),
        },
    )

    def get(found):
        raise (
            errors.WorkerCrashedError
            if found == "1"
            else errors.RayError("traceback\nModuleNotFoundError: No module named 'dnadiff'")
        )

    task = SimpleNamespace(remote=lambda job: str(job.shard.number))
    fake = SimpleNamespace(
        init=lambda **_: None, shutdown=lambda: None, cluster_resources=dict, get=get,
        exceptions=errors,
        wait=lambda waiting: (waiting[:1], []),
        remote=lambda run: SimpleNamespace(options=lambda **_: task),
    )  # fmt: skip
    monkeypatch.setattr("dnadiff.jobs.launcher.ray.library", lambda: fake)
    first, second = jobs(tmp_path, 2)
    statuses = Ray(2).statuses([first, second])
    assert next(statuses) == (first, -9)
    with pytest.raises(ValueError, match="shard 2/2: Ray could not run it"):
        next(statuses)


def test_shards_that_are_not_complete_are_run_and_a_complete_one_checks_the_configuration(
    cli, trained, tmp_path, monkeypatch, capfd
):
    ran, merged = [], []

    class Here(Processes):
        def statuses(self, waiting):
            for one in waiting:
                ran.append(one.shard.number)
                with capfd.disabled():
                    yield one, base.run(one)

    monkeypatch.setattr(
        base.subprocess,
        "run",
        lambda command, check: merged.append(command) or type("done", (), {"returncode": 0}),
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [])
    config = {"shard": None, "output": "s.fa", "overwrite": False}
    overrides = [f"checkpoint={trained}", *SAMPLE, "launcher=processes", "launcher.shards=3"]
    assert cli("sample", *overrides[:-2], "shard=2/3")[0] == 0
    for expected in ([1, 3], [1], [1]):
        ran.clear()
        if len(merged) == 2:  # a merge was stopped when it had written the output
            MergeMark(tmp_path / "s.fa").set()
            (tmp_path / "s.fa").write_text("merged")
        Here(3).launch("sample", config, overrides, None)
        assert ran == expected and merged[-1][-2:] == ["output='s.fa'", "overwrite=false"]
    with pytest.raises(ValueError, match=r"holds shards with seed=1, not 2; .*\(shard 1/3; "):
        Here(3).launch("sample", config, [*overrides, "seed=2"], None)


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
