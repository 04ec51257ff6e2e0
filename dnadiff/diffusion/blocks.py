"""Sequences as rows of blocks, for block diffusion: block i of a sequence has its tokens i b to (i
+ 1) b - 1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def block_rows(x: Tensor, block_size: int, fill: float) -> Tensor:
    """(B, L) -> (B * blocks, b), the blocks of a sequence one after another; a shorter last block
    is filled up with `fill`."""
    missing = -x.shape[1] % block_size
    return (F.pad(x, (0, missing), value=fill) if missing else x).reshape(-1, block_size)


def sequence_rows(rows: Tensor, length: int) -> Tensor:
    """The inverse of `block_rows`: (B * blocks, b) -> (B, L)."""
    blocks = -(-length // rows.shape[1])
    return rows.reshape(-1, blocks * rows.shape[1])[:, :length]


def after_first(chosen: Tensor, block_size: int) -> Tensor:
    """The positions in blocks after the first block with a chosen one: (B, L) bool -> (B, L) bool,
    nothing where none is chosen."""
    block = torch.arange(chosen.shape[1], device=chosen.device) // block_size
    first = torch.where(chosen, block, chosen.shape[1]).amin(-1, keepdim=True)
    return block > first
