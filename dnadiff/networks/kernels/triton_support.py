"""Loading of the Triton kernels, checks of the GPU, and what the operators of `triton_scan` and
`triton_rowwise` share."""

from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

MIN_TRITON, MIN_CAPABILITY = (
    (3, 6),
    (8, 0),
)  # the version that the tests use, and the oldest GPUs with bfloat16


@cache
def load_kernels(name: str) -> ModuleType:
    """A module of Triton kernels of this package; RuntimeError if Triton is missing or too old."""
    try:
        import triton
    except ImportError as error:
        raise RuntimeError(
            f"Triton is not installed ({error}); pip install -e '.[triton]' in the checkout adds "
            "it (Linux)"
        ) from error
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < MIN_TRITON:
        raise RuntimeError(
            f"Triton {triton.__version__} is too old, {'.'.join(map(str, MIN_TRITON))} or later is "
            "needed"
        )
    return import_module(f"dnadiff.networks.kernels.{name}")


def interpreted() -> bool:
    """Whether TRITON_INTERPRET=1 runs the kernels in Python, on any device: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def device_of(x: Tensor) -> AbstractContextManager[None]:
    """A context in which kernels are launched on the GPU that holds x; RuntimeError if it is too
    old."""
    if not x.is_cuda:
        return nullcontext()
    check_gpu(x.device)
    return torch.cuda.device(x.device)


@cache
def check_gpu(device: torch.device) -> None:
    """Refuse a GPU that is too old for the kernels, with a RuntimeError."""
    have = torch.cuda.get_device_capability(device)
    if have < MIN_CAPABILITY:
        needed, found = (".".join(map(str, version)) for version in (MIN_CAPABILITY, have))
        raise RuntimeError(
            f"{torch.cuda.get_device_name(device)} has compute capability {found}, the kernels "
            f"need {needed} or later"
        )


def no_second_derivative(*_: Tensor) -> None:
    """The derivative of a backward operator: always NotImplementedError."""
    raise NotImplementedError("the Triton kernels have no second derivative; set scan=portable")


def alignment(*sizes: int) -> dict[str, int]:
    """The option ALIGN of the kernels: the largest power of two up to 8 that divides all sizes; 1
    if 16 does, which Triton detects itself."""
    common = math.gcd(16, *sizes)
    return {"ALIGN": 1 if common == 16 else common}


def with_strides(x: Tensor) -> tuple[Tensor, int, int]:
    """`x (Bt, L, E)` and its strides of batch and position; copied only if its channels are not
    contiguous."""
    x = x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()
    batch_stride, row_stride, _ = x.stride()
    return x, batch_stride, row_stride
