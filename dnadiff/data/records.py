"""Records of token ids, and cutting a batch of windows out of them: all rows at once, from either
strand.

Nothing loops over letters: `dnadiff.networks.kernels` gathers the rows, and strand, case and weight
are computed on whole arrays. A table lookup per letter would take ten times as long as the cut
itself.
"""

from __future__ import annotations

import math
import weakref
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dnadiff.data.tokenizer import TokenIds
from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.kernels.native import Gather, make_gather


class TokenArray(Protocol):
    """The token ids of a record; a NumPy array is one."""

    def __len__(self) -> int:
        """Number of tokens."""

    def __getitem__(self, key: slice, /) -> TokenIds:
        """Some of the tokens as an array."""


SOFT_MASKED = 0x80  # the bit of a stored byte that says that the letter was lower case
TOKEN = np.uint8(0x7F)  # the bits of the token id
MAX_MAPPED = 128  # files that are open at a time
Records: TypeAlias = Sequence[TokenArray]


class Arrays(Protocol):
    """Some arrays; a list of them is one."""

    def __len__(self) -> int:
        """Number of arrays."""

    def __getitem__(self, number: int, /) -> NDArray:
        """One of them."""


class RecordLayout(NamedTuple):
    """Location of records in arrays: record r is
    `arrays[number[r]][offset[r] : offset[r] + its length]`."""

    arrays: Arrays
    number: NDArray[np.int64]
    offset: NDArray[np.int64]
    has_case: bool  # the highest bit is the soft-masking, not part of the id


class StoredRecords(Sequence[TokenArray]):
    """Records that are created on access. They share a few large arrays, from which windows are
    copied in one step."""

    def record(self, number: int) -> TokenArray:
        """One record."""
        raise NotImplementedError

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each record."""
        return [len(record) for record in self]

    @overload
    def __getitem__(self, number: int) -> TokenArray: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[TokenArray]: ...
    @override
    def __getitem__(self, number: int | slice) -> TokenArray | Sequence[TokenArray]:
        return (
            [self.record(n) for n in range(*number.indices(len(self)))]
            if isinstance(number, slice)
            else self.record(number)
        )

    @abstractmethod
    def layout(self) -> RecordLayout:
        """Location of the records in the arrays."""


def lengths_of(records: Records) -> list[int]:
    """The number of tokens of each record."""
    return (
        records.lengths
        if isinstance(records, StoredRecords)
        else [len(record) for record in records]
    )


_CACHE_BYTES = (
    1 << 17
)  # rows that are processed together, so that they stay in the processor's cache
_NUM_BUFFERS = 6  # large results whose memory is reused


class TokenTable:
    """Which ids a model emits, and reverse complements, for NumPy arrays of ids.

    Raises:
        ValueError: if the ids of complementary bases are not mirror images of each other.
    """

    def __init__(self, vocab: Vocab) -> None:
        emitted = vocab.emitted
        self.low, self.span = emitted[0], emitted[-1] - emitted[0]
        self.table = (
            None if len(emitted) == self.span + 1 else vocab.is_emitted().numpy().view(np.uint8)
        )  # BERT's mask is in between
        self.mirror = None if vocab.complement is None else vocab.complement[self.low] + self.low
        if vocab.complement is not None and self.mirror is not None:
            mirrored = tuple(self.mirror - i if i in emitted else i for i in range(vocab.size))
            if vocab.complement != mirrored:
                raise ValueError(
                    f"complement {vocab.complement} is not a mirror image of the emitted ids; "
                    "number complementary letters from both ends"
                )

    def is_emitted(self, ids: TokenIds) -> NDArray[np.uint8]:
        """1 where an id can be emitted, else 0; same shape as `ids`."""
        if self.table is not None:
            return self.table[ids]
        return ((ids - self.low) <= self.span).view(
            np.uint8
        )  # unsigned: ids below `low` wrap around to large numbers

    def reverse_complement(self, ids: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The reverse complements of rows `(B, L)`.

        Raises:
            ValueError: if the vocabulary has no complement.
        """
        if self.mirror is None:
            raise ValueError("this vocabulary has no complement; set data.augment_rc=false")
        ids = _reversed(ids)
        mirrored = np.uint8(self.mirror) - ids
        return ids ^ ((ids ^ mirrored) * self.is_emitted(ids))


class Cutter:
    """Cuts windows of a fixed length out of records.

    Args:
        length: tokens in a window.
        soft_weight: weight of soft-masked bases; with 0 and 1 weights are uint8, with a fraction
            float32.
    """

    def __init__(
        self, records: Records, length: int, vocab: Vocab, soft_weight: float = 1.0
    ) -> None:
        self.records, self.length, self.tokens, self.soft_weight = (
            records,
            length,
            TokenTable(vocab),
            soft_weight,
        )
        self._opened: RecordLayout | None = None
        self._take_from: dict[int, Gather] = {}
        self._buffers: list[tuple[NDArray[np.uint8], weakref.ref[NDArray]]] = []

    def __getstate__(self) -> dict:
        return self.__dict__ | {
            "_opened": None,
            "_take_from": {},
            "_buffers": [],
        }  # another process maps the files itself

    @property
    def _layout(self) -> RecordLayout:
        if self._opened is None:
            self._opened = _layout(self.records)
        return self._opened

    def raw(self, record: NDArray[np.int64], start: NDArray[np.int64]) -> NDArray:
        """The stored bytes of windows, case included: `(B, L)`."""
        layout = self._layout
        position = layout.offset[record] + start
        if len(layout.arrays) == 1:
            return self._take(0, position)
        number = layout.number[record]
        if (number == number[0]).all():
            return self._take(int(number[0]), position)
        out = np.empty((len(position), self.length), layout.arrays[0].dtype)
        for each in np.unique(number).tolist():
            rows = np.flatnonzero(number == each)
            out[rows] = self._take(each, position[rows])
        return out

    def __call__(
        self,
        record: NDArray[np.int64],
        start: NDArray[np.int64],
        reverse: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray, NDArray]:
        """Ids `(B, L)` and weights `(B, L)` of the windows that begin at `start`,
        reverse-complemented where `reverse` is True."""
        together = max(1, _CACHE_BYTES // self.length)
        count = len(record)
        if count <= together:
            return self._some(record, start, reverse)
        ids = weight = np.empty((0, self.length))
        for first in range(0, count, together):
            rows = slice(first, first + together)
            some_ids, some_weight = self._some(
                record[rows], start[rows], None if reverse is None else reverse[rows]
            )
            if not first:
                ids, weight = (
                    self._buffer((count, self.length), each.dtype)
                    for each in (some_ids, some_weight)
                )
            ids[rows], weight[rows] = some_ids, some_weight
        return ids, weight

    def _some(
        self, record: NDArray[np.int64], start: NDArray[np.int64], reverse: NDArray[np.bool_] | None
    ) -> tuple[NDArray, NDArray]:
        ids = self.raw(record, start)
        has_case = self._layout.has_case
        soft = ids >= SOFT_MASKED if has_case and self.soft_weight != 1 else None
        if has_case:
            ids &= TOKEN
        rows = np.flatnonzero(reverse) if reverse is not None else ()
        if len(rows):
            ids[rows] = self.tokens.reverse_complement(ids[rows])
            if soft is not None:
                soft[rows] = soft[rows, ::-1]
        weight = self.tokens.is_emitted(ids)
        if soft is None:
            return ids, weight
        if self.soft_weight == 0:
            return ids, weight * ~soft
        return ids, np.where(soft, np.float32(self.soft_weight), np.float32(1)) * weight

    def _buffer(self, shape: tuple[int, int], dtype: np.dtype) -> NDArray:
        """Memory for a large result; that of an earlier result that nobody holds is reused, because
        fresh pages take longer than the cut."""
        size = math.prod(shape) * dtype.itemsize
        for number, (memory, user) in enumerate(self._buffers):
            if memory.nbytes == size and user() is None:
                del self._buffers[number]
                break
        else:
            memory = np.empty(size, np.uint8)
        values = np.frombuffer(memory.data, dtype)  # every view of the result keeps it alive
        self._buffers = [(memory, weakref.ref(values)), *self._buffers[: _NUM_BUFFERS - 1]]
        return values.reshape(shape)

    def _take(self, number: int, position: NDArray[np.int64]) -> NDArray:
        """Windows of one array."""
        if number not in self._take_from:
            if len(self._take_from) >= MAX_MAPPED:
                del self._take_from[
                    next(iter(self._take_from))
                ]  # the one that has been open for the longest time
            self._take_from[number] = make_gather(self._layout.arrays[number], self.length)
        return self._take_from[number](position)


def _reversed(ids: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A reversed copy of each row `(B, L)`."""
    if ids.shape[1] % 8:
        return ids[:, ::-1].copy()
    eights = np.ascontiguousarray(ids).view(np.uint64)[:, ::-1].copy()  # eight bytes per step
    return eights.byteswap(inplace=True).view(np.uint8)


def _layout(records: Records) -> RecordLayout:
    if isinstance(records, StoredRecords):
        return records.layout()
    count = len(records)
    return RecordLayout(
        [np.asarray(r[:]) for r in records], np.arange(count), np.zeros(count, np.int64), False
    )
