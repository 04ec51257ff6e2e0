"""What the transformers `dit` and `transformer` share: rotary attention with a feed-forward
network, and a stack of such blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import PositiveInt, Probability
from dnadiff.networks.backbone.base import Backbone
from dnadiff.networks.backbone.block_attention import BlockAttention
from dnadiff.networks.backbone.layers import (
    KernelLinear,
    LayerNorm,
    Rotary,
    masked_attention,
    rotated,
)

Angles: TypeAlias = tuple[Tensor, Tensor]
Mask: TypeAlias = Tensor | BlockAttention | None


class AttentionOptions(TypedDict, total=False):
    """Keyword arguments of every `AttentionBackbone`, which documents them and has the defaults."""

    mlp_ratio: PositiveInt
    dropout: Probability
    max_length: PositiveInt | None
    activation_checkpointing: bool
    compile: bool


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

    def attend(
        self,
        x: Tensor,
        angles: Angles,
        mask: Mask,
        causal: bool = False,
        gate: Tensor | None = None,
    ) -> Tensor:
        """(B, L, D) -> (B, L, D), or of the first positions only, see `BlockAttention`.

        Args:
            x: (B, L, D), normalized.
            angles: of all positions, see `Rotary.angles`.
            mask: bool, broadcast to (B, heads, L, L), True where a query sees a key; None for all
                keys; or how to attend in blocks.
            causal: without a mask, position l sees keys 0..l only.
            gate: (D,) multiplies the result.
        """
        batch, length, width = x.shape
        qkv = self.attn_qkv(x).view(batch, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotated(qkv[:2], angles)
        if isinstance(mask, BlockAttention):
            mixed = mask(q, k, qkv[2])
        elif mask is None:
            mixed = scaled_dot_product_attention(q, k, qkv[2], is_causal=causal)
        else:
            mixed = masked_attention(q, k, qkv[2], mask)
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
        self.n_heads, self.mlp_ratio, self.dropout = n_heads, mlp_ratio, dropout
        self.max_length, self.compiled = max_length, compile
        self.activation_checkpointing = activation_checkpointing
        self.rotary_emb = Rotary(d_model // n_heads)

    @property
    @override
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
            x = self.through(block, x, *inputs)
        return x

    def through(self, block: nn.Module, x: Tensor, *inputs: Angles | Mask) -> Tensor:
        """The output of one block, which the backward pass recomputes with
        `activation_checkpointing`."""
        recompute = self.activation_checkpointing and torch.is_grad_enabled()
        return (
            checkpoint(block, x, *inputs, use_reentrant=False) if recompute else block(x, *inputs)
        )
