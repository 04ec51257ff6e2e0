"""The scripts of scripts/cluster with stand-ins for SLURM and torchrun."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from dnadiff.options.command import compose

CLUSTER = Path(__file__).parents[2] / "scripts" / "cluster"


# Stand-ins: a program that ends at once, and processes that wait for SIGUSR1, for which the script
# is sent it.
ENDS = "exit {status}"
WAITS = (
    "trap 'exit {status}' USR1; sleep 0.3; kill -USR1 $PPID; for _ in $(seq 500); do sleep "
    "0.02; done"
)


def run(script, tmp_path, *arguments, status=0, processes=ENDS, **variables):
    """Exit status of a script, and the command lines of the programs that it started."""
    log, programs = tmp_path / "log", tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    work = processes.format(status=status)
    for name, code in (("srun", work), ("scontrol", "exit 0"), ("torchrun", work)):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\n{code}\n')
        (programs / name).chmod(0o755)
    env = {"PATH": f"{programs}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        ["bash", str(CLUSTER / script), *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done, [
        shlex.split(line) for line in log.read_text().splitlines()
    ] if log.exists() else []


@pytest.mark.parametrize(
    ("status", "requeued"), [(0, False), (138, True), (143, True), (1, False), (137, False)]
)
@pytest.mark.parametrize("processes", [ENDS, WAITS], ids=["ended", "signaled"])
def test_a_job_is_queued_again_if_the_signal_stopped_it(tmp_path, processes, status, requeued):
    where = {"SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_NUM_NODES": "3"}
    done, started = run(
        "four_nodes.sbatch",
        tmp_path,
        "runs/mine",
        "data.length=64",
        status=status,
        processes=processes,
        **where,
    )
    assert done.returncode == status and started[0][0] == "srun"
    # A process that fails before it can handle signals also ends the others with SIGTERM: status
    # 143 alone does not say that it was stopped.
    requeued = requeued and processes == WAITS
    assert [line for line in started if line[0] == "scontrol"] == (
        [["scontrol", "requeue", "7"]] if requeued else []
    )


@pytest.mark.parametrize("script", ["eight_gpus.sh", "four_nodes.sbatch"])
def test_the_command_line_of_a_script_composes(tmp_path, script):
    _, started = run(script, tmp_path, "runs/mine", "data.length=64", SLURM_JOB_ID="7")
    words = started[0][started[0].index("dnadiff.train") + 1 :]
    config = compose(
        "train", [word for word in words if not word.startswith("hydra.")], resolve=True
    )
    assert (
        "hydra.run.dir=runs/mine" in words and config["resume"] and config["data"]["length"] == 64
    )
    assert (config["trainer"]["devices"], config["trainer"]["strategy"]) == (8, "ddp")
    assert config["trainer"]["num_nodes"] == (4 if script == "four_nodes.sbatch" else 1)


def test_a_run_folder_is_needed(tmp_path):
    done, started = run("eight_gpus.sh", tmp_path)
    assert done.returncode and "give a run folder" in done.stderr and not started
