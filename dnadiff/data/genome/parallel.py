"""Packing of many files: in several processes, each file as a whole, so that a killed call loses only the files in progress."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from dnadiff.data.genome.packed import PackedFile, find_packed, pack
from dnadiff.progress import Progress

FEW = 32  # files of which a sample is read whenever they are opened; of more, sizes and time stamps are compared


def pack_all(paths: Sequence[str], num_workers: int = 0) -> Iterator[PackedFile]:
    """The packed form of each file, in order. Files that the cache does not have are packed first, by up to `num_workers` processes.

    Raises:
        FileNotFoundError, ValueError, OSError: as of `pack`, for the first file in the list that cannot be packed.
    """
    sample = len(paths) <= FEW
    folders = [find_packed(path, sample) for path in paths]
    missing = [path for path, folder in zip(paths, folders) if folder is None]
    workers = min(num_workers, len(missing), _num_cores())
    made = _in_order(missing) if workers < 2 else iter(_in_processes(missing, workers))
    yield from (PackedFile(next(made) if folder is None else folder) for folder in folders)


def _in_order(paths: Sequence[str]) -> Iterator[Path]:
    progress = Progress(len(paths), "packing, files") if len(paths) > FEW else None
    for path in paths:
        yield pack(path).folder
        if progress is not None:
            progress.update()
    if progress is not None:
        progress.close()


def _in_processes(paths: Sequence[str], workers: int) -> list[Path]:
    progress = Progress(len(paths), f"packing in {workers} processes, files")
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _prepare, (os.getpid(),))  # fork is not safe next to threads
    try:
        folders = []
        for folder in pool.map(_pack, paths):
            folders.append(folder)
            progress.update()
        return folders
    except BrokenProcessPool as error:
        raise ValueError(
            "a process that packs genomes was killed; often memory was short: set data.num_workers lower and start again, what is packed is kept"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
        progress.close()


def _pack(path: str) -> Path:
    return pack(path).folder


def _prepare(parent: int) -> None:
    """Called in each process: Ctrl-C reaches the parent alone, which shows the progress, and the process ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
