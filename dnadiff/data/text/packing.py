"""Documents as windows of one length: wrapped (concatenated and cut into blocks), padded (one
document per window), or cut from a stream.

The first two are made from `TokenizedDocuments` when they are read. Windows are not stored.
A stream is for corpora too large to store: documents are read in their own order, once per epoch,
and tokenized during training. Its state records the document and token at which the next block
begins, so that a resumed run sees exactly the tokens that an uninterrupted run would have seen.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset
from typing_extensions import override

from dnadiff.data.intervals import Interval, Tile
from dnadiff.data.records import Cutter, RecordLayout, Records, StoredRecords, TokenTable
from dnadiff.data.text.tokenized import Ends, TokenizedDocuments
from dnadiff.data.windows import TiledWindows, shuffled
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.vocab import Vocab


class TokenStream(StoredRecords):
    """The ids of all tokenized documents as one record. Pickles as its path."""

    def __init__(self, documents: TokenizedDocuments) -> None:
        self.documents = documents

    def __len__(self) -> int:
        return 1

    @overload
    def __getitem__(self, number: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, number: slice) -> list[np.ndarray]: ...
    @override
    def __getitem__(self, number: int | slice) -> np.ndarray | list[np.ndarray]:
        return [self.documents.tokens][number]

    def layout(self) -> RecordLayout:
        """The arrays and offsets of the record."""
        return RecordLayout(
            [self.documents.tokens], np.zeros(1, np.int64), np.zeros(1, np.int64), False
        )


class BlockCutter(Cutter):
    """Blocks of `length` tokens of streams of token ids, `ends` included."""

    def __init__(self, records: Records, length: int, vocab: Vocab, ends: Ends) -> None:
        super().__init__(records, length - ends.size, vocab)
        self.block_length, self.ends = length, ends

    @override
    def __call__(
        self,
        record: NDArray[np.int64],
        start: NDArray[np.int64],
        reverse: NDArray[np.bool_] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        ids, weight = super().__call__(record, start)
        ones = Ends(
            None if self.ends.bos is None else 1, None if self.ends.eos is None else 1
        )  # tokens at the ends are counted
        return self.ends.around(ids, self.block_length), ones.around(weight, self.block_length)


class TiledBlocks(TiledWindows):
    """Consecutive blocks of `length` tokens, `ends` included, in which every token counts once.
    Items are those of `TiledWindows`."""

    def __init__(
        self, records: Records, intervals: Sequence[Interval], length: int, vocab: Vocab, ends: Ends
    ) -> None:
        super().__init__(records, intervals, length - ends.size, vocab)
        self.length, self.lead = length, int(ends.bos is not None)
        self._cut = BlockCutter(records, length, vocab, ends)


class PaddedDocuments:
    """Documents truncated or padded to one length, for training: each one once per epoch, in random
    order.

    Window i of epoch e is a function of (seed, e, i). Indices beyond the number of documents begin
    another order.

    Args:
        tokens: the documents, without end-of-text tokens.
        documents: numbers of those to use, ascending.
        length: tokens in a window, ends included; a longer document is truncated.
        size: windows in an epoch; None: the number of documents.

    Raises:
        ValueError: if there is no document.
    """

    def __init__(
        self,
        tokens: TokenizedDocuments,
        documents: NDArray[np.int64],
        length: int,
        vocab: Vocab,
        ends: Ends,
        seed: int = 0,
        size: int | None = None,
    ) -> None:
        if not len(documents):
            raise ValueError(
                "no document is left for this part; choose another data.split or "
                "data.valid_documents, or, if each line of a .txt is a "
                "document, data.documents=line"
            )
        self.tokens, self.documents, self.length, self.ends, self.seed = (
            tokens,
            documents,
            length,
            ends,
            int(seed),
        )
        self.pad_id, self.token_table, self.size = (
            vocab.pad_id,
            TokenTable(vocab),
            size or len(documents),
        )

    @property
    def num_cut(self) -> int:
        """Number of documents that are longer than a window and therefore truncated."""
        ends = self.tokens.ends
        return int((np.diff(ends, prepend=0)[self.documents] > self.length - self.ends.size).sum())

    def rows(self, documents: NDArray[np.int64]) -> dict[str, np.ndarray]:
        """`ids`, `weight` and `valid`, each `(B, length)`, of documents by number."""
        ids = np.full((len(documents), self.length), self.pad_id, dtype=self.tokens.tokens.dtype)
        valid = np.zeros(ids.shape, dtype=bool)
        first = int(self.ends.bos is not None)
        for row, document in enumerate(documents.tolist()):
            text = self.tokens[document][: self.length - self.ends.size]
            end = first + len(text)
            ids[row, first:end] = text
            if first:
                ids[row, 0] = self.ends.bos
            if self.ends.eos is not None:
                ids[row, end] = self.ends.eos
                end += 1
            valid[row, :end] = True
        return {"ids": ids, "weight": self.token_table.is_emitted(ids) & valid, "valid": valid}

    def batch(self, epoch: int, first: int, count: int, step: int = 1) -> dict[str, torch.Tensor]:
        """The `count` windows `first`, `first + step`, ... of an epoch, collated: `ids`, `weight`,
        `valid` and `index`."""
        index = np.arange(first, first + count * step, step)
        number, orders = np.empty(count, np.int64), index // len(self.documents)
        for order in np.unique(orders).tolist():
            here = orders == order
            key = hash64(self.seed, "document", epoch, order)
            number[here] = shuffled(key, index[here] % len(self.documents), len(self.documents))
        arrays = self.rows(self.documents[number]) | {"index": index}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class PaddedDocumentTiles(Dataset[dict[str, torch.Tensor | int]]):
    """The same documents in their own order, for evaluation. Items have the keys `ids`, `weight`,
    `valid` and `index`."""

    def __init__(self, documents: PaddedDocuments) -> None:
        self.documents, self.length = documents, documents.length

    @property
    def tiles(self) -> list[Tile]:
        """The place where each document begins."""
        return [
            Tile(0, self.documents.tokens.starts_at(int(number)), 0)
            for number in self.documents.documents
        ]

    def __len__(self) -> int:
        return len(self.documents.documents)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor | int]:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        rows = self.documents.rows(self.documents.documents[index : index + 1])
        return {name: torch.from_numpy(row[0]) for name, row in rows.items()} | {"index": index}


_AHEAD = 64  # documents tokenized at once
Place = tuple[int, int]  # number of a document, and of a token in it


@dataclass(eq=False, repr=False)
class StreamLoader:
    """Batches of blocks from documents that are read once per epoch.

    Each of several processes takes every `world_size`-th block. Blocks at the end of an epoch that
    do not fill the batches of an optimizer step on every process are dropped.

    Args:
        since: documents from a given number on, in order.
        encode: token ids of documents, end-of-text tokens included.
        length: tokens in a block, `ends` included.
        batch_size: blocks in a batch, on this process.
        rank, world_size, progress, accumulated: see `ProcessRank`.

    Raises:
        ValueError: during iteration, if the documents do not fill the batches of one optimizer
            step.
    """

    since: Callable[[int], Iterator[str]]
    encode: Callable[[list[str]], list[np.ndarray]]
    length: int
    batch_size: int
    vocab: Vocab
    ends: Ends
    rank: int = 0
    world_size: int = 1
    progress: Callable[[], tuple[int, float]] | None = None
    accumulated: int = 1

    def __post_init__(self) -> None:
        self.token_table = TokenTable(self.vocab)
        self.epoch, self._handed_out, self._resumed, self._complete = 0, 0, False, False
        self._places: deque[tuple[int, Place]] = deque(
            [(0, (0, 0))], maxlen=1024
        )  # start of each batch of this epoch

    def state_dict(self) -> dict[str, int]:
        """Where to resume: epoch, its finished batches, and the document and token at which the
        next batch begins."""
        done, end = (
            (self._handed_out, math.inf) if self.progress is None else self.progress()
        )  # the end is known if batches are limited
        done = (
            min(done, self._handed_out) // self.accumulated * self.accumulated
        )  # an optimizer step is never resumed in its middle
        if done >= end or (self._complete and done >= self._handed_out):
            return {"epoch": self.epoch + 1, "batch": 0, "document": 0, "token": 0}
        document, token = next(place for batch, place in self._places if batch == done)
        return {"epoch": self.epoch, "batch": done, "document": document, "token": token}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue the next iteration where the state was saved."""
        batch = (
            state["batch"] // self.accumulated * self.accumulated
        )  # older versions also saved in the middle of an optimizer step
        self.epoch, self._handed_out, self._resumed, self._complete = (
            state["epoch"],
            batch,
            True,
            False,
        )
        self._places.clear()
        self._places.append((batch, (state["document"], state["token"])))

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if not self._resumed and self._handed_out:
            self.epoch, self._handed_out = self.epoch + 1, 0
            self._places.clear()
            self._places.append((0, (0, 0)))
        self._resumed, self._complete = False, False
        together, number = self.batch_size * self.world_size, self._handed_out
        blocks: list[np.ndarray] = []
        places: list[Place] = []  # after each block
        for block, after in self._blocks(self._places[-1][1]):
            blocks.append(block)
            places.append(after)
            if len(blocks) < together * self.accumulated:
                continue
            for first in range(0, len(blocks), together):
                number += 1
                self._handed_out = number
                self._places.append((number, places[first + together - 1]))
                yield self._batch(
                    np.stack(blocks[first + self.rank : first + together : self.world_size]),
                    (number - 1) * together,
                )
            blocks, places = [], []
        if number == 0:
            raise ValueError(
                f"the stream ended before the first {self.accumulated * together} windows of "
                f"{self.length} tokens, which one optimizer step "
                "needs; give more text"
            )
        self._complete = True

    def _blocks(self, place: Place) -> Iterator[tuple[np.ndarray, Place]]:
        size = self.length - self.ends.size
        document, token = place
        held: deque[np.ndarray] = deque()
        available = 0
        for ids in self._encoded(document):
            rest = ids[token:] if not held and token else ids
            held.append(rest)
            available += len(rest)
            while available >= size:
                text, missing = [], size
                while missing:
                    head = held[0][:missing]
                    text.append(head)
                    missing -= len(head)
                    if len(head) == len(held[0]):
                        held.popleft()
                        document, token = document + 1, 0
                    else:
                        held[0] = held[0][len(head) :]
                        token += len(head)
                available -= size
                yield np.concatenate(text), (document, token)

    def _encoded(self, first: int) -> Iterator[np.ndarray]:
        some: list[str] = []
        for text in self.since(first):
            some.append(text)
            if len(some) == _AHEAD:
                yield from self.encode(some)
                some = []
        if some:
            yield from self.encode(some)

    def _batch(self, text: np.ndarray, index: int) -> dict[str, torch.Tensor]:
        ids = self.ends.around(text, self.length)
        number = index + self.rank + self.world_size * np.arange(len(ids))
        arrays = {"ids": ids, "weight": self.token_table.is_emitted(ids), "index": number}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
