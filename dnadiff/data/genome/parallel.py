"""Packing of many files: in several processes, each file as a whole, so that a killed call loses
only the files in progress."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import dnadiff
from dnadiff.data.genome.packed import PackedFile, find_packed, pack
from dnadiff.progress import Progress

Worker: TypeAlias = "subprocess.Popen[str]"
_ERRORS = (FileNotFoundError, PermissionError, OSError)  # what a file raises, besides ValueError
# files of which a sample is read whenever they are opened; of more, sizes and time stamps are
# compared
FEW = 32


def pack_all(paths: Sequence[str], num_workers: int = 0) -> Iterator[PackedFile]:
    """The packed form of each file, in order. Files that the cache does not have are packed first,
    by up to `num_workers` processes.

    Raises:
        FileNotFoundError, ValueError, OSError: as of `pack`, for the first file in the list that
            cannot be packed.
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


def _in_processes(paths: Sequence[str], num_workers: int) -> list[Path]:
    progress = Progress(len(paths), f"packing in {num_workers} processes, files")
    workers = [_start() for _ in range(num_workers)]
    free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)

    def packed(path: str) -> Path:
        worker = free.get()
        try:
            return _ask(worker, path)
        finally:
            free.put(worker)
            progress.update()

    pool = ThreadPoolExecutor(num_workers)
    try:
        return list(pool.map(packed, paths))
    finally:
        pool.shutdown(cancel_futures=True)  # files in progress are completed
        for worker in workers:
            worker.communicate()
        progress.close()


def _start() -> Worker:
    """A process that packs the files that are named on its standard input, one a line. It ends when
    this process does, after the file in progress."""
    path = os.pathsep.join(
        [str(Path(dnadiff.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    code = f"from {__name__} import serve; serve()"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C reaches the parent alone
    )


def _ask(worker: Worker, path: str) -> Path:
    assert worker.stdin is not None and worker.stdout is not None
    try:
        worker.stdin.write(json.dumps(path) + "\n")
        worker.stdin.flush()
        reply = worker.stdout.readline()
    except OSError:
        reply = ""
    if not reply:
        raise ValueError(
            f"{path}: the process that packs it was killed; often because memory ran out: set "
            "data.num_workers lower and start again, what is packed is "
            "kept"
        )
    found = json.loads(reply)
    if "error" in found:
        raise next((kind for kind in _ERRORS if kind.__name__ == found["error"]), ValueError)(
            found["message"]
        )
    return Path(found["folder"])


def serve() -> None:
    """What a process that packs files does: reads a path, packs the file, writes the folder or the
    error."""
    for line in sys.stdin:
        try:
            reply = {"folder": str(pack(json.loads(line)).folder)}
        except (OSError, ValueError) as error:
            reply = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(reply), flush=True)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
