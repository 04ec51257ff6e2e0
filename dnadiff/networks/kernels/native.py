"""The compiled library as functions of pointers and sizes, and how tensors are passed to it.

The library is compiled by `dnadiff.networks.kernels.build` when the first tensor arrives, not on
import.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_double, c_int, c_int64, c_void_p
from functools import cache
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.library import CustomOpDef, Library

from dnadiff.networks.kernels.build import CannotCompile, load_library

_SIGNATURES = {  # number of pointers, sizes, floats and flags, in this order
    "dnadiff_scan_forward": (11, 9, 0, 4),
    "dnadiff_scan_backward": (19, 10, 0, 4),
    "dnadiff_conv_forward": (5, 6, 0, 2),
    "dnadiff_conv_backward": (8, 7, 0, 2),
    "dnadiff_gate_forward": (4, 5, 0, 1),
    "dnadiff_gate_backward": (6, 6, 0, 1),
    "dnadiff_norm_forward": (6, 3, 1, 1),
    "dnadiff_norm_backward": (7, 4, 0, 1),
    "dnadiff_product": (3, 7, 0, 2),
    "dnadiff_outer_sum": (3, 5, 0, 1),
    "dnadiff_mixer_input": (5, 4, 0, 1),
    "dnadiff_mixer_steps": (4, 8, 0, 1),
    "dnadiff_mixer_output": (5, 4, 0, 1),
    "dnadiff_mixer_output_backward": (10, 5, 0, 1),
    "dnadiff_mixer_steps_backward": (10, 6, 0, 1),
    "dnadiff_mixer_input_backward": (14, 7, 0, 1),
    "dnadiff_stream_scan_forward": (6, 6, 0, 3),
    "dnadiff_stream_scan_backward": (9, 6, 0, 3),
    "dnadiff_gather": (3, 3, 0, 0),
}


@cache
def library() -> ctypes.CDLL:
    """The library, with the argument types of its functions set."""
    loaded = load_library()
    loaded.dnadiff_vectors.restype = loaded.dnadiff_compiler.restype = ctypes.c_char_p
    for name, (pointers, sizes, reals, flags) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes = (
            [c_void_p] * pointers + [c_int64] * sizes + [c_double] * reals + [c_int] * flags
        )
        function.restype = None
    loaded.dnadiff_gather.restype = c_int64
    return loaded


def rows(x: Tensor) -> tuple[Tensor, int]:
    """`x (Bt, L, X)` and its row stride; copied only if its rows are not evenly spaced."""
    Bt, L, X = x.shape
    row = x.stride(1) if L > 1 else X
    if (X > 1 and x.stride(2) != 1) or row < X or (Bt > 1 and x.stride(0) != L * row):
        return x.contiguous(), X
    return x, row


def save_inputs(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    """Keeps all inputs of a custom operator for its backward pass."""
    ctx.save_for_backward(*inputs)


def pointers(*tensors: Tensor | None) -> list[int | None]:
    """Addresses of the data; null for None."""
    return [None if x is None else x.data_ptr() for x in tensors]


P = ParamSpec("P")
R = TypeVar("R")
_IMPLEMENTATIONS = Library("dnadiff", "FRAGMENT")


def cpu_operator(name: str) -> Callable[[Callable[..., object]], CustomOpDef]:
    """Decorator: the operator `dnadiff::name` of a function on tensors of the CPU, which changes
    none of its arguments.

    The compiler may trace into the function if it is called outside of a compiled graph; its calls
    of the C++ library end the trace there.
    """

    def define(kernel: Callable[..., object]) -> CustomOpDef:
        operator = torch.library.custom_op(
            f"dnadiff::{name}", kernel, mutates_args=(), device_types=()
        )
        _IMPLEMENTATIONS.impl(
            name, kernel, "CPU", allow_override=True
        )  # `custom_op` would wrap it; a module may be imported again
        return operator

    return define


def constant_in_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """`torch.compiler.assume_constant_result`: the compiler calls the function while it traces, and
    keeps the result."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


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
