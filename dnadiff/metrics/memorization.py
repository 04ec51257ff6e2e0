"""How much of the samples stands in the training part, on either strand: memory, not knowledge."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dnadiff.config import build
from dnadiff.data.genome.fasta import iter_fasta
from dnadiff.kmers import UNKNOWN, KmerSet, checked, codes, reverse_complement
from dnadiff.likelihood.held_out import MAX_KMERS, without_download

_DESIGNED = re.compile(r"(?:^|\s)designed=(\d+)-(\d+)(?:\s|$)")
_SEED = 11  # matches begin with a word of so many bases, looked up in a table of 4^11


class TrainingSequence:
    """The training part, ready to be searched on both strands.

    Memory: about 40 bytes a base while it is built, and 34 MB for the table.

    Args:
        sequences: arrays of bases; no match reaches from one into the next.
        k: bases in a word that counts as seen.

    Raises:
        ValueError: if it holds no known base.
    """

    def __init__(self, sequences: Iterable[np.ndarray], k: int = 24) -> None:
        sequences = checked(sequences)
        if not any((bases < UNKNOWN).any() for bases in sequences):
            raise ValueError("the training part holds no known base (A, C, G or T); copies cannot be looked for")
        gap = np.array([UNKNOWN], np.uint8)
        both = [part for bases in sequences for part in (gap, bases, gap, reverse_complement(bases))]
        self._text = np.concatenate([*both, gap])  # an unknown base at both ends and between: nothing runs out of the text
        self.k, self._words = k, KmerSet(sequences, k)
        values, known = codes(self._text, _SEED)
        place = np.flatnonzero(known)
        self._place = place[np.argsort(values[place], kind="stable")]
        self._first = np.concatenate([[0], np.cumsum(np.bincount(values[place].view(np.int64), minlength=4**_SEED))])

    def seen(self, windows: np.ndarray) -> np.ndarray:
        """Words of each window that the training part holds, and all its words without unknown bases: (S, 2)."""
        return np.array([(self._words.hits(bases).sum(), codes(bases, self.k)[1].sum()) for bases in windows])

    def longest_match(self, windows: np.ndarray) -> np.ndarray:
        """Bases in the longest stretch of each window that the training part holds exactly: (S,)."""
        return np.array([self._longest(bases) for bases in windows])

    def _longest(self, bases: np.ndarray) -> int:
        values, known = codes(bases, _SEED)
        start, hits = np.flatnonzero(known), self._words.hits(bases)
        if hits.any() and self.k >= _SEED:  # the longest match then begins with a word that was seen
            start = np.flatnonzero(hits)
        first, after = (self._first[values[start].view(np.int64) + one] for one in (0, 1))
        number = after - first
        if not number.sum():
            return next((k for k in range(_SEED - 1, 0, -1) if KmerSet([self._text], k).contains_any(bases)), 0)
        offset = np.repeat(start, number)
        rank = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
        place = self._place[np.repeat(first, number) + rank]
        # What goes on to the left is part of a match that begins there.
        padded = np.append(bases, np.uint8(UNKNOWN))  # padded[-1] stands before the window as well as behind it
        goes_on = _same(padded[offset - 1], self._text[place - 1])
        offset, place, length = offset[~goes_on], place[~goes_on], _SEED
        while True:
            going = _same(padded[offset + length], self._text[place + length])
            if not going.any():
                return length
            offset, place, length = offset[going], place[going], length + 1


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a == b) & (a < UNKNOWN)


class Match(NamedTuple):
    """What a record shares with the training part: its bases, the longest exact match, and the share of its words that were seen."""

    name: str
    length: int
    longest: int
    seen: float


def training_data(model: Any, trust: Sequence[str] = ()) -> Any:
    """The data that a model was trained on, ready to be read (`model` has its `config`, `path` and `tokenizer`).

    Raises:
        ValueError: if it is a model of text, or its training part would fill the memory.
    """
    if model.tokenizer.vocab.complement is None:
        raise ValueError(f"copies are looked for in DNA, and {model.path} was trained on text")
    data = build(without_download(model.config["data"]), trust=("dnadiff", *trust))
    data.prepare()
    tokens = sum(i.end - i.start for i in data.intervals["train"])
    if tokens > MAX_KMERS // 4:
        raise ValueError(f"copies: the training part of {data.name} has {tokens:,} bases, more than fit into memory as an index")
    return data


def indexed(data: Any) -> TrainingSequence:
    """The training part of data, ready to be searched."""
    return TrainingSequence([data.tokenizer.bases(ids) for ids in data.sequences("train")])


def of_file(path: str | Path, training: TrainingSequence) -> list[Match]:
    """The matches of each record of a FASTA file; of a record whose header says `designed=first-last`, of that part."""
    from dnadiff.metrics.composition import as_bases

    found = []
    for record in iter_fasta(path):
        bases = as_bases(record.sequence)
        said = _DESIGNED.search(record.description)  # of a range that is none of this record's, whoever wrote it, nothing follows
        if said is not None and 1 <= int(said[1]) <= int(said[2]) <= len(bases):
            bases = bases[int(said[1]) - 1 : int(said[2])]
        hits, words = training.seen([bases])[0]
        longest = int(training.longest_match([bases])[0])
        found.append(Match(record.name, len(bases), longest, float(hits) / words if words else float("nan")))
    return found


def summary(found: Sequence[Match]) -> dict[str, Any]:
    """Numbers over all records: the longest match (mean and greatest, with the record's name) and the share of 24-mers seen."""
    most = max(found, key=lambda match: match.longest)
    seen = [match.seen for match in found if match.seen == match.seen]
    return {
        "records": len(found),
        "longest": {"mean": float(np.mean([match.longest for match in found])), "max": most.longest, "record": most.name},
        "seen": float(np.mean(seen)) if seen else None,
    }
