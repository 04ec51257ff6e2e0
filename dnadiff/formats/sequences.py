"""Reading of sequence files of any format, plain or compressed, in bounded memory, and writing of
FASTA.

Records keep their letters and their case; `dnadiff.data.genome` turns them into token ids. Formats
are found by themselves: every subclass of `SequenceFormat` in an imported module is one, also in a
module that `plugins=` names. The last one that was defined is tried first, so that a format of a
user comes before those of the package.
"""

import csv
import itertools
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

import numpy as np

from dnadiff.formats.nucleotides import (
    IUPAC,
    NOT_A_NUCLEOTIDE,
    NUCLEOTIDE_OR_255,
    NUCLEOTIDES,
    not_a_nucleotide,
)
from dnadiff.formats.regions import filled_lines
from dnadiff.store.address import refuse_controls, shortened
from dnadiff.store.disk import atomic_write
from dnadiff.store.files import ByteReader, TextFile, chunks, decompressed, resolve

_SNIFFED = 1 << 16  # bytes at the beginning of a file that decide on its format


class Header(NamedTuple):
    """The beginning of a record; its sequence is what comes up to the next header. `line` is 0 in
    formats without lines."""

    name: str
    description: str = ""
    line: int = 0


class Record(NamedTuple):
    """One sequence of a file."""

    name: str  # the first word of the header
    description: str  # the rest of the header
    sequence: bytes


class SequenceFormat(ABC):
    """A format of files of sequences.

    Attributes:
        endings: of the names of its files, in lower case, without that of a compression.
        starts: how the content of its files begins, after white space.
    """

    endings: ClassVar[tuple[str, ...]] = ()
    starts: ClassVar[tuple[bytes, ...]] = ()

    @classmethod
    def sniff(cls, first: bytes) -> bool:
        """Whether a file whose content begins with these bytes, decompressed, has this format."""
        return first.lstrip().startswith(cls.starts)

    @classmethod
    @abstractmethod
    def records(cls, path: str, content: ByteReader) -> Iterator[Header | bytes]:
        """Yield the header of each record, followed by its letters in pieces of any size.

        Args:
            path: for messages.
            content: the open file, decompressed, at its beginning.

        Raises:
            ValueError: naming file, line and remedy.
        """


def endings() -> tuple[str, ...]:
    """The endings of the names of sequence files, without that of a compression."""
    return tuple(ending for kind in SequenceFormat.__subclasses__() for ending in kind.endings)


def read_sequences(path: str | Path) -> list[Record]:
    """All records of a file, with the checks of `events`."""
    return list(iter_sequences(path))


def iter_sequences(path: str | Path) -> Iterator[Record]:
    """Yield the records of a file, with one in memory at a time; errors as of `events`."""
    header = None
    pieces = bytearray()
    for event in itertools.chain(events(path), [None]):
        if isinstance(event, bytes):
            pieces += event
            continue
        if header is not None:
            sequence = bytes(pieces)
            pieces = bytearray()
            yield Record(header.name, header.description, sequence)
        header = event


def events(path: str | Path) -> Iterator[Header | bytes]:
    """Yield the header of each record of a file and then its letters in pieces.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming file, line and remedy, if the file is empty or malformed, or a record has
            no name, no sequence, the name of an earlier record or a letter that is not a
            nucleotide.
    """
    path = shortened(str(path))
    with resolve(path).open("rb") as raw:
        yield from events_of(str(path), raw)


def events_of(path: str, raw: BinaryIO) -> Iterator[Header | bytes]:
    """As `events`, of an open file. Its format is detected from its content, not from its name."""
    names = set()
    where = path
    empty = False
    with decompressed(path, raw) as content:
        first = content.read(_SNIFFED).removeprefix(_BOM)
        content.seek(0)
        kinds = reversed(SequenceFormat.__subclasses__())
        kind = next(kind for kind in kinds if kind.sniff(first))  # FASTA takes what is left
        for event in itertools.chain(kind.records(path, content), [None]):
            if isinstance(event, bytes):
                if event.translate(None, NUCLEOTIDES):
                    raise ValueError(f"{where}: {not_a_nucleotide(event)}")
                empty = empty and not event
                yield event
                continue
            if empty:
                raise ValueError(f"{where} has no sequence; remove it or complete the file")
            if event is None:
                break
            line = f"{path}:" + (f" line {event.line}:" if event.line else "")
            refuse_controls(line[:-1], event.name)
            where = f"{line} record {event.name}"
            empty = True
            if event.name in names:
                raise ValueError(
                    f"{where} has the name of an earlier record; rename one, names must be unique"
                )
            names.add(event.name)
            yield event
    if not names:
        raise ValueError(f"{path} is empty; give a file with at least one record")


BLANK = b"\n\r \t"
_BOM = b"\xef\xbb\xbf"
MAX_HEADER = 1 << 20  # bytes
# Bytes of white space without a letter; a compressed file of a few kilobytes can hold terabytes of
# them.
MAX_BLANK = 1 << 28


class Fasta(SequenceFormat):
    """FASTA, the format of a file that no other format recognizes: its errors name the line."""

    endings = (".fa", ".fasta", ".fna", ".fas", ".ffn", ".fsa")
    starts = (b"",)  # any content

    @classmethod
    def records(cls, path: str, content: ByteReader) -> Iterator[Header | bytes]:
        return parse(path, chunks(content))


def parse(path: str, chunks: Iterable[bytes]) -> Iterator[Header | bytes]:
    r"""Yield headers and letters of FASTA, with any line widths and any mixture of the line ends
    `\n`, `\r\n` and `\r`.

    Args:
        path: for messages.
        chunks: the content in pieces of any size.

    Raises:
        ValueError: naming file, line and remedy.
    """
    line, name, blank, rest = 0, None, 0, b""  # the content begins on line 1, after a line break
    for chunk in itertools.chain(_with_newlines(chunks), [b"\n\n"]):  # which ends a last header
        chunk = rest + chunk
        rest = b"\n" * chunk.endswith(b"\n")  # a header may begin after it
        parts = chunk.removesuffix(b"\n").split(b"\n>")
        for number, part in enumerate(parts):
            if number:
                header, newline, part = part.partition(b"\n")
                if len(header) > MAX_HEADER:
                    raise ValueError(
                        f"{path}: line {line + 1}: a header of more than {MAX_HEADER:,} bytes; "
                        "shorten it"
                    )
                if not newline and number + 1 == len(parts):  # the next chunk may continue it
                    rest = b"\n>" + header + rest
                    break
                event = _header(path, header, line + 1)
                yield event
                name = event.name
                line += 1 + len(newline)
            letters = part.translate(NUCLEOTIDE_OR_255, BLANK)
            blank = 0 if letters else blank + len(part)
            if letters and (name is None or NOT_A_NUCLEOTIDE in letters):
                raise ValueError(f"{path}{_problem(part, line, name)}")
            if blank > MAX_BLANK:
                raise ValueError(
                    f"{path}: line {line}: more than {MAX_BLANK:,} bytes of blank lines; remove "
                    "them"
                )
            line += part.count(b"\n")
            if letters:
                yield letters


def _with_newlines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    r"""The chunks with `\n` in place of `\r\n` and `\r`, without a byte order mark, after a line
    break; a chunk may end between `\r` and `\n`."""
    held = b""
    first = True
    for chunk in chunks:
        chunk = held + chunk
        if first and len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            held = chunk
            continue
        chunk = b"\n" + chunk.removeprefix(_BOM) if first else chunk
        held = b"\r" if chunk.endswith(b"\r") else b""
        first = False
        if b"\r" in chunk:
            chunk = chunk[: len(chunk) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield chunk
    if held:
        yield held.replace(b"\r", b"\n")


def _header(path: str, header: bytes, line: int) -> Header:
    # Of other white space, a name keeps what is printed and is refused for the rest.
    words = re.split("[ \t]+", header.decode("utf-8", "replace").strip(" \t\r\n"), maxsplit=1)
    if not words[0]:
        raise ValueError(f"{path}: line {line}: a record has no name; write one after its '>'")
    return Header(words[0], words[1] if len(words) > 1 else "", line)


def _problem(part: bytes, line: int, name: str | None) -> str:
    """What is wrong with lines that are no letters of a record; they begin on `line`."""
    before, mark, _ = part.partition(b">")
    if mark and not before.translate(None, (NUCLEOTIDES if name else b"") + BLANK):
        number = line + before.count(b"\n")
        return (
            f": line {number}: '>' in the middle of a sequence line; begin the header "
            "of a record on a new line"
        )
    if name is not None:
        return f": {wrong_letter(part, line, name)}"
    number, text = next(
        (number, text.strip())
        for number, text in enumerate(part.split(b"\n"), line)
        if text.strip()
    )
    return (
        f" is not FASTA: line {number} is {text[:30].decode('utf-8', 'replace')!r}, expected a "
        "header such as '>name'"
    )


def wrong_letter(piece: bytes, line: int, name: str) -> str:
    """The message for the first letter of `piece` that is no nucleotide; `piece` begins on
    `line`."""
    place = piece.index(piece.translate(None, NUCLEOTIDES + BLANK)[:1])
    number = line + piece.count(b"\n", 0, place)
    column = place - piece.rfind(b"\n", 0, place)
    letter = piece[place : place + 4].decode("utf-8", "replace")[0]
    what = f"byte {piece[place]:#04x}" if letter == "\ufffd" else f"letter {letter!r}"
    return (
        f"line {number}: record {name}: {what} at column {column} is not a nucleotide; allowed are "
        f"{', '.join(IUPAC)} in either case"
    )


LINE_WIDTH = 60
LINES_PER_PIECE = 1 << 16


def write_fasta(path: str | Path, records: Iterable[Record], overwrite: bool = False) -> int:
    """Write records one by one, wrapped at 60 letters, and return their number.

    The file appears when it is complete. With a name that ends in `.gz` it is compressed; the same
    records give the same bytes.

    Raises:
        FileExistsError: if the file exists and `overwrite` is false.
        ValueError: if there is no record, or a record that `read_sequences` would refuse.
    """
    names = set()
    with atomic_write(path, overwrite) as handle:
        for record in records:
            name, description, sequence = record
            problem = not_a_nucleotide(sequence)
            if re.fullmatch("[^ \t\r\n]+", name) is None or name in names:
                problem = "the name is empty, repeated or contains white space; give another one"
            elif "\n" in description or "\r" in description:
                problem = "the description contains a line break; remove it"
            elif not sequence:
                problem = "no sequence; leave the record out"
            if problem:
                raise ValueError(f"{path}: record {name!r}: {problem}")
            names.add(name)
            handle.writelines(wrapped(record))
        if not names:
            raise ValueError(f"{path}: there is no record to write; ask for at least one sequence")
    return len(names)


def wrapped(record: Record) -> Iterator[bytes]:
    """A record as it is written to a file, wrapped at 60 letters, in pieces, so that a chromosome
    is not held as millions of lines."""
    yield f">{record.name} {record.description}".rstrip().encode() + b"\n"
    for start in range(0, len(record.sequence), LINES_PER_PIECE * LINE_WIDTH):
        piece = record.sequence[start : start + LINES_PER_PIECE * LINE_WIDTH]
        lines = (piece[i : i + LINE_WIDTH] for i in range(0, len(piece), LINE_WIDTH))
        yield b"\n".join([*lines, b""])


class SequenceTable(SequenceFormat):
    """A comma-separated table with a column `sequence`; a column `name` has the names, else they
    are numbers. The other columns become `key=value` of a description, without white space."""

    @classmethod
    def sniff(cls, first: bytes) -> bool:
        return b"sequence" in first.split(b"\n", 1)[0].strip().split(b",")

    @classmethod
    def records(cls, path: str, content: ByteReader) -> Iterator[Header | bytes]:
        lines = TextFile(content, encoding="utf-8-sig", newline="")
        lines.path = path
        rows = csv.DictReader(lines, strict=True, restval="")
        try:
            for number, row in enumerate(rows, 1):
                sequence = row.pop("sequence")
                name = row.pop("name", str(number))
                about = (f"{key}={''.join(text.split())}" for key, text in row.items())
                yield Header(name, " ".join(about), rows.line_num)
                yield sequence.strip().encode()
        except (csv.Error, AttributeError) as error:
            raise ValueError(
                f"{path}: line {rows.line_num} is not a row of a table with the columns "
                f"{', '.join(rows.fieldnames or ())} ({error}); correct it"
            ) from None
        finally:
            lines.detach()


SIGNATURES = (b"\x1aA'C"[::-1], b"\x1aA'C")  # little-endian, big-endian 0x1A412743
_CHUNK = 1 << 16  # bytes of packed sequence
_N = ord("N")
_LOWER_CASE = 0x20
_FOUR = np.frombuffer(b"TCAG", np.uint8)[
    (np.arange(256)[:, None] >> np.array([6, 4, 2, 0])) & 3
]  # (256, 4)


class TwoBit(SequenceFormat):
    """UCSC's 2bit: four bases per byte, with lists of N blocks and of soft-masked blocks; errors if
    a file is cut short, contradicts itself, or is of another version.

    Format: https://genome.ucsc.edu/FAQ/FAQformat.html#format7, versions 0 and 1 (64-bit offsets),
        either byte order.
    """

    endings = (".2bit",)
    starts = SIGNATURES

    @classmethod
    def records(cls, path: str, content: ByteReader) -> Iterator[Header | bytes]:
        try:
            yield from _TwoBitReader(path, content).events()
        except (struct.error, EOFError) as error:
            raise ValueError(
                f"{path} is a damaged or cut short 2bit file ({error}); fetch it again"
            ) from None


class _TwoBitReader:
    def __init__(self, path: str, raw: ByteReader) -> None:
        self.raw = raw
        self.order = "<" if self.exactly(4) == SIGNATURES[0] else ">"
        version, self.count, _ = self.integers(3)
        if version not in (0, 1):
            raise ValueError(
                f"{path} is a 2bit file of version {version}; expected version 0 or 1: convert it "
                "to FASTA"
            )
        self.offset = "Q" if version else "I"

    def exactly(self, size: int) -> bytes:
        blocks = []
        while size:  # memory for what is there, not for what a number says
            blocks.append(self.raw.read(min(size, 1 << 20)))
            size -= len(blocks[-1])
            if not blocks[-1]:
                raise EOFError(f"{size:,} bytes are missing")
        return b"".join(blocks)

    def integers(self, count: int, kind: str = "I") -> tuple[int, ...]:
        layout = f"{self.order}{count}{kind}"
        return struct.unpack(layout, self.exactly(struct.calcsize(layout)))

    def blocks(self, length: int) -> np.ndarray:
        """Start and end of the blocks of a list, `(K, 2)`."""
        (count,) = self.integers(1)
        numbers = np.frombuffer(self.exactly(8 * count), f"{self.order}u4").astype(np.int64)
        starts, sizes = numbers.reshape(2, count)
        ends = starts + sizes
        if (
            (sizes <= 0).any()
            or (starts[1:] < ends[:-1]).any()
            or (len(ends) and ends[-1] > length)
        ):
            raise EOFError(
                f"blocks of N or lower case overlap or exceed the {length:,} bases of a record"
            )
        return np.stack([starts, ends], axis=1)

    def events(self) -> Iterator[Header | bytes]:
        index = []
        for _ in range(self.count):
            (size,) = self.exactly(1)
            if not (name := self.exactly(size).decode("ascii", "replace")).isascii():
                raise EOFError(f"the name {name!r} is not ASCII")
            index.append((name, self.integers(1, self.offset)[0]))
        spans = [(0, self.raw.tell())]
        for name, offset in index:
            yield Header(name)
            self.raw.seek(offset)
            (length,) = self.integers(1)
            unknown = self.blocks(length)
            masked = self.blocks(length)
            self.integers(1)
            for start in range(0, length, 4 * _CHUNK):
                size = min(4 * _CHUNK, length - start)
                packed = np.frombuffer(self.exactly(-(-size // 4)), np.uint8)
                letters = _FOUR[packed].reshape(-1)[:size]
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


def _inside(blocks: np.ndarray, start: int, end: int) -> list[list[int]]:
    """The parts of sorted blocks that are inside [start, end), relative to `start`."""
    first = np.searchsorted(blocks[:, 1], start, "right")
    last = np.searchsorted(blocks[:, 0], end)
    return (blocks[first:last].clip(start, end) - start).tolist()


# in ACCESSION and VERSION of files that programs such as SnapGene and Benchling write
_NO_ID = ("", ".", "<unknown")
_LOCUS = re.compile(r"LOCUS\s+(\S+)(?:\s.*?)?\s(\d{1,12})\s+(?:bp|aa|rc)\b")
_JOINED = re.compile(r"LOCUS\s+\S*\d\s+(?:bp|aa|rc)\b")


class GenBank(SequenceFormat):
    """GenBank; errors if a record is malformed or has a different length from its LOCUS line.

    Only the names, the definition and the sequence of a record are read.
    """

    endings = (".gb", ".gbk", ".gbff", ".genbank")
    starts = (b"LOCUS ", b"LOCUS\t")

    @classmethod
    def records(cls, path: str, content: ByteReader) -> Iterator[Header | bytes]:
        # Old files have names of authors in other encodings.
        lines = TextFile(content, encoding="utf-8-sig", errors="surrogateescape")
        lines.path = path
        try:
            yield from _genbank(filled_lines(lines))
        except _GenBankError as error:
            raise ValueError(f"{path}: {error}; this is read as GenBank") from None
        finally:
            lines.detach()


class _GenBankError(Exception):
    pass


def _genbank(lines: Iterator[tuple[int, str]]) -> Iterator[Header | bytes]:
    cut_short = _GenBankError("the last record does not end with //: fetch the file again")
    for first, line in lines:
        if line.rstrip() == "//":
            continue
        if (locus := _LOCUS.match(line)) is None:
            problem = (
                "the name and the length of LOCUS run together, as Prokka writes for long contig "
                "names: put a space between them, or use the FASTA file"
                if _JOINED.match(line)
                else f"a record begins with {line.rstrip()[:60]!r}, expected LOCUS, a name and a "
                "length in bp: complete the line, or fetch the file again"
            )
            raise _GenBankError(f"line {first}: {problem}")
        key = ""
        about = dict[str, list[str]](DEFINITION=[], ACCESSION=[], VERSION=[])
        for _, line in lines:
            if line.startswith("ORIGIN") or line.rstrip() == "//":
                break
            key = line[:12].strip() or key
            if key in about:
                about[key].append(line[12:].strip().encode("utf-8", "replace").decode())
        else:
            raise cut_short
        ids = (" ".join(about[key]).partition(" ")[0] for key in ("VERSION", "ACCESSION"))
        # the accession with its version, or the name in LOCUS where there is none
        name = next((word for word in ids if word not in _NO_ID), locus[1])
        where = f"record {name}"
        if line.startswith("//"):
            raise _GenBankError(
                f"line {first}: {where} has no sequence; fetch the full GenBank record"
            )
        yield Header(name, " ".join(about["DEFINITION"]).removesuffix("."), first)
        length = 0
        letters = bytearray()
        for number, line in lines:
            position, *parts = line.split()
            if line.rstrip() == "//":
                break
            if position != str(length + 1):
                raise _GenBankError(
                    f"line {number}: a line of sequence begins with {position[:20]!r}, expected "
                    f"the position {length + 1}: fetch the file again"
                )
            # Its lower case is the format's, not a soft mask.
            bases = "".join(parts).upper().encode("utf-8", "surrogateescape")
            if bases.translate(None, NUCLEOTIDES):
                raise _GenBankError(wrong_letter(bases, number, name))
            letters += bases
            length += len(bases)
            if len(letters) >= _CHUNK:
                yield bytes(letters)
                letters.clear()
        else:
            raise cut_short
        if length != int(locus[2]):
            raise _GenBankError(
                f"line {first}: {where} has {length} bases, LOCUS says {locus[2]}: fetch the file "
                "again"
            )
        yield bytes(letters)
