"""The `.dnd` file format: a compressed FASTA file, as a code for its bases and side information for the rest.

Contents: magic number, length of the header, header (JSON), side information (JSON, xz), words of the code, digest of everything
before it. The model codes the bases A, C, G and T (U as T). Headers, case, line breaks and all other letters are side information, so
the text is restored byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dnadiff.data.files import chunks, open_binary, resolve
from dnadiff.data.nucleotides import not_a_nucleotide

if TYPE_CHECKING:
    from dnadiff.config import Json

MAGIC = b"\x93dnadiff.dnd\x01\r\n"  # the line break reveals files that a transfer in text mode has changed
FORMAT = 1  # version of the code; other versions are rejected
_DIGEST = 16
_MARK = b"\xef\xbb\xbf"  # byte order mark of UTF-8, which some editors write
_OTHER = bytes(chr(letter) not in "ACGT" for letter in range(256))
_CODED = {"U": 0}  # coded as T


@dataclass(frozen=True)
class ContainerLayout:
    """Everything in a FASTA text except A, C, G and T. The model codes none of it.

    Attributes:
        lines: for each record, run lengths of its line lengths: [60, 3, 12, 1] is three lines of 60 letters and one of 12.
        lower: for each record, alternating lengths of runs in upper and lower case.
        others: for each record, runs of letters other than A, C, G and T: distance from the end of the previous run, length, letter.
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


def read_text(path: str | Path) -> bytes:
    """The content of a FASTA file, decompressed if it is gzip; raises ValueError if it is empty or damaged."""
    with open_binary(path) as file:
        content = b"".join(chunks(file))
    if not content.removeprefix(_MARK).strip():
        raise ValueError(f"{path} is empty; give a FASTA file with at least one record")
    return content


def parse(text: bytes, path: str | Path) -> tuple[ContainerLayout, list[bytes]]:
    """The layout of a FASTA text, and the letters of each record.

    Raises:
        ValueError: if it is not FASTA, contains a letter that is not a nucleotide, or mixes line breaks.
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
        raise ValueError(f"{path} is not FASTA: line {leading + 1} is {lines[leading][:30]!r}, expected a header such as '>name'")
    starts = [i for i, line in enumerate(lines) if line.startswith(b">")]
    headers, widths, lower, others, sequences = [], [], [], [], []
    for start, end in zip(starts, [*starts[1:], len(lines)]):
        body = lines[start + 1 : end]
        letters = b"".join(body)
        try:
            headers.append(lines[start][1:].decode())
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: the header of record {len(headers) + 1} is not UTF-8 text ({error.reason}); rewrite it") from error
        if (problem := not_a_nucleotide(letters)) is not None:
            raise ValueError(f"{path}: record {len(headers)} ({headers[-1].split(' ')[0]}): {problem}")
        widths.append(_run_lengths([len(line) for line in body]))
        lower.append(_case_runs(letters))
        others.append(_other_runs(letters.upper()))
        sequences.append(letters)
    return ContainerLayout(headers, widths, lower, others, newline, ended, leading, byte_order), sequences


def skeletons(layout: ContainerLayout) -> list[np.ndarray]:
    """The known letters of each record before its bases are decoded: uint8 letters, 0 in place of A, C, G, T and U."""
    result = []
    for lines, others in zip(layout.lines, layout.others):
        row = np.zeros(sum(n * times for n, times in zip(lines[::2], lines[1::2])), np.uint8)
        for start, end, letter in _positions(others):
            row[start:end] = _CODED.get(letter, ord(letter))
        result.append(row)
    return result


def restore(layout: ContainerLayout, sequences: list[np.ndarray]) -> bytes:
    """The text from its layout and the letters of each record (upper case; letters other than A, C, G and T are taken from the layout)."""
    newline = layout.newline.encode()
    lines: list[bytes] = [b""] * layout.leading
    for header, widths, lower, others, letters in zip(layout.headers, layout.lines, layout.lower, layout.others, sequences):
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


def pack(header: dict[str, Json], layout: ContainerLayout, words: np.ndarray) -> bytes:
    """The content of a .dnd file."""
    plain = json.dumps(asdict(layout), separators=(",", ":")).encode()
    dictionary = min(max(len(plain), 1 << 12), 1 << 26)  # the default of preset 9, 64 MiB, takes 674 MB for any content
    side = lzma.compress(plain, filters=[{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": dictionary}])
    about = json.dumps(header | {"side_bytes": len(side)}, separators=(",", ":")).encode()
    body = MAGIC + struct.pack("<I", len(about)) + about + side + words.astype("<u4").tobytes()
    return body + hashlib.blake2b(body, digest_size=_DIGEST).digest()


def unpack(path: str | Path) -> tuple[dict[str, Json], ContainerLayout, np.ndarray]:
    """Header, layout and code of a .dnd file.

    Raises:
        ValueError: if it is not a .dnd file, or damaged.
    """
    content = resolve(path).read_bytes()
    if not content.startswith(MAGIC):
        raise ValueError(f"{path} is not a .dnd file; give one that python -m dnadiff.compress wrote")
    body, digest = content[:-_DIGEST], content[-_DIGEST:]
    if len(body) < len(MAGIC) + 4 or hashlib.blake2b(body, digest_size=_DIGEST).digest() != digest:
        raise ValueError(f"{path} is damaged or cut short (its digest does not match); use another copy of it")
    start = len(MAGIC) + 4
    (length,) = struct.unpack("<I", body[start - 4 : start])
    header = json.loads(body[start : start + length])
    side_end = start + length + header["side_bytes"]
    layout = ContainerLayout(**json.loads(lzma.decompress(body[start + length : side_end])))
    return header, layout, np.frombuffer(body[side_end:], "<u4").astype(np.uint32)


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
    """Alternating lengths of runs in upper and lower case, the first in upper case (may be 0); empty without lower case."""
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
    start = np.flatnonzero(np.diff(code, prepend=np.uint8(0)) != 0)  # unsigned differences wrap and stay non-zero
    end = np.append(start[1:], len(code))
    runs: list[int | str] = []
    before = 0
    for a, b in zip(start.tolist(), end.tolist()):
        if code[a]:
            runs += [a - before, b - a, chr(code[a])]
            before = b
    return runs
