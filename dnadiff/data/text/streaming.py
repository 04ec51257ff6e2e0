"""Training text that is read, tokenized and cut into blocks during training, without a cache.

For corpora too large to store. Documents are read in their own order, once per epoch. The state
records the document and token at which the next block begins, so that a resumed run sees exactly
the tokens that an uninterrupted run would have seen.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import torch

from dnadiff.data.cutter import TokenTable
from dnadiff.data.text.packing import Ends
from dnadiff.vocab import Vocab

_AHEAD = 64  # documents tokenized at once
Place = tuple[int, int]  # number of a document, and of a token in it


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

    def __init__(
        self,
        since: Callable[[int], Iterator[str]],
        encode: Callable[[list[str]], list[np.ndarray]],
        length: int,
        batch_size: int,
        vocab: Vocab,
        ends: Ends,
        rank: int = 0,
        world_size: int = 1,
        progress: Callable[[], tuple[int, float]] | None = None,
        accumulated: int = 1,
    ) -> None:
        self.since, self.encode, self.length, self.batch_size, self.ends = (
            since,
            encode,
            length,
            batch_size,
            ends,
        )
        self.token_table, self.rank, self.world_size, self.progress = (
            TokenTable(vocab),
            rank,
            world_size,
            progress,
        )
        self.accumulated = accumulated
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
