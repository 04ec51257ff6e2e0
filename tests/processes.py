"""New Python processes without the seconds that importing PyTorch and Lightning takes.

They are forked from a copy of the test process that was made before the first test: it has imported
what the tests import and computed nothing. On systems other than Linux, and with a CUDA device,
which cannot be used after a fork, they are started as usual.
"""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import torch


class Forked:
    """What `subprocess.Popen` offers, for a process that the copy has forked: its number and,
    later, its status come from a pipe."""

    def __init__(self, status: IO[bytes]) -> None:
        self._status, self.returncode = status, None
        self.pid = int(status.readline())

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = int(self._status.readline())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.poll()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


class Process:
    """A running process with its `output` and `errors` so far."""

    def __init__(self, handle: Forked | subprocess.Popen, printed: tuple[Path, Path]) -> None:
        self._handle, self._printed = handle, printed
        self.send_signal, self.poll = handle.send_signal, handle.poll

    @property
    def output(self) -> str:
        return self._printed[0].read_text()

    @property
    def errors(self) -> str:
        return self._printed[1].read_text()

    def wait(self, timeout: float = 300) -> int:
        """The exit status."""
        return self._handle.wait(timeout)


class Starter:
    """Starts processes: `start("-m", "dnadiff.sample", ..., cwd=folder)`, `start("-c", code)` or
    `start(script, ...)`.

    What they print goes to files in `folder`.
    """

    folder: Path

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        if sys.platform == "linux" and not torch.cuda.is_available():
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sys.stdout.flush(), sys.stderr.flush()
            self._copy = os.fork()
            if not self._copy:
                _serve(theirs)
            theirs.close()

    def start(
        self,
        *command: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        fork: bool = True,
    ) -> Process:
        """Start `python COMMAND` with one thread for each OpenMP region. `torch.compile` fails in a
        forked process: `fork=False`."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        printed, words = (folder / "output", folder / "errors"), [str(word) for word in command]
        env = {
            **(os.environ if env is None else env),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }
        with printed[0].open("wb") as output, printed[1].open("wb") as errors:
            if self._socket is None or not fork:
                handle = subprocess.Popen(
                    [sys.executable, *words], cwd=cwd, env=env, stdout=output, stderr=errors
                )
                return Process(handle, printed)
            reader, writer = os.pipe()
            request = {"command": words, "cwd": str(cwd or Path.cwd()), "env": env}
            socket.send_fds(
                self._socket,
                [json.dumps(request).encode()],
                [writer, output.fileno(), errors.fileno()],
            )
            os.close(writer)
        return Process(Forked(os.fdopen(reader, "rb", buffering=0)), printed)

    def close(self) -> None:
        """End the copy."""
        if self._socket is not None:
            self._socket.close()
            os.waitpid(self._copy, 0)


def _serve(requests: socket.socket) -> None:
    """Fork for each request, until the test process closes its end; never returns."""
    try:
        _detach(requests.fileno())
        while True:
            request, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not request:
                break
            if not os.fork():
                requests.close()
                _watch(SimpleNamespace(**json.loads(request)), *files)
                break
            for file in files:
                os.close(file)
    finally:
        os._exit(0)


def _detach(kept: int) -> None:
    """Let go of the files and pipes of the test runner, which waits until nobody holds them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/dev/fd"):
        if int(name) not in (kept, nothing):
            os.dup2(nothing, int(name))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    gc.freeze()


def _watch(request: SimpleNamespace, status: int, output: int, errors: int) -> None:
    """Run the command in another process and report its number and its exit status."""
    process = multiprocessing.get_context("fork").Process(
        target=_run, args=(request, output, errors)
    )
    process.start()
    os.write(status, b"%d\n" % process.pid)
    process.join()
    os.write(status, b"%d\n" % process.exitcode)


def _run(request: SimpleNamespace, output: int, errors: int) -> None:
    """As the interpreter runs a command line."""
    os.dup2(output, 1), os.dup2(errors, 2)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    for name in (
        None,
        *logging.root.manager.loggerDict,
    ):  # Lightning logs to the stream that it found when it was imported
        for handler in logging.getLogger(name).handlers:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(sys.stderr)
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.cwd)
    first, *others = request.command
    scope: dict[str, Any] = {"__name__": "__main__"}
    if first == "-m":
        sys.argv, sys.path[:0] = others, [request.cwd]
        sys.modules.pop(others[0], None)
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *others[1:]]
        exec(others[0], scope)
    else:
        sys.argv, sys.path[:0] = [first, *others], [str(Path(first).parent)]
        runpy.run_path(first, run_name="__main__")
