"""Caduceus-Ph: a bidirectional Mamba for DNA (arXiv 2403.03234), with a language-model head tied to its embedding."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from dnadiff.backbone.blocks import MambaBackbone
from dnadiff.backbone.layers import RMSNorm
from dnadiff.backbone.layout import Layout
from dnadiff.backbone.mixer import BiMamba
from dnadiff.backbone.settings import DEEPEST, LARGEST, Key, settings
from dnadiff.vocab import Vocab


class Caduceus(MambaBackbone):
    """Embedding, `n_layers` bidirectional Mamba blocks, a final norm and a tied head.

    Deviation from the published code: the number of columns is `vocab.size` padded up to a multiple of
    `pad_vocab_to`, so the DNA alphabet of 12 has the published 16 rows.

    Args:
        vocab: the alphabet.
        d_model: width D.
        n_layers: number of blocks.
        d_state: N, states per channel.
        d_conv: taps of the short convolution.
        expand: inner width over D.
        dt_rank: rank of the step-size projection; None is D/16, rounded up.
        norm_eps: epsilon of every norm.
        rms_norm: RMSNorm; False takes LayerNorm with a bias.
        residual_in_fp32: keep the residual stream in float32 when the weights are narrower.
        bidirectional_strategy: `add` or `ew_multiply` the outputs of the two directions.
        bidirectional_weight_tie: share the projections between the directions.
        pad_vocab_to: the embedding's rows are rounded up to a multiple of this.
        num_labels: C, columns of `cond`; 0 is no labels.
        time_conditioning: take the noise level.
        cond_dim: width of what labels and noise level are mapped to.
        activation_checkpointing: keep each layer's input alone and compute the layer again in the backward pass.
        scan: which kernel runs the recurrence; `auto` takes the fastest that works here.
        compile: compile the blocks (`torch.compile`), which are alike.
    """

    def __init__(
        self,
        vocab: Vocab,
        d_model: int = 128,
        n_layers: int = 4,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
        norm_eps: float = 1e-5,
        rms_norm: bool = True,
        residual_in_fp32: bool = False,
        bidirectional_strategy: str = "add",
        bidirectional_weight_tie: bool = True,
        pad_vocab_to: int = 8,
        num_labels: int = 0,
        time_conditioning: bool = False,
        cond_dim: int = 128,
        activation_checkpointing: bool = False,
        scan: str = "auto",
        compile: bool = False,
    ) -> None:
        super().__init__(
            vocab,
            d_model,
            n_layers,
            partial(BiMamba, d_model, d_state, d_conv, expand, dt_rank, bidirectional_strategy, bidirectional_weight_tie),
            norm_eps=norm_eps,
            rms_norm=rms_norm,
            residual_in_fp32=residual_in_fp32,
            pad_vocab_to=pad_vocab_to,
            num_labels=num_labels,
            time_conditioning=time_conditioning,
            cond_dim=cond_dim,
            activation_checkpointing=activation_checkpointing,
            scan=scan,
            compile=compile,
        )

    def published(self) -> Layout:
        """See `Backbone.published`."""
        if self.condition is not None:
            raise ValueError("the published Caduceus has no labels and no time conditioning; a network built with them cannot be exported")
        if not len(self.layers):
            raise ValueError("a network without layers has no published form")
        mixer, direction = self.layers[0].mixer, self.layers[0].mixer.fwd
        tied = mixer.in_proj_rev is None
        config = {
            "model_type": "caduceus",
            "architectures": ["CaduceusForMaskedLM"],
            "d_model": mixer.in_proj.in_features,
            "n_layer": len(self.layers),
            "vocab_size": self.embedding.num_embeddings,
            "pad_vocab_size_multiple": self.pad_vocab_to,
            "ssm_cfg": {
                "d_state": direction.d_state,
                "d_conv": direction.conv_weight.shape[1],
                "expand": mixer.out_proj.in_features // mixer.in_proj.in_features,
                "dt_rank": direction.dt_rank,
                "conv_bias": True,
                "bias": False,
            },
            "rms_norm": isinstance(self.norm_f, RMSNorm),
            "norm_epsilon": self.norm_f.eps,
            "residual_in_fp32": self.residual_in_fp32,
            "fused_add_norm": True,
            "bidirectional": True,
            "bidirectional_strategy": mixer.strategy,
            "bidirectional_weight_tie": tied,
            "rcps": False,
            "complement_map": None,
            "tie_word_embeddings": True,
        }
        # The published convolution is a Conv1d with one input channel per group: (E, 1, K).
        weights = [
            (p.data.unsqueeze(1) if own.endswith("conv_weight") else p.data, published_names(own, tied))
            for own, p in self.named_parameters()
        ]
        return Layout(config, weights, {})


def published_names(own: str, tied: bool) -> tuple[str, ...]:
    """What published Caduceus-Ph files call a parameter of this module; tied ones have two names."""
    if own == "embedding.weight":
        return "caduceus.backbone.embeddings.word_embeddings.weight", "lm_head.weight"
    name = f"caduceus.backbone.{own}"
    if projection := re.fullmatch(r"(.*\.mixer)\.(in_proj|out_proj)(_rev)?\.weight", name):
        where, which, rev = projection.groups()
        directions = ("rev",) if rev else ("fwd", "rev") if tied else ("fwd",)
        return tuple(f"{where}.mamba_{direction}.{which}.weight" for direction in directions)
    name = re.sub(r"\.mixer\.(fwd|rev)\.", r".mixer.mamba_\1.", name)
    return (re.sub(r"\.dt_(weight|bias)$", r".dt_proj.\1", re.sub(r"\.conv_(weight|bias)$", r".conv1d.\1", name)),)


# What a published config.json says; keys that matter for initialisation alone are not read.
_KEYS = {
    "d_model": Key(int),
    "n_layer": Key(int, most=DEEPEST),
    "vocab_size": Key(int, most=LARGEST),
    "pad_vocab_size_multiple": Key(int, 8),
    "ssm_cfg": Key(dict, {}, null=True),
    "rms_norm": Key(bool, True),
    "norm_epsilon": Key(float, 1e-5, least=0, most=1),
    "residual_in_fp32": Key(bool, True),
    "fused_add_norm": Key(bool, True),
    "bidirectional": Key(bool, True, only=True),
    "bidirectional_strategy": Key(str, "add", null=True),
    "bidirectional_weight_tie": Key(bool, True),
    "rcps": Key(bool, False),
    "complement_map": Key(dict, None, null=True),
    "tie_word_embeddings": Key(bool, True, only=True),
}
_SSM_KEYS = {
    "layer": Key(str, "Mamba1", only="Mamba1"),
    "d_state": Key(int, 16),
    "d_conv": Key(int, 4),
    "expand": Key(int, 2),
    "dt_rank": Key(int, "auto", word="auto"),
    "conv_bias": Key(bool, True, only=True),
    "bias": Key(bool, False, only=False),
}


def from_published(config: Mapping[str, Any], vocab: Vocab) -> dict[str, Any]:
    """The network that a published `config.json` describes, as a `_target_` and its arguments.

    Raises:
        KeyError: if a size is not given.
        ValueError: if a value is of the wrong type or size, or asks for what these networks are not.
    """
    given = settings(config, _KEYS)
    ssm, pad, table = settings(given["ssm_cfg"], _SSM_KEYS), given["pad_vocab_size_multiple"], given["complement_map"]
    rows, rank = math.ceil(given["vocab_size"] / pad) * pad, ssm["dt_rank"]
    if not 0 <= rows - vocab.size < max(pad, 8) or (table is not None and not _agrees(table, vocab)):
        raise ValueError(
            f"vocab_size {given['vocab_size']} with complement_map {table} is another alphabet than the {vocab.size} ids of DNA"
        )
    arguments = {
        "_target_": "dnadiff.backbone.caduceus.Caduceus",
        "d_model": given["d_model"],
        "n_layers": given["n_layer"],
        "d_state": ssm["d_state"],
        "d_conv": ssm["d_conv"],
        "expand": ssm["expand"],
        "dt_rank": None if rank == "auto" else rank,
        "norm_eps": given["norm_epsilon"],
        "rms_norm": given["rms_norm"],
        "residual_in_fp32": given["residual_in_fp32"],
        "bidirectional_strategy": given["bidirectional_strategy"],
        "bidirectional_weight_tie": given["bidirectional_weight_tie"],
        "pad_vocab_to": pad if math.ceil(vocab.size / pad) * pad == rows else rows,
    }
    if given["rcps"]:
        ps = {"_target_": "dnadiff.backbone.caduceus_ps.CaduceusPS", "swap_strands": given["fused_add_norm"]}
        return arguments | ps
    return arguments


def _agrees(table: Mapping[str, Any], vocab: Vocab) -> bool:
    complement = vocab.complement or range(vocab.size)
    return all(table.get(str(i), table.get(i)) == j for i, j in enumerate(complement))
