"""What a file contains by the definition of its format, read independently of the package.

Each function returns the content of a valid file, or raises `InvalidError`: a reader that accepts a
damaged file must return the content of the undamaged one, or what these functions find.

gzip, bgzip, bzip2, xz: all members complete, and nothing but zeros after the last; bgzip ends with
its empty block. FASTA: a header at the beginning of a line, a name, at least one nucleotide letter,
no name twice. 2bit: every record where the index says, none overlapping, the last at the end of the
file. GenBank: LOCUS to //, as many letters as LOCUS says. BED, GTF, GFF3: as many columns as in the
first row, plain integers, a region inside its record. VCF: ##fileformat, a line for each contig, as
many fields in each row as in the header. Tables: as many fields in each row, no open quote.
JASPAR: as many counts of each base. Files with checksums: nothing but the undamaged content.
"""

from __future__ import annotations

import bz2
import csv
import io
import itertools
import json
import lzma
import math
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

LETTERS = re.compile(r"[ACGTURYKMSWBDHVN]*", re.IGNORECASE)
INTEGER = re.compile(r"-?[0-9]{1,4000}")
BGZIP = b"BC\x02\x00"
Records = tuple[tuple[str, str], ...]


class InvalidError(Exception):
    """The file is not a complete file of its format."""


class Anything:
    """Equal to every content: a well-formed file of other values."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None


def check(valid: object, why: str) -> None:
    """Raise `InvalidError` unless `valid`."""
    if not valid:
        raise InvalidError(why)


def content_of(path: Path) -> bytes:
    """The bytes of a file, decompressed."""
    data = path.read_bytes()
    try:
        if data[:2] == b"\x1f\x8b":
            return gunzip(data)
        if re.match(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", data):
            return bz2.decompress(data)
        return lzma.decompress(data) if data.startswith(b"\xfd7zXZ\0") else data
    except (zlib.error, OSError, EOFError, ValueError, lzma.LZMAError) as error:
        raise InvalidError(str(error)) from None


def gunzip(data: bytes) -> bytes:
    blocks, at, last = [], 0, b""
    while data[at:].strip(b"\0"):
        unpacker = zlib.decompressobj(31)
        blocks.append(unpacker.decompress(data[at:]))
        check(unpacker.eof, "cut short")
        end = len(data) - len(unpacker.unused_data)
        last, at = data[at:end], end
    is_bgzip = data[:4] == b"\x1f\x8b\x08\x04" and data[12:16] == BGZIP
    check(not is_bgzip or (len(last) == 28 and last[12:16] == BGZIP), "no last block")
    return b"".join(blocks)


def text_of(data: bytes) -> str:
    try:
        return re.sub(r"\r\n?", "\n", data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InvalidError(str(error)) from None


def lines_of(path: Path) -> list[str]:
    """The lines of a text; blank ones mean nothing, and 64 million of them would take longer than
    what is tested."""
    text = text_of(re.sub(rb"\n{9,}", b"\n", content_of(path)))
    return text.removesuffix("\n").split("\n") if text else []


def fasta(path: Path) -> Records:
    """Name and letters, in upper case, of each record."""
    records: list[tuple[str, list[str]]] = []
    data = re.sub(rb"\n{9,}", b"\n", content_of(path)).removeprefix(b"\xef\xbb\xbf")
    for line in re.split(r"\r\n?|\n", data.decode("utf-8", "replace")):
        if line.startswith(">"):
            check(line[1:].split(), "no name")
            records.append((line[1:].split()[0], []))
        elif letters := line.replace(" ", "").replace("\t", ""):
            check(records and LETTERS.fullmatch(letters) and letters.isascii(), "no nucleotide")
            records[-1][1].append(letters.upper())
    return unique(tuple((name, "".join(parts)) for name, parts in records))


def unique(found: Records) -> Records:
    check(found and len(dict(found)) == len(found), "no record, or a name twice")
    check(all(letters for _, letters in found), "no letters")
    return found


def as_genome(records: Records) -> Records:
    """The records as a genome has them: U as T, ambiguity codes as N."""
    table = str.maketrans("URYKMSWBDHV", "TNNNNNNNNNN")
    return tuple((name, letters.translate(table)) for name, letters in records)


def vcf(path: Path) -> tuple[tuple[str, ...], ...]:
    """CHROM, POS, ID, REF and ALT of each row."""
    lines = lines_of(path)
    head = next((n for n, line in enumerate(lines) if not line.startswith("##")), -1)
    columns = lines[head] if lines else ""
    check(lines and lines[0].startswith("##fileformat=VCF"), "no VCF")
    check(columns.startswith("#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO"), "no header")
    rows = [line.split("\t") for line in lines if line.strip() and not line.startswith("#")]
    known = filter(
        None, (re.match(r"##contig=<(?:.*,)?ID=([^,>]+)", line) for line in lines[:head])
    )
    check({match[1] for match in known}.issuperset(row[0] for row in rows), "contigs")
    check(all(len(row) == columns.count("\t") + 1 for row in rows), "columns")
    return tuple((row[0], position(row[1]), *row[2:5]) for row in rows)


def variants(path: Path) -> tuple[tuple[str, ...], ...]:
    """The same of a table; ID is `.` if it has none."""
    rows = [[*map(str.strip, line.split("\t"))] for line in lines_of(path) if line.strip()]
    names = [name.lstrip("#").lower() for name in rows[0]] if rows else []
    check({"chrom", "pos", "ref", "alt"} <= {*names}, "columns")
    check(all(len(row) == len(names) for row in rows), "columns")
    found = [{name: row[names.index(name)] for name in names} for row in rows[1:]]
    return tuple(
        (r["chrom"], position(r["pos"]), r.get("id") or ".", r["ref"], r["alt"]) for r in found
    )


def position(text: str) -> str:
    check(re.fullmatch("[0-9]{1,10}", text), "position")
    return str(int(text))


def twobit(path: Path) -> Records:
    data = content_of(path)
    try:
        return _twobit(data)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise InvalidError(str(error)) from None


def _twobit(data: bytes) -> Records:
    order = {b"\x43\x27\x41\x1a": "<", b"\x1a\x41\x27\x43": ">"}.get(data[:4], "")
    check(order, "signature")

    def integers(number: int, at: int, kind: str = "I") -> tuple[int, ...]:
        check(8 * number <= len(data), "count")
        return struct.unpack_from(f"{order}{number}{kind}", data, at)

    version, count, _ = integers(3, 4)
    check(version <= 1, "version")
    at, index = 16, []
    for _ in range(count):
        name = data[at + 1 : at + 1 + data[at]].decode("ascii")
        at += 1 + data[at]
        index.append((name, *integers(1, at, "IQ"[version])))
        at += 4 + 4 * version
    found, extents = [], [(0, at)]
    for name, start in index:
        (length,), here, blocks = integers(1, start), start + 4, []
        for _ in range(2):
            (number,) = integers(1, here)
            values = integers(2 * number, here + 4)
            blocks.append([*zip(values[:number], values[number:])])
            ends = [0, *(a + b for a, b in blocks[-1])]
            inside = (
                before <= a and b and a + b <= length for (a, b), before in zip(blocks[-1], ends)
            )
            check(all(inside), "blocks")
            here += 4 + 8 * number
        here, end = here + 4, here + 4 + -(-length // 4)
        check(end <= len(data), "cut short")
        bases = ("TCAG"[byte >> shift & 3] for byte in data[here:end] for shift in (6, 4, 2, 0))
        letters = bytearray("".join(bases)[:length].encode())
        for a, b in blocks[0]:
            letters[a : a + b] = b"N" * b
        extents.append((start, end))
        found.append((name, letters.decode()))
    extents.sort()
    overlap = any(end > after for (_, end), (after, _) in itertools.pairwise(extents))
    check(not overlap and extents[-1][1] == len(data), "records overlap, or bytes follow")
    return unique(tuple(found))


def genbank(path: Path) -> tuple[str, ...]:
    """The letters of each record, in upper case."""
    text = re.sub(r"\r\n?", "\n", content_of(path).decode("utf-8-sig", "replace"))
    *records, rest = re.split(r"(?m)^//[^\S\n]*(?:\n|\Z)", text)
    check(not rest.strip() and records, "text after the last //")
    found = []
    for record in filter(str.strip, records):
        locus = re.match(r"\s*LOCUS\s+\S+\s+(?:\S.*\s)?(\d+) bp", record)
        origin = re.split(r"(?m)^ORIGIN.*\n", record)
        check(locus and len(origin) == 2, "no LOCUS or ORIGIN")
        letters = re.sub(r"[\d\s]", "", origin[1]).upper()
        check(letters and LETTERS.fullmatch(letters), "no nucleotide")
        check(str(len(letters)) == locus[1].lstrip("0"), "another length than in LOCUS")
        found.append(("", letters))
    check(found, "no record")
    return tuple(letters for _, letters in as_genome(tuple(found)))


def regions(
    path: Path, lengths: Mapping[str, int], gff: bool = False
) -> tuple[tuple[str, int, int, str], ...]:
    """Record, start, end and strand of each row of BED, or of GTF or GFF3."""
    found, width, (first, strand) = [], 8 if gff else 3, (3, 6) if gff else (1, 5)
    for line in lines_of(path):
        if gff and line.startswith(("##FASTA", ">")):
            break
        columns = line.split("\t") if "\t" in line else line.split()
        is_track = not gff and columns and columns[0].split()[:1] in (["track"], ["browser"])
        if not line.strip() or line.startswith("#") or is_track:
            continue
        check(len(columns) >= width, "columns")
        width = width if found else len(columns)
        start, end = integer(columns[first]) - gff, integer(columns[first + 1])
        sign = columns[strand] if len(columns) > strand else "."
        check(columns[0] in lengths and 0 <= start < end <= lengths[columns[0]], "region")
        check(sign in ("+", "-", "."), "strand")
        found.append((columns[0], start, end, sign))
    check(found, "empty")
    return tuple(found)


def integer(text: str) -> int:
    check(INTEGER.fullmatch(text.strip()), "no integer")
    return int(text.strip())


def cells(
    path: Path, columns: Sequence[str], delimiter: str = ",", may_be_empty: bool = False
) -> tuple[tuple[str, ...], ...]:
    """The cells of some columns in each row of a table."""
    csv.field_size_limit(2**31 - 1)
    text = io.StringIO(text_of(content_of(path)), newline=None)
    try:
        rows = [row for row in csv.reader(text, delimiter=delimiter, strict=True) if any(row)]
    except csv.Error as error:
        raise InvalidError(str(error)) from None
    header = [name.strip() for name in rows[0]] if rows else []
    check(len(rows) > 1 and {*columns} <= {*header}, "columns")
    check(all(len(row) == len(header) for row in rows), "fields")
    found = tuple(tuple(row[header.index(name)] for name in columns) for row in rows[1:])
    check(may_be_empty or all(cell.strip() for row in found for cell in row), "an empty cell")
    return found


def texts(path: Path) -> tuple[str, ...]:
    """The texts of JSON lines."""
    lines = text_of(content_of(path)).split("\n")
    rows = [parsed(line.encode()) for line in lines if line.strip()]
    check(all(isinstance(row.get("text"), str) for row in rows), "no text")
    return tuple(row["text"] for row in rows)


def jaspar(path: Path) -> list[list[float]]:
    """The counts of the first matrix, position by position."""
    found: list[dict[str, list[float]]] = []
    check(len(content_of(path)) <= 1 << 24, "too long")
    for line in filter(str.strip, lines_of(path)):
        if line.startswith(">"):
            found.append({})
            continue
        base, *counts = re.findall(r"[^\s\[\]]+", line) or [""]
        numbers = all(
            re.fullmatch(r"(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", c, re.I | re.A) for c in counts
        )
        check(found and base in [*"ACGT"] and base not in found[-1] and numbers, "row")
        found[-1][base] = [*map(float, counts)]
    for matrix in found:
        check(len(matrix) == 4 and len({*map(len, matrix.values())}) == 1, "rows of other lengths")
    counts = [*zip(*(found[0][base] for base in "ACGT"))] if found else []
    check(counts and all(any(row) for row in counts), "no counts")
    check(all(map(math.isfinite, itertools.chain(*counts))), "not finite")
    return [*map(list, counts)]


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
    check(isinstance(value, dict), "not an object")
    return value


def safetensors(data: bytes) -> None:
    """Tensors that fill the file exactly."""
    check(len(data) >= 8, "cut short")
    (size,) = struct.unpack("<Q", data[:8])
    check(len(data) >= 8 + size, "cut short")
    header = parsed(data[8 : 8 + size])
    try:
        offsets = (each["data_offsets"] for name, each in header.items() if name != "__metadata__")
        extents = sorted((int(a), int(b)) for a, b in offsets)
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise InvalidError(str(error)) from None
    ends = [0, *(end for _, end in extents)]
    fills = all(start == before for (start, _), before in zip(extents, ends))
    check(fills and ends[-1] == len(data) - 8 - size, "tensors do not fill the file")
