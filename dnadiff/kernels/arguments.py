"""Checks of the arguments of the operations in `facade` and `blocks`: each error names an argument,
its shape or type, and what was expected."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dnadiff.kernels.backend import MixerWay, ScanInputs


def check_rows(name: str, x: Tensor) -> torch.Size:
    """The shape of a floating-point (batch, length, channels) tensor."""
    if x.dim() != 3:
        raise ValueError(f"{name} must be (batch, length, channels), got shape {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(
            f"{name} has type {x.dtype}, expected float32, bfloat16, float16 or float64"
        )
    return x.shape


def check_product(x: Tensor, weight: Tensor) -> None:
    """The operands of x weight^T."""
    if weight.dim() != 2 or x.dim() < 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"weight {tuple(weight.shape)} must be (E, R) for x (..., R), which is {tuple(x.shape)}"
        )


def check_filter(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    """The operands of a short convolution."""
    E = check_rows("x", x)[2]
    if weight.dim() != 2 or weight.shape[0] != E or bias.shape != (E,):
        raise ValueError(
            f"weight {tuple(weight.shape)} and bias {tuple(bias.shape)} must be ({E}, K) and "
            f"({E},) for x {tuple(x.shape)}"
        )


def check_norm(x: Tensor, added: Tensor | None, weight: Tensor) -> None:
    """The operands of a norm, perhaps of a sum."""
    if (
        weight.dim() != 1
        or x.shape[-1:] != weight.shape
        or (added is not None and added.shape != x.shape)
    ):
        other = "" if added is None else f", added to {tuple(added.shape)}"
        raise ValueError(
            f"weight {tuple(weight.shape)} must be (D,) for x (..., D), which is "
            f"{tuple(x.shape)}{other}"
        )


def check_mixer(
    hidden: Tensor,
    in_proj: Tensor,
    out_proj: Tensor,
    ways: Sequence[MixerWay],
    valid: Tensor | None,
) -> None:
    """The operands of a whole mixer."""
    (D, E), N = out_proj.shape, ways[0].A_log.shape[1]
    R, K = ways[0].dt_weight.shape[1], ways[0].conv_weight.shape[1]
    expected = ((E, K), (E,), (R + 2 * N, E), (E, R), (E,), (E, N), (E,))
    shapes = [tuple(tuple(weight.shape) for weight in way) for way in ways]
    if (
        check_rows("hidden", hidden)[2] != D
        or in_proj.shape != (2 * E, D)
        or any(shape != expected for shape in shapes)
    ):
        raise ValueError(
            f"hidden {tuple(hidden.shape)}, in_proj {tuple(in_proj.shape)} and ways {shapes} do "
            f"not fit out_proj {(D, E)}"
        )
    if valid is not None and valid.shape != hidden.shape[:2]:
        raise ValueError(
            f"valid has shape {tuple(valid.shape)}, expected {tuple(hidden.shape[:2])} as hidden"
        )


def check_scan_inputs(inputs: ScanInputs) -> None:
    """The inputs of a selective scan."""
    (Bt, L, E), N = check_rows("u", inputs.u), inputs.A.shape[-1]
    expected = {
        "delta": (Bt, L, E),
        "A": (E, N),
        "B": (Bt, L, N),
        "C": (Bt, L, N),
        "D": (E,),
        "delta_bias": (E,),
    }
    for (name, shape), x in zip(expected.items(), inputs[1:], strict=True):
        if x is not None and x.shape != shape:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}, expected {shape} for u of shape {(Bt, L, E)} "
                f"and {N} states"
            )


def check_state(
    name: str, state: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """A state (..., E, N) of exactly this type: half precision would lose what a state adds up over
    many positions."""
    if state is None:
        return
    if state.shape != shape:
        raise ValueError(f"{name} has shape {tuple(state.shape)}, expected {shape}")
    if state.dtype != dtype:
        raise ValueError(
            f"{name} has type {state.dtype}, expected {dtype}, in which this scan computes; "
            f"convert it with .to({dtype})"
        )


def check_inputs_before(initial: Tensor, x: Tensor, shape: tuple[int, ...]) -> None:
    """The K - 1 inputs before a sequence or before each of its blocks."""
    if initial.shape != shape or initial.dtype != x.dtype:
        raise ValueError(
            f"initial has shape {tuple(initial.shape)} and type {initial.dtype}, expected {shape} "
            f"and {x.dtype} as x"
        )


def check_block_size(block_size: int, L: int) -> int:
    """The number of blocks of so many positions."""
    if isinstance(block_size, bool) or not isinstance(block_size, int) or not 1 <= block_size <= L:
        raise ValueError(
            f"block_size {block_size!r} does not fit sequences of {L} positions; expected an "
            f"integer from 1 to {L}"
        )
    return -(-L // block_size)
