"""A causal transformer: DiT's blocks without adaLN, each position seeing itself and what lies to its left."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from dnadiff.backbone.base import Backbone, State
from dnadiff.backbone.layers import KernelLinear, LayerNorm, Rotary, rotated, widened
from dnadiff.vocab import Vocab

_ROOM = 64  # positions whose keys and values a new state has room for


class TransformerBlock(nn.Module):
    """Causal attention and a feed-forward network, each behind a norm (arXiv 1706.03762, pre-norm) and with rotary positions."""

    def __init__(self, d_model: int, n_heads: int, mlp_ratio: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm1 = LayerNorm(d_model)
        self.attn_qkv = KernelLinear(d_model, 3 * d_model, bias=False)
        self.attn_out = KernelLinear(d_model, d_model, bias=False)
        self.norm2 = LayerNorm(d_model)
        self.mlp = nn.Sequential(
            KernelLinear(d_model, mlp_ratio * d_model), nn.GELU(approximate="tanh"), KernelLinear(mlp_ratio * d_model, d_model)
        )
        self.dropout = nn.Dropout(dropout)

    def attend(self, x: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """(B, L, D) -> (B, L, D); mask (B, 1, L, L) or None for plainly causal."""
        batch, length, width = x.shape
        qkv = self.attn_qkv(x).view(batch, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotated(qkv[:2], angles)
        mixed = scaled_dot_product_attention(q, k, qkv[2], attn_mask=mask, is_causal=mask is None)
        return self.attn_out(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        x = x + self.dropout(self.attend(self.norm1(x), angles, mask))
        return x + self.dropout(self.mlp(self.norm2(x)))

    def step(self, x: Tensor, rotary: Rotary, keys: Tensor, values: Tensor, at: int) -> Tensor:
        """One position, number `at`: (B, D) -> (B, D); its key and value are written into keys and values (B, heads, room, D / heads)."""
        q, k, v = self.attn_qkv(self.norm1(x)).view(len(x), 3, self.n_heads, 1, -1).unbind(1)
        keys[:, :, at], values[:, :, at] = rotary(k, at)[:, :, 0], v[:, :, 0]
        mixed = scaled_dot_product_attention(rotary(q, at), keys[:, :, : at + 1], values[:, :, : at + 1])
        x = x + self.dropout(self.attn_out(mixed.reshape(len(x), -1)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Transformer(Backbone):
    """The autoregressive control of the size of a `DiT`: embedding, causal blocks, a final norm and an untied head.

    Args:
        vocab: the alphabet; one embedding row per id.
        d_model: width D, n_heads times an even number.
        n_layers: number of blocks.
        n_heads: attention heads.
        mlp_ratio: feed-forward width over D.
        dropout: on both branches of each block.
        max_length: longest sequence; positions beyond those trained on mean nothing to rotary attention.
        activation_checkpointing, compile: as in `DiT`.
    """

    causal = True

    def __init__(
        self,
        vocab: Vocab,
        d_model: int = 128,
        n_layers: int = 4,
        n_heads: int = 4,
        mlp_ratio: int = 4,
        dropout: float = 0.1,
        max_length: int | None = None,
        activation_checkpointing: bool = False,
        compile: bool = False,
    ) -> None:
        super().__init__(vocab, d_model)
        if d_model % n_heads or (d_model // n_heads) % 2:
            raise ValueError(
                f"d_model {d_model} must be n_heads {n_heads} times an even head width; change backbone.d_model or backbone.n_heads"
            )
        self.max_length, self.activation_checkpointing = max_length, activation_checkpointing
        self.embedding = nn.Embedding(vocab.size, d_model)
        self.rotary_emb = Rotary(d_model // n_heads)
        self.blocks = nn.ModuleList(TransformerBlock(d_model, n_heads, mlp_ratio, dropout) for _ in range(n_layers))
        self.norm_f = LayerNorm(d_model)
        self.linear = KernelLinear(d_model, vocab.size)
        self.initialise()
        for block in self.blocks if compile else ():
            block.compile()

    @torch.no_grad()
    def initialise(self) -> None:
        """GPT-2's rules: weights of deviation 0.02, smaller by sqrt(2 n_layers) where they write into the residual stream, a head of zeros."""
        nn.init.normal_(self.embedding.weight, std=0.02)
        for name, weight in self.blocks.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(weight)
            elif weight.ndim == 2:
                into_stream = name.endswith(("attn_out.weight", "mlp.2.weight"))
                nn.init.normal_(weight, std=0.02 / (math.sqrt(2 * len(self.blocks)) if into_stream else 1))
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    @property
    @override
    def trunk(self) -> nn.ModuleList:
        return self.blocks

    def features(self, ids: Tensor, sigma: Tensor | None = None, cond: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """See `Backbone.features`; this network has neither a time input nor labels."""
        self.check(ids, sigma, cond)
        mask = None
        if valid is not None:
            length = ids.shape[1]
            left = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
            itself = torch.eye(length, dtype=torch.bool, device=ids.device)  # a position of padding sees itself: no row is empty
            mask = ((left & valid[:, None, :]) | itself)[:, None]
        x, angles = self.embedding(ids), self.rotary_emb.angles(ids.shape[1], ids.device)
        again = self.activation_checkpointing and torch.is_grad_enabled()
        for block in self.blocks:
            x = checkpoint(block, x, angles, mask, use_reentrant=False) if again else block(x, angles, mask)
        return self.norm_f(x)

    def step(self, ids: Tensor, state: State | None = None, cond: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Backbone.step`: the keys and values of all positions are kept, with room that doubles when it is full."""
        self.check(ids[:, None], None, cond)
        state = self._start(len(ids)) if state is None else state
        at, room = state.length, state.tensors[0].shape[2]
        if self.max_length is not None and at >= self.max_length:
            raise ValueError(f"length {at + 1} exceeds what this Transformer was built for; use a length of at most {self.max_length}")
        if at == room:
            state = State([torch.cat([x, torch.zeros_like(x)], dim=2) for x in state.tensors], at)
        x = self.embedding(ids)
        for number, block in enumerate(self.blocks):
            x = block.step(x, self.rotary_emb, *state.tensors[2 * number : 2 * number + 2], at)
        return self.norm_f(x), State(state.tensors, at + 1)

    def _start(self, batch_size: int) -> State:
        heads, width = self.blocks[0].n_heads, self.rotary_emb.head_width
        empty = self.embedding.weight.new_zeros(batch_size, heads, _ROOM, width)
        return State([empty.clone() for _ in range(2 * len(self.blocks))])

    def head(self, features: Tensor) -> Tensor:
        """Raw logits (..., vocab.size) in float32."""
        return widened(self.linear(features))

    def head_matrix(self) -> tuple[Tensor, Tensor | None]:
        """See `Backbone.head_matrix`."""
        return self.linear.weight, self.linear.bias
