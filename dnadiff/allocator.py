"""What becomes of memory that a training step frees.

glibc gives large arrays back to the system as soon as they are freed and asks for them again in the next step, page by page: 20,000
page faults a step of Caduceus 64 x 4 at 8,192 tokens, a fifth of its time. Command lines keep the memory instead.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's names for them in malloc.h
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, for the next allocation; True if the C library is glibc and agreed.

    A setting of the whole process: for programs, not for libraries. The peak of memory stays what it was.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    # Older releases refuse a threshold above 32 MiB for a mapping of its own.
    mapped = mallopt(_MMAP_THRESHOLD, 2**30) or mallopt(_MMAP_THRESHOLD, 2**25)
    return bool(mallopt(_TRIM_THRESHOLD, _LARGEST) and mapped)
