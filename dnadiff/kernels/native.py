"""The compiled library as functions of pointers and sizes, and how tensors are passed to it.

The library is compiled by `dnadiff.kernels.build` when the first tensor arrives, not on import.
"""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int, c_int64, c_void_p
from functools import cache

from torch import Tensor
from torch.autograd.function import FunctionCtx

from dnadiff.kernels.build import load_library

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
