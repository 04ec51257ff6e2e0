"""A causal transformer: DiT's blocks without adaLN, each position attending to itself and to
earlier ones."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from typing_extensions import override

from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import PositiveInt, checked
from dnadiff.networks.backbone.attention import (
    Angles,
    AttentionBackbone,
    AttentionBlock,
    AttentionOptions,
)
from dnadiff.networks.backbone.base import CausalBackbone, State
from dnadiff.networks.backbone.layers import KernelLinear, LayerNorm, Rotary, at_least_float32

_CAPACITY = 64  # positions whose keys and values fit into a new state


class TransformerBlock(AttentionBlock):
    """Causal attention and a feed-forward network, each after a norm (arXiv 1706.03762, pre-norm)
    and with rotary positions."""

    def forward(self, x: Tensor, angles: Angles, mask: Tensor | None) -> Tensor:
        """(B, L, D) -> (B, L, D); mask (B, 1, L, L), or None for plain causal attention."""
        x = x + self.dropout(self.attend(self.norm1(x), angles, mask, causal=mask is None))
        return x + self.dropout(self.mlp(self.norm2(x)))

    def step(
        self, x: Tensor, rotary: Rotary, keys: Tensor, values: Tensor, position: int
    ) -> Tensor:
        """One position: (B, D) -> (B, D). Its key and value are written into keys and values (B,
        heads, capacity, D / heads)."""
        q, k, v = self.attn_qkv(self.norm1(x)).view(len(x), 3, self.n_heads, 1, -1).unbind(1)
        keys[:, :, position], values[:, :, position] = rotary(k, position)[:, :, 0], v[:, :, 0]
        mixed = scaled_dot_product_attention(
            rotary(q, position), keys[:, :, : position + 1], values[:, :, : position + 1]
        )
        x = x + self.dropout(self.attn_out(mixed.reshape(len(x), -1)))
        return x + self.dropout(self.mlp(self.norm2(x)))


@checked
class Transformer(AttentionBackbone, CausalBackbone):
    """The autoregressive control in the size of a `DiT`: embedding, causal blocks, a final norm and
    an untied head.

    Args:
        vocab: the vocabulary; one embedding row per id.
        n_layers: number of blocks.
        d_model, n_heads, **options: as in `AttentionBackbone`.
    """

    def __init__(
        self,
        vocab: Vocab,
        d_model: PositiveInt = 128,
        n_layers: PositiveInt = 4,
        n_heads: PositiveInt = 4,
        **options: Unpack[AttentionOptions],
    ) -> None:
        super().__init__(vocab, d_model, n_heads, takes_sigma=False, **options)
        self.embedding = nn.Embedding(vocab.size, d_model)
        self.blocks = self.stack(
            n_layers, lambda: TransformerBlock(d_model, n_heads, self.mlp_ratio, self.dropout)
        )
        self.norm_f = LayerNorm(d_model)
        self.linear = KernelLinear(d_model, vocab.size)
        self._initialize()

    @torch.no_grad()
    def _initialize(self) -> None:
        """As in GPT-2: standard deviation 0.02, divided by sqrt(2 n_layers) where a matrix writes
        to the residual stream; a head of zeros."""
        nn.init.normal_(self.embedding.weight, std=0.02)
        for name, weight in self.blocks.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(weight)
            elif weight.ndim == 2:
                into_stream = name.endswith(("attn_out.weight", "mlp.2.weight"))
                nn.init.normal_(
                    weight, std=0.02 / (math.sqrt(2 * len(self.blocks)) if into_stream else 1)
                )
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    @override
    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding(ids)

    @override
    def mix(
        self,
        h: Tensor,
        sigma: Tensor | None = None,
        cond: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Tensor:
        mask, length = None, h.shape[1]
        if valid is not None:
            earlier = torch.ones(length, length, dtype=torch.bool, device=h.device).tril()
            itself = torch.eye(length, dtype=torch.bool, device=h.device)
            # padding attends to itself, so that no row is empty
            mask = ((earlier & valid[:, None, :]) | itself)[:, None]
        angles = self.rotary_emb.angles(length, h.device)
        return self.norm_f(self.through_blocks(h, angles, mask))

    @override
    def step(
        self, ids: Tensor, state: State | None = None, cond: Tensor | None = None
    ) -> tuple[Tensor, State]:
        self.check_inputs(ids[:, None], None, cond)
        state = self._empty_state(len(ids)) if state is None else state
        position, capacity = state.length, state.tensors[0].shape[2]
        if self.max_length is not None and position >= self.max_length:
            raise ValueError(
                f"length {position + 1} exceeds what this Transformer was built for; use a length "
                f"of at most {self.max_length}"
            )
        if position == capacity:  # double it
            state = State(
                [torch.cat([x, torch.zeros_like(x)], dim=2) for x in state.tensors], position
            )
        x = self.embedding(ids)
        for number, block in enumerate(self.blocks):
            assert isinstance(block, TransformerBlock)
            keys, values = state.tensors[2 * number : 2 * number + 2]
            x = block.step(x, self.rotary_emb, keys, values, position)
        return self.norm_f(x), State(state.tensors, position + 1)

    def _empty_state(self, batch_size: int) -> State:
        """Zero keys and values of all blocks."""
        empty = self.embedding.weight.new_zeros(
            batch_size, self.n_heads, _CAPACITY, self.rotary_emb.head_width
        )
        return State([empty.clone() for _ in range(2 * len(self.blocks))])

    @override
    def head(self, features: Tensor) -> Tensor:
        return at_least_float32(self.linear(features))

    @override
    def head_matrix(self) -> tuple[Tensor, Tensor | None]:
        return self.linear.weight, self.linear.bias
