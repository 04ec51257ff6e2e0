"""Causal transformers: DiT's blocks without adaLN, each position attending to itself and to earlier
ones; and GPT-2, to evaluate samples of text with published weights.

GPT-2 is not trained here and has no yaml. It has learned positions, biases everywhere, and a head
tied to the embedding (the architecture of GPT-2 as the Hugging Face Hub holds it).
"""

import math
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import PositiveInt, checked
from dnadiff.networks.backbone.attention import (
    Angles,
    AttentionBackbone,
    AttentionBlock,
    CachedAttention,
    Mask,
)
from dnadiff.networks.backbone.base import CausalBackbone, OptTensor, PublishedLayout, State
from dnadiff.networks.backbone.layers import KernelLinear, LayerNorm, at_least_float32

_CAUSAL = partial(scaled_dot_product_attention, is_causal=True)


class TransformerBlock(AttentionBlock):
    """Causal attention and a feed-forward network, each after a norm (arXiv 1706.03762, pre-norm)
    and with rotary positions."""

    def forward(self, x: Tensor, angles: Angles, mask: Mask) -> Tensor:
        """(B, L, D) -> (B, L, D); mask (B, 1, L, L), how to attend, or None for plain causal
        attention."""
        x = x + self.dropout(self.attend(self.norm1(x), angles, _CAUSAL if mask is None else mask))
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
        **options: Annotated[Any, AttentionBackbone],
    ) -> None:
        super().__init__(vocab, d_model, n_heads, takes_sigma=False, **options)
        self.embedding = nn.Embedding(vocab.size, d_model)
        self.blocks = self.stack(
            n_layers, lambda: TransformerBlock(d_model, n_heads, self.mlp_ratio, self.dropout)
        )
        self.norm_f = LayerNorm(d_model)
        self.linear = KernelLinear(d_model, vocab.size)
        # As in GPT-2: standard deviation 0.02, divided by sqrt(2 n_layers) where a matrix writes
        # to the residual stream; a head of zeros.
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

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding(ids)

    def mix(self, h: Tensor, sigma: OptTensor, cond: OptTensor, valid: OptTensor) -> Tensor:
        mask = None
        length = h.shape[1]
        if valid is not None:
            earlier = torch.ones(length, length, dtype=torch.bool, device=h.device).tril()
            itself = torch.eye(length, dtype=torch.bool, device=h.device)
            # padding attends to itself, so that no row is empty
            mask = ((earlier & valid[:, None, :]) | itself)[:, None]
        angles = self.rotary_emb.angles(length, h.device)
        return self.norm_f(self.through_blocks(h, angles, mask))

    def read(
        self, ids: Tensor, state: State | None = None, cond: OptTensor = None
    ) -> tuple[Tensor, State]:
        self.check_inputs(ids, None, cond)
        state = state or State([])
        size = ids.shape[1]
        length = state.length + size
        if self.max_length is not None and length > self.max_length:
            raise ValueError(
                f"length {length} exceeds what this Transformer was built for; use a length of at "
                f"most {self.max_length}"
            )
        earlier = torch.ones(size, length, dtype=torch.bool, device=ids.device).tril(state.length)
        angles = self.rotary_emb.angles(size, ids.device, state.length)
        x = self.embedded(ids, cond)
        tensors = list[Tensor]()
        for number, block in enumerate(self.blocks):
            cached = state.tensors[2 * number : 2 * number + 2]
            attention = CachedAttention(cached, earlier if size > 1 else None)
            # not a compiled one: it would be compiled again for each length
            x = block.forward(x, angles, attention)
            tensors += attention.cached
        return self.norm_f(x), State(tensors, length)

    def head(self, features: Tensor) -> Tensor:
        return at_least_float32(self.linear(features))

    def head_matrix(self) -> tuple[Tensor, OptTensor]:
        return self.linear.weight, self.linear.bias


class GPT2Block(nn.Module):
    """Causal attention and a feed-forward network, each after a norm."""

    def __init__(self, d_model: int, n_heads: int, inner: int, eps: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.ln_1 = LayerNorm(d_model, eps, bias=True)
        self.ln_2 = LayerNorm(d_model, eps, bias=True)
        self.attn_in = nn.Linear(d_model, 3 * d_model)
        self.attn_out = nn.Linear(d_model, d_model)
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
        self.max_length = max_length
        self.rows = rows
        self.start = start
        self.wte = nn.Embedding(rows, d_model)
        self.wpe = nn.Embedding(max_length, d_model)
        self.blocks = nn.ModuleList(
            GPT2Block(d_model, n_heads, inner or 4 * d_model, eps) for _ in range(n_layers)
        )
        self.ln_f = LayerNorm(d_model, eps, bias=True)

    @property
    def trunk(self) -> nn.ModuleList:
        return self.blocks

    def embed(self, ids: Tensor) -> Tensor:
        return self.wte(torch.where(ids < self.rows, ids, self.start))

    def mix(self, h: Tensor, sigma: OptTensor, cond: OptTensor, valid: OptTensor) -> Tensor:
        # `valid` is not needed: padding is at the end, where causal attention does not see it
        x = h + self.wpe.weight[: h.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.ln_f(x)

    def head(self, features: Tensor) -> Tensor:
        logits = at_least_float32(nn.functional.linear(features, self.wte.weight))
        return nn.functional.pad(
            logits, (0, self.vocab.size - self.rows)
        )  # further ids have logit 0

    def head_matrix(self) -> tuple[Tensor, None]:
        return self.wte.weight, None  # without the further ids, which are never emitted

    def published_layout(self) -> PublishedLayout:
        """The layout of GPT-2; published files store the matrices transposed."""
        ours_theirs = {
            "blocks.": "h.",
            ".attn_in.": ".attn.c_attn.",
            ".attn_out.": ".attn.c_proj.",
            ".mlp.0.": ".mlp.c_fc.",
            ".mlp.2.": ".mlp.c_proj.",
        }
        weights = []
        for name, p in self.named_parameters():
            for ours, theirs in ours_theirs.items():
                name = name.replace(ours, theirs)
            transposed = p.ndim == 2 and not name.startswith(("wte", "wpe"))
            tied = ["lm_head.weight"] if name == "wte.weight" else []
            published = name, f"transformer.{name}", *tied
            weights.append((p.data.t() if transposed else p.data, published))
        # Old files also hold the causal mask and the value of masked scores.
        seen = torch.ones(len(self.wpe.weight), len(self.wpe.weight)).tril()[None, None]
        held = {"attn.bias": seen, "attn.masked_bias": torch.tensor(-1e4)}
        constants = {
            f"{start}h.{number}.{name}": value
            for start in ("", "transformer.")
            for number in range(len(self.blocks))
            for name, value in held.items()
        }
        return PublishedLayout({"model_type": "gpt2"}, weights, constants)
