"""Checksums of files in the cache: of the whole file and of each megabyte, so that a part can be
checked without reading the rest."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

CHUNK = 1 << 20  # bytes with a checksum of their own
# chunks that are checked whenever a file is opened: the first, the last, and others at equal
# distances
SAMPLED = 8


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
