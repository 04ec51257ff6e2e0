"""Random numbers that depend on (seed, purpose, step, row) alone, not on the batch in which a row
is computed.

A counter-based generator: every number is the SplitMix64 finalizer (Steele, Lea and Flood, OOPSLA
2014) of a key and a position. So a sample keeps its noise whatever the batch size, device rank or
number of workers.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

_MASK64 = (1 << 64) - 1
_BLOCK_STRIDE = (
    1 << 40
)  # between the rows of a sequence's blocks, where rows are not numbered from 0


def _signed(x: int) -> int:
    """The int64 with the same bits as the unsigned `x`; torch has no uint64 arithmetic."""
    return x - (1 << 64) if x >= 1 << 63 else x


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLY = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))


def float64_device(device: torch.device) -> torch.device:
    """Where numbers for tensors of this device are computed in float64: the device, or the CPU for
    Apple GPUs, which have no float64."""
    return torch.device("cpu") if device.type == "mps" else device


@lru_cache(
    maxsize=4096, typed=True
)  # 1, True and numpy.int64(1) are equal keys of an untyped cache
def hash64(*words: int | str) -> int:
    """A 64-bit integer that depends on all `words`: the key of a stream of random numbers, or a
    random number itself."""
    text = "\x1f".join(f"{type(w).__name__}:{w}" for w in words)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _shift_right(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & (
        (1 << (64 - bits)) - 1
    )  # int64 shifts copy the sign; the mask makes the shift logical


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _MULTIPLY[0]
    x = (x ^ _shift_right(x, 27)) * _MULTIPLY[1]
    return x ^ _shift_right(x, 31)


@dataclass(frozen=True)
class Draws:
    """The random numbers of one batch.

    Attributes:
        seed: set by the user.
        rows: (B,) int64, the identity of each sequence: its sample index, or its place in the
            global batch.
        num_rows: size of the global batch, over which stratified times are distributed; None is B.
        step: training step or network call.
        place: (B,) int64, the place of each row among the strata of the global batch; None is
            `rows`.
    """

    seed: int
    rows: Tensor
    num_rows: int | None = None
    step: int = 0
    place: Tensor | None = None

    @classmethod
    def for_batch(
        cls, seed: int, batch_size: int, step: int = 0, device: torch.device | str = "cpu"
    ) -> Draws:
        """Random numbers for a batch whose rows are numbered 0..batch_size-1."""
        return cls(seed, torch.arange(batch_size, device=device), batch_size, step)

    @property
    def global_batch_size(self) -> int:
        """Number of sequences in the global batch."""
        return self.num_rows if self.num_rows is not None else len(self.rows)

    def at(self, step: int) -> Draws:
        """The same rows at another step."""
        return replace(self, step=step)

    def for_blocks(self, blocks: int) -> Draws:
        """Random numbers for every block of every sequence: B * blocks rows, those of a sequence
        one after another.

        The stratified times of a sequence's blocks are spread evenly over all strata. A single
        block has the numbers of its sequence.
        """
        block = torch.arange(blocks, device=self.rows.device)
        # Without `num_rows` the numbers of a row must not depend on B, but its stratum must.
        rows = (
            self.rows[:, None] + (_BLOCK_STRIDE if self.num_rows is None else self.num_rows) * block
        )
        place = (self.rows if self.place is None else self.place)[
            :, None
        ] + self.global_batch_size * block
        return replace(
            self,
            rows=rows.flatten(),
            num_rows=self.global_batch_size * blocks,
            place=place.flatten(),
        )

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        """Independent uniforms in the open interval (0, 1): `(B, *shape)` float64 with 52 random
        bits.

        On a device without float64 (Apple GPUs) the result is on the CPU.
        """
        rows = self.rows.to(float64_device(self.rows.device))
        count = math.prod(shape)
        key = _signed(hash64(self.seed, purpose, self.step))
        row_key = _mix(_mix(rows.long() + 1) ^ key)  # (B,)
        position = torch.arange(1, count + 1, device=rows.device) * _GOLDEN
        bits = _shift_right(_mix(row_key[:, None] + position), 12)
        # (k + 1/2) / 2^52 is exact in float64 and never 0 or 1.
        return ((bits.double() + 0.5) * 2.0**-52).view(len(rows), *shape)
