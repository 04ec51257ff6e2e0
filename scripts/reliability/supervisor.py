"""Runs a function in a child process whose file changes are decided one by one.

A seccomp filter in the child reports every system call that changes a file: opening for writing,
write, truncate, fsync, rename, unlink, mkdir, link, and mapping a file for shared writing. The
supervisor resolves the path, counts the calls under the watched folders, and lets each one pass,
kills the whole process group before it is executed, or makes it fail with an errno. Threads and
child processes (data loader workers, compilers) inherit the filter, and writes of C++ libraries are
seen too. No privilege is needed.

Writes through a mapping are not system calls and cannot be counted; the package maps files for
reading only.

Fork from a process that has imported but computed nothing: threads of OpenMP do not survive a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# System call numbers of x86-64 and 64-bit ARM, which has only the newer calls:
# include/uapi/asm-generic/unistd.h.
_NUMBERS = {
    "x86_64": {
        **{
            "write": 1,
            "open": 2,
            "mmap": 9,
            "pwrite64": 18,
            "writev": 20,
            "sendfile": 40,
            "fsync": 74,
            "fdatasync": 75,
            "truncate": 76,
        },
        **{
            "ftruncate": 77,
            "rename": 82,
            "mkdir": 83,
            "rmdir": 84,
            "creat": 85,
            "link": 86,
            "unlink": 87,
            "symlink": 88,
            "openat": 257,
        },
        **{
            "mkdirat": 258,
            "unlinkat": 263,
            "renameat": 264,
            "linkat": 265,
            "symlinkat": 266,
            "fallocate": 285,
            "pwritev": 296,
        },
        **{"renameat2": 316, "copy_file_range": 326, "pwritev2": 328, "openat2": 437},
    },
    "aarch64": {
        **{
            "mkdirat": 34,
            "unlinkat": 35,
            "symlinkat": 36,
            "linkat": 37,
            "renameat": 38,
            "truncate": 45,
            "ftruncate": 46,
            "fallocate": 47,
        },
        **{
            "openat": 56,
            "write": 64,
            "writev": 66,
            "pwrite64": 68,
            "pwritev": 70,
            "sendfile": 71,
            "fsync": 82,
            "fdatasync": 83,
        },
        **{"mmap": 222, "renameat2": 276, "copy_file_range": 285, "pwritev2": 287, "openat2": 437},
    },
}
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
# Where the arguments of a call name files: a number is a descriptor, a pair a descriptor of a
# folder (None: the current one) and a path.
_BY_HANDLE = {
    **dict.fromkeys(
        (
            "write",
            "pwrite64",
            "writev",
            "pwritev",
            "pwritev2",
            "ftruncate",
            "fallocate",
            "fsync",
            "fdatasync",
            "sendfile",
        ),
        0,
    ),
    **{"copy_file_range": 2, "mmap": 4},
}
_BY_PATH: dict[str, tuple[tuple[int | None, int], ...]] = {
    **dict.fromkeys(("open", "creat", "truncate", "mkdir", "rmdir", "unlink"), ((None, 0),)),
    **dict.fromkeys(("openat", "openat2", "mkdirat", "unlinkat"), ((0, 1),)),
    **dict.fromkeys(("rename", "link"), ((None, 0), (None, 1))),
    **dict.fromkeys(("renameat", "renameat2", "linkat"), ((0, 1), (2, 3))),
    **{"symlink": ((None, 1),), "symlinkat": ((1, 2),)},
}
RENAMES = ("rename", "renameat", "renameat2")
REMOVALS = ("unlink", "unlinkat", "rmdir")
_OPEN_FLAGS = {"open": 1, "openat": 2}  # the argument with the flags
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06  # classic BPF
_NOTIFY, _ALLOW = 0x7FC00000, 0x7FFF0000
_NO_NEW_PRIVILEGES, _SET_FILTER, _NEW_LISTENER, _ONLY_KILLABLE = 38, 1, 1 << 3, 1 << 5
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_NOTIFICATION = struct.Struct(
    "=QII iIQ 6Q"
)  # id, thread, flags; number, architecture, instruction, arguments

PASS, KILL = 0, -1


@dataclass(frozen=True)
class Call:
    """A system call that is about to change a watched file.

    Args:
        number: of the call, counted from 1 among those under the watched folders.
        name: of the system call.
        paths: the file, or the old and the new name.
        thread: which makes the call.
        creates: whether it needs space on the disk.
    """

    number: int
    name: str
    paths: tuple[Path, ...]
    thread: int
    creates: bool

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.paths))})"


Decision = Callable[[Call], int]  # PASS, KILL, or an errno


@dataclass
class Outcome:
    """How a child process ended.

    Args:
        status: exit status; negative for the signal that ended it.
        calls: under the watched folders, the killed one included.
        output, errors: what it printed.
        timed_out: whether it was killed because it took too long.
    """

    status: int
    calls: list[Call] = field(default_factory=list)
    output: str = ""
    errors: str = ""
    seconds: float = 0.0
    timed_out: bool = False


def unavailable() -> str:
    """Why processes cannot be supervised here; empty if they can."""
    if not sys.platform.startswith("linux") or platform.machine() not in _NUMBERS:
        return (
            "system calls are intercepted on Linux with x86-64 or ARM processors only, this is "
            f"{sys.platform} {platform.machine()}"
        )
    receiver, sender = socket.socketpair()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            socket.send_fds(sender, [b"x"], [_install()])
            os._exit(0)
        os._exit(1)
    failed = os.waitpid(child, 0)[1]
    receiver.close(), sender.close()
    return (
        "this kernel or container does not allow seccomp filters with a listener" if failed else ""
    )


def supervise(
    work: Callable[[], int],
    folders: Sequence[Path],
    decide: Decision = lambda call: PASS,
    timeout: float = 120.0,
) -> Outcome:
    """Run `work` in a child process and let `decide` answer each change of a file in `folders`;
    returns when all its processes ended."""
    started, roots = time.monotonic(), [os.path.realpath(f) for f in folders]
    receiver, sender = socket.socketpair()
    printed = [_pipe(), _pipe()]
    sys.stdout.flush(), sys.stderr.flush()
    child = os.fork()
    if not child:
        receiver.close()
        _child(work, sender, [writer for _, writer in printed])
    sender.close()
    for _, writer in printed:
        os.close(writer)
    _, handles, _, _ = socket.recv_fds(receiver, 1, 1)
    receiver.close()
    if not handles:
        os.waitpid(child, 0)
        raise OSError(f"the child process could not install its filter: {_drain(printed[1][0])}")
    outcome = Outcome(0)
    listener, process = handles[0], os.pidfd_open(child)
    try:
        _serve(listener, process, child, roots, decide, outcome, started + timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.close(listener), os.close(process)
        outcome.status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    outcome.seconds = time.monotonic() - started
    outcome.output, outcome.errors = (_drain(reader) for reader, _ in printed)
    return outcome


def _pipe() -> tuple[int, int]:
    """A pipe for what a child prints: limits on the size of files do not apply to it, and a
    megabyte fits in."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.set_blocking(reader, False)
    return reader, writer


def _drain(reader: int) -> str:
    with open(reader, "rb") as file:
        return (file.read() or b"").decode(errors="replace")


def _serve(
    listener: int,
    process: int,
    child: int,
    roots: list[str],
    decide: Decision,
    outcome: Outcome,
    end: float,
) -> None:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(process, select.POLLIN)
    while True:
        events = dict(poll.poll(max(0.0, end - time.monotonic()) * 1000))
        if not events:
            outcome.timed_out = True
            os.killpg(child, signal.SIGKILL)
            return
        if events.get(listener, 0) & select.POLLIN:
            if not _answer(listener, roots, decide, outcome):
                os.killpg(child, signal.SIGKILL)
                _wait_for_end(listener)
                return
        elif events.get(listener, 0) & select.POLLHUP:  # no process with the filter is left
            return
        elif process in events:  # its workers may still end
            poll.unregister(process)
            end = min(end, time.monotonic() + 10)


def _wait_for_end(listener: int) -> None:
    """Wait until every process with the filter has ended, at most 5 seconds."""
    poll = select.poll()
    poll.register(listener, 0)
    poll.poll(5000)


def _answer(listener: int, roots: list[str], decide: Decision, outcome: Outcome) -> bool:
    """Answer one call; False if the processes are to be killed."""
    request = bytearray(_NOTIFICATION.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, request, True)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):  # its thread has ended
            return True
        raise
    number, thread, _, call, _, _, *arguments = _NOTIFICATION.unpack(request)
    name = next(name for name, n in _NUMBERS[platform.machine()].items() if n == call)
    answer = PASS
    with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
        paths = _paths(name, thread, arguments)
        if any(_within(path, roots) for path in paths):
            creates = name in _BY_HANDLE or name.startswith(("mkdir", "link", "symlink", "creat"))
            if name in _OPEN_FLAGS:
                creates = bool(arguments[_OPEN_FLAGS[name]] & os.O_CREAT) and not os.path.lexists(
                    paths[0]
                )
            found = Call(len(outcome.calls) + 1, name, tuple(map(Path, paths)), thread, creates)
            outcome.calls.append(found)
            answer = decide(found)
    if answer == KILL:
        return False
    reply = struct.pack("=QqiI", number, 0, -answer, 0 if answer else _CONTINUE)
    with contextlib.suppress(FileNotFoundError):  # its thread has ended
        fcntl.ioctl(listener, _SEND, reply)
    return True


def _within(path: str, roots: list[str]) -> bool:
    return any(path == root or path.startswith(root + "/") for root in roots)


def _paths(name: str, thread: int, arguments: list[int]) -> list[str]:
    if name in _BY_HANDLE:
        return [os.readlink(f"/proc/{thread}/fd/{arguments[_BY_HANDLE[name]] & 0xFFFFFFFF}")]
    found = []
    for folder, at in _BY_PATH[name]:
        number = -100 if folder is None else ctypes.c_int32(arguments[folder] & 0xFFFFFFFF).value
        start = os.readlink(
            f"/proc/{thread}/cwd" if number == -100 else f"/proc/{thread}/fd/{number}"
        )
        path = os.path.normpath(os.path.join(start, _string(thread, arguments[at])))
        found.append(os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)))
    return found


def _string(thread: int, address: int) -> str:
    found = b""
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        while b"\0" not in found and len(found) < 8192:
            found += memory.read(
                4096 - (address + len(found)) % 4096
            )  # up to the end of a page: the next may not exist
    return os.fsdecode(found.partition(b"\0")[0])


def _child(work: Callable[[], int], sender: socket.socket, printed: Sequence[int]) -> None:
    """Never returns."""
    status = 70
    try:
        os.setsid()
        for handle, writer in enumerate(printed, start=1):
            os.dup2(writer, handle)
        listener = _install()
        socket.send_fds(sender, [b"x"], [listener])
        os.close(listener)
        sender.close()
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)


def _install() -> int:
    """Install the filter in this process; returns the descriptor on which calls are reported."""
    machine = platform.machine()
    program = _program(_NUMBERS[machine], _ARCHITECTURE[machine])
    buffer = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    about = Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    for flags in (
        _NEW_LISTENER | _ONLY_KILLABLE,
        _NEW_LISTENER,
    ):  # signals wait for the end of a reported call (Linux 5.19)
        found = libc.syscall(_SECCOMP[machine], _SET_FILTER, flags, ctypes.byref(about))
        if found >= 0:
            return found
    raise OSError(ctypes.get_errno(), "seccomp")


def _program(numbers: dict[str, int], architecture: int) -> bytes:
    """A filter that reports the calls in `numbers`; those that open a file for reading or print are
    allowed at once."""

    def code(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", operation, if_true, if_false, value)

    def argument(index: int) -> bytes:
        return code(_LOAD, 16 + 8 * index)

    notify, allow = code(_RETURN, _NOTIFY), code(_RETURN, _ALLOW)
    found = code(_LOAD, 4) + code(_EQUAL, architecture, 1, 0) + allow + code(_LOAD, 0)
    for name, number in numbers.items():
        body = notify
        if name in _OPEN_FLAGS:
            body = argument(_OPEN_FLAGS[name]) + code(_ANY_BIT, _CHANGES, 0, 1) + notify + allow
        elif name == "write":  # not to the terminal
            body = argument(0) + code(_GREATER, 2, 0, 1) + notify + allow
        elif name == "mmap":  # shared and writable
            body = (
                argument(2)
                + code(_ANY_BIT, 2, 0, 3)
                + argument(3)
                + code(_ANY_BIT, 1, 0, 1)
                + notify
                + allow
            )
        found += code(_EQUAL, number, 0, len(body) // 8) + body
    return found + allow
