"""A genome in memory: one byte a base, its token id in the low seven bits and soft-masking in the highest.

Coordinates are 0-based and half-open. Which parts are for training is decided in `splits`, how they are cut in `windows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.fasta import Record, read_fasta
from dnadiff.data.regions import check_names
from dnadiff.data.tokenizer import DNATokenizer, letters

SOFT_MASKED = 0x80
_TOKEN = 0x7F


class Genome:
    """Named records of nucleotides.

    Args:
        packed: record name to `(length,)` uint8: token id, plus 128 where the letter was lower case.
        tokenizer: gives the ids their meaning.
    """

    def __init__(self, packed: Mapping[str, NDArray[np.uint8]], tokenizer: DNATokenizer | None = None) -> None:
        self._packed = dict(packed)
        self.tokenizer = tokenizer or DNATokenizer()
        self._complement = np.array(self.tokenizer.vocab.complement, dtype=np.uint8)

    @classmethod
    def from_records(cls, records: Iterable[Record], tokenizer: DNATokenizer | None = None) -> Genome:
        """Pack records as `read_fasta` gives them."""
        tokenizer = tokenizer or DNATokenizer()
        return cls({r.name: tokenizer.encode(r.sequence) | _case_bit(r.sequence) for r in records}, tokenizer)

    @classmethod
    def from_fasta(cls, path: str | Path | Iterable[str | Path], tokenizer: DNATokenizer | None = None) -> Genome:
        """Read one FASTA file or several.

        Raises:
            FileNotFoundError, ValueError: as `read_fasta`; also if two files share a record name.
        """
        paths = [path] if isinstance(path, str | Path) else list(path)
        if not paths:
            raise ValueError("path names no file; set data.path to a FASTA file or to a list of them")
        file_of: dict[str, str | Path] = {}
        records = []
        for file in paths:
            for record in read_fasta(file):
                if record.name in file_of:
                    raise ValueError(f"{file}: record {record.name} is also in {file_of[record.name]}; rename one, names must be unique")
                file_of[record.name] = file
                records.append(record)
        return cls.from_records(records, tokenizer)

    @property
    def names(self) -> list[str]:
        """Names of the records, in the order of the file."""
        return list(self._packed)

    @property
    def lengths(self) -> dict[str, int]:
        """Record name to number of bases."""
        return {name: len(packed) for name, packed in self._packed.items()}

    @property
    def total(self) -> int:
        """Number of bases in all records."""
        return sum(self.lengths.values())

    @cached_property
    def records(self) -> list[NDArray[np.uint8]]:
        """Token ids of each record, without the case: arrays `(length,)` uint8."""
        return [packed & _TOKEN for packed in self._packed.values()]

    def window(self, record: str, start: int, end: int, strand: str = "+") -> NDArray[np.uint8]:
        """Token ids of `[start, end)` on a strand: `(end - start,)` uint8; "-" is the reverse complement, "." is "+".

        Raises:
            ValueError: if there is no such record or strand, or the window leaves the record.
        """
        ids = self._cut(record, start, end) & _TOKEN
        return self._complement[ids[::-1]] if _is_reverse(strand) else ids

    def soft_masked(self, record: str, start: int, end: int, strand: str = "+") -> NDArray[np.bool_]:
        """Whether each base of `[start, end)` was lower case, in the order of `window`: `(end - start,)`.

        Raises:
            ValueError: as `window`.
        """
        lower = self._cut(record, start, end) >= SOFT_MASKED
        return lower[::-1] if _is_reverse(strand) else lower

    def _cut(self, record: str, start: int, end: int) -> NDArray[np.uint8]:
        check_names([record], self._packed, "window")
        packed = self._packed[record]
        if not 0 <= start < end <= len(packed):
            raise ValueError(f"window {record}:{start}-{end} does not lie inside the record, 0-{len(packed)}")
        return packed[start:end]


def _case_bit(sequence: bytes) -> NDArray[np.uint8]:
    # ASCII letters carry their case in bit 5; shifted by two it is the highest bit.
    return (letters(sequence) & 0x20) << 2


def _is_reverse(strand: str) -> bool:
    if strand not in ("+", "-", "."):
        raise ValueError(f"strand is {strand!r}; expected '+', '-' or '.'")
    return strand == "-"
