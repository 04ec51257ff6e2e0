"""Alignments of related genomes to a target genome: for each base of the target the bases of the
others, and what a phylogeny says of them. One file, mapped into memory.

The file is in the safetensors format: the length of a header (8 bytes), the header (JSON), and two
arrays. `columns` (L, 10) float16 and `codes` (G + 1, ceil(L / 2)) uint8 have the records of the
target one after the other, L bases in all, and G other genomes. A byte of `codes` holds two
positions, the first one in the lower four bits; row 0 is the target. `docs/alignment_format.md`
describes it. `dnadiff.align` makes these files.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dnadiff.fields import Json, JsonMap
from dnadiff.formats.nucleotides import FIRST_BASE, N_ID
from dnadiff.formats.regions import listing, record_of
from dnadiff.store.disk import atomic_write, load_json
from dnadiff.store.files import resolve

if TYPE_CHECKING:
    from dnadiff.data.genome.genome import Genome

# Channels of a column: the log posterior of A, C, G and T given the other genomes (nats); the log
# frequency of A, C, G and T among the aligned bases; the mean log rate; log(1 + depth), where depth
# is the number of genomes with a base there.
CHANNELS = 10
POSTERIOR, FREQUENCY, RATE, DEPTH = slice(0, 4), slice(4, 8), 8, 9
COMPLEMENT = (3, 2, 1, 0, 7, 6, 5, 4, 8, 9)  # the channels of the other strand
GAP, ABSENT = 4, 5  # codes after A 0, C 1, G 2 and T 3; nothing aligned, or N, is absent

VERSION = 1
_FORMAT = "dnadiff alignment"
_LENGTH = struct.Struct("<Q")
_ROOM = 1 << 16  # bytes of the header besides the genomes, for a tree and a model
_ROOM_FOR_GENOME = 2048  # bytes
_MOST_HEADER = 100_000_000  # bytes, the limit of safetensors
_COMPARED, _STRETCH = 64, 64  # stretches of a genome that are compared, and their bases
CODE_OF_ID = np.full(256, ABSENT, np.uint8)  # of the token ids of DNA
CODE_OF_ID[FIRST_BASE:N_ID] = np.arange(4)

Codes = NDArray[np.uint8]


@dataclass(frozen=True)
class RelatedGenome:
    """What is known of the alignment of one genome.

    Attributes:
        name: in tables and in the tree.
        file: that it was read from.
        identity: of the aligned bases, those that are the target's.
        coverage: of the target's bases, those with a base of this genome.
        chance: the coverage of the same genome reversed and not complemented; None if it was not
            aligned.
        paralogs: of the target's bases, those to which several places of this genome align.
        reason: why it was left out; None if it is in the alignment.
    """

    name: str
    file: str = ""
    identity: float = math.nan
    coverage: float = math.nan
    chance: float | None = None
    paralogs: float = math.nan
    reason: str | None = None


class Alignment:
    """An opened file; use `Alignment.open`. It is pickled as its path.

    Attributes:
        path: of the file.
        records: the name and length of each record of the target.
        genomes: those that are aligned, in the order of `codes`.
        left_out: the others, each with its reason.
        tree: in Newick notation, with the target; None if there is none.
        about: everything that the header says, with the model and the settings.
        identity: SHA-256 of the content.
    """

    def __init__(self, path: str, header: JsonMap, start: int) -> None:
        self.path, self.about = path, header["about"]
        self.identity: str = header["sha256"]
        self.records: dict[str, int] = dict(header["records"])
        genomes = [RelatedGenome(**each) for each in self.about.get("genomes", ())]
        self.genomes = [each for each in genomes if each.reason is None]
        self.left_out = [each for each in genomes if each.reason is not None]
        self.tree: str | None = self.about.get("tree")
        total = sum(self.records.values())
        self._layout = _Layout(total, len(self.genomes), start)
        self._starts = _starts(self.records)
        # Slicing a memmap takes five times as long as slicing an array.
        file = resolve(path)
        columns, codes = self._layout.columns, self._layout.codes
        self._columns = np.memmap(file, np.float16, "r", columns, (total, CHANNELS)).view(
            np.ndarray
        )
        self._codes = np.memmap(file, np.uint8, "r", codes, self._layout.shape).view(np.ndarray)

    @classmethod
    def open(cls, path: str | Path) -> Alignment:
        """Open a file; the arrays are not read.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is not an alignment, of another version, or cut off.
        """
        file = resolve(path)
        size = file.stat().st_size
        with file.open("rb") as content:
            first = content.read(_LENGTH.size)
            length = _LENGTH.unpack(first)[0] if len(first) == _LENGTH.size else 0
            try:
                if not 0 < length <= _MOST_HEADER:
                    raise ValueError("another format")
                text = content.read(length)
                metadata = load_json(text.decode())["__metadata__"]
                if metadata["format"] != _FORMAT:
                    raise ValueError("another format")
                version = metadata["version"]
            except (ValueError, LookupError, TypeError, RecursionError):
                raise ValueError(
                    f"{path} is not an alignment of related genomes; make one: python -m "
                    "dnadiff.align genome=target.fa related='genomes/*.fa' output=target.aln"
                ) from None
        if version != str(VERSION):
            raise ValueError(
                f"{path} is an alignment of version {version}, and this version of dnadiff reads "
                f"{VERSION}; make it again with dnadiff.align"
            )
        try:
            header = {"about": load_json(metadata["about"]), "sha256": metadata["sha256"]}
            header["records"] = load_json(metadata["records"])
            found = cls(str(path), header, len(first) + length) if header["records"] else None
        except (ValueError, LookupError, TypeError, RecursionError, OSError):
            found = None
        if found is None or found._layout.end != size:
            raise ValueError(
                f"{path} is damaged or cut off ({size:,} bytes); use another copy of it, or make "
                "it again with dnadiff.align"
            )
        return found

    def covers(self, name: str) -> bool:
        """Whether a record is in the alignment (`record_of`)."""
        return self._known(name) is not None

    def columns(
        self, record: str, start: int, end: int, reverse: bool = False
    ) -> NDArray[np.float32]:
        """The columns `(end - start, CHANNELS)` of `[start, end)`; zeros where nothing is aligned,
        and for a record that is not in the alignment.

        Args:
            reverse: the columns of the reverse complement, in its order.

        Raises:
            ValueError: if the window is not inside the record.
        """
        place = self._place(record, start, end)
        if place is None:
            return np.zeros((end - start, CHANNELS), np.float32)
        found = self._columns[place : place + end - start].astype(np.float32)
        return np.ascontiguousarray(found[::-1, COMPLEMENT]) if reverse else found

    def codes(self, record: str, start: int, end: int) -> Codes:
        """The base of each genome `(G, end - start)`, without the target: 0 to 3 are A, C, G and T,
        then `GAP` and `ABSENT`. Errors as of `columns`."""
        return self._cut(slice(1, None), record, start, end)

    def target(self, record: str, start: int, end: int) -> Codes:
        """The target's bases `(end - start,)`; N is `ABSENT`. Errors as of `columns`."""
        return self._cut(slice(1), record, start, end)[0]

    def blocks(self, size: int) -> Iterator[tuple[int, Codes]]:
        """The codes of all rows `(G + 1, n)` from each position on, over all records, at most
        `size` positions at a time."""
        total = sum(self.records.values())
        for start in range(0, total, size):
            yield start, unpacked(self._codes, start, min(start + size, total))

    def check(self, genome: Genome) -> None:
        """Refuse a genome whose records differ from the target's, by their lengths and the bases of
        64 stretches. Records that only one of them has are not compared.

        Raises:
            ValueError: naming the record.
        """
        remedy = "make one for this genome with dnadiff.align"
        shared = [name for name in genome.names if self.covers(name)]
        if not shared:
            raise ValueError(
                f"alignment {self.path} has the records {listing(self.records)}, and the genome "
                f"{listing(genome.names)}; {remedy}"
            )
        total = sum(genome.lengths[name] for name in shared)
        for name in shared:
            length, own = genome.lengths[name], self.records[self._known(name) or ""]
            what = f"{own:,} bases, not {length:,}" if length != own else ""
            count = math.ceil(_COMPARED * length / total)
            places = np.linspace(0, max(0, length - _STRETCH), count).astype(int).tolist()
            for start in () if what else places:
                end = min(start + _STRETCH, length)
                bases = CODE_OF_ID[genome.window(name, start, end)]
                if not np.array_equal(bases, self.target(name, start, end)):
                    what = f"other bases at {start + 1:,}-{end:,}"
                    break
            if what:
                raise ValueError(
                    f"alignment {self.path} was made for another assembly: its record {name} has "
                    f"{what}; {remedy}"
                )

    def _cut(self, rows: slice, record: str, start: int, end: int) -> Codes:
        place = self._place(record, start, end)
        if place is None:
            count = len(range(*rows.indices(len(self._codes))))
            return np.full((count, end - start), ABSENT, np.uint8)
        return unpacked(self._codes[rows], place, place + end - start)

    def _place(self, record: str, start: int, end: int) -> int | None:
        """Where a window begins, counted over all records; None for a record that is not here."""
        known = self._known(record)
        if not 0 <= start <= end <= self.records.get(known or "", end):
            raise ValueError(
                f"window {record}:{start}-{end} is not inside the record, 0-"
                f"{self.records[known or '']}, of alignment {self.path}"
            )
        return None if known is None else self._starts[known] + start

    def _known(self, name: str) -> str | None:
        return name if name in self.records else record_of(name, self.records)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Alignment.open, (self.path,)


class _Layout:
    """Where the arrays are in a file.

    Args:
        total, num_genomes: bases of the target, and genomes besides it.
        start: the first byte after the header.
    """

    def __init__(self, total: int, num_genomes: int, start: int) -> None:
        self.shape = (num_genomes + 1, -(-total // 2))
        self.columns = start
        self.codes = start + 2 * CHANNELS * total
        self.end = self.codes + math.prod(self.shape)

    def tensors(self, total: int) -> dict[str, Json]:
        """The entries of the arrays in a header of safetensors."""
        ends = [place - self.columns for place in (self.columns, self.codes, self.end)]
        return {
            "columns": {"dtype": "F16", "shape": [total, CHANNELS], "data_offsets": ends[:2]},
            "codes": {"dtype": "U8", "shape": list(self.shape), "data_offsets": ends[1:]},
        }


class AlignmentWriter:
    """Fills a new file, slice by slice; use `new_alignment`.

    Attributes:
        about: for the header; ready for JSON, with the `genomes` in the order of their rows.
    """

    def __init__(self, file: BinaryIO, records: Mapping[str, int], about: JsonMap) -> None:
        self.file, self.records, self.about = file, dict(records), dict(about)
        genomes = self.about["genomes"]
        self.num_genomes = sum(each["reason"] is None for each in genomes)
        self.total = sum(self.records.values())
        room = _ROOM + _ROOM_FOR_GENOME * len(genomes) + len(json.dumps([about, self.records]))
        self.header = room + -room % 8
        self.layout = _Layout(self.total, self.num_genomes, _LENGTH.size + self.header)
        file.truncate(self.layout.end)

    def put_codes(self, row: int, start: int, codes: ArrayLike) -> None:
        """Write codes `(n,)` of a row, 0 being the target, from position `start` on, over all
        records. Two positions share a byte: `start` is even, and so is n unless the row ends."""
        values = np.asarray(codes, np.uint8)
        if start % 2 or (len(values) % 2 and start + len(values) != self.total):
            raise ValueError(f"codes from {start} on, {len(values)} of them, end inside a byte")
        self.file.seek(self.layout.codes + row * self.layout.shape[1] + start // 2)
        self.file.write(packed(values).data)

    def put_columns(self, start: int, columns: ArrayLike) -> None:
        """Write columns `(n, CHANNELS)` from position `start` on, over all records."""
        self.file.seek(self.layout.columns + 2 * CHANNELS * start)
        self.file.write(np.ascontiguousarray(columns, np.float16).data)

    def blocks(self, size: int) -> Iterator[tuple[int, Codes]]:
        """As `Alignment.blocks`, of the codes that were written."""
        self.file.flush()
        shape = self.layout.shape
        codes = np.memmap(self.file.name, np.uint8, "r", self.layout.codes, shape)
        for start in range(0, self.total, size):
            yield start, unpacked(codes, start, min(start + size, self.total))

    def finish(self) -> None:
        """Write the header, with the digest of records, header and arrays."""
        self.file.flush()
        digest = hashlib.sha256(json.dumps([self.records, self.about]).encode())
        with open(self.file.name, "rb") as written:
            written.seek(self.layout.columns)
            while block := written.read(1 << 22):
                digest.update(block)
        metadata = {
            "format": _FORMAT,
            "version": str(VERSION),
            "sha256": digest.hexdigest(),
            "records": json.dumps(list(self.records.items())),
            "about": json.dumps(self.about),
        }
        header = {"__metadata__": metadata, **self.layout.tensors(self.total)}
        text = json.dumps(header).encode().ljust(self.header)
        if len(text) > self.header:
            raise ValueError(
                f"the tree, the model and the settings take {len(text):,} bytes, and the header "
                f"has room for {self.header:,}; give the genomes shorter names"
            )
        self.file.seek(0)
        self.file.write(_LENGTH.pack(self.header) + text)


@contextmanager
def new_alignment(
    path: str | Path, records: Mapping[str, int], about: JsonMap, overwrite: bool = False
) -> Iterator[AlignmentWriter]:
    """Write a file, which appears when the block ends without an error.

    Args:
        records: name and length of each record of the target.
        about: for the header, with `genomes`: all fields of each `RelatedGenome`. More may be added
            to the writer's `about` until the end.

    Raises:
        FileExistsError: if the file exists and `overwrite` is false.
        OSError: if it cannot be written.
    """
    with atomic_write(path, overwrite) as file:
        writer = AlignmentWriter(file, records, about)
        yield writer
        writer.finish()


def write_alignment(
    path: str | Path,
    records: Mapping[str, int],
    target: ArrayLike,
    codes: ArrayLike,
    columns: ArrayLike,
    about: JsonMap | None = None,
    overwrite: bool = False,
) -> Alignment:
    """Write a file from arrays in memory, and open it.

    Args:
        records: name and length of each record of the target, L bases in all.
        target: codes of its bases `(L,)`.
        codes: of the other genomes `(G, L)`.
        columns: `(L, CHANNELS)`.
        about: for the header; without `genomes` they are called genome1, genome2, ...
        overwrite: replace a file that exists.
    """
    rows = np.asarray(codes, np.uint8)
    names: Sequence[str] = [f"genome{number}" for number in range(1, len(rows) + 1)]
    about = {"genomes": [asdict(RelatedGenome(name)) for name in names], **(about or {})}
    with new_alignment(path, records, about, overwrite) as writer:
        for number, row in enumerate([np.asarray(target), *rows]):
            writer.put_codes(number, 0, row)
        writer.put_columns(0, columns)
    return Alignment.open(path)


def packed(codes: Codes) -> Codes:
    """Codes `(..., n)`, two in a byte `(..., ceil(n / 2))`."""
    if codes.shape[-1] % 2:
        codes = np.append(codes, np.zeros((*codes.shape[:-1], 1), np.uint8), axis=-1)
    return codes[..., ::2] | codes[..., 1::2] << np.uint8(4)


def unpacked(stored: Codes, start: int, end: int) -> Codes:
    """Codes `start` to `end` of rows with two in a byte."""
    part = stored[..., start // 2 : -(-end // 2)]
    codes = np.empty((*part.shape[:-1], 2 * part.shape[-1]), np.uint8)
    codes[..., ::2], codes[..., 1::2] = part & 15, part >> 4
    return codes[..., start % 2 : start % 2 + end - start]


def _starts(records: Mapping[str, int]) -> dict[str, int]:
    return dict(zip(records, itertools.accumulate(records.values(), initial=0)))
