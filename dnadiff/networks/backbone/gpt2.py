"""GPT-2, to evaluate samples of text with published weights. It is not trained here and has no
yaml.

Learned positions, biases everywhere, a head tied to the embedding (the architecture of GPT-2 as the
Hugging Face Hub holds it).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from typing_extensions import override

from dnadiff.diffusion.vocab import Vocab
from dnadiff.networks.backbone.base import CausalBackbone
from dnadiff.networks.backbone.layers import LayerNorm, at_least_float32


class GPT2Block(nn.Module):
    """Causal attention and a feed-forward network, each after a norm."""

    def __init__(self, d_model: int, n_heads: int, inner: int, eps: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.ln_1, self.ln_2 = (
            LayerNorm(d_model, eps, bias=True),
            LayerNorm(d_model, eps, bias=True),
        )
        self.attn_in, self.attn_out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, inner), nn.GELU(approximate="tanh"), nn.Linear(inner, d_model)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        batch, length, width = x.shape
        q, k, v = (
            self.attn_in(self.ln_1(x))
            .view(batch, length, 3, self.n_heads, -1)
            .permute(2, 0, 3, 1, 4)
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.ln_2(x))


class GPT2(CausalBackbone):
    """The published network for a vocabulary that may have further ids, each of which is read as
    the token that starts a text.

    `CausalDenoiser` starts every text with the mask, which GPT-2 does not have.

    Args:
        vocab: the published ids first; further ids must be in `never_emitted`.
        d_model, n_layers, n_heads: as in `Transformer`.
        max_length: number of positions.
        rows: number of published ids.
        start: the id that starts a text.
        inner: width of the feed-forward networks; None is 4 D.
        eps: epsilon of the norms.

    Raises:
        ValueError: if a further id could be emitted.
    """

    def __init__(
        self, vocab: Vocab, d_model: int, n_layers: int, n_heads: int, max_length: int, rows: int,
        start: int,
        inner: int | None = None, eps: float = 1e-5,
    ) -> None:  # fmt: skip
        super().__init__(vocab, d_model)
        if (
            vocab.size < rows
            or not set(range(rows, vocab.size)) <= set(vocab.never_emitted)
            or not 0 <= start < rows
        ):
            raise ValueError(
                f"this GPT-2 has {rows} tokens; the tokenizer has {vocab.size}, and those beyond "
                "may only be mask and padding"
            )
        self.max_length, self.rows, self.start = max_length, rows, start
        self.wte, self.wpe = nn.Embedding(rows, d_model), nn.Embedding(max_length, d_model)
        self.blocks = nn.ModuleList(
            GPT2Block(d_model, n_heads, inner or 4 * d_model, eps) for _ in range(n_layers)
        )
        self.ln_f = LayerNorm(d_model, eps, bias=True)

    @property
    @override
    def trunk(self) -> nn.ModuleList:
        return self.blocks

    @override
    def embed(self, ids: Tensor) -> Tensor:
        return self.wte(torch.where(ids < self.rows, ids, self.start))

    @override
    def mix(
        self,
        h: Tensor,
        sigma: Tensor | None = None,
        cond: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Tensor:
        # `valid` is not needed: padding is at the end, where causal attention does not see it
        x = h + self.wpe.weight[: h.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.ln_f(x)

    @override
    def head(self, features: Tensor) -> Tensor:
        logits = at_least_float32(nn.functional.linear(features, self.wte.weight))
        return nn.functional.pad(
            logits, (0, self.vocab.size - self.rows)
        )  # further ids have logit 0

    @override
    def head_matrix(self) -> tuple[Tensor, None]:
        return self.wte.weight, None  # without the further ids, which are never emitted
