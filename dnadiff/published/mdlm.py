"""Published MDLM checkpoints (arXiv 2406.07524): parameter names of the DiT and its `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnadiff.backbone.dit import DiT
from dnadiff.published.keys import DEEPEST, LARGEST, Key, settings
from dnadiff.published.layout import PublishedLayout, published_layout


@published_layout.register
def dit_layout(network: DiT) -> PublishedLayout:
    """The layout of MDLM's DiT; `time_conditioning` is the denoiser's. Raises ValueError for another `mlp_ratio` or no layers."""
    if network.mlp_ratio != 4 or not len(network.blocks):
        raise ValueError(
            f"the published DiT has mlp_ratio 4 and layers, not mlp_ratio {network.mlp_ratio} and {len(network.blocks)} layers"
        )
    config = {
        "model_type": "mdlm",
        "architectures": ["MDLM"],
        "vocab_size": len(network.vocab_embed["embedding"]),
        "model_length": network.max_length,
        "hidden_dim": network.d_model,
        "cond_dim": network.sigma_map.mlp[-1].out_features,
        "n_blocks": len(network.blocks),
        "n_heads": network.blocks[0].n_heads,
        "dropout": network.blocks[0].dropout.p,
        "tie_word_embeddings": False,
    }
    weights = [(p.data, (f"backbone.{name}",)) for name, p in network.named_parameters()]
    return PublishedLayout(config, weights, {"backbone.rotary_emb.inv_freq": network.rotary_emb.frequencies()})


# What a published config.json says; `vocab_size` and `time_conditioning` are the alphabet's and the denoiser's.
_KEYS = {
    "vocab_size": Key(int, least=2, most=LARGEST),
    "hidden_dim": Key(int),
    "n_blocks": Key(int, most=DEEPEST),
    "n_heads": Key(int),
    "cond_dim": Key(int),
    "dropout": Key(float, 0.1, least=0, most=1),
    "model_length": Key(int, None, most=LARGEST, null=True),
    "time_conditioning": Key(bool, False),
}


def from_published(config: Mapping[str, Any]) -> dict[str, Any]:
    """The network that a published `config.json` of MDLM describes, as a `_target_` and its arguments.

    Raises:
        KeyError: if a size is not given.
        ValueError: if a value is of the wrong type or size.
    """
    given = settings(config, _KEYS)
    return {
        "_target_": "dnadiff.backbone.dit.DiT",
        "d_model": given["hidden_dim"],
        "n_layers": given["n_blocks"],
        "n_heads": given["n_heads"],
        "cond_dim": given["cond_dim"],
        "dropout": given["dropout"],
        "max_length": given["model_length"],
    }
