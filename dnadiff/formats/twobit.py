"""Reading of UCSC's 2bit files: four bases per byte, with lists of N blocks and of soft-masked
blocks.

Format: https://genome.ucsc.edu/FAQ/FAQformat.html#format7, versions 0 and 1 (64-bit offsets),
    either byte order.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.formats.sequences import Header, SequenceFormat
from dnadiff.store.files import ByteReader

SIGNATURES = (b"\x1aA'C"[::-1], b"\x1aA'C")  # little-endian, big-endian 0x1A412743
_CHUNK = 1 << 20  # bytes of packed sequence: four million bases
_N = ord("N")
_LOWER_CASE = 0x20
_FOUR = np.frombuffer(b"TCAG", np.uint8)[
    (np.arange(256)[:, None] >> np.array([6, 4, 2, 0])) & 3
]  # (256, 4)


class TwoBit(SequenceFormat):
    """UCSC's 2bit; errors if a file is cut short, contradicts itself, or is of another version."""

    endings, starts = (".2bit",), SIGNATURES

    @classmethod
    @override
    def records(cls, path: str, content: ByteReader) -> Iterator[Header | bytes]:
        try:
            yield from _Reader(content).events()
        except (struct.error, EOFError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path} is a damaged or cut short 2bit file ({error}); fetch it again"
            ) from None
        except _OtherVersionError as error:
            raise ValueError(
                f"{path} is a 2bit file of version {error}; expected version 0 or 1: convert it to "
                "FASTA"
            ) from None


class _OtherVersionError(Exception):
    pass


class _Reader:
    def __init__(self, raw: ByteReader) -> None:
        self.raw = raw
        self.order = "<" if self.exactly(4) == SIGNATURES[0] else ">"
        version, self.count, _ = self.integers(3)
        if version not in (0, 1):
            raise _OtherVersionError(version)
        self.offset = "Q" if version else "I"

    def exactly(self, size: int) -> bytes:
        blocks = []
        while size and (
            block := self.raw.read(min(size, _CHUNK))
        ):  # memory for what is there, not for what a number says
            blocks.append(block)
            size -= len(block)
        if size:
            raise EOFError(f"{size:,} bytes are missing")
        return b"".join(blocks)

    def integers(self, count: int, kind: str = "I") -> tuple[int, ...]:
        layout = f"{self.order}{count}{kind}"
        return struct.unpack(layout, self.exactly(struct.calcsize(layout)))

    def array(self, count: int) -> NDArray[np.int64]:
        return np.frombuffer(self.exactly(4 * count), dtype=f"{self.order}u4").astype(np.int64)

    def blocks(self, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        (count,) = self.integers(1)
        starts = self.array(count)
        ends = starts + self.array(count)
        if (
            (starts >= ends).any()
            or (starts[1:] < ends[:-1]).any()
            or (len(ends) and ends[-1] > length)
        ):
            raise EOFError(
                f"blocks of N or lower case overlap or exceed the {length:,} bases of a record"
            )
        return starts, ends

    def events(self) -> Iterator[Header | bytes]:
        index = []
        for _ in range(self.count):
            (size,) = self.exactly(1)
            name = self.exactly(size).decode("ascii")
            index.append((name, self.integers(1, self.offset)[0]))
        spans = [(0, self.raw.tell())]
        for name, offset in index:
            yield Header(name)
            self.raw.seek(offset)
            (length,) = self.integers(1)
            unknown, masked = self.blocks(length), self.blocks(length)
            self.integers(1)
            for start in range(0, length, 4 * _CHUNK):
                size = min(4 * _CHUNK, length - start)
                letters = _FOUR[np.frombuffer(self.exactly(-(-size // 4)), np.uint8)].reshape(-1)[
                    :size
                ]
                for low, high in _inside(unknown, start, start + size):
                    letters[low:high] = _N
                for low, high in _inside(masked, start, start + size):
                    letters[low:high] |= _LOWER_CASE
                yield letters.tobytes()
            spans.append((offset, self.raw.tell()))
        spans.sort()
        if any(end != start for (_, end), (start, _) in itertools.pairwise(spans)):
            raise EOFError("its records overlap, or bytes between them belong to none")
        self.raw.seek(spans[-1][1])
        if self.raw.read(1):
            raise EOFError("bytes follow the last record")


def _inside(
    blocks: tuple[NDArray[np.int64], NDArray[np.int64]], start: int, end: int
) -> Iterator[tuple[int, int]]:
    """The parts of sorted blocks that are inside [start, end), relative to `start`."""
    starts, ends = blocks
    first, last = np.searchsorted(ends, start, "right"), np.searchsorted(starts, end, "left")
    for low, high in zip(starts[first:last].tolist(), ends[first:last].tolist()):
        yield max(low, start) - start, min(high, end) - start
