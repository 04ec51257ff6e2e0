"""The peak memory of a process."""

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_memory() -> int:
    """The largest resident memory of this process so far, in bytes.

    On Linux `ru_maxrss` of a new program begins with that of the process that started it; the
    kernel's own VmHWM does not.
    """
    if STATUS.is_file():
        kilobytes = [
            int(line.split()[1])
            for line in STATUS.read_text(encoding="utf-8").splitlines()
            if line.startswith("VmHWM")
        ]
        if kilobytes:
            return kilobytes[0] << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << (
        0 if sys.platform == "darwin" else 10
    )
