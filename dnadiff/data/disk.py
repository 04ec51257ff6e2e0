"""Errors of the file system while a file is written: one line with the file, the size that it needs
and the space that is free."""

from __future__ import annotations

import errno
import io
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

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

    @override
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
