"""Cutting a batch of windows out of records: all rows at once, from wherever the bytes lie, on either strand.

No step goes letter by letter: rows are gathered by `dnadiff.kernels`, and strand, case and weight are arithmetic on whole
arrays, because a table lookup would cost ten times the cut itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.genome.packed import SOFT_MASKED, TOKEN
from dnadiff.data.genome.records import RecordLayout
from dnadiff.kernels.gather import Gather, make_gather
from dnadiff.vocab import Vocab

_IN_CACHE = 1 << 17  # bytes
_KEPT = 6  # large results that are remembered
Records = Sequence[Any]  # anything whose [record][start:end] is an array of token ids


class TokenTable:
    """Which ids count, and the other strand, for arrays of ids of any shape.

    Args:
        vocab: the alphabet.
    """

    def __init__(self, vocab: Vocab) -> None:
        emitted = vocab.emitted
        self.low, self.span = emitted[0], emitted[-1] - emitted[0]
        self.table = None if len(emitted) == self.span + 1 else vocab.is_emitted().numpy().view(np.uint8)  # BERT's mask lies in between
        self.mirror = None if vocab.complement is None else vocab.complement[self.low] + self.low
        if self.mirror is not None and any(c != (self.mirror - i if i in emitted else i) for i, c in enumerate(vocab.complement)):
            raise ValueError(
                f"complement {vocab.complement} is not a mirror image of the emitted ids; number complementary letters from both ends"
            )

    def is_emitted(self, ids: NDArray[Any]) -> NDArray[np.uint8]:
        """1 where an id can be emitted, else 0."""
        if self.table is not None:
            return self.table[ids]
        return ((ids - self.low) <= self.span).view(np.uint8)  # unsigned: what is below `low` is far above

    def reverse_complement(self, ids: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The reverse complements of rows `(B, L)`."""
        ids = _backwards(ids)
        mirrored = np.uint8(self.mirror) - ids
        return ids ^ ((ids ^ mirrored) * self.is_emitted(ids))


class Cutter:
    """Windows of one length out of records.

    Args:
        records: token ids of each record.
        length: tokens in a window.
        vocab: the alphabet.
        soft_weight: weight of soft-masked bases; 0 and 1 give uint8, a fraction gives float32.
    """

    def __init__(self, records: Records, length: int, vocab: Vocab, soft_weight: float = 1.0) -> None:
        self.records, self.length, self.letters, self.soft_weight = records, length, TokenTable(vocab), soft_weight
        self._layout: RecordLayout | None = None
        self._taken_from: dict[int, Gather] = {}
        self._buffers: list[NDArray[Any]] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_layout": None, "_taken_from": {}, "_buffers": []}  # another process maps the files itself

    def raw(self, record: NDArray[np.int64], start: NDArray[np.int64]) -> NDArray[Any]:
        """The bytes of windows as they lie, case included: `(B, L)`."""
        if self._layout is None:
            self._layout = _layout(self.records)
        layout = self._layout
        place = layout.offset[record] + start
        if len(layout.arrays) == 1:
            return self._take(0, place)
        number = layout.number[record]
        if (number == number[0]).all():
            return self._take(int(number[0]), place)
        out = np.empty((len(place), self.length), layout.arrays[0].dtype)
        for each in np.unique(number).tolist():
            rows = np.flatnonzero(number == each)
            out[rows] = self._take(each, place[rows])
        return out

    def __call__(
        self, record: NDArray[np.int64], start: NDArray[np.int64], reverse: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Ids `(B, L)` and weights `(B, L)` of the windows that begin at `start`, reverse complements where `reverse` says so."""
        together = max(1, _IN_CACHE // self.length)
        if len(record) <= together:
            return self._some(record, start, reverse)
        ids = weight = None
        for first in range(0, len(record), together):  # what is worked on stays in the processor's cache
            rows = slice(first, first + together)
            some, counted = self._some(record[rows], start[rows], None if reverse is None else reverse[rows])
            if ids is None:
                ids, weight = (self._buffer((len(record), self.length), each.dtype) for each in (some, counted))
            ids[rows], weight[rows] = some, counted
        return ids, weight

    def _some(
        self, record: NDArray[np.int64], start: NDArray[np.int64], reverse: NDArray[np.bool_] | None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        ids = self.raw(record, start)
        has_case = self._layout.has_case
        soft = ids >= SOFT_MASKED if has_case and self.soft_weight != 1 else None
        if has_case:
            ids &= TOKEN
        rows = np.flatnonzero(reverse) if reverse is not None else ()
        if len(rows):
            ids[rows] = self.letters.reverse_complement(ids[rows])
            if soft is not None:
                soft[rows] = soft[rows, ::-1]
        weight = self.letters.is_emitted(ids)
        if soft is not None:
            weight = weight * ~soft if self.soft_weight == 0 else np.where(soft, np.float32(self.soft_weight), np.float32(1)) * weight
        return ids, weight

    def _buffer(self, shape: tuple[int, int], dtype: np.dtype) -> NDArray[Any]:
        """Memory for a large result: that of one handed out before, if nobody holds it any more, for fresh pages cost more than the cut."""
        for number, count in enumerate(_references(self._buffers)):
            if count == _UNUSED and (self._buffers[number].shape, self._buffers[number].dtype) == (shape, dtype):
                return self._buffers[number]
        new = np.empty(shape, dtype)
        self._buffers = [*self._buffers[-_KEPT + 1 :], new]
        return new

    def _take(self, number: int, place: NDArray[np.int64]) -> NDArray[Any]:
        """Windows of one array."""
        if number not in self._taken_from:
            self._taken_from[number] = make_gather(self._layout.arrays[number], self.length)
        return self._taken_from[number](place)


def _references(arrays: list[NDArray[Any]]) -> list[int]:
    return [sys.getrefcount(array) for array in arrays]


_UNUSED = _references([np.empty(0)])[0]  # what it says of an array that only the list holds; Python versions differ


def _backwards(ids: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy of rows `(B, L)` read from the end."""
    if ids.shape[1] % 8:
        return ids[:, ::-1].copy()
    words = np.ascontiguousarray(ids).view(np.uint64)[:, ::-1].copy()  # eight bytes at a step
    return words.byteswap(inplace=True).view(np.uint8)


def _layout(records: Records) -> RecordLayout:
    if hasattr(records, "layout"):
        return records.layout()
    count = len(records)
    return RecordLayout([np.asarray(r) for r in records], np.arange(count), np.zeros(count, np.int64), False)
