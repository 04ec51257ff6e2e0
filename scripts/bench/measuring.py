"""How `gpu.py` measures: a device's clock, memory and rates."""

import math
import statistics
import time
from collections.abc import Callable

import torch
from reporting import Report


class Machine:
    """A device, how calls on it are timed, and its rates."""

    def __init__(self, device: str, quick: bool) -> None:
        self.device, self.quick, self.cuda = device, quick, device == "cuda"
        self.copy = self.product = math.nan

    def name(self) -> str:
        """Of the card."""
        return torch.cuda.get_device_name() if self.cuda else "CPU"

    def median(self, f: Callable[[], object], seconds: float = 0.6) -> float:
        """Seconds of a call, once compiled and warm."""
        seconds = 0.05 if self.quick else seconds
        for _ in range(2):
            f()
        times: list[float] = []
        begin = time.perf_counter()
        while len(times) < 3 or (time.perf_counter() - begin < seconds and len(times) < 100):
            times.append(self._once(f))
        return statistics.median(times)

    def _once(self, f: Callable[[], object]) -> float:
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
        """Bytes of the card's memory in use at most during a call."""
        if not self.cuda:
            f()
            return math.nan
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        f()
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated())

    def rates(self, report: Report) -> None:
        """Measure bytes a second (read plus written) of a copy and FLOP/s of a large product in bfloat16, on random numbers."""
        count, n = (2**22, 512) if self.quick else (2**30, 8192)
        x = torch.randn(count // 2, device=self.device)
        y = torch.empty_like(x)
        self.copy = 2 * x.nbytes / self.median(lambda: y.copy_(x))
        a, b = (torch.randn(n, n, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        self.product = 2 * n**3 / self.median(lambda: a @ b)
        report.add("copy, read plus written", self.copy / 1e9, "GB/s")
        report.add(f"product {n} x {n} x {n}, bfloat16", self.product / 1e12, "TFLOP/s")

    def recall(self, report: Report) -> None:
        """Take the rates from the rows, where another process has measured them."""
        self.copy, self.product = ((report.first(name) or math.nan) * unit for name, unit in (("copy, ", 1e9), ("product ", 1e12)))
