import subprocess
import sys

import numpy as np
import pytest

from dnadiff.training import memory

CHILD = "from dnadiff.training.memory import peak_memory; print(peak_memory())"


def test_peak_memory_grows_by_what_is_allocated():
    before = memory.peak_memory()
    size = 2 * before
    np.ones(size, dtype=np.uint8)
    assert memory.peak_memory() > size


@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is that of Linux")
def test_the_peak_of_a_new_process_is_its_own():
    np.ones(800_000_000, dtype=np.uint8)
    assert memory.peak_memory() > 800_000_000
    child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert 0 < int(child.stdout) < 500_000_000


def test_a_system_without_proc_asks_getrusage(monkeypatch, tmp_path):
    known = memory.peak_memory()
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "missing")
    assert memory.peak_memory() >= 0.9 * known
