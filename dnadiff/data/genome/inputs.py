"""Sequences that a command reads in order: the records of a file, regions of a genome, or
arrays in memory.

Memory does not depend on their lengths. Positions are 0-based and half-open within each sequence.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from typing_extensions import override

from dnadiff.data.genome.genome import Genome
from dnadiff.data.records import Interval
from dnadiff.data.tokenizer import TokenIds
from dnadiff.formats.nucleotides import ids_of
from dnadiff.formats.regions import Region, names_of, read_regions
from dnadiff.formats.sequences import Header, events
from dnadiff.store.files import bare_name

_REGION_FILES = (".bed", ".gtf", ".gff", ".gff3")


class SequenceInput(ABC):
    """Named sequences of nucleotides.

    Attributes:
        names: a different one for each sequence.
        regions: where each sequence is; a record of a file is the whole of itself.
        digest: SHA-256 that changes with any name or base.
    """

    names: list[str]
    regions: list[Region]
    digest: str

    @property
    def lengths(self) -> list[int]:
        """The number of bases of each sequence."""
        return [region.end - region.start for region in self.regions]

    @property
    def region_names(self) -> list[str] | None:
        """The name of each region in its BED, GTF or GFF file, "" for one without; None if there
        are no such names."""
        return None

    @abstractmethod
    def windows(self, pieces: Iterable[Interval]) -> Iterator[TokenIds]:
        """Token ids `(end - start,)` uint8 of each piece. Pieces are ordered by sequence and start,
        and may overlap."""

    def sites(self) -> tuple[SequenceInput, list[Interval]]:
        """The sequences with the context of these, and the pieces of them that these cover:
        ordered, without overlap."""
        return self, [Interval(number, 0, length) for number, length in enumerate(self.lengths)]


class FileInput(SequenceInput):
    """The records of a file of sequences. It is read once for its names and lengths, with all
    checks of `events`."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.names, self.regions = str(path), [], []
        digest, length = hashlib.sha256(), 0
        for event in events(path):
            if isinstance(event, Header):
                self._end(length)
                self.names.append(event.name)
                digest.update(f"\n{event.name}\n".encode())
                length = 0
            else:
                digest.update(event)
                length += len(event)
        self._end(length)
        self.digest = digest.hexdigest()

    def _end(self, length: int) -> None:
        if self.names:
            self.regions.append(Region(self.names[-1], 0, length, self.names[-1]))

    @override
    def windows(self, pieces: Iterable[Interval]) -> Iterator[TokenIds]:
        stream, letters = events(self.path), bytearray()
        record, position = -1, 0  # `letters` begins at this position of this record
        for piece in pieces:
            while record < piece.record:
                if isinstance(self._next(stream), Header):
                    record, position, letters = record + 1, 0, bytearray()
            while position + len(letters) < piece.end:
                event = self._next(stream)
                if isinstance(event, Header):
                    raise self._changed()
                letters += event
                position += _drop(letters, piece.start - position)
            position += _drop(letters, piece.start - position)
            yield ids_of(bytes(letters[: piece.end - position]))

    def _next(self, stream: Iterator[Header | bytes]) -> Header | bytes:
        event = next(stream, None)
        if event is None:
            raise self._changed()
        return event

    def _changed(self) -> ValueError:
        return ValueError(f"{self.path} changed while it was read; start again when it is complete")


class GenomeInput(SequenceInput):
    """Regions of a genome, on their strand."""

    def __init__(self, genome: Genome, regions: Sequence[Region]) -> None:
        self.genome, self.regions, self.names = genome, list(regions), names_of(regions)
        self.digest = hashlib.sha256(
            "\n".join([genome.digest, *map(str, self.regions)]).encode()
        ).hexdigest()

    @property
    @override
    def region_names(self) -> list[str] | None:
        found = [
            "" if region.name == "." else region.name for region in self.regions
        ]  # "." is a column without a value
        return found if any(found) else None

    @override
    def windows(self, pieces: Iterable[Interval]) -> Iterator[TokenIds]:
        for number, start, end in pieces:
            chrom, low, high, _, strand = self.regions[number]
            start, end = (high - end, high - start) if strand == "-" else (low + start, low + end)
            yield self.genome.window(chrom, start, end, strand)

    @override
    def sites(self) -> tuple[SequenceInput, list[Interval]]:
        wanted: dict[str, list[tuple[int, int]]] = {}
        for region in self.regions:
            wanted.setdefault(region.chrom, []).append((region.start, region.end))
        whole = [
            Region(name, 0, length, name)
            for name, length in self.genome.lengths.items()
            if name in wanted
        ]
        merged = [
            Interval(number, *place)
            for number, record in enumerate(whole)
            for place in _union(wanted[record.chrom])
        ]
        return GenomeInput(self.genome, whole), merged


class ArrayInput(SequenceInput):
    """Sequences in memory: token ids `(L,)` uint8 each."""

    def __init__(self, sequences: Sequence[TokenIds]) -> None:
        self.sequences, self.names = list(sequences), [str(i) for i in range(len(sequences))]
        self.regions = [
            Region(name, 0, len(ids), name) for name, ids in zip(self.names, self.sequences)
        ]
        self.digest = hashlib.sha256(
            b"\xff".join(ids.tobytes() for ids in self.sequences)
        ).hexdigest()

    @override
    def windows(self, pieces: Iterable[Interval]) -> Iterator[TokenIds]:
        for number, start, end in pieces:
            yield self.sequences[number][start:end]


def open_input(
    fasta: str | None,
    genome: str | None,
    regions: str | Sequence[str] | None,
    feature: str | None,
    key: str = "regions",
) -> SequenceInput:
    """The sequences that the keys of a command describe: a FASTA file, or regions (see
    `read_regions`) of a genome.

    Args:
        key: what the command calls `regions`.

    Raises:
        FileNotFoundError, ValueError: if keys are missing or contradict each other, or a file is
            malformed.
    """
    if genome is None:
        if regions is not None:
            raise ValueError(f"{key} {regions!r} needs genome=g.fa, the genome of these regions")
        if feature is not None:
            raise ValueError(
                f"feature {feature!r} chooses rows of a GTF or GFF file; give it with {key}= and "
                "genome="
            )
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
    opened = Genome.open(genome)
    return GenomeInput(opened, read_regions(regions, opened.lengths, feature))


def _drop(letters: bytearray, count: int) -> int:
    """Remove up to `count` letters at the beginning; returns how many."""
    count = max(0, min(count, len(letters)))
    del letters[:count]
    return count


def _union(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intervals in order, with those that overlap or touch merged."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(places):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
