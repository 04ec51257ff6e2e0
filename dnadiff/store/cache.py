"""The cache folder for packed genomes and downloads, locks for processes that share it, and folders
in it that are written atomically.

`$DNADIFF_CACHE`, or `dnadiff` under `$XDG_CACHE_HOME` (`~/.cache` where that is not set).
Everything in it can be deleted at any time and is created again when needed.

An atomic folder contains files and `index.json` with the size and the checksums of each file, and a
checksum of its own. It is written under a temporary name and renamed; a lock keeps processes from
doing the work twice. Opening a folder checks sizes, time stamps and a sample of each file;
`verify` reads everything.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import stat
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path

from filelock import FileLock, Timeout

from dnadiff.progress import Progress
from dnadiff.store.address import expand_user
from dnadiff.store.disk import FULL, Json, no_space, read_json, write_error, write_json

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
    if known := known_hash(path):
        return known
    note, seen = _note_of(path)
    digest = hash_file(path)
    about = path.stat()
    if time.time() - max(about.st_mtime, about.st_ctime) > _SETTLED:
        write_json(note, seen | {"sha256": digest, "check": zlib.crc32(digest.encode())})
    return digest


def known_hash(path: Path) -> str | None:
    """`content_hash` of a file known by its size and times; None if it must be read."""
    note, seen = _note_of(path)
    with suppress(OSError, ValueError):
        known = read_json(note, ("sha256", "check"))
        digest = str(known["sha256"])
        seen["check"] = zlib.crc32(digest.encode())
        if all(known.get(key) == value for key, value in seen.items()):
            return digest
    return None


def _note_of(path: Path) -> tuple[Path, dict[str, object]]:
    """Where the hash of a file is noted, and what the file is known by."""
    path = path.resolve()
    about, name = path.stat(), hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    seen: dict[str, object] = {
        "path": str(path),
        "size": about.st_size,
        "mtime": about.st_mtime_ns,
        "ctime": about.st_ctime_ns,
        "inode": about.st_ino,
    }
    # Writing a file lists its folder.
    return cache_dir("sources") / name[:2] / f"{name}.json", seen


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
    begin, count = time.monotonic(), done
    bar: Progress | None = None

    def progress(more: int, **notes: str) -> None:
        nonlocal bar, count
        before, count = count // 1_000_000, count + more
        if bar is None and time.monotonic() - begin >= _PATIENCE:
            bar = Progress(-(-total // 1_000_000), f"{label}, MB", before)
        if bar is not None:
            bar.update(count // 1_000_000 - before, 0, **notes)

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
def locked(path: Path, waiting: str = "", wait: float = -1) -> Iterator[bool | None]:
    """Hold an exclusive lock between processes; the system releases it even if the holder is
    killed.

    Yields True if the lock is held, False if another process holds it (only with `wait`), and
    None on a file system without locks: several processes may then do the same work, under names
    from `unique`, and a rename decides.

    Args:
        path: a file next to the protected one; the holder may remove it.
        waiting: message to log when another process holds the lock.
        wait: seconds until False is yielded; -1 waits until the lock is free.
    """
    lock = FileLock(path, fallback_to_soft=False)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if waiting:
                log.info(waiting)
            lock.acquire(timeout=wait)
    except Timeout:
        yield False
        return
    except (OSError, NotImplementedError):
        yield None
        return
    try:
        yield True
    finally:
        lock.release()


CHUNK = 1 << 20  # bytes with a checksum of their own
# chunks that are checked whenever a file is opened: the first, the last, and others at equal
# distances
SAMPLED = 8
_ABANDONED = 86_400  # seconds


Fill = Callable[[Path], dict[str, Json]]


def ensure_folder(
    folder: Path,
    version: int,
    fill: Fill,
    what: str,
    need: str,
    doing: str = "packing",
    done: str = "packed",
    sample: bool = True,
) -> None:
    """Create `folder` with the files that `fill` writes, unless it exists and is complete.

    Args:
        folder: its path in the cache; the name is a hash of everything that decides its contents.
        version: of the format; a folder of another version is written again.
        fill: writes files into an empty folder; returns the content of the index.
        what, doing, done: name of the data, the work and its result, for messages.
        need: the disk space it takes, for the message when the disk is full.
        sample: as of `is_sound`.

    Raises:
        OSError: if the disk is full; nothing is left in the cache.
    """
    if is_sound(folder, version, sample):
        return
    lock = folder.with_name(f"{folder.name}.lock")
    # Then no process was killed while it wrote the folder; looking for what is left lists all
    # folders.
    is_new = not lock.exists()
    with locked(lock, f"{what}: another process is {doing} it; waiting") as held:
        if is_sound(folder, version, sample):
            return
        if folder.exists():
            log.info(
                f"{what}: its {done} form was changed, is incomplete, or of another version; "
                f"{doing} it again"
            )
        for left in folder.parent.glob(f".{folder.name}.*") if held and not is_new else ():
            # The lock excludes processes on this machine, but perhaps not on others.
            with suppress(OSError):
                of_this_machine = left.name.startswith(f".{folder.name}.{HOST}.")
                if of_this_machine or time.time() - left.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(left, ignore_errors=True)
        part = unique(folder)
        try:
            part.mkdir()
            about = fill(part)
            files = {}
            for path in sorted(part.iterdir()):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                stat = path.stat()
                known = {"size": stat.st_size, "mtime": stat.st_mtime_ns}
                files[path.name] = known | checksums(path)
            index = {"format": version, "files": files, **about}
            write_json(part / "index.json", index | {"check": _check_of_index(index)})
            put(part, folder, version)
        except OSError as error:
            if error.errno in FULL:
                shutil.rmtree(part, ignore_errors=True)  # before the free space is measured
                raise OSError(
                    f"{need} in {folder.parent}, and {no_space(error, folder)}; free some space or "
                    "set DNADIFF_CACHE to another disk"
                ) from error
            if error.filename is None:  # of a write to an open file
                raise write_error(error, folder) from error
            raise
        finally:
            shutil.rmtree(part, ignore_errors=True)


def read_index(folder: Path, version: int) -> dict[str, Json]:
    """The content of the index.

    Raises:
        ValueError: if the index was changed or belongs to another version.
    """
    index = read_json(folder / "index.json", ("format", "check"))
    if index["format"] != version or index.pop("check") != _check_of_index(index):
        raise ValueError("changed")
    return index


def is_sound(folder: Path, version: int, sample: bool = True) -> bool:
    """Whether the folder is complete and unchanged.

    A file is read completely if its time stamp differs or it has at most 8 MiB, else the first, the
    last and six other MiB of it. Without `sample` only sizes and time stamps are compared.
    """
    try:
        index = read_index(folder, version)
        for name, written in index["files"].items():
            path, chunks = folder / name, written["chunks"]
            stat, last = path.stat(), len(chunks) - 1
            if stat.st_size != written["size"]:
                return False
            if stat.st_mtime_ns != written["mtime"]:
                with megabytes(stat.st_size, f"checking {folder.name}") as progress:
                    if checksums(path, progress)["crc"] != written["crc"]:
                        return False
                os.utime(path, ns=(written["mtime"], written["mtime"]))  # copied, but the same
            elif sample and chunks:
                with path.open("rb", buffering=0) as file:
                    for number in {round(i * last / (SAMPLED - 1)) for i in range(SAMPLED)}:
                        file.seek(number * CHUNK)
                        if zlib.crc32(file.read(CHUNK)) != chunks[number]:
                            return False
        return bool(index["files"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def verify(folder: Path, version: int) -> int:
    """Read every byte of a folder and return their number.

    Raises:
        ValueError: naming the file and the place, if a byte was changed.
    """
    total = 0
    try:
        for name, written in read_index(folder, version)["files"].items():
            with megabytes(written["size"], f"checking {folder.name}/{name}") as progress:
                found = checksums(folder / name, progress)
            for number, (one, other) in enumerate(zip_longest(found["chunks"], written["chunks"])):
                if one != other:
                    raise ValueError(
                        f"{name} was changed between bytes {number * CHUNK:,} and "
                        f"{(number + 1) * CHUNK:,}"
                    )
            total += written["size"]
        return total
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder} is damaged ({error}): remove this folder; it will be recreated when it is "
            "used"
        ) from error


def put(part: Path, folder: Path, version: int) -> None:
    """Rename `part` to `folder`, replacing a damaged folder; a folder that another process without
    a lock has just completed stays."""
    while True:
        try:
            part.rename(folder)
            return
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        if is_sound(folder, version):
            return
        aside = unique(folder)
        with suppress(FileNotFoundError):  # another process has moved it
            folder.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)


def _check_of_index(index: dict[str, Json]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()[:16]


def checksums(path: Path, progress: Callable[[int], None] = lambda count: None) -> dict[str, Json]:
    """CRC-32 of a file and of each megabyte of it; `progress` is called with the number of bytes
    read."""
    whole, chunks = 0, []
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            whole = zlib.crc32(block, whole)
            chunks.append(zlib.crc32(block))
            progress(len(block))
    return {"crc": whole, "chunks": chunks}
