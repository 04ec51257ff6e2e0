"""Files and folders of this disk: written whole or not at all, read back with checks, locked, and
the cache folder for packed genomes and downloads.

Next to a file or folder NAME, `.NAME.HEX.part` is garbage of a killed process, and `.NAME.HEX.old`
a complete folder that was being replaced.

An error of the file system names the file, the size that it needs and the space that is free;
whatever is wrong with a file that is read back, the error is a ValueError that names it.

The cache is `$DNADIFF_CACHE`, or `dnadiff` under `$XDG_CACHE_HOME` (`~/.cache` where that is not
set). Everything in it can be deleted at any time and is created again when needed.

An atomic folder in it contains files and `index.json` with the size and the checksums of each file,
and a checksum of its own. It is written under a temporary name and renamed; a lock keeps processes
from doing the work twice. Opening a folder checks sizes, time stamps and a sample of each file;
`verify` reads everything.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gzip
import hashlib
import io
import json
import os
import platform
import re
import resource
import shutil
import stat
import tempfile
import time
import uuid
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, BinaryIO

import yaml
from filelock import FileLock, Timeout

from dnadiff.progress import Progress, log
from dnadiff.store.address import cache_root, expand_user, is_remote

if TYPE_CHECKING:
    import numpy as np
    from _typeshed import ReadableBuffer

Json = Any  # a value that JSON can hold
# AT_FDCWD and RENAME_EXCHANGE of Linux
_FROM_HERE = -100
_EXCHANGE = 2
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Size = (
    int | Callable[[], int] | None
)  # bytes, or a function that is called only for an error message


class WatchedFile(io.FileIO):
    """A file opened for writing that keeps its first error and ignores what is written after it.

    `torch.save` and `gzip` write more after an error, and replace the error by one of their own.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "wb")
        self.path = path
        self.error: OSError | None = None
        self.count = 0

    def write(self, data: ReadableBuffer, /) -> int:
        if self.error is not None:
            return memoryview(data).nbytes
        try:
            written = super().write(data)
        except OSError as error:
            self.error = error
            raise
        self.count += written
        return written


def write_all(file: io.FileIO, content: bytes) -> None:
    """Write to an unbuffered file, which may accept less than it is given."""
    view = memoryview(content)
    while view:
        view = view[file.write(view) :]


@contextmanager
def names_file(path: str | Path, size: Size = None) -> Iterator[None]:
    """Name the file that is written in errors of the file system, with the size that it needs, if
    known, and the space that is free."""
    try:
        yield
    except OSError as error:
        raise write_error(error, path, size) from error


def write_error(error: OSError, path: str | Path, size: Size = None, written: int = 0) -> OSError:
    """The error with a message for users, of the same class and with the same number; one that has
    such a message is returned as it is."""
    if error.strerror is None:
        return error
    if error.errno in FULL:
        needed = size() if callable(size) else size
        need = f"it needs {needed:,} bytes" if needed else f"{written:,} bytes were written"
        text = (
            f"{need}, and {no_space(error, path)}; free some space or choose a folder on "
            "another disk"
        )
    else:
        text = f"{error.strerror}; choose a folder that you may write to"
    named = type(error)(f"{path} could not be written: {text}")
    named.errno = error.errno
    return named


def no_space(error: OSError, path: str | Path) -> str:
    """Why there is no space for a file: the disk is full or the size of files is limited, with the
    bytes that are free."""
    folder = existing_parent(path)
    free = f"{shutil.disk_usage(folder).free:,} bytes are free in {folder}"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if error.errno == errno.EFBIG and limit != resource.RLIM_INFINITY:
        return f"files of this process are limited to {limit:,} bytes (ulimit -f; {free})"
    return f"the disk is full ({error.strerror}; {free})"


def existing_parent(path: str | Path) -> Path:
    """The nearest folder above `path` that exists."""
    return next(folder for folder in Path(path).absolute().parents if folder.exists())


def check_output(path: str | Path, overwrite: bool = False) -> Path:
    """Refuse an output file before the work that fills it begins.

    Raises:
        FileExistsError: if `path` exists and `overwrite` is false.
        ValueError: if `path` is a folder, or in a file.
        PermissionError: if its folder cannot be written.
    """
    if is_remote(path):
        raise ValueError(
            f"{path} is an address, and this is written as a file; choose a file, and copy it there"
        )
    target = expand_user(path)
    if target.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    folder = existing_parent(target)
    if not folder.is_dir():
        raise ValueError(f"{path} could not be written: {folder} is a file; choose another folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(
            f"{path} could not be written: the folder {folder} is read-only; choose a folder that "
            "you may write to"
        )
    if target.exists() and not overwrite:
        raise FileExistsError(
            f"{path} exists; set overwrite=true to replace it, or choose another name"
        )
    return target


@contextmanager
def atomic_write(
    path: str | Path, overwrite: bool = False, size: Size = None
) -> Iterator[BinaryIO]:
    """Write `path` atomically: a temporary file next to it replaces it when the block ends without
    an error.

    A name that ends in `.gz` is compressed, with no time stamp inside: the same content gives the
    same bytes.

    Args:
        size: bytes that will be written, or a function that counts them, for the message when the
            disk is full.

    Raises:
        FileExistsError: if `path` exists and `overwrite` is false.
        OSError: naming the file and the space that is free, if it cannot be written; what was there
            before stays.
    """
    target = check_output(path, overwrite)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    raw: WatchedFile | None = None
    try:
        with names_file(path, size):
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_unfinished(target)
            while raw is None:
                raw = _open_locked(part)
        with io.BufferedWriter(raw) as buffered:
            if target.suffix.lower() == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=buffered, mtime=0) as packed:
                    # A GzipFile has what callers use of a BinaryIO.
                    yield packed  # type: ignore[misc]
            else:
                yield buffered
            buffered.flush()
            if raw.error is not None:  # the caller ignored it
                raise raw.error
            with names_file(path, size):
                os.fsync(raw.fileno())
                os.replace(part, target)  # while the file is locked
                sync_folder(target.parent)
    except Exception as error:
        if raw is None or raw.error is None:
            raise
        part.unlink(missing_ok=True)  # before the space that is free is measured
        raise write_error(raw.error, path, size, raw.count) from error
    finally:  # also if Ctrl-C arrives while the file is being opened
        with suppress(OSError):  # its folder is a file, or cannot be changed: nothing was written
            part.unlink()


def _open_locked(part: Path) -> WatchedFile | None:
    """A new file, locked while it is open, so that no other process takes it for one of a killed
    process; None if one has just done so."""
    raw = WatchedFile(part)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(raw, fcntl.LOCK_EX)
    if os.fstat(raw.fileno()).st_nlink:
        return raw
    raw.close()  # removed before it was locked
    return None


def _remove_unfinished(target: Path) -> None:
    """Remove the temporary files and folders of `target` that killed processes left, after giving a
    folder that one of them had renamed away its name again, unless the new one has it already."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{32}}\.(old|part)")
    found: list[Path] = []
    with suppress(OSError):  # a folder that may be written and not listed
        found = [path for path in target.parent.iterdir() if name.fullmatch(path.name)]
    for left in sorted(found, key=lambda path: path.suffix):
        with suppress(OSError):  # removed meanwhile, or of a living process
            lock = os.open(left, os.O_RDONLY if left.is_dir() else os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if left.suffix == ".old" and not target.exists():
                    left.rename(target)
                else:
                    (shutil.rmtree if left.is_dir() else os.unlink)(left)
            finally:
                os.close(lock)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk, so that a new file is still there after a power
    failure; nothing where this is unsupported."""
    number = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(number)
    finally:
        os.close(number)


def append(path: str | Path, content: bytes) -> None:
    """Append to a file, or leave it as it was.

    Raises:
        OSError: naming the file and the space that is free, if it cannot be written.
    """
    with names_file(path, len(content)), open(path, "ab", buffering=0) as file:
        before = file.tell()
        try:
            write_all(file, content)
        except OSError:
            file.truncate(before)
            raise


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file of this content atomically, in place of an earlier one; see `atomic_write`."""
    with atomic_write(path, overwrite=True, size=len(content)) as file:
        file.write(content)


def write_json(path: str | Path, content: object, indent: int = 2) -> None:
    """Write a JSON file atomically. NaN and infinities, which JSON does not have, become null."""
    plain = json.loads(json.dumps(content), parse_constant=lambda name: None)
    write_bytes(path, (json.dumps(plain, indent=indent) + "\n").encode())


def check_folder(path: str | Path, overwrite: bool, own: Collection[str]) -> Path:
    """Refuse an output folder before the work that fills it begins; a folder is replaced only if it
    holds nothing but files of these names.

    A folder that a killed process was replacing is restored first.

    Raises:
        FileExistsError: if it exists and `overwrite` is false.
        ValueError: if it is a file, is in a file, or holds other files.
        PermissionError: if the folder above cannot be written.
    """
    target = expand_user(path)
    if not target.name or target.name == "..":
        raise ValueError(
            f"output {str(path)!r} is not the name of a new folder; give one, such as "
            "output=my_model"
        )
    _remove_unfinished(target)
    if target.is_dir() and not target.is_symlink():
        if not overwrite:
            raise FileExistsError(
                f"{path} exists; set overwrite=true to replace it, or choose another name"
            )
        if others := sorted(
            entry.name for entry in target.iterdir() if entry.name not in {*own, ".DS_Store"}
        ):  # of macOS
            raise ValueError(
                f"output {path} holds other files ({', '.join(others[:4])}), which would be lost; "
                "choose another folder"
            )
    elif target.exists() or target.is_symlink():
        raise ValueError(f"output {path} is a file or a link; name a folder")
    check_output(target.with_name(f".{target.name}.part"), overwrite=True)
    return target


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder next to `target`, which gets its name, and replaces a folder of that name,
    when the block ends without an error.

    If the process is killed, `target` is the old folder or the new one, or, where the file system
    cannot exchange two folders, the next call restores the old one. What killed processes left next
    to it is removed.
    """
    with names_file(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(target)
        while True:
            part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
            part.mkdir()
            # Locked while it is open: no other process takes it for one of a killed process.
            lock = os.open(part, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if part.exists():
                break
            os.close(lock)  # removed before it was locked
    try:
        yield part
        with names_file(target):
            sync_folder(part)
            if not target.exists():
                part.rename(target)
            elif not _exchange(part, target):
                aside = part.with_suffix(".old")
                held = os.open(target, os.O_RDONLY)  # no other process restores it meanwhile
                try:
                    with suppress(OSError):
                        fcntl.flock(held, fcntl.LOCK_EX)
                    target.rename(aside)
                    try:
                        part.rename(target)
                    except OSError:
                        aside.rename(target)
                        raise
                    aside.rename(part)  # no longer complete when its removal begins
                finally:
                    os.close(held)
            sync_folder(target.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)  # after an exchange, the old folder
        os.close(lock)


def _exchange(part: Path, target: Path) -> bool:
    """Exchange the names of two folders in one step; False where the system or the file system
    cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # of Linux alone
        return False
    return bool(
        renameat2(_FROM_HERE, os.fsencode(part), _FROM_HERE, os.fsencode(target), _EXCHANGE) == 0
    )


# Levels of JSON and YAML. What the interpreter can read differs between its versions.
_DEEPEST = 100
# Of YAML files, which are read slowly: values of aliases, characters of a word, bytes of a file.
_MOST = 10_000
_LONGEST = 4300
_LARGEST = 300_000
_REMEDY = "restore it, or remove it and run the command again that wrote it"


# A run of strings and of what is between them, or a bracket; strings may hold some, and be cut.
_BRACKETS = re.compile(r'(?:"(?:[^"\\]++|\\.)*+"?|[^"\[{\]}]++)++|([\[{])|([\]}])')


def load_json(text: str) -> Json:
    """`json.loads`, with a RecursionError for a text with more than 100 brackets in each other."""
    depth = 0
    for found in _BRACKETS.finditer(text):
        depth += bool(found[1]) - bool(found[2])
        if depth > _DEEPEST:
            raise RecursionError("nested too deeply")
    return json.loads(text)


def _mapping(
    parse: Callable[[str], Json],
    kind: str,
    content: str | bytes,
    source: object,
    required: Sequence[str],
    remedy: str,
) -> dict[str, Json]:
    try:
        found = parse(content.decode("utf-8") if isinstance(content, bytes) else content)
    except Exception as error:  # YAML tags on wrong values raise many kinds
        problem = f"is not {kind} ({' '.join(str(error).split())})"
        if isinstance(error, UnicodeDecodeError):
            problem = f"is not UTF-8 text ({error.reason})"
        if isinstance(error, RecursionError):
            problem = "is nested too deeply"
        raise ValueError(f"{source} {problem}; {remedy}") from error
    if not isinstance(found, dict):
        what = {type(None): "nothing", list: "a list"}.get(type(found), "one value")
        raise ValueError(f"{source} holds {what}; expected keys with values; {remedy}")
    if missing := [key for key in required if key not in found]:
        raise ValueError(f"{source} lacks {', '.join(missing)}; {remedy}")
    return found


def json_object(
    content: str | bytes,
    source: str | Path,
    required: Sequence[str] = (),
    remedy: str = "use another copy of it",
) -> dict[str, Json]:
    """The object of a JSON text with at least these keys.

    Args:
        source: what errors call the text.

    Raises:
        ValueError: if it is not UTF-8, not JSON, or nested too deeply, or something is missing.
    """
    return _mapping(load_json, "JSON", content, source, required, remedy)


def read_small(path: Path, most: int = 1 << 27) -> bytes:
    """The content of a file that is small by its nature; a ValueError, before anything is read, if
    it has more than `most` bytes, or is a pipe or a device, which may have no end."""
    if (size := check_regular(path)) > most:
        raise ValueError(f"{path} has {size:,} bytes; expected at most {most:,}")
    return path.read_bytes()


def check_regular(path: Path, name: object = None) -> int:
    """The size of a file; a ValueError, which calls it `name`, if it is a pipe or a device."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(
            f"{name or path} is a pipe or a device, and inputs are read more than once; write it "
            "to a file first"
        )
    return about.st_size


def read_json(path: Path, required: Sequence[str] = (), remedy: str = _REMEDY) -> dict[str, Json]:
    """The object in a JSON file, with at least these keys.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is damaged, with the remedy.
    """
    return json_object(read_small(path), path, required, remedy)


def read_yaml(path: Path, required: Sequence[str] = (), remedy: str = _REMEDY) -> dict[str, Json]:
    """The mapping in a YAML file, with at least these keys; an empty file has none. Errors as
    `read_json`, also for a key that is there twice, and a file that would take long to read."""
    return _mapping(_load_yaml, "YAML", read_small(path, _LARGEST), path, required, remedy)


def _load_yaml(text: str) -> Json:
    """The value of a YAML text, to which its aliases add a bounded number of values; nothing is an
    empty mapping."""
    sizes: dict[str | None, int] = {}  # of anchors: values, with those of aliases
    opened: list[tuple[str | None, int]] = []  # anchor, and values before it
    total = added = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            sizes[anchor] = total - before
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in opened):
                raise ValueError(f"the alias *{event.anchor} is inside itself")
            added += sizes.get(event.anchor, 1)
            total += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.NodeEvent):
            opened += [(event.anchor, total)] * isinstance(event, yaml.CollectionStartEvent)
            total += 1
            if getattr(event, "style", True) is None and len(event.value) > _LONGEST:
                raise ValueError(f"a word has {len(event.value):,} characters; put it into quotes")
        if len(opened) > _DEEPEST:
            raise RecursionError
        if added > _MOST:
            raise ValueError(f"its aliases add more than {_MOST:,} values")
    found = yaml.load(text, _UniqueKeys)
    return {} if found is None else found


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a mapping with a key that is there twice, of which YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if keys and max(keys.values()) > 1:
            raise ValueError(f"the key {keys.most_common(1)[0][0]} is there twice")
        return super().construct_mapping(node, deep)


def read_npz(
    path: str | os.PathLike[str], kinds: Mapping[str, str] | None = None
) -> dict[str, np.ndarray]:
    """The arrays of a file, read completely and compared with their checksums; no code in it runs.

    `numpy.load` compares no checksum of an array whose bytes it counts itself.

    Args:
        kinds: of the arrays that it must have, the kind of their type and the number of their
            dimensions, as `f2`, or several of these.

    Raises:
        ValueError: if the file is damaged, or lacks one of these arrays.
    """
    import numpy as np  # a command that shows its help does not wait for it

    check_regular(Path(path))
    try:
        with zipfile.ZipFile(path) as file:
            if (damaged := file.testzip()) is not None:
                raise ValueError(f"the checksum of {damaged} differs")
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("an entry is not an array")
    except Exception as error:  # of many kinds
        reason = f" ({shorten(str(error), 200)})" if type(error) is ValueError else ""
        raise ValueError(
            f"{path} is damaged or cut short{reason}; use another copy of it, or remove it"
        ) from None
    for name, kind in (kinds or {}).items():
        array = arrays.get(name)
        if array is None or f"{array.dtype.kind}{array.ndim}" not in kind:
            raise ValueError(
                f"{path} is damaged: it lacks the array {name} of its type; use another copy of "
                "it, or remove it"
            )
    return arrays


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as `numpy.savez` does, which replace what is there, but atomically."""
    with atomic_write(path, overwrite=True) as file, zipfile.ZipFile(file, "w") as archive:
        add_arrays(archive, arrays)


def add_arrays(archive: zipfile.ZipFile, arrays: Mapping[str, np.ndarray]) -> None:
    """Add arrays to a file; the same arrays give the same bytes."""
    import numpy as np

    for name, array in arrays.items():
        # A name alone would get the current time, and the same arrays other bytes.
        with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
            np.lib.format.write_array(entry, array, allow_pickle=False)


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
    base = cache_root()
    folder = expand_user(base) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
        raise PermissionError(f"{folder} cannot be written")
    except OSError as error:
        if os.environ.get("DNADIFF_CACHE"):
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
    about = path.stat()
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    seen = {
        "path": str(path),
        "size": about.st_size,
        "mtime": about.st_mtime_ns,
        "ctime": about.st_ctime_ns,
        "inode": about.st_ino,
    }
    # Writing a file lists its folder.
    return cache_dir("sources") / name[:2] / f"{name}.json", seen


def hash_file(path: Path) -> str:
    """SHA-256 of a file, with a progress bar for a large one."""
    digest = hashlib.sha256()
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
    begin = time.monotonic()
    count = done
    bar: Progress | None = None

    def progress(more: int, **notes: str) -> None:
        nonlocal bar, count
        before = count // 1_000_000
        count += more
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
            write_json(part / "index.json", index | {"check": json_hash(index)[:16]})
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
    if index["format"] != version or index.pop("check") != json_hash(index)[:16]:
        raise ValueError("changed")
    return index


def is_sound(folder: Path, version: int, sample: bool = True) -> bool:
    """Whether the folder is complete and unchanged.

    A file is read completely if its time stamp differs, else the first, the last and six other MiB
    of it. Without `sample` only sizes and time stamps are compared.
    """
    try:
        index = read_index(folder, version)
        for name, written in index["files"].items():
            path, chunks = folder / name, written["chunks"]
            stat = path.stat()
            if not path.is_file() or stat.st_size != written["size"]:
                return False
            if stat.st_mtime_ns != written["mtime"]:
                with megabytes(stat.st_size, f"checking {folder.name}") as progress:
                    if checksums(path, progress)["crc"] != written["crc"]:
                        return False
                os.utime(path, ns=(written["mtime"], written["mtime"]))  # copied, but the same
            elif sample and chunks:
                last = len(chunks) - 1
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
            chunks = zip_longest(found["chunks"], written["chunks"])
            for number, (one, other) in enumerate(chunks):
                if one != other:
                    raise ValueError(
                        f"{name} was changed between bytes {number * CHUNK:,} and "
                        f"{(number + 1) * CHUNK:,}"
                    )
            if found["crc"] != written["crc"]:
                raise ValueError(f"{name} was changed")
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


def json_hash(content: Json) -> str:
    """SHA-256 of a value as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def checksums(path: Path, progress: Callable[[int], None] = lambda count: None) -> dict[str, Json]:
    """CRC-32 of a file and of each megabyte of it; `progress` is called with the number of bytes
    read."""
    whole = 0
    chunks = []
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            whole = zlib.crc32(block, whole)
            chunks.append(zlib.crc32(block))
            progress(len(block))
    return {"crc": whole, "chunks": chunks}
