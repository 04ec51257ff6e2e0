"""A genome: named records with one byte per base. The low seven bits are the token id, the highest
bit is soft-masking.

The bytes are mapped from the cache (`packed`). Coordinates are 0-based and half-open.
`dnadiff.data.splits` divides a genome into training, validation and test data, and
`dnadiff.data.windows` cuts windows.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import override

from dnadiff.data.genome.packed import (
    PackedBases,
    PackedFile,
    RecordInfo,
    RecordRows,
    RecordTable,
    pack_all,
)
from dnadiff.data.intervals import NRuns
from dnadiff.data.records import SOFT_MASKED, TOKEN, RecordLayout, StoredRecords
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.fields import Natural, checked
from dnadiff.formats.regions import check_names, listing
from dnadiff.formats.sequences import endings
from dnadiff.store.address import CACHED, expand_user, file_name, is_remote, parse
from dnadiff.store.files import bare_name, matches, open_text, resolve

if TYPE_CHECKING:
    from pyfaidx import Fasta


class Ids:
    """Token ids of a record with soft-masked bases: behaves as a read-only array `(length,)` of
    uint8, without the case."""

    dtype = np.dtype(np.uint8)

    def __init__(self, packed: NDArray[np.uint8]) -> None:
        self.packed = packed
        self.shape = packed.shape

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, key: slice, /) -> NDArray[np.uint8]:
        return self.packed[key] & TOKEN

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray:
        return (self.packed & TOKEN).astype(dtype or np.uint8, copy=False)

    def tolist(self) -> list[int]:
        """All ids as Python integers."""
        return (self.packed & TOKEN).tolist()


@dataclass(eq=False, repr=False)
class GenomeRecords(StoredRecords):
    """Token ids of each record, as arrays or as `Ids`. They are pickled as paths and positions, not
    as bytes.

    Args:
        bases: the bases of each file.
        number: for each record the number of its file.
        offset, length: for each record where it begins in the file, and the number of its bases.
        soft: for each record, whether it has soft-masked bases.
    """

    bases: Sequence[PackedBases]
    number: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    soft: NDArray[np.bool_]

    def packed(self, number: int) -> NDArray[np.uint8]:
        """The bytes of a record, a view."""
        start = self.offset[number]
        return self.bases[self.number[number]].mapped[start : start + self.length[number]]

    @property
    @override
    def lengths(self) -> list[int]:
        return self.length.tolist()

    @override
    def __len__(self) -> int:
        return len(self.number)

    @override
    def record(self, number: int) -> NDArray[np.uint8] | Ids:
        packed = self.packed(number)
        return Ids(packed) if self.soft[number] else packed

    @override
    def layout(self) -> RecordLayout:
        return RecordLayout(_Mapped(self.bases), self.number, self.offset, True)


class _Mapped:
    """The bases of each file, mapped when they are read."""

    def __init__(self, bases: Sequence[PackedBases]) -> None:
        self.bases = bases

    def __len__(self) -> int:
        return len(self.bases)

    def __getitem__(self, number: int, /) -> NDArray:
        return self.bases[number].mapped


def by_file(number: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """The number of each file and its records, given the file of each record; records of a file
    follow one another."""
    borders = np.flatnonzero(np.diff(number, prepend=-1, append=-1)).tolist()
    for first, after in itertools.pairwise(borders):
        yield int(number[first]), slice(first, after)


class GenomeRows(RecordRows):
    """What is known of each record of a genome, read from the tables of its files one by one."""

    def __init__(self, genome: Genome) -> None:
        self.genome = genome

    @override
    def __len__(self) -> int:
        return len(self.genome.names)

    @override
    def row(self, number: int) -> RecordInfo:
        genome = self.genome
        source, file = genome.files[genome.number[number]]
        row = file.records.row(int(genome.place[number]))
        row.update(name=genome.names[number], label=source.label, file=source.path)
        return row


def names_in(source: Source, records: RecordTable) -> list[str]:
    """Names of the records of a file in a genome.

    Raises:
        ValueError: if the source gives another number of names than the file has records.
    """
    names = records.names() if source.names is None else list(source.names)
    if len(names) != len(records):
        raise ValueError(
            f"{source.path} holds {len(records)} records, this pyfaidx.Fasta shows {len(names)}; "
            "open it without a filter"
        )
    return names if source.label is None else [f"{source.label}:{name}" for name in names]


def unique_names(
    names: list[str], sources: Sequence[Source], number: NDArray[np.int64]
) -> list[str]:
    """The names, where names of a pattern or a manifest that occur more than once are preceded by
    that of their file.

    Args:
        sources: the files.
        number: for each record the number of its file.

    Raises:
        ValueError: if two records still have the same name.
    """
    if len(sources) == 1:  # the names in a file are different
        return names
    if repeated := _repeated(names):
        stems = [_stem(source.path) if source.is_one_of_many else None for source in sources]
        names = [
            f"{stems[file]}:{name}" if name in repeated and stems[file] else name
            for name, file in zip(names, number.tolist())
        ]
    if again := _repeated(names) if repeated else set():
        name = next(name for name in names if name in again)
        first, second = [each for each, other in enumerate(names) if other == name][:2]
        files = [sources[number[each]].path for each in (first, second)]
        raise ValueError(
            f"{files[1]}: record {name} is also in {files[0]}; rename one, names must be unique"
        )
    return names


def _repeated(names: list[str]) -> set[str]:
    """The names that occur more than once. A set of all names is not kept."""
    if len(set(names)) == len(names):
        return set()
    return {name for name, count in Counter(names).items() if count > 1}


def _stem(path: str) -> str:
    bare = bare_name(path)
    ending = next((ending for ending in endings() if bare.endswith(ending)), "")
    return file_name(path)[: len(bare) - len(ending)]


IS_REVERSE = {"+": False, ".": False, "-": True}


class Genome:
    """Named records of nucleotides in packed files; use `Genome.open`.

    Args:
        files: the packed files, and the source of each.
        names: names of the records, in the order of the files.
        number, place: for each record the number of its file, and its own number in the file,
            `(number of records,)`.
        records: their bases.
    """

    def __init__(
        self,
        files: Sequence[tuple[Source, PackedFile]],
        names: list[str],
        number: NDArray[np.int64],
        place: NDArray[np.int64],
        records: GenomeRecords,
    ) -> None:
        self.files, self.names, self.number, self.place, self.records = (
            files,
            names,
            number,
            place,
            records,
        )
        self.tokenizer = DNATokenizer()
        self._complement = np.array(self.tokenizer.vocab.complement, dtype=np.uint8)

    @classmethod
    @checked
    def open(
        cls,
        path: SequencePath | None,
        keep: str | Sequence[str | int] | None = None,
        iupac: Literal["unknown", "refuse"] = "unknown",
        num_workers: Natural = 0,
    ) -> Genome:
        """Open sequence files, which are packed into the cache when they are used for the first
        time.

        Args:
            path: a FASTA, 2bit or GenBank file (plain, gzip, bgzip), a folder, a pattern such as
                `genomes/*.fa.gz`, a manifest (.tsv), several of them, `{label: path}`, or a
                pyfaidx.Fasta. With labels the records are called `label:name`.
            keep: names of the records to use, or a regular expression that must match the complete
                name; None: all.
            iupac: what to do with ambiguity codes such as R: `unknown` reads them as N, `refuse`
                raises an error.
            num_workers: processes that pack files.

        Raises:
            FileNotFoundError, ValueError: naming file, line and remedy; also if two files share a
                record name. Those of a pattern or a
                manifest may: such records are called `file:name`.
        """
        sources = expand(path)
        files: list[tuple[Source, PackedFile]] = []
        names: list[str] = []
        columns: list[
            tuple[NDArray, ...]
        ] = []  # number, place, offset, length and soft of the records of each file
        for source, file in zip(
            sources, pack_all([source.path for source in sources], num_workers)
        ):
            if iupac == "refuse":
                _refuse_ambiguous(source, file)
            table = file.records
            names += names_in(source, table)
            place = np.arange(len(table))
            columns.append(
                (
                    np.full_like(place, len(files)),
                    place,
                    file.offsets[:-1],
                    table.length,
                    table.soft > 0,
                )
            )
            files.append((source, file))
        if not files:
            raise ValueError(
                "data.path names no file; set it to a FASTA file or to a list of files"
            )
        number, place, *about = (np.concatenate(each) for each in zip(*columns))
        names = unique_names(names, [source for source, _ in files], number)
        if keep is not None:
            kept = _kept(names, keep)
            names, number, place, *about = (
                [names[each] for each in kept],
                *(each[kept] for each in (number, place, *about)),
            )
        return cls(
            files,
            names,
            number,
            place,
            GenomeRecords([file.stored for _, file in files], number, *about),
        )

    @property
    def rows(self) -> GenomeRows:
        """What is known of each record."""
        return GenomeRows(self)

    @property
    def labels(self) -> list[str | None]:
        """The label of each record's file; None without a label."""
        return [self.files[number][0].label for number in self.number.tolist()]

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """How often the bases of each record are drawn in training, relative to those of others;
        None if all are equal."""
        weights = np.array([source.weight for source, _ in self.files])
        return None if (weights == weights[0]).all() else weights[self.number]

    @cached_property
    def lengths(self) -> dict[str, int]:
        """Record name to number of bases."""
        return dict(zip(self.names, self.records.lengths))

    @property
    def total(self) -> int:
        """Number of bases in all records."""
        return sum(self.records.lengths)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the hashes of the files and of the numbers of the records: changes with any
        base, and with the weights."""
        digest = hashlib.sha256()
        for each, rows in by_file(self.number):
            digest.update(
                "".join(
                    f"{self.files[each][1].digest} {place}\n" for place in self.place[rows].tolist()
                ).encode()
            )
        if (weights := self.weights) is not None:
            digest.update(weights.tobytes())
        return digest.hexdigest()

    @cached_property
    def n_runs(self) -> NRuns:
        """The runs of N."""
        found = [np.empty((0, 2), np.int64)]
        offsets = np.concatenate([[0], np.cumsum(self.records.lengths)])
        for each, rows in by_file(self.number):
            file, places = self.files[each][1], self.place[rows]
            has_n, begin = np.flatnonzero(file.records.unknown[places]), file.offsets
            for row in has_n.tolist():
                low, high = np.searchsorted(file.runs[:, 0], begin[places[row] : places[row] + 2])
                found.append(file.runs[low:high] - begin[places[row]] + offsets[rows.start + row])
        return NRuns(np.concatenate(found), offsets[:-1])

    def window(self, record: str, start: int, end: int, strand: str = "+") -> NDArray[np.uint8]:
        """Token ids `(end - start,)` uint8 of `[start, end)` on a strand; "-" is the reverse
        complement, "." is "+".

        Raises:
            ValueError: if there is no such record or strand, or the window is not inside the
                record.
        """
        ids = self._cut(record, start, end) & TOKEN
        return self._complement[ids[::-1]] if _is_reverse(strand) else ids

    def soft_masked(
        self, record: str, start: int, end: int, strand: str = "+"
    ) -> NDArray[np.bool_]:
        """Whether each base of `[start, end)` was lower case, in the order of `window`:
        `(end - start,)`.

        Raises:
            ValueError: as `window`.
        """
        lower = self._cut(record, start, end) >= SOFT_MASKED
        return lower[::-1] if _is_reverse(strand) else lower

    @cached_property
    def _number_of(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def _cut(self, record: str, start: int, end: int) -> NDArray[np.uint8]:
        check_names([record], self._number_of, "window")
        packed = self.records.packed(self._number_of[record])
        if not 0 <= start < end <= len(packed):
            raise ValueError(
                f"window {record}:{start}-{end} is not inside the record, 0-{len(packed)}"
            )
        return packed[start:end]


def _refuse_ambiguous(source: Source, file: PackedFile) -> None:
    for number in np.flatnonzero(file.records.ambiguous)[:1].tolist():
        row = file.records[number]
        count, first = row["ambiguous"]
        raise ValueError(
            f"{source.path}: record {row['name']} holds {count} ambiguity codes (R, Y, K, M, S, W, "
            "B, D, H or V), the first at position "
            f"{first + 1}; set data.iupac=unknown to read them as N"
        )


def _kept(names: Sequence[str], keep: str | Sequence[str | int]) -> list[int]:
    if isinstance(keep, str):
        try:
            chosen = re.compile(keep).fullmatch
        except re.error as error:
            raise ValueError(
                f"data.keep {keep!r} is not a regular expression ({error}); correct it, or give a "
                "list of names"
            ) from None
        kept = [number for number, name in enumerate(names) if chosen(name)]
    else:
        # YAML reads [3] as a number, and Ensembl's chromosomes have such names.
        wanted = dict.fromkeys(map(str, keep))
        check_names(wanted, names, "data.keep")
        kept = [number for number, name in enumerate(names) if name in wanted]
    if not kept:
        raise ValueError(
            f"data.keep {keep!r} leaves no record; the records are {listing(list(names))}: set "
            "data.keep=null for all"
        )
    return kept


def _is_reverse(strand: str) -> bool:
    if strand not in IS_REVERSE:
        raise ValueError(f"strand is {strand!r}; expected '+', '-' or '.'")
    return IS_REVERSE[strand]


COLUMNS = ("path", "label", "weight")


class ManifestRow(NamedTuple):
    """One file of a manifest."""

    path: str
    label: str | None = None
    weight: float = 1.0


def is_manifest(path: str) -> bool:
    """Whether a path is the name of a manifest: .tsv, possibly compressed."""
    return bare_name(path).endswith(".tsv")


def read_manifest(path: str) -> list[ManifestRow]:
    """The rows of a table with tabs and a header: `path`, and possibly `label` and `weight`.

    A path is relative to the folder of the manifest. With the prefix `cached:` before the name of
    the manifest, its addresses are not fetched; only copies in the cache are read.

    Raises:
        FileNotFoundError, ValueError: naming the line, what it has, and what is expected.
    """
    name = path.removeprefix(CACHED)
    file = path if is_remote(name) else name
    rows: list[ManifestRow] = []
    seen: dict[str, int] = {}
    with open_text(file) as handle:
        lines = ((number, line.rstrip("\n")) for number, line in enumerate(handle, 1))
        columns = _columns(name, next(lines, (1, ""))[1])
        for number, row in _rows(name, columns, lines):
            row = row._replace(
                path=_located(name, number, row.path, is_stored=path.startswith(CACHED))
            )
            where = (
                row.path if is_remote(row.path.removeprefix(CACHED)) else os.path.realpath(row.path)
            )
            if where in seen:
                raise ValueError(
                    f"{name}: line {number}: {row.path} is also in line {seen[where]}; name each "
                    "file once"
                )
            seen[where] = number
            rows.append(row)
    if not rows:
        raise ValueError(f"{name} has no rows; give a file in each")
    if not any(row.weight for row in rows):
        raise ValueError(f"{name}: every weight is 0; give at least one file a weight above 0")
    return rows


def _columns(name: str, header: str) -> list[str]:
    columns = header.removeprefix("#").split("\t")
    for column in columns:
        if column not in COLUMNS:
            close = "".join(
                f"; did you mean {match}?"
                for match in difflib.get_close_matches(column, COLUMNS, n=1, cutoff=0.5)
            )
            raise ValueError(
                f"{name}: line 1: column {column!r} is not known{close}; known: "
                f"{', '.join(COLUMNS)}, separated by tabs"
            )
        if columns.count(column) > 1:
            raise ValueError(f"{name}: line 1: column {column} occurs twice; remove one")
    if "path" not in columns:
        raise ValueError(
            f"{name}: line 1: the column path is missing; the header has {', '.join(columns)}"
        )
    return columns


def _rows(
    name: str, columns: list[str], lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, ManifestRow]]:
    for number, line in lines:
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) != len(columns):
            raise ValueError(
                f"{name}: line {number} has {len(cells)} fields, the header {len(columns)}; "
                "correct the line or remove it"
            )
        found = dict(zip(columns, cells))
        if not found["path"].strip():
            raise ValueError(f"{name}: line {number}: path is empty; name a file")
        yield (
            number,
            ManifestRow(
                found["path"],
                found.get("label") or None,
                _weight(name, number, found.get("weight", "1")),
            ),
        )


def _weight(name: str, number: int, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(
            f"{name}: line {number}: weight is {text[:40]!r}; expected a number of at least 0"
        )
    return weight


def _located(name: str, number: int, path: str, is_stored: bool) -> str:
    """A path of a manifest as it is read from anywhere.

    Raises:
        FileNotFoundError, ValueError: if it is no file.
    """
    if is_remote(path):
        return f"{CACHED}{parse(path).text}" if is_stored else parse(path).text
    if is_remote(name):
        if path.startswith(("/", "~", "bundled:")) or ".." in Path(path).parts:
            raise ValueError(
                f"{name}: line {number}: {path} is not in the folder of the manifest; a manifest "
                "on another machine names no file here"
            )
        address = parse(name)
        inside = address._replace(text=address.folder).inside(path).text
        return f"{CACHED}{inside}" if is_stored else inside
    local = (
        path
        if path.startswith("bundled:")
        else os.fspath(expand_user(name).parent / expand_user(path))
    )
    try:
        resolve(local)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"{name}: line {number}: {error}") from None
    return local


SequencePath: TypeAlias = "str | Path | Fasta | Mapping[str, SequencePath] | Iterable[SequencePath]"
_PATHS = "expected the name of a file or of a folder, a list of them, or {label: name}"


class Source(NamedTuple):
    """One file of sequences."""

    path: str  # as the user wrote it
    label: str | None = None  # the species or class of all its records
    names: tuple[str, ...] | None = (
        None  # names to use instead of those in the file, in the order of the file
    )
    weight: float = (
        1.0  # how often its bases are drawn in training, relative to those of other files
    )
    is_one_of_many: bool = (
        False  # of a pattern or a manifest, whose files may have records of the same name
    )


def expand(path: SequencePath | None) -> list[Source]:
    """The files of a path, a folder, a pattern, a manifest, several of them, `{label: path}`, or an
    open pyfaidx.Fasta.

    Raises:
        FileNotFoundError, ValueError: if a file does not exist, a folder contains no sequence
            files, or a manifest is malformed.
    """
    if isinstance(path, Mapping):
        return [
            source._replace(label=str(label))
            for label, one in path.items()
            for source in expand(one)
        ]
    if _is_pyfaidx(path):
        return [Source(str(path.filename), names=tuple(path.keys()))]
    if not isinstance(path, (str, Path)):
        return [source for one in _several(path) for source in expand(one)]
    text = str(path)
    if not text.strip():
        raise ValueError(f"data.path is {path!r}; {_PATHS}")
    if is_manifest(text):
        return [
            Source(row.path, row.label, weight=row.weight, is_one_of_many=True)
            for row in read_manifest(text)
        ]
    if (files := matches(text)) is not None:
        return [Source(file, is_one_of_many=True) for file in files]
    if is_remote(text) or text.startswith(CACHED):
        return [Source(text)]  # fetched when it is packed
    folder = expand_user(path)
    if not folder.is_dir():
        resolve(path)
        return [Source(text)]
    found = sorted(p for p in folder.iterdir() if p.is_file() and _is_sequence_file(p))
    if not found:
        raise ValueError(
            f"{path} is a folder without sequence files ({', '.join(endings())}, also with .gz); "
            "name a file in it"
        )
    return [Source(str(p)) for p in found]


def paths_of(path: SequencePath | None) -> list[str]:
    """The paths that the user wrote, as strings, for reports.

    Raises:
        ValueError: if it is not a path.
    """
    if isinstance(path, Mapping):
        return [f"{label}={one}" for label, many in path.items() for one in paths_of(many)]
    if _is_pyfaidx(path):
        return [str(path.filename)]
    return (
        [str(path).removeprefix(CACHED)]
        if isinstance(path, (str, Path))
        else [one for each in _several(path) for one in paths_of(each)]
    )


def _several(path: SequencePath | None) -> Iterable[SequencePath]:
    if not isinstance(path, Iterable) or isinstance(path, bytes):
        raise ValueError(f"data.path is or contains {path!r}; {_PATHS}")
    return path


def _is_pyfaidx(path: SequencePath | None) -> TypeGuard[Fasta]:
    module = sys.modules.get(
        "pyfaidx"
    )  # optional; an open file cannot exist unless the module is imported
    return module is not None and isinstance(path, module.Fasta)


def _is_sequence_file(path: Path) -> bool:
    return bare_name(path).endswith(endings()) and not path.name.startswith(".")
