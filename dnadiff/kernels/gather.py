"""Copies many windows out of a large array: in C++ if there is a compiler, otherwise with NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from dnadiff.kernels.build import CannotCompile
from dnadiff.kernels.native import library

_SHORT = 1 << 12  # bytes; for longer windows the processor's own prefetching is as fast
Gather = Callable[[NDArray[np.int64]], NDArray]


def make_gather(array: NDArray, length: int) -> Gather:
    """A function that copies windows out of an array: starts `(B,)` to windows `(B, length)`;
    IndexError if one is not inside it."""
    if array.dtype == np.uint8 and array.flags.c_contiguous and length <= _SHORT:
        try:
            return _native(array, length)
        except CannotCompile:
            pass
    return _portable(array, length)


def _native(array: NDArray[np.uint8], length: int) -> Gather:
    copy, base, total = library().dnadiff_gather, array.ctypes.data, len(array)

    def gather(start: NDArray[np.int64]) -> NDArray[np.uint8]:
        start, out = np.array(start, np.int64), np.empty((len(start), length), np.uint8)
        if not out.size:
            return out
        wrong = copy(base, _address(start), _address(out), total, len(start), length)
        if wrong >= 0:
            raise IndexError(
                f"a window of {length} at {start[wrong]} exceeds an array of {len(array)}"
            )
        return out

    return gather


def _address(array: NDArray) -> int:
    return ctypes.addressof(
        ctypes.c_char.from_buffer(array.data)
    )  # array.ctypes.data takes as long as copying twenty windows


def _portable(array: NDArray, length: int) -> Gather:
    shape, step = (max(len(array) - length + 1, 0), length), array.strides[0]
    view = as_strided(array, shape, (step, step), writeable=False)  # all windows, without a copy
    return view.__getitem__
