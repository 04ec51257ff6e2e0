"""Published MDLM checkpoints (arXiv 2406.07524): parameter names of the DiT and its
`config.json`."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from dnadiff.backbone.dit import DiT
from dnadiff.config import Config
from dnadiff.published.keys import MAX_LAYERS, MAX_VOCAB, Key, arguments, read_keys
from dnadiff.published.layout import Family, PublishedLayout, published_layout
from dnadiff.vocab import Vocab


@published_layout.register
def dit_layout(network: DiT) -> PublishedLayout:
    """The layout of MDLM's DiT, without `time_conditioning`; ValueError if the network has another
    `mlp_ratio` or no layers."""
    if network.mlp_ratio != 4 or not len(network.blocks):
        raise ValueError(
            f"the published DiT has mlp_ratio 4 and layers, not mlp_ratio {network.mlp_ratio} and "
            f"{len(network.blocks)} layers"
        )
    config = {
        "model_type": "mdlm",
        "architectures": ["MDLM"],
        "vocab_size": len(network.vocab_embed["embedding"]),
        "model_length": network.max_length,
        "hidden_dim": network.d_model,
        "cond_dim": network.sigma_map.mlp[-1].out_features,
        "n_blocks": len(network.blocks),
        "n_heads": network.n_heads,
        "dropout": network.dropout,
        "tie_word_embeddings": False,
    }
    weights = [(p.data, (f"backbone.{name}",)) for name, p in network.named_parameters()]
    return PublishedLayout(
        config, weights, {"backbone.rotary_emb.inv_freq": network.rotary_emb.frequencies()}
    )


# The keys of a published config.json; `vocab_size` belongs to the vocabulary and
# `time_conditioning` to the denoiser.
_KEYS = {
    "vocab_size": Key(int, minimum=2, maximum=MAX_VOCAB),
    "hidden_dim": Key(int, argument="d_model"),
    "n_blocks": Key(int, maximum=MAX_LAYERS, argument="n_layers"),
    "n_heads": Key(int, argument="n_heads"),
    "cond_dim": Key(int, argument="cond_dim"),
    "dropout": Key(float, 0.1, minimum=0, maximum=1, argument="dropout"),
    "model_length": Key(int, None, maximum=MAX_VOCAB, null=True, argument="max_length"),
    "time_conditioning": Key(bool, False),
}


class MDLMFamily(Family):
    """MDLM's DiT."""

    records_time = True
    objective: ClassVar[Config] = {"_target_": "dnadiff.objective.mdlm.MDLM", "_partial_": True}

    @override
    def implied_vocab(self, config: Config) -> Vocab:
        """Any tokens, with the mask as the last id."""
        last = _KEYS["vocab_size"].read("vocab_size", config) - 1
        return Vocab(size=last + 1, mask_id=last, pad_id=last, never_emitted=(last,))

    @override
    def backbone(self, config: Config, vocab: Vocab) -> Config:
        return {
            "_target_": "dnadiff.backbone.dit.DiT",
            **arguments(read_keys(config, _KEYS), _KEYS),
        }
