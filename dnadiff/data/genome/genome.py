"""A genome: named records of one byte a base, the token id in the low seven bits and soft-masking in the highest.

Bytes lie in the cache and are mapped (`packed`), or in memory. Coordinates are 0-based and half-open. Which parts are for
training is decided in `splits`, how they are cut in `windows`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.genome.fasta import Record
from dnadiff.data.genome.packed import SOFT_MASKED, TOKEN, UNKNOWN, PackedFile, pack
from dnadiff.data.genome.records import GenomeRecords
from dnadiff.data.genome.regions import check_names
from dnadiff.data.genome.sources import Source, as_sources
from dnadiff.data.n_runs import NRuns
from dnadiff.data.tokenizer import DNATokenizer, letters


class Genome:
    """Named records of nucleotides.

    Args:
        packed: record name to `(length,)` uint8: token id, plus 128 where the letter was lower case.
        tokenizer: gives the ids their meaning.
    """

    def __init__(self, packed: Mapping[str, NDArray[np.uint8]], tokenizer: DNATokenizer | None = None) -> None:
        self.tokenizer = tokenizer or DNATokenizer()
        self._complement = np.array(self.tokenizer.vocab.complement, dtype=np.uint8)
        arrays = list(packed.values())
        self.rows = [_row(name, array) for name, array in packed.items()]
        self.records: Sequence[Any] = GenomeRecords(arrays, [row["soft"] > 0 for row in self.rows])
        self._number = {name: number for number, name in enumerate(packed)}

    @classmethod
    def from_records(cls, records: Iterable[Record], tokenizer: DNATokenizer | None = None) -> Genome:
        """Keep records as `read_fasta` gives them in memory."""
        tokenizer, records = tokenizer or DNATokenizer(), list(records)
        genome = cls({r.name: tokenizer.encode(r.sequence) | _case_bit(r.sequence) for r in records}, tokenizer)
        for row, record in zip(genome.rows, records):
            row["description"] = record.description
        return genome

    @classmethod
    def from_fasta(cls, path: Any, tokenizer: DNATokenizer | None = None) -> Genome:
        """The former name of `open`."""
        return cls.open(path, tokenizer=tokenizer)

    @classmethod
    def open(
        cls, path: Any, keep: str | Sequence[str] | None = None, iupac: str = "unknown", tokenizer: DNATokenizer | None = None
    ) -> Genome:
        """Open sequence files, packed into the cache when they are met for the first time.

        Args:
            path: a FASTA, 2bit or GenBank file (plain, gzip, bgzip), a folder, several of them, `{label: path}`, or a
                pyfaidx.Fasta. With labels the records are called `label:name`.
            keep: names of the records to use, or a regular expression that a whole name must match; None: all.
            iupac: what to do with ambiguity codes such as R: `unknown` reads them as N, `refuse` raises.
            tokenizer: gives the ids their meaning.

        Raises:
            FileNotFoundError, ValueError: naming file, line and remedy; also if two files share a record name.
        """
        if iupac not in ("unknown", "refuse"):
            raise ValueError(f"iupac is {iupac!r}; choose unknown or refuse")
        keep = _names_to_keep(keep)
        genome = cls({}, tokenizer)
        places: list[tuple[PackedFile, int]] = []
        for source in as_sources(path):
            file = pack(source.path)
            for number, (name, row) in enumerate(zip(_names(source, file), file.records)):
                if name in genome._number:
                    other = genome.rows[genome._number[name]]["file"]
                    raise ValueError(f"{source.path}: record {name} is also in {other}; rename one, names must be unique")
                if iupac == "refuse" and row["ambiguous"][0]:
                    raise ValueError(_ambiguous(source.path, name, row))
                genome._number[name] = len(places)
                genome.rows.append({**row, "name": name, "label": source.label, "file": source.path})
                places.append((file, number))
        kept = _kept(genome.names, keep)
        genome.rows = [genome.rows[number] for number in kept]
        genome.records = GenomeRecords([places[number] for number in kept], [row["soft"] > 0 for row in genome.rows])
        genome._number = {row["name"]: number for number, row in enumerate(genome.rows)}
        return genome

    @property
    def names(self) -> list[str]:
        """Names of the records, in the order of the files."""
        return [row["name"] for row in self.rows]

    @property
    def labels(self) -> list[str | None]:
        """The label of each record's file; None where none was given."""
        return [row.get("label") for row in self.rows]

    @property
    def lengths(self) -> dict[str, int]:
        """Record name to number of bases."""
        return {row["name"]: row["length"] for row in self.rows}

    @property
    def total(self) -> int:
        """Number of bases in all records."""
        return sum(row["length"] for row in self.rows)

    @cached_property
    def digest(self) -> str:
        """SHA-256 that changes with any base: of the files' own and the records used, or of the bases where they lie in memory."""
        whole = hashlib.sha256()
        for place in self.records.places:
            whole.update(f"{place[0].digest} {place[1]}\n".encode() if isinstance(place, tuple) else hashlib.sha256(place).digest())
        return whole.hexdigest()

    @cached_property
    def n_runs(self) -> NRuns:
        """Where N stands."""
        runs, offsets, total = [np.empty((0, 2), np.int64)], [], 0
        for number, row in enumerate(self.rows):
            offsets.append(total)
            if row["unknown"]:
                place = self.records.places[number]
                if isinstance(place, tuple):
                    file, at = place
                    low, high = np.searchsorted(file.runs[:, 0], file.offsets[at : at + 2])
                    runs.append(file.runs[low:high] - file.offsets[at] + total)
                else:
                    one = NRuns.from_records([place & TOKEN], UNKNOWN)
                    runs.append(np.stack([one.starts, one.ends], axis=1) + total)
            total += row["length"]
        return NRuns(np.concatenate(runs), offsets)

    def window(self, record: str, start: int, end: int, strand: str = "+") -> NDArray[np.uint8]:
        """Token ids of `[start, end)` on a strand: `(end - start,)` uint8; "-" is the reverse complement, "." is "+".

        Raises:
            ValueError: if there is no such record or strand, or the window leaves the record.
        """
        ids = self._cut(record, start, end) & TOKEN
        return self._complement[ids[::-1]] if _is_reverse(strand) else ids

    def soft_masked(self, record: str, start: int, end: int, strand: str = "+") -> NDArray[np.bool_]:
        """Whether each base of `[start, end)` was lower case, in the order of `window`: `(end - start,)`.

        Raises:
            ValueError: as `window`.
        """
        lower = self._cut(record, start, end) >= SOFT_MASKED
        return lower[::-1] if _is_reverse(strand) else lower

    def _cut(self, record: str, start: int, end: int) -> NDArray[np.uint8]:
        check_names([record], self._number, "window")
        packed = self.records.packed(self._number[record])
        if not 0 <= start < end <= len(packed):
            raise ValueError(f"window {record}:{start}-{end} does not lie inside the record, 0-{len(packed)}")
        return packed[start:end]


def _names(source: Source, file: PackedFile) -> list[str]:
    """What the records of a file are called here."""
    names = [row["name"] for row in file.records]
    if source.names is not None:
        if len(source.names) != len(names):
            raise ValueError(
                f"{source.path} holds {len(names)} records, this pyfaidx.Fasta shows {len(source.names)}; open it without a filter"
            )
        names = list(source.names)
    return names if source.label is None else [f"{source.label}:{name}" for name in names]


def _names_to_keep(keep: Any) -> str | list[str] | None:
    if keep is None or isinstance(keep, str):
        return keep
    if not isinstance(keep, list | tuple) or any(isinstance(name, bool) or not isinstance(name, str | int) for name in keep):
        raise ValueError(
            f"keep is {keep!r}; set data.keep to a list of names such as [chr1,chr2], to a regular expression, or to null for all"
        )
    return [str(name) for name in keep]  # a yaml reads [3] as a number; Ensembl's chromosomes are called so


def _kept(names: Sequence[str], keep: str | Sequence[str] | None) -> list[int]:
    if keep is None:
        return list(range(len(names)))
    if isinstance(keep, str):
        try:
            pattern = re.compile(keep)
        except re.error as error:
            raise ValueError(f"keep {keep!r} is not a regular expression ({error}); set data.keep to one, or to a list of names") from None
        kept = [number for number, name in enumerate(names) if pattern.fullmatch(name)]
    else:
        check_names(keep, names, "keep")
        wanted = set(keep)
        kept = [number for number, name in enumerate(names) if name in wanted]
    if not kept:
        shown = ", ".join(names[:8])
        raise ValueError(
            f"keep {keep!r} leaves no record; the records are {shown}{' ...' if len(names) > 8 else ''}: set data.keep=null for all"
        )
    return kept


def _ambiguous(path: str, name: str, row: Mapping[str, Any]) -> str:
    count, first = row["ambiguous"]
    return (
        f"{path}: record {name} holds {count} ambiguity codes (R, Y, K, M, S, W, B, D, H or V), the first at position {first + 1}; "
        f"set data.iupac=unknown to read them as N"
    )


def _row(name: str, packed: NDArray[np.uint8]) -> dict[str, Any]:
    """What the index of a packed file says of a record, for an array in memory."""
    low = packed & TOKEN
    return {
        "name": name,
        "description": "",
        "length": len(packed),
        "unknown": int(np.count_nonzero(low == UNKNOWN)),
        "gc": int(np.count_nonzero((low == 8) | (low == 9))),
        "soft": int(np.count_nonzero(packed >= SOFT_MASKED)),
    }


def _case_bit(sequence: bytes) -> NDArray[np.uint8]:
    # ASCII letters carry their case in bit 5; shifted by two it is the highest bit.
    return (letters(sequence) & 0x20) << 2


def _is_reverse(strand: str) -> bool:
    if strand not in ("+", "-", "."):
        raise ValueError(f"strand is {strand!r}; expected '+', '-' or '.'")
    return strand == "-"
