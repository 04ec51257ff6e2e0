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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Interval
from numpy import ndarray
from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from dnadiff import fields as checks
from dnadiff.fields import Natural, PositiveInt
from dnadiff.formats.nucleotides import IUPAC, not_a_nucleotide
from dnadiff.store.disk import json_object
from dnadiff.store.files import chunks, open_binary, resolve

_MARK = b"\xef\xbb\xbf"  # byte order mark of UTF-8, which some editors write
_OTHER = bytes.maketrans(b"ACGT", bytes(4))
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

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=True)

    headers: list[Annotated[str, StringConstraints(pattern=r"^[^\n]*$")]]
    lines: list[list[Natural]]
    lower: list[list[Natural]]
    others: list[list[Natural | str]]
    newline: Annotated[str, StringConstraints(pattern=r"^\r?\n$")]
    ended: bool
    leading: Natural
    marked: bool = False

    def lengths(self) -> list[int]:
        """The letters of each record."""
        return [
            sum(width * times for width, times in zip(lines[::2], lines[1::2]))
            for lines in self.lines
        ]

    def num_bytes(self) -> int:
        """The length of the text, without making it."""
        lines = len(self.headers) + sum(sum(lines[1::2]) for lines in self.lines)
        breaks = self.leading + lines - (not self.ended)
        named = sum(len(header.encode()) + 1 for header in self.headers)
        marks = len(_MARK) * self.marked + len(self.newline) * breaks
        return marks + named + sum(self.lengths())

    def json(self) -> bytes:
        """As it is in a file, before it is packed."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


def layout_of(content: bytes) -> ContainerLayout:
    """The layout in its JSON form. Nothing is allocated for the lengths that it declares.

    Raises:
        ValueError: if attributes are missing or of another type, or runs do not fit the lengths of
            their records.
    """
    try:
        layout = TypeAdapter(ContainerLayout).validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where} {first['msg']}".strip()) from None
    records: Sequence[list] = (layout.headers, layout.lines, layout.lower, layout.others)
    _check(len(set(map(len, records))) == 1, "the number of records")
    _check(all(len(lines) % 2 == 0 for lines in layout.lines), "the lengths of lines")
    for length, lower, others in zip(layout.lengths(), layout.lower, layout.others):
        _check(not lower or sum(lower) == length, "the runs of lower case")
        gaps, sizes, letters = others[::3], others[1::3], others[2::3]
        are_counts = all(isinstance(each, int) for each in [*gaps, *sizes])
        are_triples = len(others) % 3 == 0 and are_counts and _OTHERS.issuperset(letters)
        _check(are_triples, "the runs of other letters")
        _check(sum(map(int, [*gaps, *sizes])) <= length, "the runs of other letters")
    return layout


def _check(right: bool, what: str) -> None:
    if not right:
        raise ValueError(f"{what} cannot be that of a FASTA file")


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
    byte_order = text.startswith(_MARK)
    text = text.removeprefix(_MARK)
    ended = text.endswith(b"\n")
    lines = text.split(b"\n")[: -1 if ended else None]
    marked = sum(line.endswith(b"\r") for line in (lines if ended else lines[:-1]))
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
    newline = "\r\n" if marked else "\n"
    layout = ContainerLayout([], [], [], [], newline, ended, leading, byte_order)
    starts = [i for i, line in enumerate(lines) if line.startswith(b">")]
    sequences = []
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(lines)]), 1):
        body = lines[start + 1 : end]
        letters = b"".join(body)
        try:
            header = lines[start][1:].decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: the header of record {number} is not UTF-8 text ({error.reason}); "
                "rewrite it"
            ) from error
        if (problem := not_a_nucleotide(letters)) is not None:
            raise ValueError(f"{path}: record {number} ({header.split(' ')[0]}): {problem}")
        layout.headers.append(header)
        layout.lines.append([x for n, same in groupby(map(len, body)) for x in (n, len([*same]))])
        layout.lower.append(_case_runs(letters))
        layout.others.append(_other_runs(letters.upper()))
        sequences.append(letters)
    return layout, sequences


def skeletons(layout: ContainerLayout) -> list[ndarray]:
    """The known letters of each record before its bases are decoded: uint8 letters, 0 in place of
    A, C, G, T and U."""
    rows = [np.zeros(length, np.uint8) for length in layout.lengths()]
    for row, others in zip(rows, layout.others):
        for start, end, letter in _positions(others):
            row[start:end] = 0 if letter == "U" else ord(letter)  # U is coded as T
    return rows


def restore(layout: ContainerLayout, sequences: list[ndarray]) -> bytes:
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
        text = letters.tobytes()
        at = 0
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


def _case_runs(letters: bytes) -> list[int]:
    """Alternating lengths of runs in upper and lower case, the first in upper case (may be 0);
    empty without lower case."""
    is_lower = np.frombuffer(letters, np.uint8) & 0x20 > 0
    if not is_lower.any():
        return []
    change = np.flatnonzero(np.diff(is_lower, prepend=False))
    return np.diff(change, prepend=0, append=len(is_lower)).tolist()


def _other_runs(letters: bytes) -> list[int | str]:
    code = np.frombuffer(letters.translate(_OTHER), np.uint8)  # 0 for A, C, G and T
    change = np.flatnonzero(code[1:] != code[:-1]) + 1
    edges = [0, *change.tolist(), len(code)] if code.any() else []
    runs: list[int | str] = []
    before = 0
    for start, end in pairwise(edges):
        if code[start]:
            runs += [start - before, end - start, chr(code[start])]
            before = end
    return runs


# the line break reveals files that a transfer in text mode has changed
MAGIC = b"\x93dnadiff.dnd\x01\r\n"
FORMAT = 1  # version of the code; other versions are rejected
_DIGEST = 16
blake2b = partial(hashlib.blake2b, digest_size=_DIGEST)
_LEAST = 1 << 20  # bytes that any file may expand to
_RATIO = 100  # bytes for each byte of a file
_XZ_MEMORY = 1 << 27  # bytes; what we write needs half of it


class Machine(TypedDict):
    """`coding.describe` and `coding.measure`: what is always recorded."""

    device: str
    instructions: str
    torch: str
    dtype: str
    scan: str
    products: Literal["highest", "high", "medium"]
    threads: Annotated[int, Interval(ge=1, le=1024)]
    constriction: str


@checks.checked
@dataclass(frozen=True)
class ContainerHeader:
    """The settings of a compression.

    Attributes:
        format: version of the code.
        model: `coding.fingerprint` of the model.
        machine: files of older versions lack the newer entries.
        window, num_groups, seed, batch_size: arguments of `compress`.
        text: BLAKE2b of the text.
        side_bytes: compressed size of the layout.
    """

    format: int
    model: str
    machine: Mapping[str, str | int]
    window: PositiveInt
    num_groups: PositiveInt
    seed: Natural
    batch_size: PositiveInt
    text: str
    side_bytes: Natural = 0

    @classmethod
    def read(cls, content: bytes, path: str | Path) -> ContainerHeader:
        """The header in its JSON form.

        Raises:
            ValueError: if it is of another format, an entry is missing, or has a value that no
                compression writes.
        """
        where = f"{path}: its header"
        found = json_object(content, where, ("format",))
        if found["format"] != FORMAT:
            raise ValueError(
                f"{path} has format {found['format']!r:.40}, this version reads {FORMAT}; use the "
                "dnadiff that wrote it"
            )
        names = [field.name for field in fields(cls)]
        found = json_object(content, where, names)
        json_object(
            json.dumps(found["machine"]), f"{where}, machine,", list(Machine.__annotations__)
        )
        checks.check_value(f"{path}: machine", found["machine"], Machine)
        given = {name: found[name] for name in names}
        return cls(**checks.check_arguments(cls, given, f"{path}: "))


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
            f"size may ask for; if you trust the file, set max_bytes={needed} or more"
        )


def pack(header: ContainerHeader, layout: ContainerLayout, words: ndarray) -> bytes:
    """The content of a .dnd file."""
    plain = layout.json()
    # The default of preset 9, 64 MiB, takes 674 MB for any content.
    dictionary = min(max(len(plain), 1 << 12), 1 << 26)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": dictionary}]
    side = lzma.compress(plain, filters=filters)
    fields = asdict(replace(header, side_bytes=len(side)))
    about = json.dumps(fields, separators=(",", ":")).encode()
    body = MAGIC + struct.pack("<I", len(about)) + about + side + words.astype("<u4").tobytes()
    return body + blake2b(body).digest()


def unpack(
    path: str | Path, max_bytes: int | None = None
) -> tuple[ContainerHeader, ContainerLayout, ndarray]:
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
    body = content[:-_DIGEST]
    digest = content[-_DIGEST:]
    start = len(MAGIC) + 4
    if len(body) < start or blake2b(body).digest() != digest:
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
    damaged = f"{path}: its layout is damaged"
    try:
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        side = decoder.decompress(body[start + length : side_end], max_length=limit + 1)
    except lzma.LZMAError as error:
        raise ValueError(f"{damaged} ({error}); use another copy of it") from error
    check_size(path, "its layout, decompressed,", len(side), limit)
    if not decoder.eof or decoder.unused_data:
        raise ValueError(
            f"{path}: its layout does not end where the header says; use another copy of it"
        )
    try:
        layout = layout_of(side)
    except ValueError as error:
        raise ValueError(f"{damaged}: {error}; use another copy of it") from error
    check_size(path, "its text", layout.num_bytes(), limit)
    return header, layout, np.frombuffer(body[side_end:], "<u4").astype(np.uint32)
