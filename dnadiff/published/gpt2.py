"""Published GPT-2 checkpoints: parameter names and `config.json`."""

from __future__ import annotations

import torch

from dnadiff.backbone.gpt2 import GPT2
from dnadiff.config import Config
from dnadiff.published.keys import MAX_LAYERS, MAX_VOCAB, Key, arguments, read_keys
from dnadiff.published.layout import PublishedLayout, published_layout


@published_layout.register
def gpt2_layout(network: GPT2) -> PublishedLayout:
    """The layout of GPT-2; published files store the matrices transposed."""
    names = {
        "attn_in": "attn.c_attn",
        "attn_out": "attn.c_proj",
        "mlp.0": "mlp.c_fc",
        "mlp.2": "mlp.c_proj",
    }
    weights = []
    for name, p in network.named_parameters():
        for ours, theirs in names.items():
            name = name.replace(f".{ours}.", f".{theirs}.")
        transposed = p.ndim == 2 and not name.startswith(("wte", "wpe"))
        own = name.replace("blocks.", "h.")
        tied = ["lm_head.weight"] if own == "wte.weight" else []
        weights.append((p.data.t() if transposed else p.data, (own, f"transformer.{own}", *tied)))
    # Old files also hold the causal mask and the value of masked scores.
    seen = torch.ones(len(network.wpe.weight), len(network.wpe.weight)).tril()[None, None]
    held = {"attn.bias": seen, "attn.masked_bias": torch.tensor(-1e4)}
    places = [
        f"{start}h.{number}.{name}"
        for start in ("", "transformer.")
        for number in range(len(network.blocks))
        for name in held
    ]
    constants = {place: held[".".join(place.split(".")[-2:])] for place in places}
    return PublishedLayout({"model_type": "gpt2"}, weights, constants)


_KEYS = {
    "vocab_size": Key(int, minimum=2, maximum=MAX_VOCAB, argument="rows"),
    "n_embd": Key(int, argument="d_model"),
    "n_layer": Key(int, maximum=MAX_LAYERS, argument="n_layers"),
    "n_head": Key(int, argument="n_heads"),
    "n_positions": Key(int, maximum=MAX_VOCAB, argument="max_length"),
    "n_inner": Key(int, None, maximum=MAX_VOCAB, null=True, argument="inner"),
    "layer_norm_epsilon": Key(float, 1e-5, minimum=0, maximum=1, argument="eps"),
    "bos_token_id": Key(int, None, minimum=0, maximum=MAX_VOCAB, null=True),
    "activation_function": Key(str, "gelu_new", only="gelu_new"),
    "scale_attn_weights": Key(bool, True, only=True),
    "scale_attn_by_inverse_layer_idx": Key(bool, False, only=False),
    "add_cross_attention": Key(bool, False, only=False),
    "tie_word_embeddings": Key(bool, True, only=True),
}


def from_published(config: Config) -> Config:
    """The network that a published `config.json` of GPT-2 describes, as a `_target_` and its
    arguments; errors as `Family.backbone`."""
    given = read_keys(config, _KEYS)
    start = given["vocab_size"] - 1 if given["bos_token_id"] is None else given["bos_token_id"]
    return {"_target_": "dnadiff.backbone.gpt2.GPT2", "start": start, **arguments(given, _KEYS)}
