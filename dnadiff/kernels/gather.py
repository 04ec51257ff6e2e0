"""Stretches of bytes out of a large array: copied in C++ where there is a compiler, else by NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from dnadiff.kernels.build import CannotCompile
from dnadiff.kernels.native import library

_SHORT = 1 << 12  # bytes; on longer stretches the processor's own prefetching does as well
Take = Callable[[NDArray[np.int64]], NDArray]


def stretches(array: NDArray, length: int) -> Take:
    """A function of starts `(B,)` that copies the stretches of `length` out of `array`: `(B, length)`.

    It raises IndexError if one does not lie inside the array.
    """
    if array.dtype == np.uint8 and array.flags.c_contiguous and length <= _SHORT:
        try:
            return _native(array, length)
        except CannotCompile:
            pass
    return _portable(array, length)


def _native(array: NDArray[np.uint8], length: int) -> Take:
    copy, base, total = library().dnadiff_gather, array.ctypes.data, len(array)

    def take(start: NDArray[np.int64]) -> NDArray[np.uint8]:
        start, out = np.array(start, np.int64), np.empty((len(start), length), np.uint8)
        if not out.size:
            return out
        wrong = copy(base, _address(start), _address(out), total, len(start), length)
        if wrong >= 0:
            raise IndexError(f"a stretch of {length} at {start[wrong]} leaves an array of {len(array)}")
        return out

    return take


def _address(array: NDArray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(array))  # array.ctypes.data takes as long as copying twenty windows


def _portable(array: NDArray, length: int) -> Take:
    shape, step = (max(len(array) - length + 1, 0), length), array.strides[0]
    view = as_strided(array, shape, (step, step), writeable=False)  # all stretches, without copying any
    return view.__getitem__
