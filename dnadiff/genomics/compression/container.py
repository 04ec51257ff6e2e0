"""The `.dnd` file format: a compressed FASTA file, as a code for its bases and side information for
the rest.

The model codes the bases A, C, G and T (U as T). Headers, case, line breaks and all other letters
are in the layout, so the text is restored byte for byte.

Contents: magic number, length of the header, header (JSON), layout (JSON, xz), words of the code,
digest of everything before it. The digest reveals damage, not intent: a file from an untrusted
source is checked as if it had none. Nothing is allocated for a number in it that its own size does
not justify."""

from __future__ import annotations

import hashlib
import json
import lzma
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dnadiff import fields as checks
from dnadiff.fields import Json, is_integer
from dnadiff.formats.nucleotides import IUPAC, not_a_nucleotide
from dnadiff.store.disk import json_object
from dnadiff.store.files import chunks, open_binary, resolve

if TYPE_CHECKING:
    from dnadiff.fields import Json


_MARK = b"\xef\xbb\xbf"  # byte order mark of UTF-8, which some editors write
_OTHER = bytes(chr(letter) not in "ACGT" for letter in range(256))
_CODED = {"U": 0}  # coded as T
_OTHERS = frozenset(IUPAC) - frozenset("ACGT")


@dataclass(frozen=True)
class ContainerLayout:
    """Everything in a FASTA text except A, C, G and T. The model codes none of it.

    Attributes:
        lines: for each record, run lengths of its line lengths: [60, 3, 12, 1] is three lines of 60
            letters and one of 12.
        lower: for each record, alternating lengths of runs in upper and lower case.
        others: for each record, runs of letters other than A, C, G and T: distance from the end of
            the previous run, length, letter.
        ended: whether the last line ends with a line break.
        leading: number of empty lines before the first header.
        marked: whether the text begins with a byte order mark.
    """

    headers: list[str]
    lines: list[list[int]]
    lower: list[list[int]]
    others: list[list[int | str]]
    newline: str
    ended: bool
    leading: int
    marked: bool = False

    def num_bytes(self) -> int:
        """The length of the text, without making it."""
        lines = [
            (width, times)
            for widths in self.lines
            for width, times in zip(widths[::2], widths[1::2])
        ]
        breaks = (
            self.leading + len(self.headers) + sum(times for _, times in lines) - (not self.ended)
        )
        named = sum(len(header.encode()) + 1 for header in self.headers)
        return (
            len(_MARK) * self.marked
            + len(self.newline) * breaks
            + named
            + sum(width * times for width, times in lines)
        )


def checked(found: Mapping[str, Json]) -> ContainerLayout:
    """The layout with these attributes. Nothing is allocated for the lengths that it declares.

    Raises:
        ValueError: if attributes are missing or of another type, or runs do not fit the lengths of
            their records.
    """
    try:
        layout = ContainerLayout(**found)
    except TypeError as error:
        raise ValueError(f"other attributes than those of a layout ({error})") from error
    _check(
        layout.newline in ("\n", "\r\n")
        and isinstance(layout.ended, bool)
        and isinstance(layout.marked, bool),
        "the kind of line breaks",
    )
    _check(is_integer(layout.leading, 0), "the number of empty lines")
    records = (layout.headers, layout.lines, layout.lower, layout.others)
    _check(
        all(isinstance(each, list) and len(each) == len(layout.headers) for each in records),
        "the number of records",
    )
    for header, lines, lower, others in zip(*records):
        _check(isinstance(header, str) and "\n" not in header and _is_text(header), "a header")
        _check(_are_counts(lines) and len(lines) % 2 == 0, "the lengths of lines")
        length = sum(width * times for width, times in zip(lines[::2], lines[1::2]))
        _check(_are_counts(lower) and (not lower or sum(lower) == length), "the runs of lower case")
        _check(
            isinstance(others, list)
            and len(others) % 3 == 0
            and _are_counts([*others[::3], *others[1::3]]),
            "the runs of other letters",
        )
        _check(
            all(isinstance(letter, str) and letter in _OTHERS for letter in others[2::3]),
            "a letter",
        )
        _check(
            sum(value for value in others if isinstance(value, int)) <= length,
            "the runs of other letters",
        )
    return layout


def _check(right: bool, what: str) -> None:
    if not right:
        raise ValueError(f"{what} cannot be that of a FASTA file")


def _is_text(text: str) -> bool:
    try:
        return bool(text.encode()) or not text
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _are_counts(values: Json) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def read_text(path: str | Path) -> bytes:
    """The content of a FASTA file, decompressed if it is gzip; raises ValueError if it is empty or
    damaged."""
    with open_binary(path) as file:
        content = b"".join(chunks(file))
    if not content.removeprefix(_MARK).strip():
        raise ValueError(f"{path} is empty; give a FASTA file with at least one record")
    return content


def parse(text: bytes, path: str | Path) -> tuple[ContainerLayout, list[bytes]]:
    """The layout of a FASTA text, and the letters of each record.

    Raises:
        ValueError: if it is not FASTA, contains a letter that is not a nucleotide, or mixes line
            breaks.
    """
    byte_order, text = text.startswith(_MARK), text.removeprefix(_MARK)
    ended = text.endswith(b"\n")
    lines = text.split(b"\n")[: -1 if ended else None]
    marked = sum(line.endswith(b"\r") for line in (lines if ended else lines[:-1]))
    newline = "\r\n" if marked else "\n"
    if marked and marked != len(lines) - (not ended):
        raise ValueError(f"{path} mixes two kinds of line breaks; write it with one of them")
    if marked:
        lines = [line[:-1] for line in lines[:marked]] + lines[marked:]
    leading = next((i for i, line in enumerate(lines) if line), len(lines))
    if not lines[leading].startswith(b">"):
        raise ValueError(
            f"{path} is not FASTA: line {leading + 1} is {lines[leading][:30]!r}, expected a "
            "header such as '>name'"
        )
    starts = [i for i, line in enumerate(lines) if line.startswith(b">")]
    headers, widths, lower, others, sequences = [], [], [], [], []
    for start, end in zip(starts, [*starts[1:], len(lines)]):
        body = lines[start + 1 : end]
        letters = b"".join(body)
        try:
            headers.append(lines[start][1:].decode())
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: the header of record {len(headers) + 1} is not UTF-8 text "
                f"({error.reason}); rewrite it"
            ) from error
        if (problem := not_a_nucleotide(letters)) is not None:
            raise ValueError(
                f"{path}: record {len(headers)} ({headers[-1].split(' ')[0]}): {problem}"
            )
        widths.append(_run_lengths([len(line) for line in body]))
        lower.append(_case_runs(letters))
        others.append(_other_runs(letters.upper()))
        sequences.append(letters)
    return ContainerLayout(
        headers, widths, lower, others, newline, ended, leading, byte_order
    ), sequences


def skeletons(layout: ContainerLayout) -> list[np.ndarray]:
    """The known letters of each record before its bases are decoded: uint8 letters, 0 in place of
    A, C, G, T and U."""
    result = []
    for lines, others in zip(layout.lines, layout.others):
        row = np.zeros(sum(n * times for n, times in zip(lines[::2], lines[1::2])), np.uint8)
        for start, end, letter in _positions(others):
            row[start:end] = _CODED.get(letter, ord(letter))
        result.append(row)
    return result


def restore(layout: ContainerLayout, sequences: list[np.ndarray]) -> bytes:
    """The text from its layout and the letters of each record (upper case; letters other than A, C,
    G and T are taken from the layout)."""
    newline = layout.newline.encode()
    lines: list[bytes] = [b""] * layout.leading
    for header, widths, lower, others, letters in zip(
        layout.headers, layout.lines, layout.lower, layout.others, sequences
    ):
        letters = letters.copy()
        for start, end, letter in _positions(others):
            letters[start:end] = ord(letter)
        ends = np.cumsum(lower)
        for start, end in zip(ends[::2], ends[1::2]):
            letters[start:end] |= 0x20
        text, at = letters.tobytes(), 0
        lines.append(b">" + header.encode())
        for width, times in zip(widths[::2], widths[1::2]):
            for _ in range(times):
                lines.append(text[at : at + width])
                at += width
    return _MARK * layout.marked + newline.join(lines) + (newline if layout.ended else b"")


def _positions(others: list[int | str]) -> Iterator[tuple[int, int, str]]:
    end = 0
    for gap, length, letter in zip(others[::3], others[1::3], others[2::3]):
        start = end + int(gap)
        end = start + int(length)
        yield start, end, str(letter)


def _run_lengths(values: list[int]) -> list[int]:
    """Run lengths: [60, 60, 12] -> [60, 2, 12, 1]."""
    pairs: list[int] = []
    for value in values:
        if pairs and pairs[-2] == value:
            pairs[-1] += 1
        else:
            pairs += [value, 1]
    return pairs


def _case_runs(letters: bytes) -> list[int]:
    """Alternating lengths of runs in upper and lower case, the first in upper case (may be 0);
    empty without lower case."""
    is_lower = np.frombuffer(letters, np.uint8) & 0x20 > 0
    if not is_lower.any():
        return []
    change = np.flatnonzero(np.diff(is_lower, prepend=False))
    return np.diff(np.concatenate([[0], change, [len(is_lower)]])).tolist()


def _other_runs(letters: bytes) -> list[int | str]:
    values = np.frombuffer(letters, np.uint8)
    other = np.frombuffer(letters.translate(_OTHER), bool)
    if not other.any():
        return []
    code = np.where(other, values, np.uint8(0))
    start = np.flatnonzero(
        np.diff(code, prepend=np.uint8(0)) != 0
    )  # unsigned differences wrap and stay non-zero
    end = np.append(start[1:], len(code))
    runs: list[int | str] = []
    before = 0
    for a, b in zip(start.tolist(), end.tolist()):
        if code[a]:
            runs += [a - before, b - a, chr(code[a])]
            before = b
    return runs


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
