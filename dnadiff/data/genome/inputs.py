"""Sequences that a command reads in order: the records of a file, regions of a genome, or
arrays in memory, with the columns of an alignment of related genomes.

Memory does not depend on their lengths. Positions are 0-based and half-open within each sequence.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dnadiff.data.alignment import CHANNELS, Alignment
from dnadiff.data.genome.genome import Genome
from dnadiff.data.records import Interval, union
from dnadiff.data.tokenizer import TokenIds
from dnadiff.fields import JsonDict
from dnadiff.formats.nucleotides import ids_of
from dnadiff.formats.regions import Region, names_of, read_regions
from dnadiff.formats.sequences import Header, events
from dnadiff.store.files import bare_name

_REGION_FILES = (".bed", ".gtf", ".gff", ".gff3")
# Of an alignment for each of several sequences, (L_i, CHANNELS); None: without.
Columns: TypeAlias = Sequence[Any] | np.ndarray | None


class SequenceInput(ABC):
    """Named sequences of nucleotides.

    Attributes:
        names: a different one for each sequence.
        regions: where each sequence is; a record of a file is the whole of itself.
        digest: SHA-256 that changes with any name or base.
        genome: that the regions are in; of a file, its records.
        alignment: of related genomes to that genome, for `columns`; None: none.
    """

    names: list[str]
    regions: list[Region]
    digest: str
    genome: Genome
    alignment: Alignment | None = None

    @property
    def lengths(self) -> list[int]:
        """The number of bases of each sequence."""
        return [region.size for region in self.regions]

    @property
    def region_names(self) -> list[str] | None:
        """The name of each region in its BED, GTF or GFF file, "" for one without; None if there
        are no such names."""
        return None

    @property
    def identity(self) -> JsonDict:
        """The digests of the sequences and of their alignment, for the settings of a job."""
        alignment = self.alignment
        return {"input": self.digest} | (
            {} if alignment is None else {"alignment": alignment.identity}
        )

    def align(self, alignment: Alignment | None) -> None:
        """Read the columns of an alignment with the sequences; see `Alignment.check`. Other records
        than its target's have columns of zeros."""
        if alignment is not None:
            alignment.check(self.genome, self.regions)
        self.alignment = alignment

    def columns(self, pieces: Iterable[Interval]) -> Tensor | None:
        """The columns `(B, L, CHANNELS)` of B pieces in any order, each on the strand of its
        sequence and followed by zeros; None without an alignment."""
        if self.alignment is None:
            return None
        parts = [self.regions[number].part(start, end) for number, start, end in pieces]
        return torch.from_numpy(self.alignment.batch(parts))

    @abstractmethod
    def windows(self, pieces: Iterable[Interval]) -> Iterator[TokenIds]:
        """Token ids `(end - start,)` uint8 of each piece. Pieces are ordered by sequence and start,
        and may overlap."""

    def whole(self) -> list[Interval]:
        """Each sequence as one piece."""
        return [Interval(number, 0, length) for number, length in enumerate(self.lengths)]

    def sites(self) -> tuple[SequenceInput, list[Interval]]:
        """The sequences with the context of these, and the pieces of them that these cover:
        ordered, without overlap."""
        return self, self.whole()


class FileInput(SequenceInput):
    """The records of a file of sequences. It is read once for its names and lengths, with all
    checks of `events`."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.names = []
        digest = hashlib.sha256()
        lengths = list[int]()
        for event in events(path):
            if isinstance(event, Header):
                self.names.append(event.name)
                lengths.append(0)
                digest.update(f"\n{event.name}\n".encode())
            else:
                lengths[-1] += len(event)
                digest.update(event)
        self.regions = _whole(self.names, lengths)
        self.digest = digest.hexdigest()

    @cached_property
    def genome(self) -> Genome:  # type: ignore[override]
        """The records, read once more."""
        return Genome(self.path)

    def windows(self, pieces: Iterable[Interval]) -> Iterator[TokenIds]:
        stream = events(self.path)
        letters = bytearray()
        record, position = -1, 0  # `letters` begins at this position of this record
        for piece in pieces:
            while True:
                before = piece.start - position if record == piece.record else len(letters)
                dropped = max(0, min(before, len(letters)))
                del letters[:dropped]
                position += dropped
                if record == piece.record and position + len(letters) >= piece.end:
                    break
                event = next(stream, None)
                begins = isinstance(event, Header)
                if event is None or (begins and record == piece.record):
                    raise ValueError(
                        f"{self.path} changed while it was read; start again when it is complete"
                    )
                if isinstance(event, Header):
                    record = record + 1
                    position = 0
                    letters = bytearray()
                else:
                    letters += event
            yield ids_of(bytes(letters[: piece.end - position]))


class GenomeInput(SequenceInput):
    """Regions of a genome, on their strand."""

    def __init__(self, genome: Genome, regions: Sequence[Region]) -> None:
        self.genome = genome
        self.regions = list(regions)
        self.names = names_of(regions)
        # as it was before regions could have blocks
        texts = (str(region).replace(", blocks=()", "") for region in self.regions)
        described = "\n".join([genome.digest, *texts])
        self.digest = hashlib.sha256(described.encode()).hexdigest()

    @property
    def region_names(self) -> list[str] | None:
        # "." is a column without a value
        found = ["" if region.name == "." else region.name for region in self.regions]
        return found if any(found) else None

    def windows(self, pieces: Iterable[Interval]) -> Iterator[TokenIds]:
        for number, start, end in pieces:
            yield self.regions[number].part(start, end).joined(self.genome.window)

    def sites(self) -> tuple[SequenceInput, list[Interval]]:
        if any(region.blocks for region in self.regions):
            raise ValueError("a track has values of a genome, not of spliced=true; leave one out")
        wanted = {region.chrom for region in self.regions}
        names = [name for name in self.genome.names if name in wanted]
        number = {name: each for each, name in enumerate(names)}
        pieces = (Interval(number[each.chrom], each.start, each.end) for each in self.regions)
        covered = list(union(pieces, touching=True))
        whole = _whole(names, map(self.genome.lengths.__getitem__, names))
        found = GenomeInput(self.genome, whole)
        found.alignment = self.alignment
        return found, covered


class ArrayInput(SequenceInput):
    """Sequences in memory: token ids `(L,)` each, and their columns `(L, CHANNELS)`, or None.

    Raises:
        ValueError: for columns of another number or shape.
    """

    def __init__(
        self,
        sequences: Sequence[TokenIds],
        columns: Columns = None,
    ) -> None:
        self.sequences = list(sequences)
        self.names = [str(i) for i in range(len(sequences))]
        self.given = None
        if columns is not None:
            self.given = [np.asarray(each, np.float32) for each in columns]
            shapes = [x.shape for x in self.given if np.isfinite(x).all()]
            if shapes != [(len(x), CHANNELS) for x in sequences]:
                raise ValueError(
                    "columns must be an array of each sequence, with a row of "
                    f"{CHANNELS} finite numbers for each base (Alignment.columns)"
                )
        self.regions = _whole(self.names, map(len, self.sequences))
        content = b"\xff".join(ids.tobytes() for ids in self.sequences)
        self.digest = hashlib.sha256(content).hexdigest()

    def windows(self, pieces: Iterable[Interval]) -> Iterator[TokenIds]:
        for number, start, end in pieces:
            yield self.sequences[number][start:end]

    def columns(self, pieces: Iterable[Interval]) -> Tensor | None:
        if self.given is None:
            return None
        parts = [torch.from_numpy(self.given[number][start:end]) for number, start, end in pieces]
        return pad_sequence(parts, batch_first=True)


def open_input(
    fasta: str | None,
    genome: str | None,
    regions: str | Sequence[str] | None,
    feature: str | None,
    key: str = "regions",
    spliced: bool = False,
) -> SequenceInput:
    """The sequences that the keys of a command describe: a FASTA file, or regions (see
    `read_regions`) of a genome.

    Args:
        key: what the command calls `regions`.
        spliced: join the exons of transcripts.

    Raises:
        FileNotFoundError, ValueError: if keys are missing or contradict each other, or a file is
            malformed.
    """
    if genome is None:
        if regions is not None:
            raise ValueError(f"{key} {regions!r} needs genome=g.fa, the genome of these regions")
        if feature is not None or spliced:
            what = "spliced=true joins" if spliced else f"feature {feature!r} chooses"
            raise ValueError(f"{what} rows of a GTF or GFF file; give it with {key}= and genome=")
        if fasta is None:
            raise ValueError(
                f"input is missing: give input=... (FASTA), or {key}= with genome=g.fa"
            )
        if bare_name(fasta).endswith(_REGION_FILES):
            raise ValueError(
                f"input {fasta} is a file of regions, not FASTA; give the genome of these regions "
                "as well: genome=g.fa"
            )
        return FileInput(fasta)
    if regions is None:
        raise ValueError(
            f"genome {genome} needs {key}=, a BED or GTF file or chrom:first-last; to read all of "
            f"a FASTA file set input={genome}"
        )
    if fasta is not None:
        raise ValueError(f"input {fasta} and genome= exclude each other; leave one out")
    opened = Genome(genome)
    return GenomeInput(opened, read_regions(regions, opened.lengths, feature, spliced))


def _whole(names: Iterable[str], lengths: Iterable[int]) -> list[Region]:
    return [Region(name, 0, length, name) for name, length in zip(names, lengths)]
