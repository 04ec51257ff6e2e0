"""A resumable file in bgzip form, which tabix can index (SAM specification, section 4.1)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from typing_extensions import override

from dnadiff.design.output import ResumableOutput

BLOCK = 0xFF00  # bytes of content in a block, as bgzip writes them
_HEADER = struct.Struct("<4BI2BH2B2H")
_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def compressed(content: bytes) -> bytes:
    """Content as bgzip blocks, without the empty block that ends a file."""
    return b"".join(
        _block(content[first : first + BLOCK]) for first in range(0, len(content), BLOCK)
    )


def _block(content: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = packer.compress(content) + packer.flush()
    header = _HEADER.pack(31, 139, 8, 4, 0, 0, 255, 6, 66, 67, 2, len(body) + 25)
    return header + body + struct.pack("<2I", zlib.crc32(content), len(content))


class BgzipOutput(ResumableOutput):
    """A `ResumableOutput` compressed by bgzip."""

    @override
    def packed(self, content: bytes) -> bytes:
        return compressed(content)

    @override
    def finish(self, convert: Callable[[Path, Path], None] | None = None) -> None:
        if not self.complete and not self.notes.get("ended"):
            self.append_packed(_END, 0, {**self.notes, "ended": True})
        super().finish(convert)
