"""DiT: the bidirectional transformer of MDLM (arXiv 2406.07524, appendix C; after arXiv 2212.09748) with rotary positions and adaLN."""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from dnadiff.backbone.base import Backbone
from dnadiff.backbone.conditioning import SigmaMap, modulate
from dnadiff.backbone.layers import KernelLinear, LayerNorm, Rotary, rotated, widened
from dnadiff.vocab import Vocab

Angles: TypeAlias = tuple[Tensor, Tensor]


class DiTBlock(nn.Module):
    """Attention and a feed-forward network, each scaled, shifted and gated by the noise level (adaLN-zero).

    A condition that all sequences share, as it is without time conditioning, is folded: scale and shift into the weight and bias of the
    norm, the gate into the matrix before it, once for the layer and not once for each token.
    """

    def __init__(self, d_model: int, n_heads: int, cond_dim: int, mlp_ratio: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm1 = LayerNorm(d_model)
        self.attn_qkv = KernelLinear(d_model, 3 * d_model, bias=False)
        self.attn_out = KernelLinear(d_model, d_model, bias=False)
        self.norm2 = LayerNorm(d_model)
        self.mlp = nn.Sequential(
            KernelLinear(d_model, mlp_ratio * d_model), nn.GELU(approximate="tanh"), KernelLinear(mlp_ratio * d_model, d_model)
        )
        self.adaLN_modulation = nn.Linear(cond_dim, 6 * d_model)
        self.dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.adaLN_modulation.weight)
        nn.init.zeros_(self.adaLN_modulation.bias)

    def attend(self, x: Tensor, angles: Angles, valid: Tensor | None, gate: Tensor | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D); keys outside `valid` are not seen."""
        batch, length, width = x.shape
        qkv = self.attn_qkv(x).view(batch, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotated(qkv[:2], angles)
        mask = None if valid is None else valid[:, None, None, :]
        mixed = scaled_dot_product_attention(q, k, qkv[2], attn_mask=mask)
        return self.attn_out(mixed.transpose(1, 2).reshape(batch, length, width), gate)

    def feed(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        return self.mlp[2](self.mlp[1](self.mlp[0](x)), gate)

    def forward(self, x: Tensor, condition: Tensor, angles: Angles, valid: Tensor | None) -> Tensor:
        """(B, L, D), condition (B, cond_dim) or (1, cond_dim) for all -> (B, L, D)."""
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.adaLN_modulation(condition).chunk(6, dim=-1)
        if len(condition) == 1:
            x = x + self.dropout(self.attend(self.norm1(x, scale_a[0], shift_a[0]), angles, valid, gate_a[0]))
            return x + self.dropout(self.feed(self.norm2(x, scale_m[0], shift_m[0]), gate_m[0]))
        h = modulate(self.norm1(x), shift_a[:, None], scale_a[:, None])
        x = x + gate_a[:, None] * self.dropout(self.attend(h, angles, valid))
        h = modulate(self.norm2(x), shift_m[:, None], scale_m[:, None])
        return x + gate_m[:, None] * self.dropout(self.feed(h))


class FinalNorm(nn.Module):
    """The last adaLN and the linear map to logits; only the first half belongs to `features`."""

    def __init__(self, d_model: int, rows: int, cond_dim: int) -> None:
        super().__init__()
        self.norm_final = LayerNorm(d_model)
        self.linear = KernelLinear(d_model, rows)
        self.adaLN_modulation = nn.Linear(cond_dim, 2 * d_model)
        for layer in (self.linear, self.adaLN_modulation):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """(B, L, D), condition as for a `DiTBlock` -> (B, L, D)."""
        shift, scale = self.adaLN_modulation(condition).chunk(2, dim=-1)
        if len(condition) == 1:
            return self.norm_final(x, scale[0], shift[0])
        return modulate(self.norm_final(x), shift[:, None], scale[:, None])


class DiT(Backbone):
    """The published DiT; module names are the published ones, so its weights load as they are.

    Args:
        vocab: the alphabet; one embedding row per id, untied from the head.
        d_model: width D, a multiple of n_heads.
        n_layers: number of blocks.
        n_heads: attention heads.
        cond_dim: width of the noise-level embedding.
        mlp_ratio: feed-forward width over D.
        dropout: on both branches of each block.
        max_length: longest sequence; positions beyond those trained on mean nothing to rotary attention.
        activation_checkpointing: keep each block's input alone and compute the block again in the backward pass.
        compile: compile the blocks (`torch.compile`), one after the other: they are alike, so that one compilation serves all.
    """

    def __init__(
        self,
        vocab: Vocab,
        d_model: int = 128,
        n_layers: int = 4,
        n_heads: int = 4,
        cond_dim: int = 128,
        mlp_ratio: int = 4,
        dropout: float = 0.1,
        max_length: int | None = None,
        activation_checkpointing: bool = False,
        compile: bool = False,
    ) -> None:
        super().__init__(vocab, d_model, takes_sigma=True)
        if d_model % n_heads or (d_model // n_heads) % 2:
            raise ValueError(
                f"d_model {d_model} must be n_heads {n_heads} times an even head width; change backbone.d_model or backbone.n_heads"
            )
        self.max_length, self.mlp_ratio, self.activation_checkpointing = max_length, mlp_ratio, activation_checkpointing
        self.vocab_embed = nn.ParameterDict({"embedding": nn.Parameter(torch.empty(vocab.size, d_model))})
        nn.init.kaiming_uniform_(self.vocab_embed["embedding"], a=math.sqrt(5))
        self.sigma_map = SigmaMap(cond_dim)
        self.rotary_emb = Rotary(d_model // n_heads)
        self.blocks = nn.ModuleList(DiTBlock(d_model, n_heads, cond_dim, mlp_ratio, dropout) for _ in range(n_layers))
        self.output_layer = FinalNorm(d_model, vocab.size, cond_dim)
        for block in self.blocks if compile else ():
            block.compile()

    @property
    @override
    def trunk(self) -> nn.ModuleList:
        return self.blocks

    def features(self, ids: Tensor, sigma: Tensor | None = None, cond: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """See `Backbone.features`; None stands for sigma = 0, as MDLM's network is told without time conditioning."""
        self.check(ids, sigma, cond)
        condition = silu(self.sigma_map(torch.zeros(1, device=ids.device) if sigma is None else sigma))
        x = nn.functional.embedding(ids, self.vocab_embed["embedding"])
        angles = self.rotary_emb.angles(ids.shape[1], ids.device)
        again = self.activation_checkpointing and torch.is_grad_enabled()
        for block in self.blocks:
            x = checkpoint(block, x, condition, angles, valid, use_reentrant=False) if again else block(x, condition, angles, valid)
        return self.output_layer(x, condition)

    def head(self, features: Tensor) -> Tensor:
        """Raw logits (..., vocab.size) in float32."""
        return widened(self.output_layer.linear(features))

    def head_matrix(self) -> tuple[Tensor, Tensor | None]:
        """See `Backbone.head_matrix`."""
        return self.output_layer.linear.weight, self.output_layer.linear.bias
