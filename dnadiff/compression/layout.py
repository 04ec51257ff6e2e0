"""A FASTA text as the letters of its records, which the model codes, and a layout with everything
else.

The model codes the bases A, C, G and T (U as T). Headers, case, line breaks and all other letters
are in the layout, so the text is restored byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dnadiff.checks import is_integer
from dnadiff.config import Json
from dnadiff.formats.nucleotides import IUPAC, not_a_nucleotide
from dnadiff.store.files import chunks, open_binary

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
