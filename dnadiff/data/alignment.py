"""Alignments of related genomes to a target genome: for each base of the target the bases of the
others, and what a phylogeny says of them. One file, mapped into memory.

The file is in the safetensors format, with two arrays. `columns` (L, 10) float16 and `codes`
(G + 1, ceil(L / 2)) uint8 have the records of the target one after the other, L bases in all, and G
other genomes. A byte of `codes` holds two positions, the first one in the lower four bits; row 0 is
the target. docs/alignment_format.md describes it. `dnadiff.align` makes these files.

A file whose name ends in `.aln.xz` is compact, to be shipped with a model: steps of .1 nats, no
frequencies, and no codes but the target's. It is unpacked into the cache when it is opened.
"""

from __future__ import annotations

import itertools
import json
import lzma
import math
import shutil
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open

from dnadiff.diffusion.vocab import CHANNELS, COMPLEMENT, DEPTH, POSTERIOR, RATE
from dnadiff.fields import JsonDict, JsonMap
from dnadiff.formats.nucleotides import FIRST_BASE, N_ID
from dnadiff.formats.regions import listing, record_of
from dnadiff.progress import log
from dnadiff.store.address import file_name
from dnadiff.store.disk import atomic_write, cache_dir, content_hash, ensure_folder, load_json
from dnadiff.store.files import COMPRESSED, open_binary, resolve

if TYPE_CHECKING:
    from dnadiff.data.genome.genome import Genome
    from dnadiff.formats.regions import Region

# codes after A 0, C 1, G 2 and T 3; nothing aligned, or N, is absent
GAP = 4
ABSENT = 5

FORMAT = "dnadiff alignment 1"  # with the version
_MAKE = "python -m dnadiff.align genome=target.fa related='genomes/*.fa' output=target.aln"
COMPACT = ".xz"  # ending of the name of a compact file
STEP = 0.1  # nats
_SHIPPED = (*range(4)[POSTERIOR], RATE, DEPTH)  # channels
# Bytes of a position, the last two 0, so that LZMA can model each byte by its place among them.
_WIDTH = 8
_LZMA = [{"id": lzma.FILTER_LZMA2, "preset": 6, "pb": 3, "lp": 3, "lc": 1}]
# stretches of a genome that are compared, and their bases
_COMPARED = 64
_STRETCH = 64
CODE_OF_ID = np.full(256, ABSENT, np.uint8)  # of the token ids of DNA
CODE_OF_ID[FIRST_BASE:N_ID] = np.arange(4)

Codes = NDArray[np.uint8]


@dataclass(frozen=True)
class RelatedGenome:
    """What is known of the alignment of one genome.

    Attributes:
        name: its name in tables and in the tree.
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
    """An opened file, whose arrays are not read at once. It is pickled as its path.

    Attributes:
        path: of the file.
        records: the name and length of each record of the target.
        genomes: those that are aligned, in the order of `codes`.
        left_out: the others, each with its reason.
        tree: in Newick notation, with the target; None if there is none.
        about: everything that the header says, with the model and the settings.
        is_compact: whether it has no frequencies, and no codes of the genomes.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not an alignment, of another version, or cut off.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        try:
            file: Any = safe_open(_unpacked(path), "numpy")
            metadata = file.metadata() or {}
        except SafetensorError as error:
            raise ValueError(
                f"{path} is not an alignment of related genomes, or was cut off ({error}); make "
                f"it: {_MAKE}"
            ) from None
        if (found := metadata.get("format")) != FORMAT:
            raise ValueError(
                f"{path} has the format {found!r}, and this version of dnadiff reads {FORMAT!r}; "
                f"make it again: {_MAKE}"
            )
        self._columns = file.get_slice("columns")
        self._codes = file.get_slice("codes")
        self.is_compact = self._columns.get_dtype() == "I8"
        self.about = load_json(metadata["about"])
        self.records: dict[str, int] = dict(self.about["records"])
        genomes = [RelatedGenome(**each) for each in self.about["genomes"]]
        self.genomes = [each for each in genomes if each.reason is None]
        self.left_out = [each for each in genomes if each.reason is not None]
        self.tree: str | None = self.about.get("tree")
        self._start = offsets(self.records)

    @property
    def identity(self) -> str:
        """SHA-256 of the file."""
        return content_hash(resolve(self.path))

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
        if self.is_compact:
            shipped = found[:, : len(_SHIPPED)] * np.float32(STEP)
            found = np.zeros((end - start, CHANNELS), np.float32)
            found[:, _SHIPPED] = shipped
        return np.ascontiguousarray(found[::-1, COMPLEMENT]) if reverse else found

    def batch(self, regions: Sequence[Region]) -> NDArray[np.float32]:
        """The columns `(B, L, CHANNELS)` of regions, each on its strand; zeros after the end of a
        region that is shorter than the longest. Errors as of `columns`."""
        longest = max(region.size for region in regions)
        found = np.zeros((len(regions), longest, CHANNELS), np.float32)
        for row, region in zip(found, regions):
            row[: region.size] = region.joined(
                lambda chrom, start, end, strand: self.columns(chrom, start, end, strand == "-")
            )
        return found

    def codes(self, record: str, start: int, end: int) -> Codes:
        """The base of each genome `(G, end - start)`, without the target: 0 to 3 are A, C, G and T,
        then `GAP` and `ABSENT`. Errors as of `columns`, and for a compact file."""
        self.check_codes()
        return self._cut(record, start, end)[1:]

    def target(self, record: str, start: int, end: int) -> Codes:
        """The target's bases `(end - start,)`; N is `ABSENT`. Errors as of `columns`."""
        return self._cut(record, start, end)[0]

    def row(self, number: int) -> Codes:
        """The codes of a genome, over all records `(L,)`; ValueError for a compact file."""
        self.check_codes()
        row = self._codes[number + 1 : number + 2]
        return unpacked(row, 0, sum(self.records.values()))[0]

    def check_codes(self) -> None:
        """Raise ValueError if the file is compact."""
        if self.is_compact:
            raise ValueError(
                f"{self.path} is compact: it has columns, and no bases of the genomes; give the "
                "genomes, or the whole alignment"
            )

    def check(self, genome: Genome, regions: Sequence[Region] = ()) -> None:
        """Refuse a genome whose records differ from the target's, by their lengths and the bases of
        64 stretches. Records that only one of them has are not compared; how many of the `regions`
        are of records that the alignment does not have is logged.

        Raises:
            ValueError: naming the record.
        """
        remedy = "make one for this genome with dnadiff.align"
        shared = {name: known for name in genome.names if (known := self._known(name))}
        if not shared:
            raise ValueError(
                f"alignment {self.path} has the records {listing(self.records)}, and the genome "
                f"{listing(genome.names)}; {remedy}"
            )
        total = sum(genome.lengths[name] for name in shared)
        for name, known in shared.items():
            length = genome.lengths[name]
            last = max(0, length - _STRETCH)
            count = math.ceil(_COMPARED * length / total)
            if length != self.records[known] or any(
                (
                    self.target(known, start, end) != CODE_OF_ID[genome.window(name, start, end)]
                ).any()
                for start in np.linspace(0, last, count).astype(int).tolist()
                for end in [min(start + _STRETCH, length)]
            ):
                raise ValueError(
                    f"alignment {self.path} was made for another assembly: its record {known} has "
                    f"{self.records[known]:,} bases, that of the genome {length:,}, and length or "
                    f"bases differ; {remedy}"
                )
        others = sum(region.chrom not in shared for region in regions)
        if others:
            log.info(
                f"alignment: {others:,} of {len(regions):,} sequences are of records that "
                f"{self.path} does not have; they are read without columns"
            )

    def _cut(self, record: str, start: int, end: int) -> Codes:
        place = self._place(record, start, end)
        if place is None:
            return np.full((len(self.genomes) + 1, end - start), ABSENT, np.uint8)
        return unpacked(self._codes, place, place + end - start)

    def _place(self, record: str, start: int, end: int) -> int | None:
        """Where a window begins, counted over all records; None for a record that is not here."""
        known = self._known(record)
        length = end if known is None else self.records[known]
        if not 0 <= start <= end <= length:
            raise ValueError(
                f"window {record}:{start}-{end} is not inside the record, 0-{length}, of alignment "
                f"{self.path}"
            )
        return None if known is None else self._start[known] + start

    def _known(self, name: str) -> str | None:
        return name if name in self.records else record_of(name, self.records)

    def __reduce__(self) -> tuple[type[Alignment], tuple[str]]:
        return Alignment, (self.path,)


def write_alignment(
    path: str | Path,
    records: Mapping[str, int],
    target: ArrayLike,
    codes: Iterable[ArrayLike],
    columns: Iterable[ArrayLike],
    about: JsonMap | None = None,
    overwrite: bool = False,
) -> Alignment:
    """Write a file, which appears when it is complete, and open it. One row and one piece of the
    columns are in memory at a time. With a name that ends in `.xz` it is compact.

    Args:
        records: name and length of each record of the target, L bases in all.
        target: codes of its bases `(L,)`.
        codes: of the other genomes `(G, L)`.
        columns: `(L, CHANNELS)`, or pieces of them.
        about: for the header, with `genomes`: the fields of each `RelatedGenome`; without them they
            are called genome1, genome2, ...

    Raises:
        FileExistsError: if the file exists and `overwrite` is false.
        OSError: if it cannot be written.
    """
    rows = [target, *codes]
    names = (f"genome{number}" for number in range(1, len(rows)))
    about = {"genomes": [asdict(RelatedGenome(name)) for name in names], **(about or {})}
    total = sum(records.values())
    is_compact = str(path).endswith(COMPACT)
    if is_compact:
        rows = rows[:1]
        files = (file_name(each["file"]) for each in about["genomes"])
        about["genomes"] = [{**x, "file": file} for x, file in zip(about["genomes"], files)]
    kind, width, size = ("I8", _WIDTH, 1) if is_compact else ("F16", CHANNELS, 2)
    shape = [len(rows), -(-total // 2)]
    middle = total * width * size
    header = {
        "__metadata__": {
            "format": FORMAT,
            "about": json.dumps({"records": list(records.items()), **about}),
        },
        "columns": {"dtype": kind, "shape": [total, width], "data_offsets": [0, middle]},
        "codes": {
            "dtype": "U8",
            "shape": shape,
            "data_offsets": [middle, middle + math.prod(shape)],
        },
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (
        atomic_write(path, overwrite) as raw,
        lzma.open(raw, "wb", filters=_LZMA) if is_compact else nullcontext(raw) as file,
    ):
        file.write(struct.pack("<Q", len(text)) + text)
        for piece in columns:
            stored = _in_steps(piece) if is_compact else np.asarray(piece, np.float16)
            file.write(stored.tobytes())
        for row in rows:
            pairs = np.append(row, np.zeros(total % 2)).astype(np.uint8)
            file.write((pairs[::2] | pairs[1::2] << 4).tobytes())
    return Alignment(path)


def _in_steps(piece: ArrayLike) -> NDArray[np.int8]:
    """Columns `(..., CHANNELS)` as a compact file has them, `(..., 8)`."""
    columns = np.asarray(piece, np.float32)
    steps = np.zeros((*columns.shape[:-1], _WIDTH), np.int8)
    shipped = np.rint(columns[..., _SHIPPED] / STEP).clip(-128, 127)
    steps[..., : len(_SHIPPED)] = shipped
    return steps


def _unpacked(path: str | Path) -> Path:
    """The file itself, or the content of a compressed one in the cache."""
    name = file_name(path)
    file = resolve(path)
    if not name.lower().endswith(COMPRESSED):
        return file
    folder = cache_dir("alignments") / content_hash(file)[:32]

    def unpack(part: Path) -> JsonDict:
        with open_binary(path) as content, (part / "unpacked.aln").open("wb") as whole:
            shutil.copyfileobj(content, whole)
        return {}

    ensure_folder(folder, 1, unpack, name, f"unpacking {name} takes space", "unpacking", "unpacked")
    return folder / "unpacked.aln"


def unpacked(stored: Any, start: int, end: int) -> Codes:
    """Codes `start` to `end` of rows with two in a byte."""
    part = stored[:, start // 2 : -(-end // 2)]
    codes = np.stack([part & 15, part >> 4], axis=-1).reshape(len(part), -1)
    return codes[:, start % 2 : start % 2 + end - start]


def offsets(records: Mapping[str, int]) -> dict[str, int]:
    """Where each record begins, counted over all of them."""
    return dict(zip(records, itertools.accumulate(records.values(), initial=0)))
