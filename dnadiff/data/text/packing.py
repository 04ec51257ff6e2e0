"""Documents as windows of one length: wrapped (concatenated and cut into blocks) or padded (one
document per window).

Both are made from `TokenizedDocuments` when they are read. Windows are not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset
from typing_extensions import override

from dnadiff.data.cutter import Cutter, TokenTable
from dnadiff.data.genome.records import RecordLayout, Records, StoredRecords
from dnadiff.data.intervals import Interval
from dnadiff.data.shuffle import shuffled
from dnadiff.data.text.tokenized import TokenizedDocuments
from dnadiff.data.tiles import Tile
from dnadiff.data.windows import TiledWindows
from dnadiff.draws import hash64
from dnadiff.vocab import Vocab


class Ends(NamedTuple):
    """Ids inserted at the two ends of every window; None: none is inserted."""

    bos: int | None
    eos: int | None

    @property
    def size(self) -> int:
        """Number of positions of a window that they take."""
        return (self.bos is not None) + (self.eos is not None)

    def around(self, text: np.ndarray, length: int) -> np.ndarray:
        """`text (B, length - size)` with the tokens at the ends of each row: `(B, length)`; `text`
        itself if there are none."""
        if not self.size:
            return text
        ids = np.empty((len(text), length), text.dtype)
        first = int(self.bos is not None)
        ids[:, first : first + text.shape[1]] = text
        if self.bos is not None:
            ids[:, 0] = self.bos
        if self.eos is not None:
            ids[:, -1] = self.eos
        return ids


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
