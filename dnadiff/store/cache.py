"""The cache folder for packed genomes and downloads, locks for processes that share it, and folders
in it that are written atomically.

`$DNADIFF_CACHE`, or `dnadiff` under `$XDG_CACHE_HOME` (`~/.cache` where that is not set).
Everything in it can be deleted at any time and is created again when needed.

An atomic folder contains files and `index.json` with the size and the checksums of each file, and a
checksum of its own. It is written under a temporary name and renamed; a lock keeps processes from
doing the work twice. Opening a folder checks sizes, time stamps and a sample of each file
(`sampled`); `verify` reads everything.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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


class Checksum:
    """CRC-32 of the bytes passed to `update`: `whole`, and `chunks` of each complete or last
    megabyte."""

    def __init__(self) -> None:
        self.whole, self.chunks = 0, list[int]()
        self._room = 0  # bytes that the last chunk still takes

    def update(self, data: bytes | memoryview) -> None:
        """Add bytes."""
        view = memoryview(data).cast("B")
        self.whole = zlib.crc32(view, self.whole)
        while view:
            if not self._room:
                self.chunks.append(0)
                self._room = CHUNK
            part = view[: self._room]
            self.chunks[-1] = zlib.crc32(part, self.chunks[-1])
            self._room -= len(part)
            view = view[len(part) :]


Fill = Callable[[Path], tuple[dict[str, Json], dict[str, Checksum]]]


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
        fill: writes files into an empty folder; returns the content of the index, and the checksum
            of each file.
        what, doing, done: name of the data, the work and its result, for messages.
        need: the disk space it takes, for the message when the disk is full.
        sample: as of `is_sound`.

    Raises:
        OSError: if the disk is full; nothing is left in the cache.
    """
    if is_sound(folder, version, sample):
        return
    lock = folder.with_name(f"{folder.name}.lock")
    # then no process was killed while it wrote the folder; looking for what is left lists all
    # folders
    is_new = not lock.exists()
    with locked(lock, f"{what}: another process is {doing} it; waiting") as held:
        if not is_sound(folder, version, sample):
            if folder.exists():
                log.info(
                    f"{what}: its {done} form was changed, is incomplete, or of another version; "
                    f"{doing} it again"
                )
            if held and not is_new:
                _sweep(folder)
            _write(folder, version, fill, need)


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
    last and six other MiB of it. Folders of earlier versions have one checksum per file: larger
    files in them are not read unless a time stamp differs. Without `sample` only sizes and time
    stamps are compared.
    """
    try:
        index = read_index(folder, version)
        for name, written in index["files"].items():
            stat = (folder / name).stat()
            if stat.st_size != written["size"]:
                return False
            chunks = written.get("chunks")
            if stat.st_mtime_ns != written["mtime"]:
                if not _is_whole(folder / name, written["crc"]):
                    return False
                os.utime(
                    folder / name, ns=(written["mtime"], written["mtime"])
                )  # copied, but the same
            elif not sample:
                continue
            elif chunks is not None:
                if not same_chunks(folder / name, chunks, sampled(len(chunks))):
                    return False
            elif stat.st_size <= SAMPLED * CHUNK and not _is_whole(folder / name, written["crc"]):
                return False
        return bool(index["files"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def verify(folder: Path, version: int) -> int:
    """Read every byte of a folder and return their number.

    Raises:
        ValueError: naming the file and the place, if a byte was changed.
    """
    remedy = "remove this folder; it will be recreated when it is used"
    try:
        files = read_index(folder, version)["files"]
        for name, written in files.items():
            with megabytes(written["size"], f"checking {folder.name}/{name}") as progress:
                found = checksum_of(folder / name, progress)
            chunks = zip(found.chunks, written.get("chunks", found.chunks))
            first = next(
                (number for number, (one, other) in enumerate(chunks) if one != other), None
            )
            if first is not None:
                raise ValueError(
                    f"{name} was changed between bytes {first * CHUNK:,} and "
                    f"{(first + 1) * CHUNK:,}"
                )
            if found.whole != written["crc"]:
                raise ValueError(f"{name} was changed")
        return sum(written["size"] for written in files.values())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} is damaged ({error}): {remedy}") from error


def _is_whole(path: Path, crc: int) -> bool:
    with megabytes(path.stat().st_size, f"checking {path.parent.name}") as progress:
        return checksum_of(path, progress).whole == crc


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
            shutil.rmtree(part, ignore_errors=True)
            return
        aside = unique(folder)
        with suppress(FileNotFoundError):  # another process has moved it
            folder.rename(aside)
            if is_sound(aside, version):  # another process completed it after the check
                part, aside = aside, part
            shutil.rmtree(aside, ignore_errors=True)


def _check_of_index(index: dict[str, Json]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()[:16]


def _write(folder: Path, version: int, fill: Fill, need: str) -> None:
    part = unique(folder)
    try:
        part.mkdir()
        about, checksums = fill(part)
        stats = {name: (part / name).stat() for name in checksums}
        files = {
            name: {
                "size": stat.st_size,
                "mtime": stat.st_mtime_ns,
                "crc": checksums[name].whole,
                "chunks": checksums[name].chunks,
            }
            for name, stat in stats.items()
        }
        index = {"format": version, "files": files, **about}
        write_json(part / "index.json", index | {"check": _check_of_index(index)})
        put(part, folder, version)
    except OSError as error:
        if error.errno not in FULL and error.filename is None:  # a write to an open file
            raise write_error(error, folder) from error
        if error.errno not in FULL:
            raise
        shutil.rmtree(part, ignore_errors=True)  # before the space that is free is measured
        text = (
            f"{need} in {folder.parent}, and {no_space(error, folder)}; free some space or set "
            "DNADIFF_CACHE to another disk"
        )
        raise OSError(text) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove leftovers of killed processes. The lock excludes processes on this machine, but
    perhaps not on others."""
    for left in folder.parent.glob(f".{folder.name}.*"):
        with suppress(OSError):
            if (
                left.name.startswith(f".{folder.name}.{HOST}.")
                or time.time() - left.stat().st_mtime > _ABANDONED
            ):
                shutil.rmtree(left, ignore_errors=True)


def checksum_of(path: Path, progress: Callable[[int], None] = lambda count: None) -> Checksum:
    """The checksum of a file; `progress` is called with the number of bytes read."""
    checksum = Checksum()
    with path.open("rb") as file:
        while block := file.read(4 * CHUNK):
            checksum.update(block)
            progress(len(block))
    return checksum


def sampled(count: int) -> list[int]:
    """The chunks of `count` that are checked whenever a file is opened."""
    return sorted({round(i * (count - 1) / (SAMPLED - 1)) for i in range(SAMPLED)}) if count else []


def same_chunks(path: Path, expected: Sequence[int], numbers: Sequence[int]) -> bool:
    """Whether some chunks of a file have the expected checksums."""
    with path.open("rb", buffering=0) as file:
        for number in numbers:
            file.seek(number * CHUNK)
            if zlib.crc32(file.read(CHUNK)) != expected[number]:
                return False
    return True
