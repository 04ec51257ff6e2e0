"""The differences between DNA and text: the size of the vocabulary, its special ids, and whether
tokens have complements.

Objectives and samplers need nothing else to work on both. `dnadiff.data.tokenizer` maps characters
to ids.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Self

import torch
from torch import Tensor

# Channels of a column of an alignment (`dnadiff.data.alignment`): the log posterior of A, C, G and
# T given the other genomes (nats); the log frequency of A, C, G and T among the aligned bases; the
# mean log rate; log(1 + depth), where depth is the number of genomes with a base there.
CHANNELS = 10
POSTERIOR = slice(0, 4)
FREQUENCY = slice(4, 8)
RATE = 8
DEPTH = 9
COMPLEMENT = (3, 2, 1, 0, 7, 6, 5, 4, 8, 9)  # the channels of the other strand


@dataclass(frozen=True)
class Vocab:
    """The token ids of one alphabet.

    Attributes:
        size: number of ids including the mask; `log_probs` has this many columns.
        mask_id: the absorbing state of the diffusion.
        pad_id: pads sequences to a common length.
        never_emitted: ids that have probability 0 under SUBS; always includes `mask_id`.
        complement: `complement[i]` pairs with `i` on the other strand; its own inverse. None if the
            alphabet has no strands.
    """

    size: int
    mask_id: int
    pad_id: int
    never_emitted: tuple[int, ...]
    complement: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "never_emitted", tuple(sorted(set(self.never_emitted))))
        if self.complement is not None:
            object.__setattr__(self, "complement", tuple(self.complement))
        for name, ids in (
            ("mask_id", (self.mask_id,)),
            ("pad_id", (self.pad_id,)),
            ("never_emitted", self.never_emitted),
        ):
            if not all(0 <= i < self.size for i in ids):
                raise ValueError(
                    f"{name} {ids} is outside 0..{self.size - 1}; set {name} to ids of the "
                    "vocabulary"
                )
        if self.mask_id not in self.never_emitted:
            raise ValueError(
                f"never_emitted {self.never_emitted} must include mask_id {self.mask_id}: a sample "
                "may not contain the mask"
            )
        if len(self.never_emitted) >= self.size:
            raise ValueError(
                "never_emitted includes every id; at least one token must be emittable"
            )
        pairs = enumerate(self.complement or ())
        if self.complement is not None and (
            sorted(self.complement) != list(range(self.size))
            or any(self.complement[j] != i for i, j in pairs)
        ):
            raise ValueError(
                f"complement must be a permutation of 0..{self.size - 1} that is its own inverse "
                f"(the complement of a complement is the token itself), got {self.complement}"
            )

    @classmethod
    def ending_in_mask(cls, size: int) -> Self:
        """Tokens of which the last one is both mask and padding."""
        return cls(size, size - 1, size - 1, (size - 1,))

    @cached_property
    def emitted(self) -> tuple[int, ...]:
        """The ids that a sample may contain, ascending."""
        return tuple(i for i in range(self.size) if i not in self.never_emitted)

    @cached_property
    def _is_emitted(self) -> tuple[bool, ...]:
        never = set(self.never_emitted)
        return tuple(i not in never for i in range(self.size))

    def is_emitted(self, device: torch.device | str = "cpu") -> Tensor:
        """(size,) bool, True for ids that a sample may contain."""
        return _table(self._is_emitted, torch.bool, torch.device(device))

    def uniform_token(self, uniform: Tensor) -> Tensor:
        """The emitted tokens at the fractions `uniform (...)` of their list, in (0, 1): int64."""
        ids = _table(self.emitted, torch.int64, uniform.device)
        return ids[(uniform * len(ids)).long().clamp(0, len(ids) - 1)]

    def reverse_complement(self, ids: Tensor) -> Tensor:
        """The reverse complement of `ids (..., L)`; a ValueError if the vocabulary has no
        complement."""
        if self.complement is None:
            raise ValueError(
                "this vocabulary has no complement: reverse-complementing needs an alphabet with "
                "two strands, such as DNA"
            )
        return _table(self.complement, torch.int64, ids.device)[ids.flip(-1).long()]


def complemented(columns: Tensor) -> Tensor:
    """Columns of an alignment (..., 10), each as the other strand has it."""
    return columns[..., _table(COMPLEMENT, torch.int64, columns.device)]


def at_positions(cond: Tensor | None, part: slice) -> Tensor | None:
    """What a network is conditioned on at some positions: their columns (B, n, 10) of (B, L, 10);
    labels (B, C) as they are."""
    return cond if cond is None or cond.ndim < 3 else cond[:, part]


def mirrored(cond: Tensor | None) -> Tensor | None:
    """What a network is conditioned on when it reads the other strand: columns (B, L, 10) in the
    order of that strand and complemented; labels (B, C) do not change."""
    return cond if cond is None or cond.ndim < 3 else complemented(cond.flip(1))


@lru_cache(maxsize=64)
def _table(values: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A table on a device, copied there once: a copy in every call would make a GPU wait for the
    CPU. Do not write to it."""
    with torch.inference_mode(
        False
    ):  # a tensor of inference mode could not be used in training later
        return torch.tensor(values, dtype=dtype, device=device)
