"""Measured in new processes: the peak of this one depends on the tests before."""

import subprocess
import sys
from pathlib import Path

import pytest

from dnadiff.training.optim import peak_memory

PRINT = (
    "from dnadiff.training.optim import peak_memory; import subprocess, sys; block = b'x' * "
    "{}; print(peak_memory(), flush=True); "
)
STATUS = Path("/proc/self/status")
MEGABYTES_800 = 800_000_000  # more than PyTorch takes


def run(code: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


def test_peak_memory_grows_by_what_is_allocated():
    (small,), (large,) = run(PRINT.format(1)), run(PRINT.format(MEGABYTES_800))
    assert large - small == pytest.approx(MEGABYTES_800, rel=0.1)


@pytest.mark.skipif(
    not STATUS.is_file() or "VmHWM" not in STATUS.read_text(),
    reason="this system has no VmHWM",
)
def test_the_peak_of_a_new_process_is_its_own():
    child = f"subprocess.run([sys.executable, '-c', {PRINT.format(1)!r}], check=True)"
    parent, own = run(PRINT.format(MEGABYTES_800) + child)
    assert parent > MEGABYTES_800 > own


def test_a_system_without_proc_asks_getrusage(tmp_path):
    assert peak_memory(tmp_path / "missing") >= 0.9 * peak_memory()
