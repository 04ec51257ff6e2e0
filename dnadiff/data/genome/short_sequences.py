"""Many short sequences as training data: padded, in batches of similar length, with labels from
their headers or files.

A record is one sequence. Equal sequences, on either strand, always belong to the same part. In a
batch `valid` is False on padding, and padding has weight 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.data.genome.datamodule import DNADataModule
from dnadiff.data.genome.packed import RecordInfo
from dnadiff.data.intervals import Interval, Intervals
from dnadiff.data.records import Records, TokenTable, lengths_of
from dnadiff.data.splits import PARTS, Parts, Split, split_hash
from dnadiff.data.tokenizer import DNATokenizer, TokenIds, Tokenizer
from dnadiff.data.windows import (
    Batch,
    Labels,
    RandomWindows,
    TiledWindows,
    UniformWindows,
    Window,
    bits,
)
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import Json, PositiveInt, checked


class PaddedCutter:
    """Complete records as rows of one length, padded on the right."""

    def __init__(self, records: Records, length: int, vocab: Vocab) -> None:
        self.records, self.length, self.pad_id, self.tokens = (
            records,
            length,
            vocab.pad_id,
            TokenTable(vocab),
        )

    def rows(
        self, record: Sequence[int], reverse: Sequence[bool], length: int
    ) -> NDArray[np.uint8]:
        """Ids `(B, length)`, reverse-complemented where `reverse` is True."""
        ids = np.full((len(record), length), self.pad_id, dtype=np.uint8)
        for row, number, is_reverse in zip(ids, record, reverse):
            sequence = np.asarray(self.records[number][:], dtype=np.uint8)
            row[: len(sequence)] = (
                self.tokens.reverse_complement(sequence[None])[0] if is_reverse else sequence
            )
        return ids

    def __call__(
        self,
        record: NDArray[np.int64],
        start: NDArray[np.int64],
        reverse: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray, NDArray]:
        """Ids and weights `(B, L)`, as of `Cutter`; a record is complete, so that every start is
        0."""
        ids = self.rows(
            record.tolist(),
            [False] * len(record) if reverse is None else reverse.tolist(),
            self.length,
        )
        return ids, self.tokens.is_emitted(ids)


class ShortSequences:
    """Batches of complete sequences, bucketed by length; sequence i of epoch e depends only on
    (seed, e, i).

    Args:
        chosen: numbers of the training sequences.
        together: sequences in a batch over all devices; all of them are from one bucket.
        step: batches are padded to a multiple of this length.
        max_length: maximum length of a batch.
        augment_rc: replace half of the sequences, at random, by their reverse complement.
    """

    def __init__(
        self,
        records: Records,
        chosen: Sequence[int],
        together: int,
        vocab: Vocab,
        seed: int,
        step: int,
        max_length: int,
        augment_rc: bool,
        labels: Labels | None,
    ) -> None:
        self.chosen, self.together, self.seed, self.vocab = (
            np.asarray(chosen, dtype=np.int64),
            together,
            seed,
            vocab,
        )
        self.augment_rc, self.labels = augment_rc, labels
        self._cut = PaddedCutter(records, max_length, vocab)
        lengths = np.array(lengths_of(records))[self.chosen]
        self.padded = np.minimum(-(-lengths // step) * step, max_length)
        _, sizes = np.unique(self.padded, return_counts=True)
        self.size = int((-(-sizes // together) * together).sum())
        self._epoch: int | None = None

    def order(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The sequence of each index of an epoch, and whether it is a repetition that only fills a
        batch."""
        if epoch != self._epoch:
            key = hash64(self.seed, "order", epoch)
            shuffled = np.lexsort((bits(key, np.arange(len(self.chosen))), self.padded))
            batches, repeated = [], []
            for bucket in np.split(shuffled, np.flatnonzero(np.diff(self.padded[shuffled])) + 1):
                fill = -len(bucket) % self.together
                batches.append(
                    np.concatenate([bucket, np.resize(bucket, fill)]).reshape(-1, self.together)
                )
                repeated.append(
                    np.concatenate([np.zeros(len(bucket), bool), np.ones(fill, bool)]).reshape(
                        -1, self.together
                    )
                )
            turn = np.argsort(
                bits(hash64(self.seed, "batches", epoch), np.arange(sum(map(len, batches))))
            )
            self._order = (
                np.concatenate(batches)[turn].reshape(-1),
                np.concatenate(repeated)[turn].reshape(-1),
            )
            self._epoch = epoch
        return self._order

    def batch(self, epoch: int, first: int, count: int, step: int = 1) -> Batch:
        """The `count` sequences `first`, `first + step`, ... of an epoch, which are in one bucket:
        `ids`, `weight`, `valid (B, L)`, `index`, and `cond` if there are labels.
        """
        order, repeated = self.order(epoch)
        index = np.arange(first, first + count * step, step)
        rows = order[index]
        reverse = (
            bits(hash64(self.seed, "strand", epoch), index) & np.uint64(1) == 1
            if self.augment_rc
            else np.zeros(count, bool)
        )
        ids = self._cut.rows(
            self.chosen[rows].tolist(), reverse.tolist(), int(self.padded[rows].max())
        )
        weight = self._cut.tokens.is_emitted(ids) * ~repeated[index][:, None]
        arrays = {"ids": ids, "weight": weight, "valid": ids != self.vocab.pad_id, "index": index}
        if self.labels is not None:
            arrays["cond"] = self.labels.with_dropout(
                hash64(self.seed, "label", epoch), self.chosen[rows], index
            )
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class ShortSequenceTiles(TiledWindows):
    """Each sequence as one padded window, with `valid`."""

    _pad_id = DNATokenizer().vocab.pad_id

    def __init__(
        self,
        records: Records,
        intervals: Sequence[Interval],
        length: int,
        vocab: Vocab,
        labels: Labels | None = None,
    ) -> None:
        super().__init__(records, padded(intervals, length), length, vocab, labels=labels)
        self._cut = PaddedCutter(records, length, vocab)

    @override
    def __getitem__(self, index: int) -> Window:
        item = super().__getitem__(index)
        item["valid"] = item["ids"] != self._pad_id
        return item


def padded(intervals: Sequence[Interval], length: int) -> Intervals:
    """The windows of `length` positions that begin where the intervals begin."""
    every = Intervals.of(intervals)
    return Intervals(every.record, every.start, every.start + length)


@checked
@dataclass(eq=False, repr=False)
class ShortSequenceDataModule(DNADataModule):
    """Complete DNA sequences, none longer than `length`.

    Args:
        path: see `DNADataModule`; with `{label: path}` all sequences of a file have its label.
        length: maximum length of a sequence; shorter sequences are padded.
        split: which records are held out; it must not divide a record. None: 80, 10 and 10 % by a
            hash of the sequence.
        label: key of the class in the headers, as in `>name class=enhancer`; None: headers are not
            read.
        bucket: batches are padded to a multiple of this number of bases.

    The other arguments are those of `DNADataModule` and `SequenceDataModule`; an epoch has each
    training sequence once.
    """

    epoch_size: None = field(default=None, init=False)
    label: str | None = None
    bucket: PositiveInt = 16

    def __post_init__(self) -> None:
        self._given_split: Split | None = self.split
        super().__post_init__()

    @property
    @override
    def digest(self) -> str:
        self.prepare()
        return self._digest

    @override
    def read(self) -> tuple[list[str], Records, Tokenizer]:
        genome = self.open()
        if genome.weights is not None:
            raise ValueError(
                "the manifest has weights, and data=sequences uses each sequence once per epoch; "
                "leave the weights out"
            )
        lengths = genome.records.lengths
        if max(lengths) > self.length:
            longest = genome.rows[lengths.index(max(lengths))]
            raise ValueError(
                f"record {longest['name']} has {longest['length']} bases, more than length "
                f"{self.length}; set data.length={longest['length']}, "
                f"or use data=fasta, which cuts windows"
            )
        self._labels = Labels.from_names(
            [self._labels_of(row) for row in genome.rows], self.label_dropout
        )
        self._digest = genome.digest
        return genome.names, genome.records, genome.tokenizer

    @override
    def split_records(self, names: list[str], lengths: list[int]) -> Parts:
        if self._given_split is not None:
            parts = self._given_split(names, lengths)
            if cut := next(
                (
                    i
                    for many in parts.values()
                    for i in many
                    if i.end - i.start != lengths[i.record]
                ),
                None,
            ):
                raise ValueError(
                    f"split {self.split.describe()} cuts through record {names[cut.record]}; "
                    "choose one that holds out complete records"
                )
            return parts
        fractions = np.array([content_fraction(sequence[:]) for sequence in self._records])
        size = np.array(lengths, dtype=np.int64)
        every = Intervals(np.arange(len(size)), np.zeros_like(size), size)
        part = np.digitize(fractions, (0.8, 0.9))
        return {name: every.where(part == number) for number, name in enumerate(PARTS)}

    @override
    def train_batches(self) -> ShortSequences:
        chosen = Intervals.of(self._part("train")).record.tolist()
        together = self.batch_size * self.process.world_size
        return ShortSequences(
            self.records,
            chosen,
            together,
            self.vocab,
            self.seed,
            self.bucket,
            self.length,
            bool(self.augment_rc),
            self._labels,
        )

    @override
    def train_windows(self) -> RandomWindows:
        """Random training sequences, padded to the length of the module; an epoch of training is
        `train_batches`."""
        where = (
            self.records,
            padded(self._part("train"), self.length),
            self.length,
            None,
            self.vocab,
            self.seed,
            bool(self.augment_rc),
        )
        return UniformWindows(*where, cut=PaddedCutter(self.records, self.length, self.vocab))

    @override
    def test_windows(self, split: str = "test", length: int | None = None) -> TiledWindows:
        """All sequences of a part, padded to the length of the module; `length` is ignored."""
        return ShortSequenceTiles(
            self.records, self._part(split), self.length, self.vocab, labels=self._labels
        )

    @override
    def describe(self) -> dict[str, Json]:
        about = super().describe() | {"labels": self.labels, "label_dropout": self.label_dropout}
        if self._given_split is None:
            about["split"] = "whole sequences by a hash of their letters (80, 10, 10 %)"
        # The hash is that of the padded intervals, as in runs and checkpoints of earlier versions.
        # No sequence is too short for a window.
        of_split = split_hash(
            {part: padded(intervals, self.length) for part, intervals in self.intervals.items()},
            self.names,
        )
        return about | {
            "split_hash": of_split,
            "too_short_tokens": dict.fromkeys(self.intervals, 0),
        }

    def _labels_of(self, row: RecordInfo) -> list[str]:
        found = [] if row["label"] is None else [row["label"]]
        if self.label is not None:
            pairs = dict(word.split("=", 1) for word in row["description"].split() if "=" in word)
            if self.label not in pairs:
                raise ValueError(
                    f"record {row['name']} has no {self.label}= in its header; write "
                    f"'>{row['name']} {self.label}=...', or set data.label=null"
                )
            found.append(f"{self.label}={pairs[self.label]}")
        return found


@cache
def _token_table() -> TokenTable:
    return TokenTable(DNATokenizer().vocab)


def content_fraction(ids: TokenIds) -> float:
    """A number in [0, 1) that depends only on the sequence, and is the same for both strands."""
    codes = ids.astype(np.uint8, copy=False)
    other = _token_table().reverse_complement(codes[None])[0]
    digest = hashlib.blake2b(min(codes.tobytes(), other.tobytes()), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
