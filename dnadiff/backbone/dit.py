"""DiT: the bidirectional transformer of MDLM (arXiv 2406.07524, appendix C; after arXiv 2212.09748) with rotary positions and adaLN."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from typing_extensions import override

from dnadiff import checks
from dnadiff.backbone.attention import Angles, AttentionBackbone, AttentionBlock, AttentionOptions
from dnadiff.backbone.base import BidirectionalBackbone
from dnadiff.backbone.conditioning import SigmaMap, modulate
from dnadiff.backbone.layers import KernelLinear, LayerNorm, at_least_float32
from dnadiff.checks import PositiveInt
from dnadiff.vocab import Vocab


class DiTBlock(AttentionBlock):
    """Attention and a feed-forward network, each scaled, shifted and gated by the noise level (adaLN-zero).

    A condition that all sequences share, as without time conditioning, is folded into parameters: scale and shift into weight and bias of
    the norm, the gate into the preceding matrix. This takes one operation per layer instead of one per token.
    """

    def __init__(self, d_model: PositiveInt, n_heads: PositiveInt, cond_dim: PositiveInt, mlp_ratio: int, dropout: float) -> None:
        super().__init__(d_model, n_heads, mlp_ratio, dropout)
        self.adaLN_modulation = nn.Linear(cond_dim, 6 * d_model)
        nn.init.zeros_(self.adaLN_modulation.weight)
        nn.init.zeros_(self.adaLN_modulation.bias)

    def feed_forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D); `gate (D,)` multiplies the result."""
        return self.mlp[2](self.mlp[1](self.mlp[0](x)), gate)

    def forward(self, x: Tensor, condition: Tensor, angles: Angles, mask: Tensor | None) -> Tensor:
        """(B, L, D), condition (B, cond_dim) or (1, cond_dim) for all sequences -> (B, L, D)."""
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.adaLN_modulation(condition).chunk(6, dim=-1)
        if len(condition) == 1:
            x = x + self.dropout(self.attend(self.norm1(x, scale_a[0], shift_a[0]), angles, mask, gate=gate_a[0]))
            return x + self.dropout(self.feed_forward(self.norm2(x, scale_m[0], shift_m[0]), gate_m[0]))
        h = modulate(self.norm1(x), shift_a[:, None], scale_a[:, None])
        x = x + gate_a[:, None] * self.dropout(self.attend(h, angles, mask))
        h = modulate(self.norm2(x), shift_m[:, None], scale_m[:, None])
        return x + gate_m[:, None] * self.dropout(self.feed_forward(h))


class FinalNorm(nn.Module):
    """The last adaLN and the linear map to logits; `forward` is the norm alone, which completes `features`."""

    def __init__(self, d_model: PositiveInt, rows: int, cond_dim: PositiveInt) -> None:
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


class DiT(AttentionBackbone, BidirectionalBackbone):
    """The published DiT. Its modules have the published names, so that published weights load unchanged.

    Args:
        vocab: the vocabulary; one embedding row per id, not tied to the head.
        n_layers: number of blocks.
        cond_dim: width of the noise-level embedding.
        d_model, n_heads, **options: as in `AttentionBackbone`.

    Example:
        >>> import torch
        >>> from dnadiff.data.tokenizer import DNATokenizer
        >>> network = DiT(DNATokenizer().vocab, d_model=16, n_layers=2, n_heads=2)
        >>> logits = network(torch.tensor([[7, 8, 9, 10]]))  # A, C, G, T
        >>> logits.shape, bool((logits == 0).all())  # the head starts at zero
        (torch.Size([1, 4, 12]), True)
    """

    def __init__(
        self,
        vocab: Vocab,
        d_model: PositiveInt = 128,
        n_layers: PositiveInt = 4,
        n_heads: PositiveInt = 4,
        cond_dim: PositiveInt = 128,
        **options: Unpack[AttentionOptions],
    ) -> None:
        super().__init__(vocab, d_model, n_heads, takes_sigma=True, **options)
        d_model, n_heads, cond_dim = self.d_model, self.n_heads, checks.integer("backbone.cond_dim", cond_dim)
        self.vocab_embed = nn.ParameterDict({"embedding": nn.Parameter(torch.empty(vocab.size, d_model))})
        nn.init.kaiming_uniform_(self.vocab_embed["embedding"], a=math.sqrt(5))
        self.sigma_map = SigmaMap(cond_dim)
        self.blocks = self.stack(n_layers, lambda: DiTBlock(d_model, n_heads, cond_dim, self.mlp_ratio, self.dropout))
        self.output_layer = FinalNorm(d_model, vocab.size, cond_dim)

    @override
    def features(self, ids: Tensor, sigma: Tensor | None = None, cond: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        self.check_inputs(ids, sigma, cond)
        # Without time conditioning MDLM's network receives sigma = 0.
        condition = silu(self.sigma_map(torch.zeros(1, device=ids.device) if sigma is None else sigma))
        x = nn.functional.embedding(ids, self.vocab_embed["embedding"])
        mask = None if valid is None else valid[:, None, None, :]
        x = self.through_blocks(x, condition, self.rotary_emb.angles(ids.shape[1], ids.device), mask)
        return self.output_layer(x, condition)

    @override
    def head(self, features: Tensor) -> Tensor:
        return at_least_float32(self.output_layer.linear(features))

    @override
    def head_matrix(self) -> tuple[Tensor, Tensor | None]:
        return self.output_layer.linear.weight, self.output_layer.linear.bias
