"""The `.dnd` file format: a compressed FASTA file, as a code for its bases and side information for
the rest.

Contents: magic number, length of the header, header (JSON), layout (JSON, xz), words of the code,
    digest of everything before it. The
digest reveals damage, not intent: a file from an untrusted source is checked as if it had none.
Nothing is allocated for a number in it that its own size does not justify.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dnadiff import checks
from dnadiff.compression.layout import ContainerLayout, checked
from dnadiff.store.disk import json_object
from dnadiff.store.files import resolve

if TYPE_CHECKING:
    from dnadiff.config import Json

# the line break reveals files that a transfer in text mode has changed
MAGIC = b"\x93dnadiff.dnd\x01\r\n"
FORMAT = 1  # version of the code; other versions are rejected
MAX_THREADS = 1024
_INT64 = (1 << 63) - 1
_DIGEST = 16
_HASH = 32  # hexadecimal digits
_LEAST, _RATIO = 1 << 20, 100  # bytes that any file may expand to; bytes for each byte of a file
_XZ_MEMORY = 1 << 27  # bytes; what we write needs half of it
_SAME_MACHINE = (
    "device",
    "instructions",
    "torch",
    "dtype",
    "scan",
    "products",
    "threads",
    "constriction",
)  # always recorded


@dataclass(frozen=True)
class ContainerHeader:
    """The settings of a compression.

    Attributes:
        format: version of the code.
        model: `machine.fingerprint` of the model.
        machine: `machine.describe`; files of older versions lack the newer entries.
        window, num_groups, seed, batch_size: arguments of `compress`.
        text: BLAKE2b of the text.
        side_bytes: compressed size of the layout.
    """

    format: int
    model: str
    machine: Mapping[str, str | int]
    window: int
    num_groups: int
    seed: int
    batch_size: int
    text: str
    side_bytes: int = 0

    @classmethod
    def read(cls, content: bytes, path: str | Path) -> ContainerHeader:
        """The header in its JSON form.

        Raises:
            ValueError: if it is of another format, an entry is missing, or has a value that no
                compression writes.
        """
        found = json_object(content, f"{path}: its header", ("format",))
        if found["format"] != FORMAT:
            raise ValueError(
                f"{path} has format {found['format']!r:.40}, this version reads {FORMAT}; use the "
                "dnadiff that wrote it"
            )
        if missing := [field.name for field in fields(cls) if field.name not in found]:
            raise ValueError(
                f"{path}: its header lacks {', '.join(missing)}; compress the file again"
            )
        lowest = {"window": 1, "num_groups": 1, "seed": 0, "batch_size": 1, "side_bytes": 0}
        numbers = {
            key: checks.integer(
                f"{path}: {key}", found[key], low, None if key == "seed" else _INT64
            )
            for key, low in lowest.items()
        }
        model, text = (_hash(f"{path}: {key}", found[key]) for key in ("model", "text"))
        return cls(FORMAT, model, _machine(found["machine"], path), text=text, **numbers)


def size_limit(size: int, max_bytes: int | None = None) -> int:
    """The most bytes that the text, the layout or a padded batch of a file of `size` bytes may
    take: `max_bytes`, or by default 1 MiB or 100 times the size, whichever is more. FASTA files
        usually take 4 to 6 times their compressed size."""
    return max(_LEAST, _RATIO * size) if max_bytes is None else max_bytes


def check_size(path: str | Path, what: str, needed: int, limit: int) -> None:
    """Raise ValueError if a part of a file needs more than the limit."""
    if needed > limit:
        raise ValueError(
            f"{path}: {what} takes {needed:,} bytes, more than the {limit:,} that a file of its "
            "size may ask for; "
            f"if you trust the file, set max_bytes={needed} or more"
        )


def pack(header: ContainerHeader, layout: ContainerLayout, words: np.ndarray) -> bytes:
    """The content of a .dnd file."""
    plain = _layout_json(layout)
    dictionary = min(
        max(len(plain), 1 << 12), 1 << 26
    )  # the default of preset 9, 64 MiB, takes 674 MB for any content
    side = lzma.compress(
        plain, filters=[{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": dictionary}]
    )
    about = json.dumps(
        asdict(replace(header, side_bytes=len(side))), separators=(",", ":")
    ).encode()
    body = MAGIC + struct.pack("<I", len(about)) + about + side + words.astype("<u4").tobytes()
    return body + hashlib.blake2b(body, digest_size=_DIGEST).digest()


def expanded_size(layout: ContainerLayout) -> int:
    """The bytes that the text and the layout take, whichever is more: what `unpack` compares with
    `size_limit`."""
    return max(layout.num_bytes(), len(_layout_json(layout)))


def unpack(
    path: str | Path, max_bytes: int | None = None
) -> tuple[ContainerHeader, ContainerLayout, np.ndarray]:
    """Header, layout and code of a .dnd file.

    Args:
        max_bytes: see `size_limit`.

    Raises:
        ValueError: if it is not a .dnd file, damaged, or would expand to more than its size
            justifies.
    """
    with resolve(path).open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(
                f"{path} is not a .dnd file; give one that python -m dnadiff.compress wrote"
            )
        content = MAGIC + file.read()
    body, digest = content[:-_DIGEST], content[-_DIGEST:]
    start = len(MAGIC) + 4
    if len(body) < start or hashlib.blake2b(body, digest_size=_DIGEST).digest() != digest:
        raise ValueError(
            f"{path} is damaged or cut short (its digest does not match); use another copy of it"
        )
    (length,) = struct.unpack("<I", body[start - 4 : start])
    header = ContainerHeader.read(body[start : start + length], path)
    side_end = start + length + header.side_bytes
    if side_end > len(body) or (len(body) - side_end) % 4:
        raise ValueError(
            f"{path} is damaged: its parts are declared longer than the file, or not of whole "
            "words; use another copy of it"
        )
    limit = size_limit(len(content), max_bytes)
    layout = _read_layout(body[start + length : side_end], path, limit)
    check_size(path, "its text", layout.num_bytes(), limit)
    return header, layout, np.frombuffer(body[side_end:], "<u4").astype(np.uint32)


def _layout_json(layout: ContainerLayout) -> bytes:
    return json.dumps(asdict(layout), separators=(",", ":")).encode()


def _read_layout(packed: bytes, path: str | Path, limit: int) -> ContainerLayout:
    try:
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        side = decoder.decompress(packed, max_length=limit + 1)
    except lzma.LZMAError as error:
        raise ValueError(
            f"{path}: its layout is damaged ({error}); use another copy of it"
        ) from error
    check_size(path, "its layout, decompressed,", len(side), limit)
    if not decoder.eof or decoder.unused_data:
        raise ValueError(
            f"{path}: its layout does not end where the header says; use another copy of it"
        )
    try:
        return checked(json_object(side, "the layout"))
    except ValueError as error:
        raise ValueError(
            f"{path}: its layout is damaged: {error}; use another copy of it"
        ) from error


def _hash(key: str, value: Json) -> str:
    if not isinstance(value, str) or len(value) != _HASH or set(value) - set("0123456789abcdef"):
        raise ValueError(f"{key} {value!r:.60} must be {_HASH} hexadecimal digits")
    return value


def _machine(found: Json, path: str | Path) -> dict[str, str | int]:
    if not isinstance(found, dict) or (
        missing := [key for key in _SAME_MACHINE if key not in found]
    ):
        raise ValueError(
            f"{path}: its header lacks machine.{missing[0] if isinstance(found, dict) else '*'}; "
            "compress the file again"
        )
    checks.integer(f"{path}: machine.threads", found["threads"], 1, MAX_THREADS)
    for key, value in found.items():
        if not isinstance(value, str) and key != "threads":
            raise ValueError(f"{path}: machine.{key} {value!r:.60} must be a string")
    return found
