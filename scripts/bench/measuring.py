"""How the benchmarks measure: time, memory and rates of a device, and memory of this process."""

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from reporting import Report


def process_status(key: str) -> int:
    """A value of /proc/self/status in bytes (Linux)."""
    return 1024 * next(
        int(line.split()[1])
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(key)
    )


def reset_peak_memory() -> None:
    """Start to measure the peak memory (VmHWM) of this process again (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory(f: Callable[[], object]) -> float | None:
    """Megabytes by which the memory of this process grows during a call; None if the system does
    not report it."""
    try:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        reset_peak_memory()
        before = process_status("VmRSS")
        f()
        return (process_status("VmHWM") - before) / 2**20
    except (OSError, AttributeError):
        return None


class Machine:
    """A device: times calls on it, and measures its peak rates."""

    def __init__(self, device: str, quick: bool) -> None:
        self.device, self.quick, self.cuda = device, quick, device == "cuda"
        self.copy = self.product = math.nan

    def name(self) -> str:
        """The name of the GPU, or CPU."""
        return torch.cuda.get_device_name() if self.cuda else "CPU"

    def timed(self, f: Callable[[], object], seconds: float = 0.6) -> tuple[float, float]:
        """Median seconds of a call after a warm-up, and the distance between the 10 % and 90 %
        quantiles, relative to the median."""
        seconds = 0.05 if self.quick else seconds
        for _ in range(2):
            f()
        times: list[float] = []
        begin = time.perf_counter()
        while len(times) < 3 or (time.perf_counter() - begin < seconds and len(times) < 100):
            times.append(self.once(f))
        low, *_, high = statistics.quantiles(times, n=10, method="inclusive")
        median = statistics.median(times)
        return median, (high - low) / median

    def once(self, f: Callable[[], object]) -> float:
        """Seconds of a call."""
        if not self.cuda:
            begin = time.perf_counter()
            f()
            return time.perf_counter() - begin
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        first.record()
        f()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3

    def peak(self, f: Callable[[], object]) -> float:
        """Peak GPU memory in bytes during a call."""
        if not self.cuda:
            f()
            return math.nan
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        f()
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated())

    def rates(self, report: Report) -> None:
        """Measure bytes per second (read plus written) of a copy, and FLOP/s of a large matrix
        product in bfloat16, on random numbers."""
        count, n = (2**22, 512) if self.quick else (2**30, 8192)
        x = torch.randn(count // 2, device=self.device)
        y = torch.empty_like(x)
        self.copy = 2 * x.nbytes / self.timed(lambda: y.copy_(x))[0]
        a, b = (torch.randn(n, n, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        self.product = 2 * n**3 / self.timed(lambda: a @ b)[0]
        report.add("copy, read plus written", self.copy / 1e9, "GB/s")
        report.add(f"product {n} x {n} x {n}, bfloat16", self.product / 1e12, "TFLOP/s")

    def recall(self, report: Report) -> None:
        """Take the rates from the rows if an earlier process measured them."""
        self.copy, self.product = (
            (report.first(name) or math.nan) * unit
            for name, unit in (("copy, ", 1e9), ("product ", 1e12))
        )
