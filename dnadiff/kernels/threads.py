"""How many threads compute on a CPU: a short trial at the start of a command, if the user does not
say.

On some machines two processors are two threads of one core, or share it with another machine, and
the second one gains nothing or costs time. The choice is stored for each machine in the folder of
compiled kernels: sums are added in an order that depends on the number of threads, so every run on
a machine should have the same. On a busy machine nothing is tried or stored, and PyTorch's number
stays.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from contextlib import suppress

import torch

from dnadiff.kernels.build import cache_folder
from dnadiff.kernels.facade import selective_scan

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_GAIN = 1.1  # how much faster more threads must be
_SECONDS = 0.15  # of one trial
# that must agree on fewer threads: the first milliseconds on a cold machine are not typical, and
# the choice is kept
_TRIALS = 4
# other running programs, on average over a minute, for each processor that this process uses
_BUSY = 0.5
log = logging.getLogger("dnadiff")


def choose_threads() -> int:
    """Set the number of threads of this process and return it: what the environment says, what an
    earlier trial chose, or a new trial."""
    most = torch.get_num_threads()
    if most == 1 or any(os.environ.get(name) for name in _VARIABLES):
        return most
    path = cache_folder() / f"threads-{_machine(most)}"
    chosen = 0
    with suppress(OSError, ValueError):
        chosen = int(path.read_text())
    if not 1 <= chosen <= most:
        if os.getloadavg()[0] > _BUSY * most:
            return most
        chosen = _trial(most)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = path.with_name(f"{path.name}.{os.getpid()}")
            part.write_text(f"{chosen}\n")
            part.replace(path)  # another process never reads half of a number
        if chosen < most:
            log.info(
                f"{chosen} of {most} threads, because more are not faster here (OMP_NUM_THREADS "
                f"sets another number; kept in {path})"
            )
    torch.set_num_threads(chosen)
    return chosen


def _machine(most: int) -> str:
    """Identifies the processor and what of it this process may use."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next((line for line in file if line.startswith("model name")), "")
    except OSError:
        model = ""
    return hashlib.sha256(f"{model}{os.cpu_count()} {most}".encode()).hexdigest()[:16]


def _trial(most: int) -> int:
    """The smallest number of threads, of `most` and its halves, than which no larger one is clearly
    faster in any of `_TRIALS` trials."""
    counts = [most]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    u, table = (
        torch.zeros(16 * most, 64, 64),
        torch.zeros(64, 16),
    )  # half a millisecond with all threads, much longer than it takes to wake them

    def scan() -> float:
        start = time.perf_counter()
        selective_scan(u, u, table, u[..., :16], u[..., :16], table[:, 0])
        return time.perf_counter() - start

    chosen = 1
    with torch.no_grad():
        scan()  # compiled or loaded here
        for _ in range(_TRIALS):
            best = dict.fromkeys(counts, math.inf)
            begin = time.perf_counter()
            while time.perf_counter() - begin < _SECONDS:
                for count in counts:
                    torch.set_num_threads(count)
                    best[count] = min(best[count], scan(), scan())  # the first call starts threads
            fewest = counts[-1]
            for count in reversed(counts):
                if best[count] * _GAIN < best[fewest]:
                    fewest = count
            chosen = max(chosen, fewest)
            if chosen == most:
                break
    return chosen
