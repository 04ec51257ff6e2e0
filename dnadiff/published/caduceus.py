"""Published Caduceus checkpoints (arXiv 2403.03234): parameter names of Caduceus-Ph and
Caduceus-PS, and their `config.json`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import ClassVar

import torch
from typing_extensions import override

from dnadiff.backbone import rc
from dnadiff.backbone.caduceus import BiMambaBackbone
from dnadiff.backbone.caduceus_ps import CaduceusPS
from dnadiff.backbone.layers import RMSNorm
from dnadiff.backbone.mamba_backbone import MambaBlock
from dnadiff.backbone.mixer import BiMamba
from dnadiff.config import Config, Json
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.published.keys import MAX_LAYERS, MAX_VOCAB, Key, arguments, read_keys
from dnadiff.published.layout import Family, PublishedLayout, published_layout
from dnadiff.vocab import Vocab

LABELS_KEY = "dnadiff_labels"  # not a published key: written for a network with labels


@published_layout.register
def caduceus_layout(network: BiMambaBackbone) -> PublishedLayout:
    """The layout of Caduceus-Ph; ValueError if the network has time conditioning or no layers.

    Deviation: a network with labels has `dnadiff_labels` in its config.json and tensors of other
        names for them. Published code reports these tensors as unused, and its network is this one
        without a label.
    """
    if network.takes_sigma:
        raise ValueError(
            "the published Caduceus has no time conditioning; a network built with it cannot be "
            "exported"
        )
    block = network.layers[0]
    assert isinstance(block, MambaBlock) and isinstance(block.mixer, BiMamba)
    mixer, direction = block.mixer, block.mixer.fwd
    tied = mixer.in_proj_rev is None
    config = {
        "model_type": "caduceus",
        "architectures": ["CaduceusForMaskedLM"],
        "d_model": mixer.in_proj.in_features,
        "n_layer": len(network.layers),
        "vocab_size": network.embedding.num_embeddings,
        "pad_vocab_size_multiple": network.pad_vocab_to,
        "ssm_cfg": {
            "d_state": direction.d_state,
            "d_conv": direction.conv_weight.shape[1],
            "expand": mixer.out_proj.in_features // mixer.in_proj.in_features,
            "dt_rank": direction.dt_rank,
            "conv_bias": True,
            "bias": False,
        },
        "rms_norm": isinstance(network.norm_f, RMSNorm),
        "norm_epsilon": network.norm_f.eps,
        "residual_in_fp32": network.residual_in_fp32,
        "fused_add_norm": True,
        "bidirectional": True,
        "bidirectional_strategy": mixer.strategy,
        "bidirectional_weight_tie": tied,
        "rcps": False,
        "complement_map": None,
        "tie_word_embeddings": True,
    }
    if network.condition is not None:
        label_map = network.condition.label_map
        assert label_map is not None
        config[LABELS_KEY] = {
            "num_labels": label_map.in_features,
            "cond_dim": label_map.out_features,
        }
    # The published convolution is a Conv1d with one input channel per group: (E, 1, K).
    shaped = {
        own: p.data.unsqueeze(1) if own.endswith("conv_weight") else p.data
        for own, p in network.named_parameters()
    }
    return PublishedLayout(
        config, [(tensor, published_names(own, tied)) for own, tensor in shaped.items()], {}
    )


@published_layout.register
def caduceus_ps_layout(network: CaduceusPS) -> PublishedLayout:
    """The layout of Caduceus-PS: that of Caduceus-Ph with other names for the modules that run once
    per strand; errors as there."""
    layout, wrapped = (
        caduceus_layout(network),
        [".mixer."] if network.swap_strands else [".mixer.", ".norm.", ".norm_f."],
    )

    def rename(name: str) -> str:
        name = name.replace("word_embeddings.", "word_embeddings.embedding.").replace(
            "lm_head.", "lm_head.lm_head."
        )
        for part in wrapped:  # modules that the published code runs once per strand
            name = name.replace(part, f"{part}submodule.")
        return name

    with torch.device("cpu"):  # also for a network on the meta device
        complement = rc.complement_table(network.vocab, network.embedding.num_embeddings)
    table = {str(i): j for i, j in enumerate(complement.tolist())}
    return PublishedLayout(
        layout.config
        | {"rcps": True, "fused_add_norm": network.swap_strands, "complement_map": table},
        [(tensor, tuple(map(rename, names))) for tensor, names in layout.weights],
        {
            f"{where}.complement_map": complement
            for where in ("caduceus.backbone.embeddings.word_embeddings", "lm_head")
        },
    )


def published_names(own: str, tied: bool) -> tuple[str, ...]:
    """The names of a parameter in published Caduceus-Ph files; tied ones have two."""
    if own == "embedding.weight":
        return "caduceus.backbone.embeddings.word_embeddings.weight", "lm_head.weight"
    name = f"caduceus.backbone.{own}"
    if projection := re.fullmatch(r"(.*\.mixer)\.(in_proj|out_proj)(_rev)?\.weight", name):
        where, which, rev = projection.groups()
        directions = ("rev",) if rev else ("fwd", "rev") if tied else ("fwd",)
        return tuple(f"{where}.mamba_{direction}.{which}.weight" for direction in directions)
    name = re.sub(r"\.mixer\.(fwd|rev)\.", r".mixer.mamba_\1.", name)
    return (
        re.sub(
            r"\.dt_(weight|bias)$",
            r".dt_proj.\1",
            re.sub(r"\.conv_(weight|bias)$", r".conv1d.\1", name),
        ),
    )


# The keys of a published config.json that are read; keys of the initialization are not.
_KEYS = {
    "d_model": Key(int, argument="d_model"),
    "n_layer": Key(int, maximum=MAX_LAYERS, argument="n_layers"),
    "vocab_size": Key(int, maximum=MAX_VOCAB),
    "pad_vocab_size_multiple": Key(int, 8),
    "ssm_cfg": Key(dict, {}, null=True),
    "rms_norm": Key(bool, True, argument="rms_norm"),
    "norm_epsilon": Key(float, 1e-5, minimum=0, maximum=1, argument="norm_eps"),
    "residual_in_fp32": Key(bool, True, argument="residual_in_fp32"),
    "fused_add_norm": Key(bool, True),
    "bidirectional": Key(bool, True, only=True),
    "bidirectional_strategy": Key(str, "add", null=True, argument="bidirectional_strategy"),
    "bidirectional_weight_tie": Key(bool, True, argument="bidirectional_weight_tie"),
    "rcps": Key(bool, False),
    "complement_map": Key(dict, None, null=True),
    "tie_word_embeddings": Key(bool, True, only=True),
    LABELS_KEY: Key(dict, None, null=True),
}
_LABEL_KEYS = {
    "num_labels": Key(int, argument="num_labels"),
    "cond_dim": Key(int, argument="cond_dim"),
}
_SSM_KEYS = {
    "layer": Key(str, "Mamba1", only="Mamba1"),
    "d_state": Key(int, 16, argument="d_state"),
    "d_conv": Key(int, 4, argument="d_conv"),
    "expand": Key(int, 2, argument="expand"),
    "dt_rank": Key(int, None, keyword="auto", argument="dt_rank"),
    "conv_bias": Key(bool, True, only=True),
    "bias": Key(bool, False, only=False),
}


class CaduceusFamily(Family):
    """Caduceus-Ph and Caduceus-PS."""

    objective: ClassVar[Config] = {"_target_": "dnadiff.objective.mlm.MLM", "_partial_": True}

    @override
    def implied_vocab(self, config: Config) -> Vocab:
        return DNATokenizer().vocab

    @override
    def backbone(self, config: Config, vocab: Vocab) -> Config:
        given = read_keys(config, _KEYS)
        ssm, pad, table = (
            read_keys(given["ssm_cfg"], _SSM_KEYS),
            given["pad_vocab_size_multiple"],
            given["complement_map"],
        )
        rows = math.ceil(given["vocab_size"] / pad) * pad
        if not 0 <= rows - vocab.size < max(pad, 8) or (
            table is not None and not _agrees(table, vocab)
        ):
            raise ValueError(
                f"vocab_size {given['vocab_size']} with complement_map {table} does not describe "
                f"the {vocab.size} ids of DNA"
            )
        common = arguments(given, _KEYS) | arguments(ssm, _SSM_KEYS)
        if given[LABELS_KEY] is not None:
            common |= read_keys(given[LABELS_KEY], _LABEL_KEYS)
        common["pad_vocab_to"] = pad if math.ceil(vocab.size / pad) * pad == rows else rows
        if given["rcps"]:
            return {
                "_target_": "dnadiff.backbone.caduceus_ps.CaduceusPS",
                "swap_strands": given["fused_add_norm"],
                **common,
            }
        return {"_target_": "dnadiff.backbone.caduceus.Caduceus", **common}


def _agrees(table: Mapping[str | int, Json], vocab: Vocab) -> bool:
    complement = vocab.complement or range(vocab.size)
    return all(table.get(str(i), table.get(i)) == j for i, j in enumerate(complement))
