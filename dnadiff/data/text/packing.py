"""Documents as windows of one length: wrapped, that is one after the other and cut into blocks, or padded, each one a window.

Both are made from `tokenised.Tokens` when they are read; nothing is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from dnadiff.data.cutter import Cutter, TokenTable
from dnadiff.data.genome.records import RecordLayout
from dnadiff.data.shuffle import shuffled
from dnadiff.data.splits import Interval
from dnadiff.data.text.tokenized import Tokens
from dnadiff.data.tiles import Tile
from dnadiff.data.windows import TiledWindows
from dnadiff.draws import hash64
from dnadiff.vocab import Vocab


class Ends(NamedTuple):
    """Ids put at the two ends of every window; None: nothing is."""

    bos: int | None
    eos: int | None

    @property
    def count(self) -> int:
        """How many positions of a window they take."""
        return (self.bos is not None) + (self.eos is not None)


class TokenStream(Sequence):
    """Tokenised documents as one record, the ids of all of them; pickles as their path."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return 1

    def __getitem__(self, number: Any) -> Any:
        return [self.tokens.tokens][number]

    def layout(self) -> RecordLayout:
        """Where the ids lie."""
        return RecordLayout([self.tokens.tokens], np.zeros(1, np.int64), np.zeros(1, np.int64), False)


class BlockCutter:
    """Blocks out of streams of tokens, their ends included.

    Args:
        records: streams of token ids.
        length: tokens in a block, ends included.
        vocab: the alphabet.
        ends: what every block begins and ends with.
    """

    def __init__(self, records: Sequence[NDArray[Any]], length: int, vocab: Vocab, ends: Ends) -> None:
        self.length, self.ends = length, ends
        self._cut = Cutter(records, length - ends.count, vocab)

    def __call__(self, record: NDArray[np.int64], start: NDArray[np.int64], reverse: None = None) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """Ids and weights `(B, length)` of the blocks whose text begins at `start (B,)`."""
        ids, weight = self._cut(record, start)
        if not self.ends.count:
            return ids, weight
        whole, counted = np.empty((len(ids), self.length), ids.dtype), np.ones((len(ids), self.length), np.uint8)
        first = self.ends.bos is not None
        text = slice(int(first), int(first) + ids.shape[1])
        whole[:, text], counted[:, text] = ids, weight
        if first:
            whole[:, 0] = self.ends.bos
        if self.ends.eos is not None:
            whole[:, -1] = self.ends.eos
        return whole, counted


class TiledBlocks(TiledWindows):
    """Blocks side by side, so that every token counts once; see `TiledWindows`, whose items these are.

    Args:
        records: streams of token ids.
        intervals: what to cover.
        length: tokens in a block, ends included.
        vocab: the alphabet.
        ends: what every block begins and ends with.
    """

    def __init__(self, records: Sequence[NDArray[Any]], intervals: Sequence[Interval], length: int, vocab: Vocab, ends: Ends) -> None:
        super().__init__(records, intervals, length - ends.count, vocab)
        self.length, self.lead = length, int(ends.bos is not None)
        self._cut = BlockCutter(records, length, vocab, ends)


class PaddedDocuments:
    """Documents cut or padded to one length, for training: each one once an epoch, in random order.

    Window i of epoch e is a function of (seed, e, i). Indices beyond the number of documents begin another order.

    Args:
        tokens: the documents, without a token at their end.
        documents: numbers of those to use, ascending.
        length: tokens in a window, ends included.
        vocab: the alphabet.
        ends: what every document begins and ends with; a long one is cut before its end.
        seed: of the order.
        size: windows in an epoch; None: the number of documents.
    """

    def __init__(
        self, tokens: Tokens, documents: NDArray[np.int64], length: int, vocab: Vocab, ends: Ends, seed: int = 0, size: int | None = None
    ) -> None:
        if not len(documents):
            raise ValueError(
                "no document is left for this part; choose another data.split or data.valid_documents, or, if a .txt has a document in each "
                "line, data.documents=line"
            )
        self.tokens, self.documents, self.length, self.ends, self.seed = tokens, documents, length, ends, int(seed)
        self.pad_id, self.letters, self.size = vocab.pad_id, TokenTable(vocab), size or len(documents)

    @property
    def num_cut(self) -> int:
        """How many documents are longer than a window, and lose what is beyond it."""
        ends = self.tokens.ends
        return int((np.diff(ends, prepend=0)[self.documents] > self.length - self.ends.count).sum())

    def rows(self, documents: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """`ids`, `weight` and `valid`, each `(B, length)`, of documents by number."""
        ids = np.full((len(documents), self.length), self.pad_id, dtype=self.tokens.tokens.dtype)
        valid = np.zeros(ids.shape, dtype=bool)
        first = int(self.ends.bos is not None)
        for row, document in enumerate(documents.tolist()):
            text = self.tokens[document][: self.length - self.ends.count]
            end = first + len(text)
            ids[row, first:end] = text
            if first:
                ids[row, 0] = self.ends.bos
            if self.ends.eos is not None:
                ids[row, end] = self.ends.eos
                end += 1
            valid[row, :end] = True
        return {"ids": ids, "weight": self.letters.is_emitted(ids) & valid, "valid": valid}

    def batch(self, epoch: int, first: int, count: int) -> dict[str, torch.Tensor]:
        """Windows `first` up to `first + count` of an epoch, collated: `ids`, `weight`, `valid` and `index`."""
        index = np.arange(first, first + count)
        number, turns = np.empty(count, np.int64), index // len(self.documents)
        for turn in np.unique(turns).tolist():
            here = turns == turn
            key = hash64(self.seed, "document", epoch, turn)
            number[here] = shuffled(key, index[here] % len(self.documents), len(self.documents))
        arrays = self.rows(self.documents[number]) | {"index": index}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class PaddedDocumentTiles(Dataset):
    """The same documents in their own order, for evaluation. Items hold `ids`, `weight`, `valid` and `index`."""

    def __init__(self, documents: PaddedDocuments) -> None:
        self.documents, self.length = documents, documents.length

    @property
    def tiles(self) -> list[Tile]:
        """Where each document begins."""
        return [Tile(0, self.documents.tokens.starts_at(int(number)), 0) for number in self.documents.documents]

    def __len__(self) -> int:
        return len(self.documents.documents)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        rows = self.documents.rows(self.documents.documents[index : index + 1])
        return {name: torch.from_numpy(row[0]) for name, row in rows.items()} | {"index": index}
