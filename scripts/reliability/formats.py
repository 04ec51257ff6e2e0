"""What a damaged file contains by the definition of its format, written independently of the
readers of the package.

Each function returns the content of a valid file, or raises `InvalidError`. A reader that accepts a
file must return the content of the undamaged one, or what these functions find:

gzip, bgzip   every member complete with its checksum and length, nothing but zeros after the last;
bgzip ends with its empty block FASTA         headers at the beginning of a line (any line ends), a
name, at least one nucleotide letter, no name twice 2bit          every record where the index says,
none overlapping, blocks sorted and inside, the last record at the end of the file GenBank
LOCUS to // for every record, as many letters as LOCUS says, nothing after the last // BED
3 columns or more, not fewer than in the first row, plain integers, a region inside its record GTF,
GFF3     8 columns or more, not fewer than in the first row, plain integers, a region inside its
record VCF           ##fileformat, a line for each contig, the line of the columns; as many fields
in each row, in any order variants      tabs; chrom, pos, ref and alt in the header, as many fields
in each row, plain integers from 1 CSV, TSV      as many fields in each row as in the header, no
open quote, no empty cell but in a column of texts text, JSONL   UTF-8; one object with a text per
line tables with checksums (Parquet, zip, .dnd, caches): nothing but the undamaged content
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

LETTERS = re.compile(r"[ACGTURYKMSWBDHVN]*", re.IGNORECASE)
INTEGER = re.compile(r"-?[0-9]+")
_BGZIP = b"BC\x02\x00"


class InvalidError(Exception):
    """The file is not a complete file of its format."""


class Anything:
    """Equal to every content: a well-formed file of other values."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None


def content_of(path: Path) -> bytes:
    """The bytes of a file, decompressed if it is gzip."""
    data = path.read_bytes()
    return gunzip(data) if data[:2] == b"\x1f\x8b" else data


def gunzip(data: bytes) -> bytes:
    blocks, at, last = [], 0, b""
    is_bgzip = data[:4] == b"\x1f\x8b\x08\x04" and data[12:16] == _BGZIP
    while data[at:].strip(b"\0"):
        unpacker = zlib.decompressobj(31)
        try:
            blocks.append(unpacker.decompress(data[at:]))
        except zlib.error as error:
            raise InvalidError(str(error)) from None
        if not unpacker.eof:
            raise InvalidError("cut short")
        end = len(data) - len(unpacker.unused_data)
        last, at = data[at:end], end
    if is_bgzip and (len(last) != 28 or last[12:16] != _BGZIP):
        raise InvalidError("no last block")
    return b"".join(blocks)


def text_of(data: bytes) -> str:
    try:
        return re.sub(r"\r\n?", "\n", data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InvalidError(str(error)) from None


def lines_of(data: bytes) -> list[str]:
    text = text_of(data)
    return text.removesuffix("\n").split("\n") if text else []


def fasta(data: bytes) -> tuple[tuple[str, str], ...]:
    """Name and letters, in upper case, of each record."""
    records: list[tuple[str, list[str]]] = []
    data = re.sub(
        rb"\n{9,}", b"\n", data
    )  # blank lines mean nothing, and 64 million of them would take longer than what is tested
    for line in re.split(
        r"\r\n?|\n", data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    ):
        if line.startswith(">"):
            if not (words := line[1:].split()):
                raise InvalidError("no name")
            records.append((words[0], []))
        elif letters := line.replace(" ", "").replace("\t", ""):
            if not records or not LETTERS.fullmatch(letters) or not letters.isascii():
                raise InvalidError("no nucleotide")
            records[-1][1].append(letters.upper())
    found = tuple((name, "".join(parts)) for name, parts in records)
    if not found or len(dict(found)) < len(found) or not all(letters for _, letters in found):
        raise InvalidError("no record, no letters, or a name twice")
    return found


def unknown_as_n(records: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The records as a genome has them: U as T, ambiguity codes as N."""
    return tuple(
        (name, re.sub("[RYKMSWBDHV]", "N", letters.replace("U", "T"))) for name, letters in records
    )


def vcf(data: bytes) -> tuple[tuple[str, ...], ...]:
    """CHROM, POS, ID, REF and ALT of each row."""
    lines = lines_of(re.sub(rb"\n{9,}", b"\n", data))  # blank lines mean nothing
    head = next((n for n, line in enumerate(lines) if not line.startswith("##")), len(lines))
    if (
        not lines
        or not lines[0].startswith("##fileformat=VCF")
        or head == len(lines)
        or not lines[head].startswith("#CHROM\tPOS\tID\tREF\tALT")
    ):
        raise InvalidError("no header")
    rows = [line.split("\t") for line in lines if line.strip() and not line.startswith("#")]
    if any(len(row) != lines[head].count("\t") + 1 for row in rows):
        raise InvalidError("columns")
    contigs = {
        found[1]
        for line in lines[:head]
        if (found := re.match(r"##contig=<(?:.*,)?ID=([^,>]+)", line))
    }
    if not contigs.issuperset(row[0] for row in rows):
        raise InvalidError("contigs")
    for row in rows:
        _position(row[1])
    return tuple(tuple(row[:5]) for row in rows)


def variants(data: bytes) -> tuple[tuple[str, ...], ...]:
    """The same of a table; ID is `.` if it has none."""
    rows = [
        [cell.strip() for cell in line.split("\t")]
        for line in lines_of(re.sub(rb"\n{9,}", b"\n", data))
        if line.strip()
    ]
    names = [name.lstrip("#").lower() for name in rows[0]] if rows else []
    if not {"chrom", "pos", "ref", "alt"} <= set(names) or any(
        len(row) != len(names) for row in rows
    ):
        raise InvalidError("columns")
    found = [{name: row[names.index(name)] for name in names} for row in rows[1:]]
    for row in found:
        _position(row["pos"])
    return tuple((r["chrom"], r["pos"], r.get("id") or ".", r["ref"], r["alt"]) for r in found)


def _position(text: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) < 1:
        raise InvalidError("position")
    return int(text)


def twobit(data: bytes) -> tuple[tuple[str, str], ...]:
    try:
        return _twobit(data)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise InvalidError(str(error)) from None


def _twobit(data: bytes) -> tuple[tuple[str, str], ...]:
    order = {b"\x43\x27\x41\x1a": "<", b"\x1a\x41\x27\x43": ">"}.get(data[:4])
    if order is None:
        raise InvalidError("signature")
    version, count, _ = struct.unpack(order + "3I", data[4:16])
    if version > 1:
        raise InvalidError("version")
    at, index = 16, []
    for _ in range(count):
        size = data[at]
        (offset,) = struct.unpack_from(order + ("Q" if version else "I"), data, at + 1 + size)
        index.append((data[at + 1 : at + 1 + size].decode("ascii"), offset))
        at += 1 + size + (8 if version else 4)
    found, extents = [], [(0, at)]
    for name, start in index:
        (length,), here = struct.unpack_from(order + "I", data, start), start + 4
        blocks = []
        for _ in range(2):
            (number,) = struct.unpack_from(order + "I", data, here)
            if 8 * number > len(data):
                raise InvalidError("blocks")
            values = struct.unpack_from(f"{order}{2 * number}I", data, here + 4)
            pairs = list(zip(values[:number], values[number:]))
            ends = [0, *(a + b for a, b in pairs)]
            if any(a < before or a + b > length for (a, b), before in zip(pairs, ends)):
                raise InvalidError("blocks")
            blocks.append(pairs)
            here += 4 + 8 * number
        here += 4
        end = here + -(-length // 4)
        if end > len(data) or not length:
            raise InvalidError("cut short")
        letters = bytearray(
            "".join("TCAG"[byte >> shift & 3] for byte in data[here:end] for shift in (6, 4, 2, 0))[
                :length
            ].encode()
        )
        for a, b in blocks[0]:
            letters[a : a + b] = b"N" * b
        extents.append((start, end))
        found.append((name, letters.decode()))
    extents.sort()
    if any(end > after for (_, end), (after, _) in itertools.pairwise(extents)) or extents[-1][
        1
    ] != len(data):
        raise InvalidError("records overlap, or do not end where the file ends")
    if not found or len(dict(found)) < len(found):
        raise InvalidError("no record, or a name twice")
    return tuple(found)


def genbank(data: bytes) -> tuple[str, ...]:
    """The letters of each record, in upper case."""
    text = text_of(data)
    *records, rest = re.split(r"(?m)^//[^\S\n]*(?:\n|\Z)", text)
    if rest.strip() or not records:
        raise InvalidError("text after the last //")
    found = []
    for record in records:
        locus = re.match(r"\s*LOCUS\s+\S+\s+(\d+) bp", record)
        origin = re.split(r"(?m)^ORIGIN.*\n", record)
        if locus is None or len(origin) != 2:
            raise InvalidError("no LOCUS or ORIGIN")
        letters = re.sub(r"[\d\s]", "", origin[1]).upper()
        if len(letters) != int(locus[1]) or not letters or not LETTERS.fullmatch(letters):
            raise InvalidError("another length than in LOCUS")
        found.append(re.sub("[RYKMSWBDHV]", "N", letters.replace("U", "T")))
    return tuple(found)


def _integer(text: str) -> int:
    if not INTEGER.fullmatch(text.strip()):
        raise InvalidError(f"{text!r} is no integer")
    return int(text.strip()[:4000])


def _region(
    chrom: str, start: int, end: int, strand: str, lengths: Mapping[str, int]
) -> tuple[str, int, int, str]:
    if (
        chrom not in lengths
        or not 0 <= start < end <= lengths[chrom]
        or strand not in "+-."
        or not strand
    ):
        raise InvalidError("region")
    return chrom, start, end, strand


def bed(data: bytes, lengths: Mapping[str, int]) -> tuple[tuple[str, int, int, str], ...]:
    found, width = [], None
    for line in lines_of(data):
        if not line.strip() or line.startswith("#"):
            continue
        columns = line.split("\t") if "\t" in line else line.split()
        if columns[0].split()[:1] in (["track"], ["browser"]):
            continue
        width = width or len(columns)
        if len(columns) < max(3, width):
            raise InvalidError("columns")
        strand = columns[5] if len(columns) > 5 else "."
        found.append(
            _region(columns[0], _integer(columns[1]), _integer(columns[2]), strand, lengths)
        )
    if not found:
        raise InvalidError("empty")
    return tuple(found)


def gff(data: bytes, lengths: Mapping[str, int]) -> tuple[tuple[str, int, int, str], ...]:
    found, width = [], None
    for line in lines_of(data):
        if line.startswith(("##FASTA", ">")):
            break
        if not line.strip() or line.startswith("#"):
            continue
        columns = line.split("\t") if "\t" in line else line.split()
        width = width or len(columns)
        if len(columns) < max(8, width):
            raise InvalidError("columns")
        found.append(
            _region(columns[0], _integer(columns[3]) - 1, _integer(columns[4]), columns[6], lengths)
        )
    if not found:
        raise InvalidError("empty")
    return tuple(found)


def table(
    data: bytes, columns: Sequence[str], delimiter: str = ",", empty_cells: bool = False
) -> tuple[tuple[str, ...], ...]:
    """The cells of some columns in each row, stripped."""
    try:
        csv.field_size_limit(2**31 - 1)
        rows = [
            row
            for row in csv.reader(
                io.StringIO(data.decode("utf-8-sig"), newline=None),
                delimiter=delimiter,
                strict=True,
            )
            if any(row)
        ]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidError(str(error)) from None
    header = [name.strip() for name in rows[0]] if rows else []
    if (
        len(rows) < 2
        or any(len(row) != len(header) for row in rows)
        or not set(columns) <= set(header)
    ):
        raise InvalidError("fields")
    where = [header.index(name) for name in columns]
    found = tuple(tuple(row[i].strip() for i in where) for row in rows[1:])
    if not empty_cells and not all(all(cells) for cells in found):
        raise InvalidError("an empty cell")
    return found


def objects(data: bytes, column: str) -> tuple[str, ...]:
    """The texts of JSON lines."""
    found = []
    for line in text_of(data).split("\n"):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidError(str(error)) from None
        if not isinstance(row, dict) or not isinstance(row.get(column), str):
            raise InvalidError("no text")
        found.append(row[column])
    return tuple(found)


def ended_lines(text: str) -> str:
    """The text without a last line that has no line break: a killed process had not finished it."""
    return text[: text.rfind("\n") + 1]


def finite(value: object) -> object:
    """A JSON value as the package writes it: NaN and infinities become null."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parsed(data: bytes) -> dict[str, object]:
    """A JSON object."""
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidError(str(error)) from None
    if not isinstance(value, dict):
        raise InvalidError("not an object")
    return value


def safetensors(data: bytes) -> dict[str, object]:
    """The header of a file whose tensors fill it exactly."""
    if len(data) < 8 or len(data) < 8 + struct.unpack("<Q", data[:8])[0]:
        raise InvalidError("cut short")
    (size,) = struct.unpack("<Q", data[:8])
    header = parsed(data[8 : 8 + size])
    try:
        extents = sorted(
            (int(a), int(b))
            for name, about in header.items()
            if name != "__metadata__"
            for a, b in [about["data_offsets"]]
        )
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise InvalidError(str(error)) from None
    ends = [0, *(end for _, end in extents)]
    if (
        any(start != before for (start, _), before in zip(extents, ends))
        or ends[-1] != len(data) - 8 - size
    ):
        raise InvalidError("tensors do not fill the file")
    return header
