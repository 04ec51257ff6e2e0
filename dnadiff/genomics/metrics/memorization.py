"""What samples are compared with: windows of real sequences, and the training part, from which
they may be copied: exact matches on either strand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy import ndarray

from dnadiff.data.base import run_data
from dnadiff.data.kmers import (
    MAX_KMERS,
    UNKNOWN,
    KmerSet,
    blocks,
    codes,
    reverse_complement,
)
from dnadiff.data.records import num_tokens
from dnadiff.fields import Config, Json
from dnadiff.formats.sequences import iter_sequences
from dnadiff.genomics.held_out import bases_of
from dnadiff.genomics.metrics.composition import (
    MAX_SEQUENCES,
    as_bases,
    designed_bases,
    evenly_spaced,
)
from dnadiff.progress import log

if TYPE_CHECKING:
    from dnadiff.data.base import SequenceDataModule
    from dnadiff.weights.loaded import Loaded

QUICK = 10_000_000  # bases of the largest training part that is indexed within some seconds
LARGEST = MAX_KMERS // 4  # bases of the largest training part that is indexed: 5 GB
MAX_UNKNOWN = 0.1  # fraction of unknown bases in a real window, as in training
COLUMNS = ("name", "length", "longest_match", "seen_24mers")  # of the table of matches
_MIN_REAL = 4  # windows
_SEED_LENGTH = 11  # matches start with a k-mer of this length, looked up in a table of 4^11


class _Tables(NamedTuple):
    """Both strands of all sequences as `text (T,)`, their k-mers, and the places of seeds in it:
    those of seed number i are `place[first[i] : first[i + 1]]`."""

    text: ndarray
    kmers: KmerSet
    place: ndarray
    first: ndarray


@dataclass(eq=False)
class TrainingIndex:
    """An index of the training part that finds exact matches on both strands.

    Memory: about 40 bytes a base of the training part while it is built, and 34 MB for the table.
        Searching takes 3 bytes a base of the window, and up to 300 MB.

    It is built by the first search, which raises ValueError if there is no known base.

    Args:
        sequences: uint8 arrays of bases (0 A, 1 C, 2 G, 3 T, 4 unknown); no match spans two of
            them.
        k: length of the k-mers that `seen` counts.

    Attributes:
        matches: bases of the training part that are compared at once, which bounds the memory.
        block: k-mers of a window that are searched at once.
    """

    matches = 1 << 21
    block = 1 << 20

    sequences: Iterable[ndarray]
    k: int = 24

    @cached_property
    def _tables(self) -> _Tables:
        sequences = list(self.sequences)
        self.sequences = ()
        if not any((bases < UNKNOWN).any() for bases in sequences):
            raise ValueError(
                "the training part has no known base (A, C, G or T), so it cannot be searched for "
                "copies"
            )
        gap = np.array([UNKNOWN], np.uint8)
        both = [
            part for bases in sequences for part in (gap, bases, gap, reverse_complement(bases))
        ]
        # Unknown bases at both ends and in between: no match extends past a sequence.
        text = np.concatenate([*both, gap])
        values, known = codes(text, _SEED_LENGTH)
        place = np.flatnonzero(known)
        counts = np.bincount(values[place].view(np.int64), minlength=4**_SEED_LENGTH)
        sorted_place = place[np.argsort(values[place], kind="stable")]
        first = np.concatenate([[0], np.cumsum(counts)])
        return _Tables(text, KmerSet(sequences, self.k), sorted_place, first)

    def seen(self, windows: Iterable[ndarray]) -> ndarray:
        """For each window, its k-mers that occur in the training part, and all its k-mers without
        unknown bases: (S, 2)."""
        return np.array(
            [
                (
                    self._tables.kmers.hits(bases).sum(),
                    sum(codes(x, self.k)[1].sum() for _, x in blocks(bases, self.k, self.block)),
                )
                for bases in windows
            ]
        )

    def longest_match(self, windows: Iterable[ndarray]) -> ndarray:
        """Length in bases of the longest exact match of each window with the training part:
        (S,)."""
        return np.array([self._longest(bases) for bases in windows])

    def _longest(self, bases: ndarray) -> int:
        # padded[-1] is before the window as well as after it
        padded = np.append(bases, np.uint8(UNKNOWN))
        longest = 0
        tables = self._tables
        for first, block in blocks(bases, _SEED_LENGTH, self.block):
            values, known = codes(block, _SEED_LENGTH)
            start = np.flatnonzero(known)
            if self.k >= _SEED_LENGTH:
                hits = tables.kmers.hits(bases[first : first + len(values) + self.k - 1])
                # then the longest match that starts in this block starts with a k-mer that was seen
                if hits.any():
                    start = np.flatnonzero(hits)
                elif longest >= self.k:
                    continue
            seeds = values[start].view(np.int64)
            ends = np.cumsum(tables.first[seeds + 1] - tables.first[seeds])
            most = np.arange(self.matches, ends[-1] if len(ends) else 0, self.matches)
            for few in np.split(start, np.searchsorted(ends, most)):
                longest = max(longest, self._extended(padded, few + first, values[few]))
        shorter = range(_SEED_LENGTH - 1, 0, -1)
        return longest or next(
            (k for k in shorter if KmerSet([tables.text], k).hits(bases).any()), 0
        )

    def _extended(self, padded: ndarray, start: ndarray, values: ndarray) -> int:
        """The longest match that begins at one of the starts with its k-mer; 0 if the training part
        does not have these k-mers."""
        tables = self._tables
        first, after = (tables.first[values.view(np.int64) + offset] for offset in (0, 1))
        number = after - first
        if not number.sum():
            return 0
        offset = np.repeat(start, number)
        rank = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
        place = tables.place[np.repeat(first, number) + rank]
        # A match that extends to the left is found from an earlier start.
        is_first = ~_same(padded[offset - 1], tables.text[place - 1])
        offset = offset[is_first, None]
        place = place[is_first, None]
        length = _SEED_LENGTH
        longest, step = 0, 1  # most candidates end soon; a step is twice the one before
        while len(offset):
            step = min(step, max(1, self.matches // len(offset)))
            ahead = np.arange(length, length + step)
            # Both end with an unknown base, which is not the same as any other.
            both = (
                padded.take(offset + ahead, mode="clip"),
                tables.text.take(place + ahead, mode="clip"),
            )
            same = _same(*both)
            extends = same.all(1)
            longest = max(longest, length + int(np.where(extends, step, same.argmin(1)).max()))
            offset = offset[extends]
            place = place[extends]
            length = length + step
            step = 2 * step
        return longest


def _same(a: ndarray, b: ndarray) -> ndarray:
    return (a == b) & (a < UNKNOWN)


def read_bases(path: str | Path) -> list[ndarray]:
    """The records of a FASTA file as bases."""
    return [as_bases(record.sequence) for record in iter_sequences(path)]


def windows_of(records: Iterable[ndarray], length: int) -> list[ndarray]:
    """Consecutive windows of the records."""
    return [
        bases[at : at + length]
        for bases in records
        for at in range(0, len(bases) - length + 1, length)
    ]


def held_out_windows(data: SequenceDataModule, part: str, length: int) -> list[ndarray]:
    """The windows of a held-out part as bases, without overlap; raises ValueError if the part is
    not held out, or too short."""
    if part not in ("test", "valid"):
        raise ValueError(f"part {part!r} is not held out; choose test or valid")
    longest = max((i.end - i.start for i in data.intervals[part]), default=0)
    windows: list[ndarray] = []
    if longest >= length:
        tiles = data.test_windows(part, length)
        to_bases = bases_of(data)
        # Complete sequences are padded to a length of their own, whatever length is asked for.
        items = (tiles[i] for i, tile in enumerate(tiles.tiles) if tile.skip == 0)
        ids = (item["ids"][item["valid"]] if "valid" in item else item["ids"] for item in items)
        windows = windows_of((to_bases(each.numpy()) for each in ids), length)
    if not windows:
        problem = f"has no interval of {length:,} bases (the longest has {longest:,})"
        raise ValueError(
            f"the {part} part of {data.name} {problem if longest else 'is empty'}; give "
            "real=y.fa, or shorter samples"
        )
    return windows


def cut(records: Sequence[ndarray], length: int, max_unknown: float = MAX_UNKNOWN) -> list[ndarray]:
    """Consecutive windows of the records, without those that have many unknown bases; raises
    ValueError if there is none."""
    windows = windows_of(records, length)
    found = [bases for bases in windows if (bases == UNKNOWN).mean() <= max_unknown]
    if not found:
        raise ValueError(
            f"real has no window of {length:,} bases with at most {100 * max_unknown:g} % unknown "
            "bases; give longer records"
        )
    return found


def real_windows(path: str, length: int) -> list[ndarray]:
    """At most 2,000 windows of the records of a FASTA file, evenly spaced, without unknown bases; a
    ValueError if there are fewer than 4."""
    found = cut(read_bases(path), length, max_unknown=0)
    if len(found) < _MIN_REAL:
        raise ValueError(
            f"real {path} has {len(found)} windows of {length:,} bases, the length of the samples; "
            f"give at least {_MIN_REAL}"
        )
    return [found[i] for i in evenly_spaced(len(found), MAX_SEQUENCES)]


class Match(NamedTuple):
    """What a record shares with the training part.

    Attributes:
        length: bases that were searched.
        longest: bases in the longest exact match.
        seen: fraction of its 24-mers that occur in the training part; NaN if it has none.
    """

    name: str
    length: int
    longest: int
    seen: float


def dna_data(
    model: Loaded, trust: Sequence[str] = (), given: Config | None = None
) -> SequenceDataModule:
    """The data that a model was trained on, or those `given` on the command line, prepared; raises
    ValueError for text."""
    check_dna(model)
    data = run_data(model.config.get("data"), model.tokenizer, trust, given)
    data.prepare()
    return data


def check_dna(model: Loaded) -> None:
    """Raise ValueError for a model of text."""
    if not model.is_dna:
        raise ValueError(
            f"samples are compared as DNA, but {model.path} was trained on text; give a model "
            "of DNA"
        )


def searched_data(
    model: Loaded, data: SequenceDataModule | None, trust: Sequence[str] = ()
) -> SequenceDataModule | None:
    """The data in whose training part copies are searched for: always those that the model was
    trained on, if its source records them.

    None, with a log message, if they cannot be read here. If the source records none, as a
    published folder, `data` take their place, with a log message.
    """
    known = None if data is None else model.was_trained_on(data)
    if known:
        return data
    try:
        return model.training_data(trust)
    except (ValueError, OSError) as error:
        if data is not None and known is None:
            log.info(
                f"{model.path} does not record what it was trained on: copies are searched for in "
                f"the training part of {data.name}"
            )
            return data
        log.info(
            f"copies are not searched for, because the training data are not available: {error}"
        )
        return None


def num_training_bases(data: SequenceDataModule) -> int:
    """Bases of the training part."""
    return num_tokens(data.intervals["train"])


def training_data(
    model: Loaded,
    trust: Sequence[str] = (),
    given: Config | None = None,
    most: int = LARGEST,
) -> SequenceDataModule:
    """As `dna_data`; also raises ValueError if the training part has more than `most` bases, by
    default what an index fits into memory for."""
    data = dna_data(model, trust, given)
    if model.was_trained_on(data) is False:
        if not given:
            raise ValueError(
                f"copies: {data.name} changed since {model.path} was trained on it; restore its "
                "files"
            )
        log.warning(
            f"{model.path} was not trained on data={data.name}: matches are with these data, not "
            "with the training data of the model"
        )
    if (number := num_training_bases(data)) > most:
        raise ValueError(
            f"copies: the training part of {data.name} has {number:,} bases, and an index is made "
            f"of at most {most:,} (40 bytes of memory for each); give data= with fewer records"
        )
    return data


def indexed(data: SequenceDataModule) -> TrainingIndex:
    """The index of the training part of a data module."""
    to_bases = bases_of(data)
    return TrainingIndex(to_bases(ids) for ids in data.sequences("train"))


def default_index(model: Loaded, trust: Sequence[str]) -> TrainingIndex | None:
    """The index for a search that nobody asked for; None, with a log message, if the training data
    are not here, or an index of them takes more than some seconds."""
    try:
        return indexed(training_data(model, trust, most=QUICK))
    except (ValueError, OSError):
        log.info(
            "the longest match with training is not reported: the training part is not here, or "
            f"has more than {QUICK:,} bases; copies=true searches it, or says why not"
        )
        return None


def of_file(path: str | Path, training: TrainingIndex) -> list[Match]:
    """The matches of each record of a FASTA file. If a record's header has `designed=first-last`,
    only that part is searched."""
    found = []
    for record in iter_sequences(path):
        bases = designed_bases(record)
        hits, kmers = training.seen([bases])[0]
        longest = int(training.longest_match([bases])[0])
        seen = float(hits) / kmers if kmers else float("nan")
        found.append(Match(record.name, len(bases), longest, seen))
    return found


def summary(found: Sequence[Match]) -> dict[str, Json]:
    """Summary over all records: mean and maximum of the longest match, the record with the maximum,
    and the mean fraction of 24-mers seen."""
    longest = max(found, key=lambda match: match.longest)
    seen = [match.seen for match in found if match.seen == match.seen]  # not NaN
    return {
        "records": len(found),
        "longest": {
            "mean": float(np.mean([match.longest for match in found])),
            "max": longest.longest,
            "record": longest.name,
        },
        "seen": float(np.mean(seen)) if seen else None,
    }
