"""What the transformers `dit` and `transformer` share: rotary attention with a feed-forward
network, a stack of such blocks, and attention of block diffusion (BD3-LM, arXiv 2503.09573): all
blocks of a sequence at once, or one block after a cache.

All blocks at once are two streams in one sequence of 2L positions: the noised one, then the clean
one. A query of noised block i sees noised block i and the clean blocks 0..i-1; a query of clean
block i sees the clean blocks 0..i. The rule is written once, in `_sees`.
`scaled_dot_product_attention` takes it as two dense masks, `flex_attention` (CUDA) as a function
with a list of non-empty tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import PositiveInt, Probability
from dnadiff.networks.backbone.base import Backbone, OptTensor
from dnadiff.networks.backbone.layers import (
    KernelLinear,
    LayerNorm,
    Rotary,
    masked_attention,
    rotated,
)

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MaskFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Angles: TypeAlias = tuple[Tensor, Tensor]
# Queries, keys (rotated) and values (B, heads, n, d) -> (B, heads, m, d), m <= n: the results of
# the first m positions.
Attention: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
Mask: TypeAlias = Tensor | Attention | None

_TILE = 128  # queries and keys of a tile of `flex_attention`
_MIN_HEAD_WIDTH = 16  # of its CUDA kernel
_HIDDEN = 2**30  # number of a key that only its own query sees


class Positions(NamedTuple):
    """The 2L positions of both streams, by the block that each is in.

    Attributes:
        number: (2L,) i in clean block i, -1 - i in noised block i.
        limit: (2L,) the last clean block that its query sees, -1 for none.
        key: (B, 2L) the number, `_HIDDEN` on padding.
    """

    number: Tensor
    limit: Tensor
    key: Tensor

    def dense(self, rows: slice, columns: slice) -> Tensor:
        """The mask of some queries and some keys: (B, 1, rows, columns) bool, with B = 1 if all
        sequences have the same."""
        index = torch.arange(len(self.number), device=self.number.device)
        itself = index[rows, None] == index[columns]
        return _sees(
            self.number[rows, None],
            self.limit[rows, None],
            self.key[:, None, None, columns],
            itself,
        )

    def function(self, batch_size: int) -> MaskFunction:
        """The mask as a function of the indices of sequence, head, query and key."""
        number = self.number
        limit = self.limit
        key = self.key.expand(
            batch_size, -1
        ).contiguous()  # the same strides with and without padding: one compilation

        def mask(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return _sees(number[q], limit[q], key[b, kv], q == kv)

        return mask


def _sees(number: Tensor, limit: Tensor, key: Tensor, itself: Tensor) -> Tensor:
    """Whether a query sees a key. Padding sees itself, so that no query is without a key."""
    return (key == number) | ((key >= 0) & (key <= limit)) | itself


def positions(
    length: int, block_size: int, valid: OptTensor, device: torch.device | str = "cpu"
) -> Positions:
    """The positions of both streams of sequences of `length` tokens; valid (B, L) is False on
    padding."""
    block = torch.arange(length, dtype=torch.int32, device=device) // block_size
    number = torch.cat([-1 - block, block])
    key = (
        number[None]
        if valid is None
        else torch.where(torch.cat([valid, valid], 1), number, _HIDDEN)
    )
    return Positions(number, torch.cat([block - 1, block]), key)


@dataclass(eq=False)
class DenseStreams:
    """Attention of the noised and the clean stream, in this order, with dense masks: L x 2L for the
    noised queries, and L x L for the clean ones, which see clean keys only.

    Args:
        noised: (B or 1, 1, L, 2L) bool.
        clean: (B or 1, 1, L, L) bool; None for `noised_only`.
    """

    noised: Tensor
    clean: OptTensor

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attention`."""
        length = self.noised.shape[2]
        mixed = masked_attention(q[:, :, :length], k, v, self.noised)
        if self.clean is None:
            return mixed
        q, k, v = (x[:, :, length:] for x in (q, k, v))
        return torch.cat([mixed, masked_attention(q, k, v, self.clean)], 2)

    def noised_only(self) -> DenseStreams:
        """The same for the last layer, where the clean stream gives keys and values only: the
        results of the first L positions."""
        return DenseStreams(self.noised, None)


@dataclass(eq=False)
class FlexStreams:
    """Both streams with `flex_attention`, which skips empty tiles and holds no dense mask.

    Args:
        mask: of all 2L queries and keys.
        attention: `flex_attention`, compiled.
        length: positions to return; the last layer computes the others too, because another size
            would be another compilation.
    """

    mask: BlockMask
    attention: Callable[..., Tensor]
    length: int | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attention`."""
        return self.attention(q, k, v, block_mask=self.mask)[:, :, : self.length]

    def noised_only(self) -> FlexStreams:
        """See `DenseStreams.noised_only`."""
        return FlexStreams(self.mask, self.attention, self.mask.seq_lengths[0] // 2)


def two_streams(
    x: Tensor, head_width: int, block_size: int, valid: OptTensor
) -> DenseStreams | FlexStreams:
    """The attention of both streams x (B, 2L, D); valid (B, L) is False on padding."""
    length = x.shape[1] // 2
    where = positions(length, block_size, valid, x.device)
    if x.device.type != "cuda" or head_width < _MIN_HEAD_WIDTH or x.dtype == torch.float64:
        return dense_streams(where, length)
    function = where.function(len(x))
    padded = valid is not None
    mask = block_mask(function, length, block_size, padded, x.device)
    return FlexStreams(mask, compiled_flex())


def dense_streams(where: Positions, length: int) -> DenseStreams:
    """The dense masks of both streams of L positions."""
    noised = slice(0, length)
    clean = slice(length, None)
    return DenseStreams(where.dense(noised, slice(None)), where.dense(clean, clean))


def flex() -> Any:
    """The module of `flex_attention`. PyTorch 2.7 imports its compiler with it, which takes seconds
    and fails while a network without memory is built."""
    from torch.nn.attention import flex_attention

    return flex_attention


@cache
def compiled_flex() -> Callable[..., Tensor]:
    """`flex_attention`, compiled when it is called first, once for all layers."""
    return torch.compile(flex().flex_attention)


def block_mask(
    function: MaskFunction,
    length: int,
    block_size: int,
    padded: bool,
    device: torch.device | str,
    tile: int = _TILE,
) -> BlockMask:
    """The mask of both streams in tiles. `function` is not evaluated in tiles that are seen as a
    whole, unless keys may be padding.

    PyTorch's `create_block_mask` finds the tiles from the dense mask, which this avoids.
    """
    some, whole = (
        x[None, None].to(device=device, dtype=torch.int32) for x in tiles(length, block_size, tile)
    )
    if padded:
        whole = torch.zeros_like(whole)
    (partial, partial_order), (whole, whole_order) = _listed(some - whole), _listed(whole)
    ends = 2 * length, 2 * length
    listed = partial, partial_order, whole, whole_order
    make = flex().BlockMask.from_kv_blocks
    return make(*listed, BLOCK_SIZE=tile, mask_mod=function, seq_lengths=ends)


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many tiles of each row are chosen, and all tiles of the row, these first.

    (..., columns) of 0 and 1 -> (...) and (..., columns).
    """
    order = chosen.argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)


def tiles(length: int, block_size: int, tile: int = _TILE) -> tuple[Tensor, Tensor]:
    """Whether some query of a tile sees some key, and whether all see all: two of (tiles, tiles)
    bool.

    The positions of one stream in one tile are an interval, and so are their blocks. One tile may
    have the end of the noised stream and the beginning of the clean one. A tile beyond the last
    position is not seen as a whole, because the kernel would not mask its end.
    """
    start = torch.arange(0, 2 * length, tile)
    end = (start + tile).clamp(max=2 * length) - 1  # the last position
    noised = start < length
    clean = end >= length
    # first and last noised block, and first and last clean one
    n0 = start // block_size
    n1 = end.clamp(max=length - 1) // block_size
    c0 = (start - length).clamp(min=0) // block_size
    c1 = (end - length) // block_size

    full = start + tile <= 2 * length
    # those of a query, against every tile of keys
    q = [x[:, None] for x in (noised, clean, n0, n1, c0, c1, full)]
    q_noised, q_clean, q_n0, q_n1, q_c0, q_c1, q_full = q
    own = q_noised & noised
    earlier = q_noised & clean
    causal = q_clean & clean
    some = (own & (n0 <= q_n1) & (q_n0 <= n1)) | (earlier & (c0 < q_n1)) | (causal & (c0 <= q_c1))
    whole = (
        (~own | ((q_n0 == n1) & (q_n1 == n0))) & (~earlier | (c1 < q_n0)) & (~causal | (c1 <= q_c0))
    )
    return some, whole & ~(q_clean & noised) & q_full & full


def cached_mask(seen: Tensor, size: int) -> Tensor:
    """The mask of the last `size` of m tokens: (B, 1, size, m) bool.

    seen (B, 1, m) is False on padding, which sees itself, as in `_sees`.
    """
    itself = torch.eye(size, dtype=torch.bool, device=seen.device)
    return seen[:, :, None] | pad(itself, (seen.shape[2] - size, 0))


@dataclass(eq=False)
class CachedAttention:
    """Attention of one block to the tokens before it and to itself.

    Args:
        cached: keys (rotated) and values of the tokens before, (B, heads, m, D / heads) each;
            nothing if there are none. A call replaces them by those with the block, in new tensors.
        mask: (B, 1, n, m + n) bool; None for all keys.
    """

    cached: Sequence[Tensor]
    mask: OptTensor

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attention`."""
        if self.cached:
            k, v = (torch.cat([before, x], 2) for before, x in zip(self.cached, (k, v)))
        self.cached = k, v
        return masked_attention(q, k, v, self.mask)


class AttentionBlock(nn.Module):
    """Attention with rotary positions and a feed-forward network; subclasses connect them to the
    residual stream."""

    def __init__(self, d_model: int, n_heads: int, mlp_ratio: PositiveInt, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm1 = LayerNorm(d_model)
        self.attn_qkv = KernelLinear(d_model, 3 * d_model, bias=False)
        self.attn_out = KernelLinear(d_model, d_model, bias=False)
        self.norm2 = LayerNorm(d_model)
        self.mlp = nn.Sequential(
            KernelLinear(d_model, mlp_ratio * d_model),
            nn.GELU(approximate="tanh"),
            KernelLinear(mlp_ratio * d_model, d_model),
        )
        self.dropout = nn.Dropout(dropout)

    def attend(self, x: Tensor, angles: Angles, mask: Mask, gate: OptTensor = None) -> Tensor:
        """(B, L, D) -> (B, L, D), or of the first positions only, see `Attention`.

        Args:
            x: (B, L, D), normalized.
            angles: of all positions, see `Rotary.angles`.
            mask: bool, broadcast to (B, heads, L, L), True where a query sees a key; None for all
                keys; or how to attend.
            gate: (D,) multiplies the result.
        """
        batch, length, width = x.shape
        qkv = self.attn_qkv(x).view(batch, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        (q, k), v = rotated(qkv[:2], angles), qkv[2]
        mixed = mask(q, k, v) if callable(mask) else masked_attention(q, k, v, mask)
        return self.attn_out(mixed.transpose(1, 2).reshape(batch, -1, width), gate)


class AttentionBackbone(Backbone):
    """A stack of attention blocks with rotary positions.

    Args:
        vocab: the vocabulary.
        d_model: width D, n_heads times an even number.
        n_heads: attention heads.
        takes_sigma: see `Backbone`.
        mlp_ratio: feed-forward width over D.
        dropout: on both branches of each block.
        max_length: longest sequence; rotary attention does not generalize to positions beyond those
            it was trained on.
        activation_checkpointing: save only each block's input and recompute the block in the
            backward pass.
        compile: compile the blocks (`torch.compile`); they share one compilation.
    """

    blocks: nn.ModuleList

    def __init__(
        self, vocab: Vocab, d_model: int, n_heads: int, takes_sigma: bool, *,
        mlp_ratio: PositiveInt = 4, dropout: Probability = 0.1,
        max_length: PositiveInt | None = None, activation_checkpointing: bool = False,
        compile: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(vocab, d_model, takes_sigma)
        if d_model % n_heads or (d_model // n_heads) % 2:
            raise ValueError(
                f"d_model {d_model} must be n_heads {n_heads} times an even head width; change "
                "backbone.d_model or backbone.n_heads"
            )
        self.n_heads = n_heads
        self.mlp_ratio = mlp_ratio
        self.dropout = dropout
        self.max_length = max_length
        self.compiled = compile
        self.activation_checkpointing = activation_checkpointing
        self.rotary_emb = Rotary(d_model // n_heads)

    @property
    def trunk(self) -> nn.ModuleList:
        return self.blocks

    def stack(self, n_layers: int, block: Callable[[], AttentionBlock]) -> nn.ModuleList:
        """The blocks, compiled if asked."""
        blocks = nn.ModuleList(block() for _ in range(n_layers))
        for made in blocks if self.compiled else ():
            made.compile()
        return blocks

    def through_blocks(self, x: Tensor, *inputs: Angles | Mask) -> Tensor:
        """(B, L, D) -> (B, L, D), with further inputs of every block."""
        for block in self.blocks:
            x = self.run(block, x, *inputs)
        return x
