"""The cache folder for packed genomes and downloads, and locks for processes that share it.

`$DNADIFF_CACHE`, or `dnadiff` under `$XDG_CACHE_HOME` (`~/.cache` where that is not set).
Everything in it can be deleted at any time and is created again when needed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import stat
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from dnadiff.checks import expand_user
from dnadiff.progress import Progress
from dnadiff.store.disk import read_json, write_json

log = logging.getLogger("dnadiff")

HOST = re.sub(r"\W", "", platform.node())
_BLOCK = 1 << 22
_PATIENCE = 2.0  # seconds before a progress bar is shown
# seconds: a file changed more recently might change again within the resolution of its time stamp
_SETTLED = 2.0


def cache_dir(name: str) -> Path:
    """The folder `name` of the cache, made if need be; a folder for temporary files where the cache
    cannot be written.

    Raises:
        OSError: if `$DNADIFF_CACHE` is set and cannot be written, or the folder for temporary files
            is not this user's alone.
    """
    chosen = os.environ.get("DNADIFF_CACHE")
    base = (
        Path(chosen)
        if chosen
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dnadiff"
    )
    folder = expand_user(base) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
        raise PermissionError(f"{folder} cannot be written")
    except OSError as error:
        if chosen:
            raise OSError(
                f"the cache folder {base} cannot be used ({error}); set DNADIFF_CACHE to a folder "
                "you may write"
            ) from error
        instead = _own(Path(tempfile.gettempdir()) / f"dnadiff-{os.getuid()}") / name
        log.info(
            f"the cache folder {base} cannot be written; using {instead} (DNADIFF_CACHE sets "
            "another)"
        )
        instead.mkdir(exist_ok=True)
        return instead


def _own(folder: Path) -> Path:
    """A private folder inside a folder that all users may write to, created if needed; files of
    other users are never read.

    Raises:
        OSError: if it is a link, or not a folder that its owner, this user, alone may write to.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise OSError(
            f"{folder} is a link, or a folder that others may write to; remove it, or set "
            "DNADIFF_CACHE to a folder of your own"
        )
    folder.chmod(0o700)
    return folder


def content_hash(path: Path) -> str:
    """SHA-256 of a file's bytes; a file known by its size and times is not read again."""
    path = path.resolve()
    about = path.stat()
    if known := known_hash(path):
        return known
    note, seen = _note_of(path, about)
    digest = hash_file(path)
    if time.time() - max(about.st_mtime, about.st_ctime) > _SETTLED:
        write_json(note, seen | {"sha256": digest, "check": _check_of(digest)})
    return digest


def known_hash(path: Path) -> str | None:
    """`content_hash` of a file known by its size and times; None if it must be read."""
    path = path.resolve()
    note, seen = _note_of(path, path.stat())
    with suppress(OSError, ValueError):
        known = read_json(note)
        if {key: known.get(key) for key in seen} == seen and known.get("check") == _check_of(
            digest := str(known.get("sha256"))
        ):
            return digest
    return None


def _note_of(path: Path, about: os.stat_result) -> tuple[Path, dict[str, object]]:
    """Where the hash of a file is noted, and what the file is known by."""
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    note = cache_dir("sources") / name[:2] / f"{name}.json"  # writing a file lists its folder
    seen: dict[str, object] = {
        "path": str(path),
        "size": about.st_size,
        "mtime": about.st_mtime_ns,
        "ctime": about.st_ctime_ns,
        "inode": about.st_ino,
    }
    return note, seen


def _check_of(digest: str) -> int:
    return zlib.crc32(digest.encode())


def hash_file(path: Path, algorithm: str = "sha256") -> str:
    """Hexadecimal digest of a file, with a progress bar for a large one."""
    digest = hashlib.new(algorithm)
    with (
        path.open("rb") as file,
        megabytes(path.stat().st_size, f"reading {path.name}") as progress,
    ):
        while block := file.read(_BLOCK):
            digest.update(block)
            progress(len(block))
    return digest.hexdigest()


@contextmanager
def megabytes(total: int, label: str, done: int = 0) -> Iterator[Callable[..., None]]:
    """A progress bar in megabytes: calls `progress(bytes, **notes)`. Nothing is shown in the first
    two seconds."""
    begin, pending = time.monotonic(), 0
    bar: Progress | None = None

    def progress(count: int, **notes: str) -> None:
        nonlocal bar, pending
        pending += count
        if bar is None:
            if time.monotonic() - begin < _PATIENCE:
                return
            bar = Progress(-(-total // 1_000_000), f"{label}, MB", done // 1_000_000)
        bar.update(pending // 1_000_000, 0, **notes)
        pending %= 1_000_000

    try:
        yield progress
    finally:
        if bar is not None:
            bar.close()


def unique(path: Path) -> Path:
    """A name next to `path` that no other process uses, on this machine or another that shares the
    disk."""
    return path.with_name(f".{path.name}.{HOST}.{uuid.uuid4().hex}")


@contextmanager
def locked(path: Path, waiting: str = "", wait: bool = True) -> Iterator[bool | None]:
    """Hold an exclusive lock between processes; the system releases it even if the holder is
    killed.

    Yields True if the lock is held, False if another process holds it (only without `wait`), and
    None on a file system without locks: several processes may then do the same work, under names
    from `unique`, and a rename decides.

    Args:
        path: a file next to the protected one; the holder may remove it.
        waiting: message to log when another process holds the lock.
        wait: wait until the lock is free; False returns at once.
    """
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if not wait:
            yield False
            return
        if waiting:
            log.info(waiting)
        lock.acquire()
    except (OSError, NotImplementedError):
        yield None
        return
    try:
        yield True
    finally:
        lock.release()
