"""The records of a genome as arrays of token ids, mapped from the cache or in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import override

from dnadiff.data.genome.packed import TOKEN, PackedFile
from dnadiff.data.tokenizer import TokenIds


class TokenArray(Protocol):
    """The token ids of a record; a NumPy array is one."""

    def __len__(self) -> int:
        """Number of tokens."""

    def __getitem__(self, key: slice, /) -> TokenIds:
        """Some of the tokens as an array."""


Records: TypeAlias = Sequence[TokenArray]


class Ids:
    """Token ids of a record with soft-masked bases: behaves as a read-only array `(length,)` of uint8, without the case."""

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


class RecordLayout(NamedTuple):
    """Location of records in arrays: record r is `arrays[number[r]][offset[r] : offset[r] + its length]`."""

    arrays: list[NDArray]
    number: NDArray[np.int64]
    offset: NDArray[np.int64]
    has_case: bool  # the highest bit is the soft-masking, not part of the id


class StoredRecords(Sequence[TokenArray]):
    """Records that are made when they are read. They share a few large arrays, from which windows are copied in one step."""

    def record(self, number: int) -> TokenArray:
        """One record."""
        raise NotImplementedError

    @overload
    def __getitem__(self, number: int) -> TokenArray: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[TokenArray]: ...
    @override
    def __getitem__(self, number: int | slice) -> TokenArray | Sequence[TokenArray]:
        return [self.record(n) for n in range(*number.indices(len(self)))] if isinstance(number, slice) else self.record(number)

    @abstractmethod
    def layout(self) -> RecordLayout:
        """Location of the records in the arrays."""


class GenomeRecords(StoredRecords):
    """Token ids of each record, as arrays or as `Ids`. They are pickled as paths, not as bytes.

    Args:
        places: for each record its packed file and its number there.
        soft: for each record, whether it has soft-masked bases.
    """

    def __init__(self, places: Sequence[tuple[PackedFile, int]], soft: Sequence[bool]) -> None:
        self.places, self.soft = list(places), list(soft)

    def packed(self, number: int) -> NDArray[np.uint8]:
        """The bytes of a record, a view."""
        file, place = self.places[number]
        return file.record(place)

    @override
    def __len__(self) -> int:
        return len(self.places)

    @override
    def record(self, number: int) -> NDArray[np.uint8] | Ids:
        packed = self.packed(number)
        return Ids(packed) if self.soft[number] else packed

    @override
    def layout(self) -> RecordLayout:
        arrays: dict[int, tuple[int, NDArray]] = {}
        table = np.empty((len(self.places), 2), np.int64)
        for row, (file, place) in enumerate(self.places):
            number, _ = arrays.setdefault(id(file.bases), (len(arrays), file.bases))
            table[row] = number, file.offsets[place]
        return RecordLayout([array for _, array in arrays.values()], table[:, 0].copy(), table[:, 1].copy(), True)
