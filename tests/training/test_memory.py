"""Measured in new processes: the peak of this one depends on the tests before."""

import subprocess
import sys

import pytest

from dnadiff.training import memory

PRINT = (
    "from dnadiff.training.memory import peak_memory; import subprocess, sys; block = b'x' * "
    "{}; print(peak_memory(), flush=True); "
)
MEGABYTES_200 = 200_000_000


def run(code: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


def test_peak_memory_grows_by_what_is_allocated():
    (small,), (large,) = run(PRINT.format(1)), run(PRINT.format(MEGABYTES_200))
    assert large - small == pytest.approx(MEGABYTES_200, rel=0.1)


@pytest.mark.skipif(
    "VmHWM" not in (memory.STATUS.read_text() if memory.STATUS.is_file() else ""),
    reason="this system has no VmHWM",
)
def test_the_peak_of_a_new_process_is_its_own():
    child = f"subprocess.run([sys.executable, '-c', {PRINT.format(1)!r}], check=True)"
    parent, own = run(PRINT.format(MEGABYTES_200) + child)
    assert parent > MEGABYTES_200 > own


def test_a_system_without_proc_asks_getrusage(monkeypatch, tmp_path):
    known = memory.peak_memory()
    monkeypatch.setattr(memory, "STATUS", tmp_path / "missing")
    assert memory.peak_memory() >= 0.9 * known
