"""A genome: named records with one byte per base. The low seven bits are the token id, the highest
bit is soft-masking.

The bytes are mapped from the cache (`packed`). Coordinates are 0-based and half-open.
`dnadiff.data.splits` divides a genome into training, validation and test data, and
`dnadiff.data.windows` cuts windows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.genome.names import GenomeRows, names_in, unique_names
from dnadiff.data.genome.packed import PackedFile
from dnadiff.data.genome.packer import SOFT_MASKED, TOKEN
from dnadiff.data.genome.parallel import pack_all
from dnadiff.data.genome.paths import SequencePath, Source, expand
from dnadiff.data.genome.record_names import check_names
from dnadiff.data.genome.records import GenomeRecords, by_file
from dnadiff.data.n_runs import NRuns
from dnadiff.data.tokenizer import DNATokenizer

REFUSES_AMBIGUOUS = {"unknown": False, "refuse": True}
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
    def open(
        cls,
        path: SequencePath | None,
        keep: str | Sequence[str] | None = None,
        iupac: str = "unknown",
        num_workers: int = 0,
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
        refuse, keep, sources = refuses_ambiguous(iupac), _names_to_keep(keep), expand(path)
        files: list[tuple[Source, PackedFile]] = []
        names: list[str] = []
        columns: list[
            tuple[NDArray, ...]
        ] = []  # number, place, offset, length and soft of the records of each file
        for source, file in zip(
            sources, pack_all([source.path for source in sources], num_workers)
        ):
            if refuse:
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


def refuses_ambiguous(iupac: str) -> bool:
    """Whether the policy `iupac` refuses ambiguity codes instead of reading them as N.

    Raises:
        ValueError: if there is no such policy.
    """
    if iupac not in REFUSES_AMBIGUOUS:
        raise ValueError(
            f"data.iupac {iupac!r} is not known; choose {' or '.join(REFUSES_AMBIGUOUS)}"
        )
    return REFUSES_AMBIGUOUS[iupac]


def _refuse_ambiguous(source: Source, file: PackedFile) -> None:
    for number in np.flatnonzero(file.records.ambiguous)[:1].tolist():
        row = file.records[number]
        count, first = row["ambiguous"]
        raise ValueError(
            f"{source.path}: record {row['name']} holds {count} ambiguity codes (R, Y, K, M, S, W, "
            "B, D, H or V), the first at position "
            f"{first + 1}; set data.iupac=unknown to read them as N"
        )


def _names_to_keep(keep: str | Sequence[str] | None) -> str | list[str] | None:
    if keep is None or isinstance(keep, str):
        return keep
    if not isinstance(keep, (list, tuple)) or any(
        isinstance(name, bool) or not isinstance(name, (str, int)) for name in keep
    ):
        raise ValueError(
            f"data.keep is {keep!r}; expected a list of names such as [chr1,chr2], a regular "
            "expression, or null for all records"
        )
    return [
        str(name) for name in keep
    ]  # YAML reads [3] as a number, and Ensembl's chromosomes have such names


def _kept(names: Sequence[str], keep: str | Sequence[str] | None) -> list[int]:
    if keep is None:
        return list(range(len(names)))
    if isinstance(keep, str):
        try:
            pattern = re.compile(keep)
        except re.error as error:
            raise ValueError(
                f"data.keep {keep!r} is not a regular expression ({error}); correct it, or give a "
                "list of names"
            ) from None
        kept = [number for number, name in enumerate(names) if pattern.fullmatch(name)]
    else:
        check_names(keep, names, "data.keep")
        wanted = set(keep)
        kept = [number for number, name in enumerate(names) if name in wanted]
    if not kept:
        shown = ", ".join(names[:8])
        raise ValueError(
            f"data.keep {keep!r} leaves no record; the records are "
            f"{shown}{' ...' if len(names) > 8 else ''}: set data.keep=null for all"
        )
    return kept


def _is_reverse(strand: str) -> bool:
    if strand not in IS_REVERSE:
        raise ValueError(f"strand is {strand!r}; expected '+', '-' or '.'")
    return IS_REVERSE[strand]
