"""Training text that is read, tokenised and cut into blocks while training goes on, without anything stored.

For corpora too large to keep. Documents come in their own order, one pass an epoch; the state says where in which document the next
block begins, so that a resumed run goes on with the very token it would have had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dnadiff.data.cutter import TokenTable
from dnadiff.data.text.packing import Ends
from dnadiff.vocab import Vocab

_AHEAD = 64  # documents tokenised at once
Place = tuple[int, int]  # a document, and a token of it


class StreamLoader:
    """Batches of blocks from documents that are read once an epoch.

    Of several processes each takes every `world_size`-th block. What is left at the end of an epoch and does not fill a batch on every
    process is not shown.

    Args:
        since: documents from a given number on, in order.
        encode: token ids of documents, what ends each of them included.
        length: tokens in a block, ends included.
        batch_size: blocks in a batch, on this process.
        vocab: the alphabet.
        ends: what every block begins and ends with.
        rank: number of this process.
        world_size: number of processes.
        progress: see `TrainLoader`.
    """

    def __init__(
        self,
        since: Callable[[int], Iterator[str]],
        encode: Callable[[list[str]], list[NDArray[Any]]],
        length: int,
        batch_size: int,
        vocab: Vocab,
        ends: Ends,
        rank: int = 0,
        world_size: int = 1,
        progress: Callable[[], tuple[int, float]] | None = None,
    ) -> None:
        self.since, self.encode, self.length, self.batch_size, self.ends = since, encode, length, batch_size, ends
        self.letters, self.rank, self.world_size, self.progress = TokenTable(vocab), rank, world_size, progress
        self.epoch, self._handed_out, self._resumed, self._complete = 0, 0, False, False
        self._places: deque[tuple[int, Place]] = deque([(0, (0, 0))], maxlen=1024)  # where batches of this epoch begin

    def state_dict(self) -> dict[str, int]:
        """Where training goes on: epoch, finished batches of it, and the document and token at which the next one begins."""
        done = self._handed_out if self.progress is None else min(self.progress()[0], self._handed_out)
        if self._complete and done >= self._handed_out:
            return {"epoch": self.epoch + 1, "batch": 0, "document": 0, "token": 0}
        document, token = next(place for batch, place in self._places if batch == done)
        return {"epoch": self.epoch, "batch": done, "document": document, "token": token}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on where the state was saved."""
        self.epoch, self._handed_out, self._resumed, self._complete = state["epoch"], state["batch"], True, False
        self._places.clear()
        self._places.append((state["batch"], (state["document"], state["token"])))

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if not self._resumed and self._handed_out:
            self.epoch, self._handed_out = self.epoch + 1, 0
            self._places.clear()
            self._places.append((0, (0, 0)))
        self._resumed, self._complete = False, False
        together, first = self.batch_size * self.world_size, self._handed_out
        blocks: list[NDArray[Any]] = []
        number = first
        for block, after in self._blocks(self._places[-1][1]):
            blocks.append(block)
            if len(blocks) == together:
                number += 1
                self._handed_out = number
                self._places.append((number, after))
                yield self._batch(np.stack(blocks[self.rank :: self.world_size]), (number - 1) * together)
                blocks = []
        if number == 0:
            raise ValueError(f"the stream ended before a first batch of {together} windows of {self.length} tokens; give more text")
        self._complete = True

    def _blocks(self, place: Place) -> Iterator[tuple[NDArray[Any], Place]]:
        """Texts of blocks from a place on, and where the next one begins."""
        size = self.length - self.ends.count
        document, token = place
        held: deque[NDArray[Any]] = deque()
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

    def _encoded(self, first: int) -> Iterator[NDArray[Any]]:
        some: list[str] = []
        for text in self.since(first):
            some.append(text)
            if len(some) == _AHEAD:
                yield from self.encode(some)
                some = []
        if some:
            yield from self.encode(some)

    def _batch(self, text: NDArray[Any], index: int) -> dict[str, torch.Tensor]:
        ids = np.empty((len(text), self.length), text.dtype)
        first = int(self.ends.bos is not None)
        ids[:, first : first + text.shape[1]] = text
        if first:
            ids[:, 0] = self.ends.bos
        if self.ends.eos is not None:
            ids[:, -1] = self.ends.eos
        number = index + self.rank + self.world_size * np.arange(len(ids))
        return {
            name: torch.from_numpy(array) for name, array in (("ids", ids), ("weight", self.letters.is_emitted(ids)), ("index", number))
        }
