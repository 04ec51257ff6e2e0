"""Names of the records of a genome that is in several files, and what is known of each record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.data.genome.paths import SUFFIXES, Source
from dnadiff.data.genome.record_table import RecordInfo, RecordRows, RecordTable
from dnadiff.store.address import file_name

if TYPE_CHECKING:
    from dnadiff.data.genome.genome import Genome


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
    name = file_name(path).removesuffix(".gz").removesuffix(".bgz")
    return next((name.removesuffix(ending) for ending in SUFFIXES if name.endswith(ending)), name)
