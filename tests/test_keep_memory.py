"""A command keeps freed memory."""

import platform
import subprocess
import sys

import pytest

COUNT = """
import ctypes, resource
from dnadiff.options.command import keep_freed_memory
{call}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def fill():
    place = libc.malloc(1 << 26)  # more than glibc keeps by default
    ctypes.memset(place, 1, 1 << 26)
    libc.free(place)
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(call: str) -> int:
    return int(
        subprocess.run(
            [sys.executable, "-c", COUNT.format(call=call)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_memory_that_is_allocated_again_causes_no_page_faults():
    assert 5 * faults("assert keep_freed_memory()") < faults("")
