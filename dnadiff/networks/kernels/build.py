"""Compiles the C++ kernels at first use and keeps the library in a per-user cache.

A library is found by two keys (source, flags and processor; compiler) and verified by the hash of
its own bytes, which is part of its name. One atomic rename publishes both, so processes that start
at the same time, or are killed, cannot leave a broken library. Loading a library executes code, so
only folders and files that no other user, except root, can write are trusted.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = Path(__file__).parent
_SOURCES = (
    "selective_scan.cpp",
    "short_conv.cpp",
    "rowwise.cpp",
    "products.cpp",
    "mixer.cpp",
    "stream_scan.cpp",
    "gather.cpp",
)
_HEADERS = ("simd.h", "products.h", "scan_tiles.h", "short_conv.h")
# The kernels are vectorized and unrolled by hand: -O3 takes a third longer to compile (1.0 instead
# of 0.7 s) and gains 2 to 3 %.
_FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fno-strict-aliasing",
)
# From the fastest to the most portable: some ARM compilers need -mcpu, Apple's has no OpenMP (the
# source then uses threads).
_EXTRAS = tuple(
    (*cpu, omp)
    for omp in ("-fopenmp", "-pthread")
    for cpu in (("-march=native",), ("-mcpu=native",), ())
)
_ABANDONED = 3600  # seconds after which a build folder is assumed to belong to a killed process

_log = logging.getLogger("dnadiff")


class CannotCompile(RuntimeError):
    """There is no library and it cannot be compiled; the message gives the reason."""


def cache_folder() -> Path:
    """The folder of compiled kernels: `kernels` in $DNADIFF_CACHE, else in $XDG_CACHE_HOME/dnadiff,
    else in ~/.cache/dnadiff."""
    if chosen := os.environ.get("DNADIFF_CACHE"):
        return Path(chosen).expanduser() / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dnadiff" / "kernels"


def find_compiler() -> list[str]:
    """The C++ compiler's command: $CXX, or the first of c++, g++ and clang++ on the path;
    CannotCompile if there is none."""
    if chosen := os.environ.get("CXX"):
        command = shlex.split(chosen)
        if not shutil.which(command[0]):
            raise CannotCompile(
                f"CXX={chosen} is not a program; point CXX to a C++17 compiler or unset it"
            )
        return command
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return [path]
    raise CannotCompile(
        "no C++ compiler: none of c++, g++ and clang++ is on the PATH and CXX is not set"
    )


def load_library() -> ctypes.CDLL:
    """The compiled kernels, from the cache or compiled now (1.5 s on two idle cores); CannotCompile
    if that fails.

    Without a compiler, a cached library of any compiler is used if sources and processor are the
    same.
    """
    folder, key = _private_folder(), _key()
    try:
        compiler = find_compiler()
    except CannotCompile:
        if path := _cached(folder, f"kernels-{key}-*.so"):
            return _load(path)
        raise
    version = _run([*compiler, "--version"]).stdout
    name = f"kernels-{key}-{_short_hash(*compiler, version)}"
    if path := _cached(folder, f"{name}-*.so"):
        return _load(path)
    with _build_folder(folder) as work:
        made = _compile(compiler, work)
        if folder is not None:
            with suppress(
                OSError
            ):  # a read-only folder or a full disk: use it in this process only
                made = made.rename(folder / f"{name}-{_digest(made)}.so")
        return _load(made)


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CannotCompile(f"the compiled kernels do not load: {error}") from error


def _private_folder() -> Path | None:
    """The cache folder, created if necessary; None, with a warning, if that fails or another user
    but root could write to it."""
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        reason = _writable_by_others(folder)
    except (OSError, RuntimeError) as error:  # a read-only or a missing home
        reason = str(error)
    if not reason:
        return folder
    _log.warning("the C++ kernels are compiled for this process alone: %s", reason)
    return None


def _writable_by_others(path: Path) -> str:
    """Why another user than root could have written to a path; an empty string if none could."""
    status = path.stat()
    if status.st_uid not in (
        0,
        os.getuid(),
    ):  # root: a container's image holds kernels for the user who starts it
        return f"{path} belongs to user {status.st_uid}"
    return (
        f"{path} can be written by others; chmod go-w changes that"
        if status.st_mode & 0o022
        else ""
    )


@contextmanager
def _build_folder(folder: Path | None) -> Iterator[Path]:
    """A temporary folder to compile in: inside `folder` if that can be written, so that one rename
    publishes the result."""
    for left in folder.glob("compiling-*") if folder else ():
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED:
                shutil.rmtree(left)
    try:
        work = tempfile.TemporaryDirectory(
            dir=folder, prefix="compiling-", ignore_cleanup_errors=True
        )
    except OSError:
        try:
            work = tempfile.TemporaryDirectory(prefix="compiling-", ignore_cleanup_errors=True)
        except OSError as error:
            raise CannotCompile(
                f"no temporary folder can be created to compile in: {error}"
            ) from error
    with work as path:
        yield Path(path)


def _key() -> str:
    sources = [(_FOLDER / name).read_text() for name in (*_HEADERS, *_SOURCES)]
    return _short_hash(*_FLAGS, repr(_EXTRAS), sys.platform, _processor(), *sources)


def _short_hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _processor() -> str:
    """Identifies the instruction set: a home directory shared by different machines holds one
    library for each."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.version()}"
    return "\n".join(
        line
        for line in lines
        if line.split(":")[0].strip() in ("model name", "flags", "Features", "CPU part")
    )


def _cached(folder: Path | None, pattern: str) -> Path | None:
    for path in sorted(folder.glob(pattern)) if folder else ():
        with suppress(OSError):  # another process removed it, or this one has no permission
            if not _writable_by_others(path) and _digest(path) == path.stem.rsplit("-", 1)[1]:
                return path
            path.unlink()  # truncated or changed: loading it could crash the process
    return None


def _compile(compiler: list[str], work: Path) -> Path:
    """The library, built in the folder `work`: one process per source, then the linker."""
    objects, made, message = (
        [work / f"{name}.o" for name in _SOURCES],
        work / "kernels.so",
        "no message",
    )
    for extra in _EXTRAS:
        command = [*compiler, *_FLAGS, *extra, f'-DDNADIFF_FLAGS="{_short_hash(*_FLAGS, *extra)}"']
        with ThreadPoolExecutor(len(objects)) as pool:
            sources = [
                [*command, "-c", str(_FOLDER / name), "-o", str(to)]
                for name, to in zip(_SOURCES, objects, strict=True)
            ]
            results = [*pool.map(_run, sources)]
        failed = next((result for result in results if result.returncode), None)
        if failed is None:
            failed = _run([*command, "-shared", *map(str, objects), "-o", str(made)])
            if failed.returncode == 0 and made.exists():
                made.chmod(0o700)  # with a umask that lets the group write it would not be trusted
                return made
        message = _first_error(failed.stderr)
    raise CannotCompile(f"{shlex.join(compiler)} cannot compile the kernels: {message}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=120
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompile(f"{command[0]} does not run: {error}") from error


def _first_error(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")
