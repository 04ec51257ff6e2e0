"""A genome: named records with one byte per base. The low seven bits are the token id, the highest
bit is soft-masking.

The bytes are mapped from the cache (`packed`). Coordinates are 0-based and half-open.
`dnadiff.data.splits` divides a genome into training, validation and test data, and
`dnadiff.data.windows` cuts windows.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.genome.packed import PackedFile, RecordInfo, pack_all
from dnadiff.data.records import SOFT_MASKED, TOKEN, Integers, Mask, NRuns, StoredRecords
from dnadiff.data.tokenizer import DNATokenizer, TokenIds
from dnadiff.fields import Natural, checked
from dnadiff.formats.regions import listing, record_of, records_of
from dnadiff.formats.sequences import endings
from dnadiff.formats.table import check_delimiter, delimited
from dnadiff.progress import closest
from dnadiff.store.address import (
    CACHED,
    expand_user,
    file_name,
    is_remote,
    parse,
    refuse_controls,
    shortened,
)
from dnadiff.store.files import bare_name, matches, resolve

if TYPE_CHECKING:
    from pyfaidx import Fasta

IS_REVERSE = {"+": False, ".": False, "-": True}


class Genome:
    """Named records of nucleotides in sequence files, which are packed into the cache when they are
    used for the first time.

    Args:
        path: a FASTA, 2bit or GenBank file (plain, gzip, bgzip), a folder, a pattern such as
            `genomes/*.fa.gz`, a manifest (.tsv), several of them, `{label: path}`, or a
            pyfaidx.Fasta. With labels the records are called `label:name`.
        keep: names of the records to use, or a regular expression that must match the complete
            name; None: all.
        iupac: what to do with ambiguity codes such as R: `unknown` reads them as N, `refuse`
            raises an error.
        num_workers: processes that pack files.

    Attributes:
        files: the packed files, and the source of each.
        names: names of the records, in the order of the files.
        place: for each record its own number in its file, `(number of records,)`.
        records: their bases.

    Raises:
        FileNotFoundError, ValueError: naming file, line and remedy; also if two files share a
            record name. Those of a pattern or a manifest may: such records are called `file:name`.

    Examples:
        >>> genome = Genome("bundled:ecoli_K12_MG1655.fa.gz")
        >>> genome
        Genome(bundled:ecoli_K12_MG1655.fa.gz: 1 record, 4,641,652 bases)
        >>> genome["U00096.3"][:9]
        'AGCTTTTCA'
        >>> genome["U00096.3"].window(0, 9, "-")
        'TGAAAAGCT'
    """

    @checked
    def __init__(
        self,
        path: SequencePath | None,
        keep: str | Sequence[str | int] | None = None,
        iupac: Literal["unknown", "refuse"] = "unknown",
        num_workers: Natural = 0,
    ) -> None:
        sources = expand(path)
        files = list(zip(sources, pack_all([source.path for source in sources], num_workers)))
        if not files:
            raise ValueError(
                "data.path names no file; set it to a FASTA file or to a list of files"
            )
        names: list[str] = []
        # number, place, offset, length and soft of the records of each file
        columns: list[tuple[NDArray, ...]] = []
        for number, (source, file) in enumerate(files):
            table = file.records
            if iupac == "refuse" and table.ambiguous.any():
                row = table[int(np.flatnonzero(table.ambiguous)[0])]
                count, first = row["ambiguous"]
                raise ValueError(
                    f"{source.path}: record {row['name']} holds {count} ambiguity codes (R, Y, K, "
                    "M, S, W, B, D, H or V), the first at position "
                    f"{first + 1}; set data.iupac=unknown to read them as N"
                )
            own = table.names() if source.names is None else source.names
            if len(own) != len(table):
                raise ValueError(
                    f"{source.path} holds {len(table)} records, this pyfaidx.Fasta shows "
                    f"{len(own)}; open it without a filter"
                )
            names += own if source.label is None else [f"{source.label}:{name}" for name in own]
            place = np.arange(len(table))
            soft = table.soft > 0
            columns.append(
                (np.full_like(place, number), place, file.offsets[:-1], table.length, soft)
            )
        numbers, place, *about = (np.concatenate(each) for each in zip(*columns))
        names = unique_names(names, sources, numbers)
        refuse_controls("the genome", *names)
        if keep is not None:
            kept = _kept(names, keep)
            names = [names[each] for each in kept]
            numbers, place, *about = (each[kept] for each in (numbers, place, *about))
        stored = [file.stored for _, file in files]
        self.files: Sequence[tuple[Source, PackedFile]] = files
        self.names = names
        self.place: Integers = place
        self.records = StoredRecords(stored, numbers, *about)
        self.tokenizer = DNATokenizer()
        self._complement = np.array(self.tokenizer.vocab.complement, dtype=np.uint8)

    def __getitem__(self, name: str) -> GenomeRecord:
        """A record by its name, with or without `chr`; ValueError if there is none."""
        return GenomeRecord(self, self._known(name, "genome"))

    def __contains__(self, name: object) -> bool:
        return record_of(str(name), self._number_of) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __bool__(self) -> bool:
        return True  # also without records: `if genome` asks whether there is a genome

    def __repr__(self) -> str:
        what = f"{len(self.files)} files"
        if len(self.files) == 1:
            what = file_name(self.files[0][0].path)
        records = f"{len(self):,} record{'s' * (len(self) != 1)}"
        return f"Genome({what}: {records}, {self.total:,} bases)"

    def row(self, number: int) -> RecordInfo:
        """What is known of a record."""
        source, file = self.files[self.records.number[number]]
        row = file.records[int(self.place[number])]
        row.update(name=self.names[number], label=source.label, file=source.path)
        return row

    @property
    def rows(self) -> list[RecordInfo]:
        """What is known of each record."""
        return [self.row(number) for number in range(len(self.names))]

    @property
    def labels(self) -> list[str | None]:
        """The label of each record's file; None without a label."""
        return [self.files[number][0].label for number in self.records.number.tolist()]

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """How often the bases of each record are drawn in training, relative to those of others;
        None if all are equal."""
        weights = np.array([source.weight for source, _ in self.files])
        return None if (weights == weights[0]).all() else weights[self.records.number]

    @cached_property
    def lengths(self) -> dict[str, int]:
        """Record name to number of bases."""
        return dict(zip(self.names, self.records.lengths))

    @property
    def total(self) -> int:
        """Number of bases in all records."""
        return sum(self.records.lengths)

    def _by_file(self) -> Iterator[tuple[PackedFile, slice]]:
        """Each file and its records, which follow one another."""
        numbers = self.records.number
        borders = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1)).tolist()
        for first, after in itertools.pairwise(borders):
            yield self.files[numbers[first]][1], slice(first, after)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the hashes of the files and of the numbers of the records: changes with any
        base, and with the weights."""
        digest = hashlib.sha256()
        for file, rows in self._by_file():
            lines = (f"{file.digest} {place}\n" for place in self.place[rows].tolist())
            digest.update("".join(lines).encode())
        if (weights := self.weights) is not None:
            digest.update(weights.tobytes())
        return digest.hexdigest()

    @cached_property
    def n_runs(self) -> NRuns:
        """The runs of N."""
        found = [np.empty((0, 2), np.int64)]
        offsets = np.append(0, np.cumsum(self.records.lengths))
        for file, rows in self._by_file():
            places = self.place[rows]
            begin = file.offsets
            for row in np.flatnonzero(file.records.unknown[places]).tolist():
                low, high = np.searchsorted(file.runs[:, 0], begin[places[row] : places[row] + 2])
                found.append(file.runs[low:high] - begin[places[row]] + offsets[rows.start + row])
        return NRuns(np.concatenate(found), offsets[:-1])

    def window(self, record: str, start: int, end: int, strand: str = "+") -> TokenIds:
        """Token ids `(end - start,)` uint8 of `[start, end)` on a strand; "-" is the reverse
        complement, "." is "+".

        Raises:
            ValueError: if there is no such record or strand, or the window is not inside the
                record.
        """
        ids = self._cut(record, start, end, strand) & TOKEN
        return self._complement[ids] if IS_REVERSE[strand] else ids

    def soft_masked(self, record: str, start: int, end: int, strand: str = "+") -> Mask:
        """Whether each base of `[start, end)` was lower case, in the order of `window`:
        `(end - start,)`.

        Raises:
            ValueError: as `window`.
        """
        return self._cut(record, start, end, strand) >= SOFT_MASKED

    @cached_property
    def _number_of(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def _known(self, record: str, where: str) -> str:
        return records_of([record], self._number_of, where)[record]

    def _cut(self, record: str, start: int, end: int, strand: str) -> TokenIds:
        """The stored bytes of a window in the order of its strand."""
        if strand not in IS_REVERSE:
            raise ValueError(f"strand is {strand!r}; expected '+', '-' or '.'")
        packed = self.records.packed(self._number_of[self._known(record, "window")])
        if not 0 <= start < end <= len(packed):
            raise ValueError(
                f"window {record}:{start}-{end} is not inside the record, 0-{len(packed)}"
            )
        return packed[start:end][:: -1 if IS_REVERSE[strand] else 1]


class GenomeRecord:
    """One record of a genome, `genome["chr1"]`: indices and slices are its letters in upper case,
    as of a string, with N for ambiguity codes."""

    def __init__(self, genome: Genome, name: str) -> None:
        self.genome = genome
        self.name = name

    def __len__(self) -> int:
        return self.genome.lengths[self.name]

    def __getitem__(self, place: int | slice) -> str:
        chosen = range(len(self))[place]
        if isinstance(chosen, int):
            chosen = range(chosen, chosen + 1)
        if chosen.step != 1:
            raise ValueError(
                f"slices of record {self.name} have a step of 1, got {chosen.step}; "
                'window(start, end, "-") is the reverse complement'
            )
        return self.window(chosen.start, chosen.stop) if chosen else ""

    def window(self, start: int, end: int, strand: str = "+") -> str:
        """The letters of `[start, end)` on a strand; errors as `Genome.window`."""
        genome = self.genome
        ids = genome.window(self.name, start, end, strand)
        return genome.tokenizer.letters(ids).tobytes().decode("ascii")

    def __repr__(self) -> str:
        return f"GenomeRecord({self.name}, {len(self):,} bases)"


def unique_names(names: list[str], sources: Sequence[Source], number: Integers) -> list[str]:
    """The names, where names of a pattern or a manifest that occur more than once are preceded by
    that of their file.

    Args:
        sources: the files.
        number: for each record the number of its file.

    Raises:
        ValueError: if two records still have the same name.
    """
    # The names in a file are different. A set of all names is not kept.
    if len(sources) == 1 or len(set(names)) == len(names):
        return names
    repeated = Counter(names)
    stems = [stem(source.path) if source.is_one_of_many else None for source in sources]
    names = [
        f"{stems[file]}:{name}" if repeated[name] > 1 and stems[file] else name
        for name, file in zip(names, number.tolist())
    ]
    again = Counter(names)
    if (name := next((name for name in names if again[name] > 1), None)) is not None:
        numbers = [each for each, other in zip(number.tolist(), names) if other == name]
        raise ValueError(
            f"{sources[numbers[1]].path}: record {name} is also in {sources[numbers[0]].path}; "
            "rename one, names must be unique"
        )
    return names


def stem(path: str) -> str:
    """The name of a file without the ending of a format of sequences, and of a compression."""
    bare = bare_name(path)
    ending = next((ending for ending in endings() if bare.endswith(ending)), "")
    return file_name(path)[: len(bare) - len(ending)]


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
        wanted = set(records_of(map(str, keep), names, "data.keep").values())
        kept = [number for number, name in enumerate(names) if name in wanted]
    if not kept:
        raise ValueError(
            f"data.keep {keep!r} leaves no record; the records are {listing(names)}: set "
            "data.keep=null for all"
        )
    return kept


COLUMNS = ("path", "label", "weight")


def read_manifest(path: str) -> list[Source]:
    """The rows of a table with tabs and a header: `path`, and possibly `label` and `weight`.

    A path is relative to the folder of the manifest. With the prefix `cached:` before the name of
    the manifest, its addresses are not fetched; only copies in the cache are read.

    Raises:
        FileNotFoundError, ValueError: naming the line, what it has, and what is expected.
    """
    name = path.removeprefix(CACHED)
    file = path if is_remote(name) else name
    rows: list[Source] = []
    seen: dict[str, int] = {}
    columns: list[str] = []
    for number, cells in delimited(file, "\t"):
        if not columns:
            columns = _columns(name, cells)
            continue
        found = dict(zip(columns, cells))
        if not found["path"].strip():
            raise ValueError(f"{name}: line {number}: path is empty; name a file")
        text = found.get("weight", "1")
        try:
            weight = float(text)
        except ValueError:
            weight = math.nan
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(
                f"{name}: line {number}: weight is {text[:40]!r}; expected a number of at least 0"
            )
        is_stored = path.startswith(CACHED)
        located = _located(f"{name}: line {number}", name, found["path"], is_stored)
        is_address = is_remote(located.removeprefix(CACHED))
        where = located if is_address else os.path.realpath(located)
        if where in seen:
            raise ValueError(
                f"{name}: line {number}: {located} is also in line {seen[where]}; name each "
                "file once"
            )
        seen[where] = number
        label = found.get("label") or None
        rows.append(Source(located, label, weight=weight, is_one_of_many=True))
    if not rows:
        raise ValueError(f"{name} has no rows; give a file in each")
    if not any(row.weight for row in rows):
        raise ValueError(f"{name}: every weight is 0; give at least one file a weight above 0")
    return rows


def _columns(name: str, cells: list[str]) -> list[str]:
    columns = [cell.strip().removeprefix("#") for cell in cells]
    for column in columns:
        if column not in COLUMNS:
            check_delimiter(name, columns, "\t", "path")
            raise ValueError(
                f"{name}: line 1: column {column!r} is not known{closest(column, COLUMNS)}; known: "
                f"{', '.join(COLUMNS)}, separated by tabs"
            )
        if columns.count(column) > 1:
            raise ValueError(f"{name}: line 1: column {column} occurs twice; remove one")
    if "path" not in columns:
        raise ValueError(
            f"{name}: line 1: the column path is missing; the header has {', '.join(columns)}; "
            "add it"
        )
    return columns


def _located(where: str, name: str, path: str, is_stored: bool) -> str:
    """A path of a manifest as it is read from anywhere.

    Raises:
        FileNotFoundError, ValueError: if it is no file.
    """
    if is_remote(path) or is_remote(name):
        if is_remote(path):
            address = parse(path)
        elif path.startswith(("/", "~", "bundled:")) or ".." in Path(path).parts:
            raise ValueError(
                f"{where}: {path} is not in the folder of the manifest; a manifest "
                "on another machine names no file here"
            )
        else:
            manifest = parse(name)
            address = manifest._replace(text=manifest.folder).inside(path)
        return f"{CACHED if is_stored else ''}{shortened(address.text)}"
    if not path.startswith("bundled:"):
        path = os.fspath(expand_user(name).parent / expand_user(path))
    try:
        resolve(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None)  # of the system, as for a name that is too long
        raise type(error)(f"{where}: {(why and f'{path}: {why}; correct it') or error}") from None
    return path


SequencePath: TypeAlias = "str | Path | Fasta | Mapping[str, SequencePath] | Iterable[SequencePath]"
_PATHS = "expected the name of a file or of a folder, a list of them, or {label: name}"


class Source(NamedTuple):
    """One file of sequences."""

    path: str  # as the user wrote it
    label: str | None = None  # the species or class of all its records
    # names to use instead of those in the file, in the order of the file
    names: tuple[str, ...] | None = None
    # how often its bases are drawn in training, relative to those of other files
    weight: float = 1.0
    # of a pattern or a manifest, whose files may have records of the same name
    is_one_of_many: bool = False


def expand(path: SequencePath | None) -> list[Source]:
    """The files of a path, a folder, a pattern, a manifest, several of them, `{label: path}`, or an
    open pyfaidx.Fasta.

    Raises:
        FileNotFoundError, ValueError: if a file does not exist, a folder contains no sequence
            files, or a manifest is malformed.
    """
    sources: list[Source] = []
    for labels, leaf in _leaves(path):
        found = _sources(leaf)
        sources += [source._replace(label=labels[0]) for source in found] if labels else found
    return sources


def _sources(path: str | Path | Fasta) -> list[Source]:
    if not isinstance(path, (str, Path)):
        return [Source(str(path.filename), names=tuple(path.keys()))]
    text = shortened(str(path))
    if not text.strip():
        raise ValueError(f"data.path is {path!r}; {_PATHS}")
    if bare_name(text).endswith(".tsv"):
        return read_manifest(text)
    if (files := matches(text)) is not None:
        return [Source(file, is_one_of_many=True) for file in files]
    if is_remote(text) or text.startswith(CACHED):
        return [Source(text)]  # fetched when it is packed
    folder = expand_user(path)
    if not folder.is_dir():
        resolve(path)
        return [Source(text)]
    found = sorted(
        file
        for file in folder.iterdir()
        if file.is_file() and bare_name(file).endswith(endings()) and file.name[0] != "."
    )
    if not found:
        raise ValueError(
            f"{path} is a folder without sequence files ({', '.join(endings())}, also with .gz); "
            "name a file in it"
        )
    return [Source(str(file)) for file in found]


def paths_of(path: SequencePath | None) -> list[str]:
    """The paths that the user wrote, as strings, for reports.

    Raises:
        ValueError: if it is not a path.
    """
    return [
        "=".join([*labels, str(getattr(leaf, "filename", leaf)).removeprefix(CACHED)])
        for labels, leaf in _leaves(path)
    ]


def _leaves(path: SequencePath | None) -> Iterator[tuple[list[str], str | Path | Fasta]]:
    """The single paths and open pyfaidx.Fasta in a path, and the labels of each."""
    # optional; an open file cannot exist unless the module is imported
    pyfaidx = sys.modules.get("pyfaidx")
    if isinstance(path, Mapping):
        for label, one in path.items():
            for labels, leaf in _leaves(one):
                yield [str(label), *labels], leaf
    elif isinstance(path, (str, Path)) or (pyfaidx and isinstance(path, pyfaidx.Fasta)):
        yield [], path  # type: ignore[misc]
    elif not isinstance(path, Iterable) or isinstance(path, bytes):
        raise ValueError(f"data.path is or contains {path!r}; {_PATHS}")
    else:
        for one in path:
            yield from _leaves(one)
