"""Compiles the C++ kernels at first use and keeps the library in a per-user cache.

A library is found by a key (source, compiler, flags, processor) and verified by the hash of its own bytes, which its name
carries: one atomic rename publishes both, so processes that start at once, or die half-way, cannot hand a broken library on.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_FOLDER = Path(__file__).parent
_SOURCES = ("selective_scan.cpp", "short_conv.cpp", "rowwise.cpp", "gather.cpp")
_FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fno-strict-aliasing")
# From the fastest to the most widely understood: ARM compilers may want -mcpu, Apple's has no OpenMP (the source then uses threads).
_EXTRAS = tuple((*cpu, omp) for omp in ("-fopenmp", "-pthread") for cpu in (("-march=native",), ("-mcpu=native",), ()))


class CannotCompile(RuntimeError):
    """There is no library and none can be made here; the message says why."""


def cache_folder() -> Path:
    """Where compiled kernels live: $DNADIFF_CACHE, else $XDG_CACHE_HOME/dnadiff, else ~/.cache/dnadiff."""
    if chosen := os.environ.get("DNADIFF_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dnadiff"


def find_compiler() -> list[str]:
    """The C++ compiler's command: $CXX, or the first of c++, g++ and clang++ on the path.

    Raises:
        CannotCompile: if there is none.
    """
    if chosen := os.environ.get("CXX"):
        command = shlex.split(chosen)
        if not shutil.which(command[0]):
            raise CannotCompile(f"CXX={chosen} is not a program; point CXX to a C++17 compiler or unset it")
        return command
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return [path]
    raise CannotCompile("no C++ compiler: none of c++, g++ and clang++ is on the PATH and CXX is not set")


def load_library() -> ctypes.CDLL:
    """The compiled kernels, from the cache or compiled now (a second or two).

    Raises:
        CannotCompile: if there is no compiler, or it fails, or the library does not load.
    """
    compiler = find_compiler()
    folder, key = cache_folder(), _key(compiler)
    path = _cached(folder, key)
    if path is None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = _compile(compiler, folder, key)
        except OSError:  # a read-only home: good for this process alone
            path = _compile(compiler, Path(tempfile.mkdtemp(prefix="dnadiff-")), key)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CannotCompile(f"the compiled kernels do not load: {error}") from error


def _key(compiler: list[str]) -> str:
    version = _run([*compiler, "--version"]).stdout
    parts = [*compiler, version, *_FLAGS, sys.platform, _processor()]
    parts += [(_FOLDER / name).read_text() for name in ("simd.h", *_SOURCES)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Names the instruction set: a home shared by different machines holds one library for each."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.version()}"
    return "\n".join(line for line in lines if line.split(":")[0].strip() in ("model name", "flags", "Features", "CPU part"))


def _cached(folder: Path, key: str) -> Path | None:
    for path in sorted(folder.glob(f"kernels-{key}-*.so")):
        if hashlib.sha256(path.read_bytes()).hexdigest()[:16] == path.stem.rsplit("-", 1)[1]:
            return path
        path.unlink(missing_ok=True)  # cut short or changed: loading it could end the process
    return None


def _compile(compiler: list[str], folder: Path, key: str) -> Path:
    sources = [str(_FOLDER / name) for name in _SOURCES]
    with tempfile.TemporaryDirectory(dir=folder, prefix="compiling-") as temporary:
        made = Path(temporary) / "kernels.so"
        for extra in _EXTRAS:
            result = _run([*compiler, *_FLAGS, *extra, *sources, "-o", str(made)])
            if result.returncode == 0 and made.exists():
                digest = hashlib.sha256(made.read_bytes()).hexdigest()[:16]
                path = folder / f"kernels-{key}-{digest}.so"
                os.replace(made, path)
                return path
    raise CannotCompile(f"{shlex.join(compiler)} cannot compile the kernels: {_first_error(result.stderr)}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompile(f"{command[0]} does not run: {error}") from error


def _first_error(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")
