"""A file written batch by batch that can be resumed after an interruption, and the JSON file next
to a finished one, which says how it was made.

Until a file is complete, its folder has the finished batches (`.NAME.part`) and a journal
(`.NAME.journal`) with the settings, the number of finished items, their bytes and checksum; bytes
that a killed process wrote after that are removed. With a name that ends in `.gz`, in either case,
each batch is one gzip member without a time stamp, or bgzip blocks (SAM specification, section
4.1), so that the bytes are the same with and without an interruption.
"""

import fcntl
import gzip
import json
import math
import os
import re
import struct
import time
import zlib
from collections.abc import Callable
from io import BufferedReader, FileIO
from pathlib import Path
from types import MappingProxyType

from dnadiff.fields import Json, JsonDict, JsonMap
from dnadiff.jobs.job import Earlier
from dnadiff.renamed import VERSION, with_current_names
from dnadiff.store.disk import (
    atomic_write,
    check_output,
    check_regular,
    hash_file,
    names_file,
    read_json,
    write_all,
)
from dnadiff.store.files import BGZIP_END

_KEPT = ("settings", "done", "bytes", "notes", "complete", "crc")
_PIECE = 1 << 22  # bytes read at once
_BLOCK = 0xFF00  # bytes of content in a bgzip block
_BLOCK_HEADER = struct.Struct("<4BI2BH2B2H")

_NOTHING: Earlier = MappingProxyType({})


def temporary_path(output: Path, kind: str) -> Path:
    """The path of the finished batches (`part`) or of the `journal` of a file."""
    return output.with_name(f".{output.name}.{kind}")


def is_compressed(output: Path) -> bool:
    """Whether the file is gzip-compressed, by its name in either case."""
    return output.name.lower().endswith(".gz")


def discard(output: Path) -> None:
    """Remove journal and finished batches, and temporary files of killed processes. The file cannot
    be resumed afterwards."""
    for kind in ("journal", "part"):
        temporary_path(output, kind).unlink(missing_ok=True)
    ours = (output.name, f"{output.name}.json", temporary_path(output, "journal").name)
    # The names that `atomic_write` uses.
    unfinished = re.compile(rf"\.({'|'.join(map(re.escape, ours))})\.[0-9a-f]{{32}}\.part")
    for path in output.parent.iterdir():
        if unfinished.fullmatch(path.name):
            path.unlink(missing_ok=True)


class ResumableOutput:
    """One output file.

    Args:
        output: its path.
        settings: everything that the contents depend on; only a file with the same settings can be
            resumed.
        resume: resume an unfinished file, if there is one.
        overwrite: replace a finished or unfinished file.
        earlier: for keys of the settings, the values of earlier versions that mean the same.
        interval: seconds between two times at which it is made safe against interruptions: where
            items are cheap, waiting for the disk after each `append` would take most of the time. A
            killed process loses what it appended since the last time.
        bgzip: whether a compressed file has bgzip blocks, which tabix can index.
        name: of the file that is made of it, for messages; None is its own.
        items: what they are called in messages.

    Attributes:
        done: finished items.
        notes: the notes of the last `append`.

    Raises:
        FileExistsError: if a finished or unfinished file exists and neither `resume` nor
            `overwrite` is given.
        ValueError: if the unfinished file has other settings, or another process is writing it.
    """

    def __init__(
        self,
        output: Path,
        settings: JsonMap,
        resume: bool = False,
        overwrite: bool = False,
        earlier: Earlier = _NOTHING,
        interval: float = 0.0,
        bgzip: bool = False,
        name: Path | None = None,
        items: str = "items",
    ) -> None:
        self.output = output
        self.name = name or output
        self.settings = plain(settings)
        self.earlier = earlier
        self.interval = interval
        self._saved = -math.inf
        self.is_compressed = is_compressed(output)
        self.bgzip = bgzip and self.is_compressed
        self.part = temporary_path(output, "part")
        self.journal = temporary_path(output, "journal")
        self.done = 0
        self.bytes = 0
        self.crc = 0
        self.complete = False
        self.notes: JsonDict = {}
        self._file: FileIO | None = None
        if self.journal.is_file() and (resume or not overwrite):
            if not resume:
                raise FileExistsError(
                    f"{self.name} is unfinished ({read_journal(output)['done']:,} {items}); set "
                    "resume=true to resume it, or overwrite=true to start over"
                )
            self._resume(read_journal(output))
        else:
            check_output(output, overwrite)

    def _resume(self, found: JsonMap) -> None:
        remedy = "start over: overwrite=true, without resume"
        before = with_current_names(found["settings"])
        if (differs := first_difference(before, self.settings, self.earlier)) is not None:
            key, was, now = differs
            raise ValueError(
                f"{self.name} was started with {key}={was}, not {now}; resume with the same, or "
                f"{remedy}"
            )
        self.done = found["done"]
        self.bytes = found["bytes"]
        self.notes = found["notes"]
        self.complete = found["complete"]
        self.crc = found["crc"]
        if self.part.is_file() and self.part.stat().st_size >= self.bytes:
            if crc_of(self.part, self.bytes) != self.crc:
                raise ValueError(f"{self.part} is damaged (its checksum differs); {remedy}")
        elif not (self.complete and self.output.exists()):
            raise ValueError(
                f"{self.part} is missing or shorter than its journal requires; {remedy}"
            )

    def append(self, content: bytes, count: int, /, **notes: Json) -> None:
        """Write `count` items atomically; the journal keeps the `notes`."""
        if self.bgzip:
            content = bgzip_blocks(content)
        elif self.is_compressed:
            content = gzip.compress(content, mtime=0)
        self.append_packed(content, count, notes)

    def append_packed(self, content: bytes, count: int, notes: JsonDict) -> None:
        """`append` of bytes as they are written."""
        due = time.monotonic() - self._saved >= self.interval
        with names_file(self.part, len(content)):
            file = self._file = self._file or self._open()
            write_all(file, content)
            if due:
                os.fsync(file.fileno())
        self.done, self.bytes, self.notes = self.done + count, file.tell(), notes
        self.crc = zlib.crc32(content, self.crc)
        if due:
            self._write_journal()
            self._saved = time.monotonic()

    def _open(self) -> FileIO:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        if self.part.exists():
            check_regular(self.part)
        is_new = not (self.done or self.complete)
        # Unbuffered: nothing is left to write when it is closed.
        file = self.part.open("ab" if is_new else "r+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise ValueError(
                f"{self.name} is being written by another process; wait for it, or choose "
                "another name"
            ) from None
        if is_new:
            # That of a replaced file would describe other bytes.
            self.journal.unlink(missing_ok=True)
        file.truncate(self.bytes)
        file.seek(self.bytes)
        return file

    def _write_journal(self) -> None:
        content = {key: getattr(self, key) for key in _KEPT}
        with atomic_write(self.journal, overwrite=True) as file:
            file.write(json.dumps(content | {"check": check_of(content)}).encode())

    @property
    def batches(self) -> Path:
        """The finished batches: a file of their own until they get the name of the output."""
        return self.part if self.part.exists() else self.output

    def finish(self, convert: Callable[[Path], None] | None = None) -> None:
        """Give the complete file its name, unless `convert` writes the output of the batches, which
        then stay."""
        if self.bgzip and not self.complete and not self.notes.get("ended"):
            self.append_packed(BGZIP_END, 0, {**self.notes, "ended": True})
        if self.part.exists():  # cut what a killed process wrote after its last journal
            self._file = self._file or self._open()
        self.close()
        if not self.complete:
            self.complete = True
            self._write_journal()
        if convert is not None:
            convert(self.batches)
        elif self.part.exists():
            os.replace(self.part, self.output)

    def close(self) -> None:
        """Close the file; it can be resumed."""
        if self._file is not None:
            file = self._file
            self._file = None
            with file:
                if self.interval:
                    os.fsync(file.fileno())
                    self._write_journal()


def read_journal(output: Path) -> JsonDict:
    """The journal of an unfinished file; a ValueError if it is damaged."""
    path = temporary_path(output, "journal")
    remedy = "start over: overwrite=true, without resume"
    found = read_json(path, (*_KEPT, "check"), remedy)
    if found.pop("check") != check_of(found):
        raise ValueError(f"{path} is damaged; {remedy}")
    return found


def check_of(content: JsonMap) -> int:
    """The checksum of a journal, or of the entry of a shard."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def crc_of(path: Path, size: int) -> int:
    """CRC-32 of the first bytes of a file."""
    value = 0
    with path.open("rb") as file:
        while size and (block := file.read(min(size, _PIECE))):
            value = zlib.crc32(block, value)
            size = size - len(block)
    return value


def open_bytes(path: Path, compressed: bool) -> gzip.GzipFile | BufferedReader:
    """A file as bytes, decompressed if it is gzip."""
    return gzip.open(path, "rb") if compressed else path.open("rb")


def bgzip_blocks(content: bytes) -> bytes:
    """Content as bgzip blocks, without the empty block that ends a file."""
    blocks = []
    for first in range(0, len(content), _BLOCK):
        piece = content[first : first + _BLOCK]
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        body = packer.compress(piece) + packer.flush()
        header = _BLOCK_HEADER.pack(31, 139, 8, 4, 0, 0, 255, 6, 66, 67, 2, len(body) + 25)
        blocks.append(header + body + struct.pack("<2I", zlib.crc32(piece), len(piece)))
    return b"".join(blocks)


def json_path(output: Path) -> Path:
    """The path of the JSON file next to an output."""
    return output.with_name(output.name + ".json")


def head_of(output: Path) -> JsonDict:
    """What the JSON file next to a finished output says of the file itself."""
    return {"file": output.name, "sha256": hash_file(output), "dnadiff": VERSION}


def is_complete(output: Path, settings: JsonMap, earlier: Earlier = _NOTHING) -> bool:
    """Whether the file exists with the JSON file of a finished run of these settings, and is
    unchanged since."""
    try:
        content = read_json(json_path(output), ("settings", "sha256"))
        before, now = with_current_names(content["settings"]), plain(settings)
        same = isinstance(before, dict) and first_difference(before, now, earlier) is None
        return same and output.is_file() and content["sha256"] == hash_file(output)
    except (OSError, ValueError):
        return False


def plain(value: Json) -> Json:
    """A value as it comes back from JSON."""
    return json.loads(json.dumps(value))


def first_difference(
    was: JsonMap, now: JsonMap, earlier: Earlier = _NOTHING
) -> tuple[str, str, str] | None:
    """The first key whose values differ in two mappings, and both values, shortened; None if the
    mappings are equal.

    Args:
        earlier: for keys of `now`, the values that earlier versions wrote in their place.
    """
    for key in dict.fromkeys([*was, *now]):
        before = was.get(key)
        after = now.get(key)
        if before != after and not (key in earlier and before in earlier[key]()):
            return key, _short(before), _short(after)
    return None


def _short(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
