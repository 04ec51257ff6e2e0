"""The records of a genome as arrays of token ids, mapped from the cache or in memory."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import override

from dnadiff.data.genome.packed import PackedBases
from dnadiff.data.genome.packer import TOKEN
from dnadiff.data.tokenizer import TokenIds


class TokenArray(Protocol):
    """The token ids of a record; a NumPy array is one."""

    def __len__(self) -> int:
        """Number of tokens."""

    def __getitem__(self, key: slice, /) -> TokenIds:
        """Some of the tokens as an array."""


Records: TypeAlias = Sequence[TokenArray]


class Ids:
    """Token ids of a record with soft-masked bases: behaves as a read-only array `(length,)` of
    uint8, without the case."""

    dtype = np.dtype(np.uint8)

    def __init__(self, packed: NDArray[np.uint8]) -> None:
        self.packed = packed
        self.shape = packed.shape

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, key: slice, /) -> NDArray[np.uint8]:
        return self.packed[key] & TOKEN

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray:
        return (self.packed & TOKEN).astype(dtype or np.uint8, copy=False)

    def tolist(self) -> list[int]:
        """All ids as Python integers."""
        return (self.packed & TOKEN).tolist()


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


class GenomeRecords(StoredRecords):
    """Token ids of each record, as arrays or as `Ids`. They are pickled as paths and positions, not
    as bytes.

    Args:
        bases: the bases of each file.
        number: for each record the number of its file.
        offset, length: for each record where it begins in the file, and the number of its bases.
        soft: for each record, whether it has soft-masked bases.
    """

    def __init__(
        self,
        bases: Sequence[PackedBases],
        number: NDArray[np.int64],
        offset: NDArray[np.int64],
        length: NDArray[np.int64],
        soft: NDArray[np.bool_],
    ) -> None:
        self._bases, self._number, self._offset, self._length, self._soft = (
            bases,
            number,
            offset,
            length,
            soft,
        )

    def packed(self, number: int) -> NDArray[np.uint8]:
        """The bytes of a record, a view."""
        start = self._offset[number]
        return self._bases[self._number[number]].mapped[start : start + self._length[number]]

    @property
    @override
    def lengths(self) -> list[int]:
        return self._length.tolist()

    @override
    def __len__(self) -> int:
        return len(self._number)

    @override
    def record(self, number: int) -> NDArray[np.uint8] | Ids:
        packed = self.packed(number)
        return Ids(packed) if self._soft[number] else packed

    @override
    def layout(self) -> RecordLayout:
        return RecordLayout(_Mapped(self._bases), self._number, self._offset, True)


class _Mapped:
    """The bases of each file, mapped when they are read."""

    def __init__(self, bases: Sequence[PackedBases]) -> None:
        self.bases = bases

    def __len__(self) -> int:
        return len(self.bases)

    def __getitem__(self, number: int, /) -> NDArray:
        return self.bases[number].mapped


def by_file(number: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """The number of each file and its records, given the file of each record; records of a file
    follow one another."""
    borders = np.flatnonzero(np.diff(number, prepend=-1, append=-1)).tolist()
    for first, after in itertools.pairwise(borders):
        yield int(number[first]), slice(first, after)


def lengths_of(records: Records) -> list[int]:
    """The number of tokens of each record."""
    return (
        records.lengths
        if isinstance(records, StoredRecords)
        else [len(record) for record in records]
    )
