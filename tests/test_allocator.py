"""Freed memory stays with the process."""

import platform
import subprocess
import sys

import pytest

COUNT = """
import resource, torch
from dnadiff.allocator import keep_freed_memory
{call}
def fill():
    [torch.ones(1 << 22) for _ in range(8)]  # 128 MB, more than glibc ever keeps by itself
fill(), fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(call: str) -> int:
    return int(subprocess.run([sys.executable, "-c", COUNT.format(call=call)], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_arrays_that_are_made_again_cost_no_page_faults():
    assert 5 * faults("assert keep_freed_memory()") < faults("")
