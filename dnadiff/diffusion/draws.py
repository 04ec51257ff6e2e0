"""Random numbers that depend on (seed, purpose, step, row) alone, not on the batch in which a row
is computed.

A counter-based generator: every number is the SplitMix64 finalizer (Steele, Lea and Flood, OOPSLA
2014) of a key and a position. So a sample keeps its noise whatever the batch size, device rank or
number of workers.

`draw` takes one such number for each row and inverts the cumulative distribution in float64. Gumbel
noise in float32 cannot exceed 16.64 and draws a symbol of probability 1e-8 tens of times too rarely
(arXiv 2409.02908).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from dnadiff.diffusion.noise import float64_device

# Between the rows of a sequence's blocks, where rows are not numbered from 0.
_BLOCK_STRIDE = 1 << 40


def _signed(x: int) -> int:
    """The int64 with the same bits as the unsigned `x`; torch has no uint64 arithmetic."""
    return x - (1 << 64) if x >= 1 << 63 else x


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLY = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))


def widest_dtype(device: torch.device | str) -> torch.dtype:
    """float64, or float32 on Apple GPUs."""
    return torch.float32 if torch.device(device).type == "mps" else torch.float64


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


class NoMassError(ValueError):
    """Every symbol has probability 0."""


def draw(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """One id for each row: `log_probs (M, V)` (need not be normalized), `uniform (M,)` float64 in
    (0, 1) -> `(M,)` int64.

    A symbol of probability 0 is never drawn. On a device without float64 the draw happens on the
    CPU.

    Raises:
        NoMassError: if every symbol of a row has probability 0.
        ValueError: if `log_probs` contains NaN or infinity.
    """
    device = log_probs.device
    if device.type == "mps":
        log_probs = log_probs.cpu()
    log_probs = log_probs.double()
    cdf = (log_probs - log_probs.amax(-1, keepdim=True)).exp().cumsum(-1)  # (M, V)
    impossible = ~(cdf[:, -1] >= 1)  # the most probable symbol alone counts 1
    if impossible.any():
        if (log_probs[impossible] == -torch.inf).all():
            raise NoMassError(
                "log_probs has a row in which every symbol has probability 0: nothing can be drawn"
            )
        raise ValueError("log_probs contains NaN or infinity: nothing can be drawn")
    target = uniform.to(cdf)[:, None] * cdf[:, -1:]
    ids = torch.searchsorted(cdf, target, right=True)[:, 0]
    # Rounding can lift the target to the total; the last symbol with mass is then the answer.
    last = torch.searchsorted(cdf, cdf[:, -1:].contiguous())[:, 0]
    return torch.minimum(ids, last).to(device)


def temper(log_probs: Tensor, temperature: float) -> Tensor:
    """Log-probabilities of p^(1/temperature), normalized; 1 returns them unchanged."""
    if temperature == 1:
        return log_probs
    log_probs = log_probs.double()
    # otherwise even the most probable symbol would overflow at a tiny temperature
    log_probs = log_probs - log_probs.amax(-1, keepdim=True)
    return torch.log_softmax(log_probs / temperature, dim=-1)


def top_k(log_probs: Tensor, k: int | None) -> Tensor:
    """The k most probable symbols of each row, the rest at -inf; None keeps all."""
    if k is None or k >= log_probs.shape[-1]:
        return log_probs
    kept = log_probs.topk(k, dim=-1).indices
    return torch.full_like(log_probs, -torch.inf).scatter(-1, kept, log_probs.gather(-1, kept))


def nucleus(log_probs: Tensor, mass: float) -> Tensor:
    """The smallest set of symbols whose probability reaches `mass`, the rest at -inf; 1 keeps all
    (arXiv 1904.09751)."""
    if mass == 1:
        return log_probs
    ordered, order = log_probs.double().sort(dim=-1, descending=True)
    probs = torch.softmax(ordered, dim=-1)
    before = probs.cumsum(-1) - probs  # mass of the symbols ranked above: the first is always kept
    return log_probs.masked_fill((before >= mass).scatter(-1, order, before >= mass), -torch.inf)
