"""GPT-2 with its published weights, to judge samples of text by; it is not trained here, and no yaml names it.

Learned positions, biases everywhere, a head tied to the embedding (the architecture of GPT-2 as the Hugging Face Hub holds it).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from typing_extensions import override

from dnadiff.backbone.base import Backbone
from dnadiff.backbone.layers import LayerNorm, widened
from dnadiff.vocab import Vocab


class GPT2Block(nn.Module):
    """Causal attention and a feed-forward network, each behind a norm."""

    def __init__(self, d_model: int, n_heads: int, inner: int, eps: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.ln_1, self.ln_2 = LayerNorm(d_model, eps, bias=True), LayerNorm(d_model, eps, bias=True)
        self.attn_in, self.attn_out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, inner), nn.GELU(approximate="tanh"), nn.Linear(inner, d_model))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, L, D) -> (B, L, D); mask (B, 1, L, L) or None for plainly causal."""
        batch, length, width = x.shape
        q, k, v = self.attn_in(self.ln_1(x)).view(batch, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.attn_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.ln_2(x))


class GPT2(Backbone):
    """The published network over an alphabet that may have more ids than it: those beyond its own stand for the token that begins a text.

    `CausalDenoiser` begins every text with the mask, which GPT-2 does not have.

    Args:
        vocab: its own ids first; further ones must never be emitted.
        d_model: width D.
        n_layers: number of blocks.
        n_heads: attention heads.
        max_length: positions.
        rows: its own ids.
        start: the id that begins a text.
        inner: width of the feed-forward networks; None is 4 D.
        eps: of the norms.

    Raises:
        ValueError: if an id beyond its own would be emitted.
    """

    causal = True

    def __init__(
        self,
        vocab: Vocab,
        d_model: int,
        n_layers: int,
        n_heads: int,
        max_length: int,
        rows: int,
        start: int,
        inner: int | None = None,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(vocab, d_model)
        if vocab.size < rows or not set(range(rows, vocab.size)) <= set(vocab.never_emitted) or not 0 <= start < rows:
            raise ValueError(f"this GPT-2 has {rows} tokens; the tokenizer has {vocab.size}, and those beyond may only be mask and padding")
        self.max_length, self.rows, self.start = max_length, rows, start
        self.wte, self.wpe = nn.Embedding(rows, d_model), nn.Embedding(max_length, d_model)
        self.blocks = nn.ModuleList(GPT2Block(d_model, n_heads, inner or 4 * d_model, eps) for _ in range(n_layers))
        self.ln_f = LayerNorm(d_model, eps, bias=True)

    @property
    @override
    def trunk(self) -> nn.ModuleList:
        return self.blocks

    def features(self, ids: Tensor, sigma: Tensor | None = None, cond: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """See `Backbone.features`; padding must lie at the end of a sequence, where nothing before it sees it."""
        self.check(ids, sigma, cond)
        ids = torch.where(ids < self.rows, ids, self.start)
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, None)
        return self.ln_f(x)

    def head(self, features: Tensor) -> Tensor:
        """Raw logits (..., vocab.size) in float32, 0 for ids beyond its own."""
        logits = widened(nn.functional.linear(features, self.wte.weight))
        return nn.functional.pad(logits, (0, self.vocab.size - self.rows))

    def head_matrix(self) -> tuple[Tensor, None]:
        """See `Backbone.head_matrix`; the columns beyond its own, which nothing emits, are left out."""
        return self.wte.weight, None
