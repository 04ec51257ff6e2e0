"""A file written batch by batch that goes on where it was stopped.

Beside the file to come lie its beginning (`.NAME.part`) and a journal (`.NAME.journal`): the settings, the items done, and the bytes that
they take. A batch counts once the journal says so; what a killed process wrote after that is cut off. The name itself appears when
everything is there. A name that ends in `.gz` holds one gzip member for each batch, without a time stamp: killed and gone on with or not,
the bytes are the same.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from dnadiff.data.files import atomic_write, check_output


def temporary_path(output: Path, kind: str) -> Path:
    """Where the beginning (`part`) or the journal of a file lies."""
    return output.with_name(f".{output.name}.{kind}")


def discard(output: Path) -> None:
    """Remove beginning and journal, and what processes that were killed left of files about to appear: nothing is left to go on with."""
    for kind in ("part", "journal"):
        temporary_path(output, kind).unlink(missing_ok=True)
    names = "|".join(re.escape(name) for name in (output.name, f"{output.name}.json", temporary_path(output, "journal").name))
    unfinished = re.compile(rf"\.({names})\.[0-9a-f]{{32}}\.part")  # as `atomic_write` calls them
    for path in output.parent.iterdir():
        if unfinished.fullmatch(path.name):
            path.unlink(missing_ok=True)


class ResumableOutput:
    """One output file.

    Args:
        output: its name.
        settings: what the contents depend on; a beginning made with other ones is not gone on with.
        resume: go on with a beginning, if there is one.
        overwrite: replace a file or a beginning.

    Attributes:
        done: items in the beginning.
        notes: what `append` was told last.

    Raises:
        FileExistsError: if the file, or a beginning of it, is there and neither `resume` nor `overwrite` is given.
        ValueError: if the beginning has other settings, or another process is writing it.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any], resume: bool = False, overwrite: bool = False) -> None:
        self.output, self.settings = output, json.loads(json.dumps(settings))
        self.part, self.journal = temporary_path(output, "part"), temporary_path(output, "journal")
        self.done, self.bytes, self.notes, self.complete = 0, 0, {}, False
        self._file: BinaryIO | None = None
        if self.journal.is_file() and (resume or not overwrite):
            if not resume:
                raise FileExistsError(
                    f"{output} was begun and not finished ({read_journal(output)['done']:,} sequences); "
                    "set resume=true to go on, or overwrite=true to begin anew"
                )
            self._take_up(read_journal(output))
        else:
            check_output(output, overwrite)

    def _take_up(self, found: Mapping[str, Any]) -> None:
        was, now = found["settings"], self.settings
        for key in dict.fromkeys([*was, *now]):
            if was.get(key) != now.get(key):
                raise ValueError(
                    f"{self.output} was begun with {key}={_short(was.get(key))}, not {_short(now.get(key))}; "
                    "go on with the same, or begin anew: overwrite=true, without resume"
                )
        self.complete = found["complete"]
        if not (self.complete and self.output.exists()) and (not self.part.is_file() or self.part.stat().st_size < found["bytes"]):
            raise ValueError(f"{self.part} is missing or shorter than its journal says; begin anew: overwrite=true, without resume")
        self.done, self.bytes, self.notes = found["done"], found["bytes"], found["notes"]

    def append(self, content: bytes, count: int, **notes: Any) -> None:
        """Write `count` items, all of them or, if the process ends now, none; `notes` are kept with them."""
        if self._file is None:
            self._open()
        self._file.write(gzip.compress(content, mtime=0) if self.output.suffix == ".gz" else content)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done, self.bytes, self.notes = self.done + count, self._file.tell(), notes
        self._write_journal()

    def _open(self) -> None:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.part.open("r+b" if self.done else "ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ValueError(f"{self.output} is being written by another process; wait for it, or choose another name") from None
        if not self.done:
            self.journal.unlink(missing_ok=True)  # of a beginning that is replaced: it would vouch for bytes that are not its own
        self._file.truncate(self.bytes)
        self._file.seek(self.bytes)

    def _write_journal(self) -> None:
        content = {"settings": self.settings, "done": self.done, "bytes": self.bytes, "notes": self.notes, "complete": self.complete}
        with atomic_write(self.journal, overwrite=True) as file:
            file.write(json.dumps(content).encode())

    def finish(self) -> None:
        """Everything is written: the file takes its name."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if not self.complete:
            self.complete = True
            self._write_journal()
        if self.part.exists():
            os.replace(self.part, self.output)

    def close(self) -> None:
        """Let go of the file; what is done stays to be gone on with."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_journal(output: Path) -> dict[str, Any]:
    """The journal of a beginning.

    Raises:
        ValueError: if it is damaged.
    """
    try:
        return json.loads(temporary_path(output, "journal").read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{temporary_path(output, 'journal')} is damaged; begin anew: overwrite=true, without resume") from None


@contextmanager
def opened(path: Path, packed: bool) -> Iterator[BinaryIO]:
    """A file as bytes, unpacked if it is gzip."""
    with gzip.open(path, "rb") if packed else path.open("rb") as file:
        yield file


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
