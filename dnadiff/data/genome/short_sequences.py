"""Many short sequences as training set: padded, in batches of similar length, with labels from their headers or files.

A record is one sequence. Sequences that are equal, on either strand, always fall into the same part. Batches say with `valid`
what is sequence and what is padding; padding has weight 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dnadiff.data.base import SequenceDataModule, check_share, expect_dna
from dnadiff.data.cutter import TokenTable
from dnadiff.data.genome.genome import Genome
from dnadiff.data.labels import Labels
from dnadiff.data.shuffle import bits
from dnadiff.data.splits import PARTS, Interval, Split
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.data.windows import TiledWindows
from dnadiff.draws import hash64
from dnadiff.vocab import Vocab


class ShortSequences:
    """Batches of whole sequences, bucketed by length; number i of epoch e is a function of (seed, e, i).

    Args:
        records: token ids of each sequence.
        chosen: which of them are for training.
        together: sequences in a batch over all devices; they are of one bucket.
        vocab: the alphabet.
        seed: of all draws.
        step: batches are padded to a multiple of this length.
        longest: no batch is padded beyond it.
        augment_rc: show the reverse complement of half of the sequences.
        labels: one row for each record.
    """

    def __init__(
        self,
        records: Sequence[Any],
        chosen: Sequence[int],
        together: int,
        vocab: Vocab,
        seed: int,
        step: int = 16,
        longest: int | None = None,
        augment_rc: bool = False,
        labels: Labels | None = None,
    ) -> None:
        self.records, self.chosen, self.together, self.seed = records, np.asarray(chosen, dtype=np.int64), together, seed
        self.vocab, self.letters, self.augment_rc, self.labels = vocab, TokenTable(vocab), augment_rc, labels
        lengths = np.array([len(records[r]) for r in self.chosen.tolist()])
        self.padded = np.minimum(-(-lengths // step) * step, longest or lengths.max())
        _, sizes = np.unique(self.padded, return_counts=True)
        self.size = int((-(-sizes // together) * together).sum())
        self._epoch: int | None = None

    def order(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The sequence of each index of an epoch, and whether it is there a second time only to fill a batch."""
        if epoch != self._epoch:
            key = hash64(self.seed, "order", epoch)
            shuffled = np.lexsort((bits(key, np.arange(len(self.chosen))), self.padded))
            batches, repeated = [], []
            for bucket in np.split(shuffled, np.flatnonzero(np.diff(self.padded[shuffled])) + 1):
                fill = -len(bucket) % self.together
                batches.append(np.concatenate([bucket, np.resize(bucket, fill)]).reshape(-1, self.together))
                repeated.append(np.concatenate([np.zeros(len(bucket), bool), np.ones(fill, bool)]).reshape(-1, self.together))
            turn = np.argsort(bits(hash64(self.seed, "batches", epoch), np.arange(sum(map(len, batches)))))
            self._order = np.concatenate(batches)[turn].reshape(-1), np.concatenate(repeated)[turn].reshape(-1)
            self._epoch = epoch
        return self._order

    def batch(self, epoch: int, first: int, count: int) -> dict[str, torch.Tensor]:
        """Sequences `first` up to `first + count` of an epoch: `ids`, `weight`, `valid (B, L)`, `index`, and `cond` if there are labels."""
        order, repeated = self.order(epoch)
        index = np.arange(first, first + count)
        rows = order[index]
        reverse = bits(hash64(self.seed, "strand", epoch), index) & np.uint64(1) == 1 if self.augment_rc else np.zeros(count, bool)
        ids = np.full((count, int(self.padded[rows].max())), self.vocab.pad_id, dtype=np.uint8)
        valid = np.zeros(ids.shape, dtype=bool)
        for number, (row, other) in enumerate(zip(rows.tolist(), reverse.tolist())):
            sequence = np.array(self.records[int(self.chosen[row])])
            ids[number, : len(sequence)] = self.letters.reverse_complement(sequence[None])[0] if other else sequence
            valid[number, : len(sequence)] = True
        weight = self.letters.is_emitted(ids) * ~repeated[index][:, None]
        arrays = {"ids": ids, "weight": weight, "valid": valid, "index": index}
        if self.labels is not None:
            arrays["cond"] = self.labels.drawn(hash64(self.seed, "label", epoch), self.chosen[rows], index)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class PaddedRecords(Sequence):
    """Records as arrays of one length, padding behind them."""

    def __init__(self, records: Sequence[Any], length: int, pad_id: int) -> None:
        self.records, self.length, self.pad_id = records, length, pad_id

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, number: Any) -> NDArray[np.uint8]:
        row = np.full(self.length, self.pad_id, dtype=np.uint8)
        row[: len(self.records[number])] = np.asarray(self.records[number])
        return row


class ShortSequenceTiles(TiledWindows):
    """Each sequence as one window of full length, with `valid`."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = super().__getitem__(index)
        return item | {"valid": item["ids"] != self._pad_id}

    _pad_id = DNATokenizer().vocab.pad_id


class ShortSequenceDataModule(SequenceDataModule):
    """Whole sequences of DNA, none longer than `length`.

    Args:
        path, keep, iupac: see `Genome.open`; `{label: path}` labels all sequences of a file.
        length: the longest sequence that is accepted; shorter ones are padded.
        batch_size, seed, num_workers, max_valid_windows, name, start_method: see `SequenceDataModule`.
        split: which records are held out, whole; None: 80, 10 and 10 % by a hash of their letters.
        stranded, augment_rc: see `GenomeDataModule`.
        label: key of the class in the headers, as in `>name class=enhancer`; None: none is read.
        label_dropout: share of training sequences that are not told their labels.
        bucket: batches are padded to a multiple of so many bases.
    """

    n_policy = "N is seen but never masked, generated or counted"

    def __init__(
        self,
        path: Any,
        length: int,
        batch_size: int,
        split: Split | None = None,
        seed: int = 0,
        num_workers: int = 0,
        max_valid_windows: int = 256,
        stranded: bool = False,
        augment_rc: bool | None = None,
        name: str | None = None,
        keep: str | Sequence[str] | None = None,
        iupac: str = "unknown",
        label: str | None = None,
        label_dropout: float = 0.1,
        bucket: int = 16,
        start_method: str | None = None,
    ) -> None:
        augment_rc = not stranded if augment_rc is None else augment_rc
        super().__init__(path, length, batch_size, split, seed, num_workers, None, max_valid_windows, augment_rc, name, start_method)
        check_share("label_dropout", label_dropout)
        if not isinstance(bucket, int) or isinstance(bucket, bool) or bucket < 1:
            raise ValueError(f"bucket is {bucket!r}; set data.bucket to 1 or more, a whole number")
        self._given_split, self.keep, self.iupac, self.label, self.label_dropout, self.bucket = (
            split,
            keep,
            iupac,
            label,
            label_dropout,
            bucket,
        )

    def expect(self, tokenizer: Any) -> None:
        """See `SequenceDataModule.expect`: DNA has one alphabet."""
        expect_dna(tokenizer, self.name)

    @property
    def digest(self) -> str:
        """See `SequenceDataModule.digest`."""
        self.prepare()
        return self._digest

    def open(self) -> Genome:
        """The sequences as a genome of short records."""
        return Genome.open(self.path, self.keep, self.iupac)

    def read(self) -> tuple[list[str], Sequence[Any], DNATokenizer]:
        """Names of the sequences, and their token ids padded to `length`."""
        genome = self.open()
        longest = max(genome.rows, key=lambda row: row["length"])
        if longest["length"] > self.length:
            raise ValueError(
                f"record {longest['name']} has {longest['length']} bases, more than length {self.length}; set data.length={longest['length']}, "
                f"or use data=fasta, which cuts windows"
            )
        self._labels = Labels.from_names([self._labels_of(row) for row in genome.rows], self.label_dropout)
        self._sequences, self._digest = genome.records, genome.digest
        return genome.names, PaddedRecords(genome.records, self.length, genome.tokenizer.vocab.pad_id), genome.tokenizer

    def split_records(self, names: list[str], lengths: list[int]) -> dict[str, list[Interval]]:
        """Whole sequences; without a `split`, by their letters."""
        if self._given_split is not None:
            parts = self._given_split(names, lengths)
            if cut := next((i for many in parts.values() for i in many if i.end - i.start != lengths[i.record]), None):
                raise ValueError(
                    f"split {self.split.describe()} cuts through record {names[cut.record]}; choose one that holds out whole records"
                )
            return parts
        parts = {part: [] for part in PARTS}
        for number, length in enumerate(lengths):
            share = content_fraction(np.array(self._sequences[number]))
            parts["train" if share < 0.8 else "valid" if share < 0.9 else "test"].append(Interval(number, 0, length))
        return parts

    def train_batches(self) -> ShortSequences:
        """The training sequences as the loader reads them."""
        chosen = [i.record for i in self._part("train")]
        world = self.trainer.world_size if self.trainer is not None else 1
        return ShortSequences(
            self._sequences, chosen, self.batch_size * world, self.vocab, self.seed, self.bucket, self.length, self.augment_rc, self._labels
        )

    def test_windows(self, split: str = "test", length: int | None = None) -> TiledWindows:
        """All sequences of a part, padded to `length`."""
        return ShortSequenceTiles(self.records, self._part(split), self.length, self.vocab, labels=self._labels)

    def describe(self) -> dict[str, Any]:
        """See `SequenceDataModule.describe`, with the labels."""
        about = super().describe()
        how = {} if self._given_split is not None else {"split": "whole sequences by a hash of their letters (80, 10, 10 %)"}
        tokens = sum(len(s) for s in self._sequences)
        labels = self._labels.names if self._labels else []
        return about | how | {"tokens": tokens, "labels": labels, "label_dropout": self.label_dropout}

    def _labels_of(self, row: dict[str, Any]) -> list[str]:
        found = [] if row.get("label") is None else [row["label"]]
        if self.label is not None:
            words = dict(word.split("=", 1) for word in row["description"].split() if "=" in word)
            if self.label not in words:
                raise ValueError(
                    f"record {row['name']} has no {self.label}= in its header; write '>{row['name']} {self.label}=...', or set data.label=null"
                )
            found.append(f"{self.label}={words[self.label]}")
        return found


def content_fraction(ids: NDArray[np.uint8]) -> float:
    """A number in [0, 1) that depends on the letters alone and is the same for both strands."""
    other = TokenTable(DNATokenizer().vocab).reverse_complement(ids[None])[0]
    digest = hashlib.blake2b(min(ids.tobytes(), other.tobytes()), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
