"""Threads of one process in place of the processes that hold the pieces of sequences."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


class ThreadPeers:
    """One of `size` threads that run the same code; `bytes_sent` counts what it sends."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, slots: list[Any]) -> None:
        self.rank, self.size, self._barrier, self._slots, self.bytes_sent = (
            rank,
            size,
            barrier,
            slots,
            0,
        )

    def gather(self, x: Tensor) -> Tensor:
        self.bytes_sent += x.numel() * x.element_size()
        self._slots[self.rank] = x.detach().clone()
        self._barrier.wait()
        found = torch.stack(self._slots)
        self._barrier.wait()
        return found

    def __deepcopy__(self, memo: object) -> ThreadPeers:
        return self


def together(size: int, function: Callable[[ThreadPeers], Any]) -> list[Any]:
    """What `function(peers)` returns in each of `size` threads; an error in one of them is
    raised."""
    barrier, slots = threading.Barrier(size, timeout=60), [None] * size

    def run(rank: int) -> Any:
        try:
            return function(ThreadPeers(rank, size, barrier, slots))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        found = [pool.submit(run, rank) for rank in range(size)]
        errors = [error for each in found if (error := each.exception()) is not None]
        if errors:
            raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
        return [each.result() for each in found]
