"""GPT-2 with its published weights, to judge samples of text by; it is not trained here, and no yaml names it.

Learned positions, biases everywhere, a head tied to the embedding (the architecture of GPT-2 as the Hugging Face Hub holds it).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from dnadiff.backbone.base import Backbone
from dnadiff.backbone.layers import LayerNorm, widened
from dnadiff.backbone.layout import Layout
from dnadiff.backbone.settings import DEEPEST, LARGEST, Key, settings
from dnadiff.vocab import Vocab


class Block(nn.Module):
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
        self.blocks = nn.ModuleList(Block(d_model, n_heads, inner or 4 * d_model, eps) for _ in range(n_layers))
        self.ln_f = LayerNorm(d_model, eps, bias=True)

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

    def published(self) -> Layout:
        """See `Backbone.published`; matrices lie transposed there."""
        names = {"attn_in": "attn.c_attn", "attn_out": "attn.c_proj", "mlp.0": "mlp.c_fc", "mlp.2": "mlp.c_proj"}
        weights = []
        for name, p in self.named_parameters():
            for ours, theirs in names.items():
                name = name.replace(f".{ours}.", f".{theirs}.")
            turned = p.ndim == 2 and not name.startswith(("wte", "wpe"))
            own = name.replace("blocks.", "h.")
            weights.append(
                (p.data.t() if turned else p.data, (own, f"transformer.{own}", *(["lm_head.weight"] if own == "wte.weight" else [])))
            )
        seen = torch.ones(self.max_length, self.max_length).tril()[None, None]  # old files hold what a position may see, and minus infinity
        held = {"attn.bias": seen, "attn.masked_bias": torch.tensor(-1e4)}
        places = [f"{start}h.{number}.{name}" for start in ("", "transformer.") for number in range(len(self.blocks)) for name in held]
        constants = {place: held[".".join(place.split(".")[-2:])] for place in places}
        return Layout({"model_type": "gpt2"}, weights, constants)


_KEYS = {
    "vocab_size": Key(int, least=2, most=LARGEST),
    "n_embd": Key(int),
    "n_layer": Key(int, most=DEEPEST),
    "n_head": Key(int),
    "n_positions": Key(int, most=LARGEST),
    "n_inner": Key(int, None, most=LARGEST, null=True),
    "layer_norm_epsilon": Key(float, 1e-5, least=0, most=1),
    "bos_token_id": Key(int, None, least=0, most=LARGEST, null=True),
    "activation_function": Key(str, "gelu_new", only="gelu_new"),
    "scale_attn_weights": Key(bool, True, only=True),
    "scale_attn_by_inverse_layer_idx": Key(bool, False, only=False),
    "add_cross_attention": Key(bool, False, only=False),
    "tie_word_embeddings": Key(bool, True, only=True),
}


def from_published(config: Mapping[str, Any]) -> dict[str, Any]:
    """The network that a published `config.json` of GPT-2 describes, as a `_target_` and its arguments.

    Raises:
        KeyError: if a size is not given.
        ValueError: if a value is of the wrong type or size, or means another network.
    """
    given = settings(config, _KEYS)
    return {
        "_target_": "dnadiff.backbone.gpt2.GPT2",
        "d_model": given["n_embd"],
        "n_layers": given["n_layer"],
        "n_heads": given["n_head"],
        "max_length": given["n_positions"],
        "rows": given["vocab_size"],
        "start": given["vocab_size"] - 1 if given["bos_token_id"] is None else given["bos_token_id"],
        "inner": given["n_inner"],
        "eps": given["layer_norm_epsilon"],
    }
