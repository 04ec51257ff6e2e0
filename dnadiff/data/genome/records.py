"""The records of a genome as arrays of token ids, whether their bytes lie in the cache or in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnadiff.data.genome.packed import TOKEN, PackedFile


class Ids:
    """Token ids of a record that has soft-masked bases: reads like an array `(length,)` of uint8, the case left behind."""

    dtype = np.dtype(np.uint8)

    def __init__(self, packed: NDArray[np.uint8]) -> None:
        self.packed = packed
        self.shape = packed.shape

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, key: Any) -> Any:
        return self.packed[key] & TOKEN

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return (self.packed & TOKEN).astype(dtype or np.uint8, copy=False)

    def tolist(self) -> list[int]:
        """All ids as Python integers."""
        return (self.packed & TOKEN).tolist()


class RecordLayout(NamedTuple):
    """Where records lie in arrays: record r is `arrays[number[r]][offset[r] : offset[r] + its length]`."""

    arrays: list[NDArray[Any]]
    number: NDArray[np.int64]
    offset: NDArray[np.int64]
    has_case: bool  # the highest bit is soft-masking, not part of the id


class GenomeRecords(Sequence):
    """The token ids of each record, as arrays or as `Ids`. Pickles as paths where the bytes lie in the cache.

    Args:
        places: for each record the packed file and its number there, or an array of bytes.
        soft: for each record, whether some base is soft-masked.
    """

    def __init__(self, places: Sequence[tuple[PackedFile, int] | NDArray[np.uint8]], soft: Sequence[bool]) -> None:
        self.places, self.soft = list(places), list(soft)

    def packed(self, number: int) -> NDArray[np.uint8]:
        """The bytes of a record, a view."""
        place = self.places[number]
        return place[0].record(place[1]) if isinstance(place, tuple) else place

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        packed = self.packed(number)
        return Ids(packed) if self.soft[number] else packed

    def layout(self) -> RecordLayout:
        """Where the bytes lie."""
        arrays: dict[int, tuple[int, NDArray[Any]]] = {}
        rows = []
        for place in self.places:
            array, offset = (place[0].bases, int(place[0].offsets[place[1]])) if isinstance(place, tuple) else (place, 0)
            number, _ = arrays.setdefault(id(array), (len(arrays), array))
            rows.append((number, offset))
        table = np.array(rows, dtype=np.int64).reshape(-1, 2)
        return RecordLayout([array for _, array in arrays.values()], table[:, 0].copy(), table[:, 1].copy(), True)
