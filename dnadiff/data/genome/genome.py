"""A genome: named records with one byte per base. The low seven bits are the token id, the highest bit is soft-masking.

The bytes are mapped from the cache (`packed`). Coordinates are 0-based and half-open. `dnadiff.data.splits` divides a genome
into training, validation and test data, and `dnadiff.data.windows` cuts windows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.genome.packed import SOFT_MASKED, TOKEN, PackedFile, RecordInfo, pack
from dnadiff.data.genome.records import GenomeRecords
from dnadiff.data.genome.regions import check_names
from dnadiff.data.genome.sources import SequencePath, Source, expand
from dnadiff.data.n_runs import NRuns
from dnadiff.data.tokenizer import DNATokenizer

REFUSES_AMBIGUOUS = {"unknown": False, "refuse": True}
IS_REVERSE = {"+": False, ".": False, "-": True}


class Genome:
    """Named records of nucleotides in packed files; use `Genome.open`.

    Args:
        rows: for each record what is known of it.
        places: for each record its packed file and its number there.
    """

    def __init__(self, rows: list[RecordInfo], places: list[tuple[PackedFile, int]]) -> None:
        self.rows, self.records, self.tokenizer = rows, GenomeRecords(places, [row["soft"] > 0 for row in rows]), DNATokenizer()
        self._complement = np.array(self.tokenizer.vocab.complement, dtype=np.uint8)
        self._number = {row["name"]: number for number, row in enumerate(rows)}

    @classmethod
    def open(cls, path: SequencePath | None, keep: str | Sequence[str] | None = None, iupac: str = "unknown") -> Genome:
        """Open sequence files, which are packed into the cache when they are used for the first time.

        Args:
            path: a FASTA, 2bit or GenBank file (plain, gzip, bgzip), a folder, several of them, `{label: path}`, or a
                pyfaidx.Fasta. With labels the records are called `label:name`.
            keep: names of the records to use, or a regular expression that must match the complete name; None: all.
            iupac: what to do with ambiguity codes such as R: `unknown` reads them as N, `refuse` raises an error.

        Raises:
            FileNotFoundError, ValueError: naming file, line and remedy; also if two files share a record name.
        """
        refuse, keep = refuses_ambiguous(iupac), _names_to_keep(keep)
        rows: dict[str, RecordInfo] = {}
        places: list[tuple[PackedFile, int]] = []
        for source in expand(path):
            file = pack(source.path)
            for number, (name, row) in enumerate(zip(_names(source, file), file.records)):
                if name in rows:
                    raise ValueError(f"{source.path}: record {name} is also in {rows[name]['file']}; rename one, names must be unique")
                count, first = row["ambiguous"]
                if refuse and count:
                    raise ValueError(
                        f"{source.path}: record {name} holds {count} ambiguity codes (R, Y, K, M, S, W, B, D, H or V), the first at position "
                        f"{first + 1}; set data.iupac=unknown to read them as N"
                    )
                rows[name] = {**row, "name": name, "label": source.label, "file": source.path}
                places.append((file, number))
        if not places:
            raise ValueError("data.path names no file; set it to a FASTA file or to a list of files")
        kept, every = _kept(list(rows), keep), list(rows.values())
        return cls([every[number] for number in kept], [places[number] for number in kept])

    @property
    def names(self) -> list[str]:
        """Names of the records, in the order of the files."""
        return [row["name"] for row in self.rows]

    @property
    def labels(self) -> list[str | None]:
        """The label of each record's file; None without a label."""
        return [row["label"] for row in self.rows]

    @cached_property
    def lengths(self) -> dict[str, int]:
        """Record name to number of bases."""
        return {row["name"]: row["length"] for row in self.rows}

    @property
    def total(self) -> int:
        """Number of bases in all records."""
        return sum(row["length"] for row in self.rows)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the hashes of the files and of the numbers of the records: changes with any base."""
        places = "".join(f"{file.digest} {number}\n" for file, number in self.records.places)
        return hashlib.sha256(places.encode()).hexdigest()

    @cached_property
    def n_runs(self) -> NRuns:
        """The runs of N."""
        runs, offsets, total = [np.empty((0, 2), np.int64)], [], 0
        for (file, number), row in zip(self.records.places, self.rows):
            offsets.append(total)
            if row["unknown"]:
                low, high = np.searchsorted(file.runs[:, 0], file.offsets[number : number + 2])
                runs.append(file.runs[low:high] - file.offsets[number] + total)
            total += row["length"]
        return NRuns(np.concatenate(runs), offsets)

    def window(self, record: str, start: int, end: int, strand: str = "+") -> NDArray[np.uint8]:
        """Token ids `(end - start,)` uint8 of `[start, end)` on a strand; "-" is the reverse complement, "." is "+".

        Raises:
            ValueError: if there is no such record or strand, or the window is not inside the record.
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


def refuses_ambiguous(iupac: str) -> bool:
    """Whether the policy `iupac` refuses ambiguity codes instead of reading them as N.

    Raises:
        ValueError: if there is no such policy.
    """
    if iupac not in REFUSES_AMBIGUOUS:
        raise ValueError(f"data.iupac {iupac!r} is not known; choose {' or '.join(REFUSES_AMBIGUOUS)}")
    return REFUSES_AMBIGUOUS[iupac]


def _names(source: Source, file: PackedFile) -> list[str]:
    """Names of the records of a file in this genome."""
    names = [row["name"] for row in file.records] if source.names is None else list(source.names)
    if len(names) != len(file.records):
        raise ValueError(
            f"{source.path} holds {len(file.records)} records, this pyfaidx.Fasta shows {len(names)}; open it without a filter"
        )
    return names if source.label is None else [f"{source.label}:{name}" for name in names]


def _names_to_keep(keep: str | Sequence[str] | None) -> str | list[str] | None:
    if keep is None or isinstance(keep, str):
        return keep
    if not isinstance(keep, (list, tuple)) or any(isinstance(name, bool) or not isinstance(name, (str, int)) for name in keep):
        raise ValueError(
            f"data.keep is {keep!r}; expected a list of names such as [chr1,chr2], a regular expression, or null for all records"
        )
    return [str(name) for name in keep]  # YAML reads [3] as a number, and Ensembl's chromosomes have such names


def _kept(names: Sequence[str], keep: str | Sequence[str] | None) -> list[int]:
    if keep is None:
        return list(range(len(names)))
    if isinstance(keep, str):
        try:
            pattern = re.compile(keep)
        except re.error as error:
            raise ValueError(f"data.keep {keep!r} is not a regular expression ({error}); correct it, or give a list of names") from None
        kept = [number for number, name in enumerate(names) if pattern.fullmatch(name)]
    else:
        check_names(keep, names, "data.keep")
        wanted = set(keep)
        kept = [number for number, name in enumerate(names) if name in wanted]
    if not kept:
        shown = ", ".join(names[:8])
        raise ValueError(
            f"data.keep {keep!r} leaves no record; the records are {shown}{' ...' if len(names) > 8 else ''}: set data.keep=null for all"
        )
    return kept


def _is_reverse(strand: str) -> bool:
    if strand not in IS_REVERSE:
        raise ValueError(f"strand is {strand!r}; expected '+', '-' or '.'")
    return IS_REVERSE[strand]
