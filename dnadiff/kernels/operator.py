"""Custom operators of the CPU, and functions that the compiler reads as constants, without
importing PyTorch's compiler.

The first call of an operator of `torch.library.custom_op`, like the decorators of `torch.compiler`,
imports the compiler, which takes as long as the import of torch itself, whether or not anything is
compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch.library import CustomOpDef, Library

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
