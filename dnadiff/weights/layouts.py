"""The published forms of networks: names of tensors and keys of `config.json`, for reading and
writing.

Families are Caduceus (arXiv 2403.03234; Caduceus-Ph and Caduceus-PS), MDLM's DiT (arXiv 2406.07524)
and GPT-2. Files, folders and the Hub are in `dnadiff.weights.published`.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from dnadiff import fields as checks
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import Config, Json
from dnadiff.networks.backbone import caduceus_ps as rc
from dnadiff.networks.backbone.base import Backbone
from dnadiff.networks.backbone.caduceus import BiMambaBackbone
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.gpt2 import GPT2
from dnadiff.networks.backbone.layers import RMSNorm
from dnadiff.networks.backbone.mamba_backbone import MambaBlock
from dnadiff.networks.backbone.mixer import BiMamba
from dnadiff.weights.tensors import listing

MAX_WIDTH, MAX_LAYERS, MAX_VOCAB = (
    2**16,
    2**12,
    2**24,
)  # a file with larger values is damaged or hostile
_DESCRIPTIONS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    dict: "an object",
    list: "a list of integers",
}


@dataclass(frozen=True)
class Key:
    """What one key may hold.

    Attributes:
        kind: bool, int, float, str, dict or list, as in JSON; an integer is a number, a boolean is
            not.
        default: the value of an absent key; without one the key is required.
        minimum: smallest number.
        maximum: largest number.
        null: null is allowed and means the default.
        keyword: a string that is allowed instead of a number and means the default.
        only: the single value that these networks support.
        argument: the network's constructor argument that has this value, if there is one.
    """

    kind: type
    default: Json = ...
    minimum: float = 1
    maximum: float = MAX_WIDTH
    null: bool = False
    keyword: str | None = None
    only: Json = ...
    argument: str | None = None

    def read(self, name: str, config: Mapping[str, Json]) -> Json:
        """The value of key `name`.

        Raises:
            KeyError: if it is absent and has no default.
            ValueError: if its type or size is wrong, or these networks do not support the value.
        """
        if name not in config and self.default is ...:
            raise KeyError(name)
        value = config.get(name, self.default)
        if (
            name not in config
            or (value is None and self.null)
            or (self.keyword is not None and value == self.keyword)
        ):
            return self.default
        kinds = (int, float) if self.kind is float else self.kind
        is_number = self.kind in (int, float)
        fits = isinstance(value, kinds) and isinstance(value, bool) == (self.kind is bool)
        fits = fits and (self.kind is not list or all(type(item) is int for item in value))
        if not fits or (
            is_number and not (checks.is_number(value) and self.minimum <= value <= self.maximum)
        ):
            limits = f" from {self.minimum:g} to {self.maximum:g}" if is_number else ""
            raise ValueError(
                f"{name} is {str(value)[:40]!r}, expected {_DESCRIPTIONS[self.kind]}{limits}"
            )
        if self.only is not ... and value != self.only:
            raise ValueError(
                f"{name} is {value}, but these networks support only {name} {self.only}"
            )
        return value


def read_keys(config: Mapping[str, Json], keys: Mapping[str, Key]) -> Config:
    """The values of all `keys` in a config; other keys are ignored. Raises as `Key.read`."""
    return {name: key.read(name, config) for name, key in keys.items()}


def arguments(values: Config, keys: Mapping[str, Key]) -> Config:
    """The constructor arguments of a network among the values that `read_keys` returns."""
    return {key.argument: values[name] for name, key in keys.items() if key.argument}


@dataclass(frozen=True)
class PublishedLayout:
    """The published form of one network.

    Attributes:
        config: the contents of its `config.json`.
        weights: the network's own tensors, as views of the published shape, each with its names in
            files. A tied tensor has several names; a file needs one of them.
        constants: further tensors that files may hold and that follow from the configuration.
    """

    config: Config
    weights: Sequence[tuple[Tensor, tuple[str, ...]]]
    constants: Mapping[str, Tensor]

    def tensors(
        self, duplicate_tied: bool = True, dtype: torch.dtype | None = None
    ) -> dict[str, Tensor]:
        """The contents of a file: detached copies of all tensors, tied ones under all their names
        or under the first; weights as `dtype`."""
        weights = {
            name: tensor.to(dtype or tensor.dtype)
            for tensor, names in self.weights
            for name in (names if duplicate_tied else names[:1])
        }
        return {
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in (weights | dict(self.constants)).items()
        }

    @torch.no_grad()
    def fill(self, given: Mapping[str, Tensor], source: Path | str) -> None:
        """Copy the tensors of a file into the network.

        Raises:
            ValueError: listing tensors that are missing, surplus, of the wrong shape, or different
                from the tensor to which they are tied or from a constant.
        """
        self.check(given, source)
        _refuse(list(self._differences(given)), source)
        for tensor, names in self.weights:
            tensor.copy_(next(given[name] for name in names if name in given))

    def check(self, given: Mapping[str, Tensor], source: Path | str) -> None:
        """Check names, shapes and types only, as `fill` does first; also works for a network on the
        meta device."""
        _refuse(list(self._misfits(given)), source)

    def _misfits(self, given: Mapping[str, Tensor]) -> Iterator[str]:
        known = set(self.constants)
        for tensor, names in self.weights:
            known.update(names)
            found = [name for name in names if name in given]
            if not found:
                yield f"missing {names[0]}"
            for name in found:
                if given[name].shape != tensor.shape:
                    yield f"{name} is {tuple(given[name].shape)}, expected {tuple(tensor.shape)}"
                elif not given[name].is_floating_point():
                    yield f"{name} holds {given[name].dtype}, expected floating point"
        yield from (f"surplus {name}" for name in given if name not in known)
        for name, constant in self.constants.items():
            if name in given and given[name].shape != constant.shape:
                yield f"{name} is {tuple(given[name].shape)}, expected {tuple(constant.shape)}"

    def _differences(self, given: Mapping[str, Tensor]) -> Iterator[str]:
        for tensor, names in self.weights:
            first, *others = (name for name in names if name in given)
            for name in others:
                if not torch.equal(given[name].to(tensor), given[first].to(tensor)):
                    yield f"{name} differs from {first}, to which it is tied"
        for name, constant in self.constants.items():
            if name in given and not torch.allclose(given[name].float(), constant.cpu().float()):
                yield f"{name} differs from the value that follows from the configuration"


class Family(ABC):
    """One family of published models that unmask tokens: how its `config.json` is read.

    Attributes:
        records_time: the file records whether the network is conditioned on time.
        objective: of the published training, as in a training configuration.
    """

    records_time: bool = False
    objective: ClassVar[Config]

    @abstractmethod
    def implied_vocab(self, config: Config) -> Vocab:
        """The vocabulary of a model whose file does not describe one."""

    @abstractmethod
    def backbone(self, config: Config, vocab: Vocab) -> Config:
        """The network that a published `config.json` describes, as a `_target_` and its arguments.

        Raises:
            KeyError: if a size is missing.
            ValueError: if a value has the wrong type or size, or is not supported.
        """


@singledispatch
def published_layout(network: Backbone) -> PublishedLayout:
    """The published form of a network, by its class; ValueError if there is none."""
    raise ValueError(
        f"{type(network).__name__} has no published format; caduceus, caduceus_ps and dit have one"
    )


def _refuse(faults: Sequence[str], source: Path | str) -> None:
    if faults:
        raise ValueError(f"the weights in {source} do not fit its configuration: {listing(faults)}")


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
_CADUCEUS_KEYS = {
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

    objective: ClassVar[Config] = {
        "_target_": "dnadiff.diffusion.objective.mlm.MLM",
        "_partial_": True,
    }

    @override
    def implied_vocab(self, config: Config) -> Vocab:
        return DNATokenizer().vocab

    @override
    def backbone(self, config: Config, vocab: Vocab) -> Config:
        given = read_keys(config, _CADUCEUS_KEYS)
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
        common = arguments(given, _CADUCEUS_KEYS) | arguments(ssm, _SSM_KEYS)
        if given[LABELS_KEY] is not None:
            common |= read_keys(given[LABELS_KEY], _LABEL_KEYS)
        common["pad_vocab_to"] = pad if math.ceil(vocab.size / pad) * pad == rows else rows
        if given["rcps"]:
            return {
                "_target_": "dnadiff.networks.backbone.caduceus_ps.CaduceusPS",
                "swap_strands": given["fused_add_norm"],
                **common,
            }
        return {"_target_": "dnadiff.networks.backbone.caduceus.Caduceus", **common}


def _agrees(table: Mapping[str | int, Json], vocab: Vocab) -> bool:
    complement = vocab.complement or range(vocab.size)
    return all(table.get(str(i), table.get(i)) == j for i, j in enumerate(complement))


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
_MDLM_KEYS = {
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
    objective: ClassVar[Config] = {
        "_target_": "dnadiff.diffusion.objective.mdlm.MDLM",
        "_partial_": True,
    }

    @override
    def implied_vocab(self, config: Config) -> Vocab:
        """Any tokens, with the mask as the last id."""
        last = _MDLM_KEYS["vocab_size"].read("vocab_size", config) - 1
        return Vocab(size=last + 1, mask_id=last, pad_id=last, never_emitted=(last,))

    @override
    def backbone(self, config: Config, vocab: Vocab) -> Config:
        return {
            "_target_": "dnadiff.networks.backbone.dit.DiT",
            **arguments(read_keys(config, _MDLM_KEYS), _MDLM_KEYS),
        }


FAMILIES: dict[str, Family] = {"caduceus": CaduceusFamily(), "mdlm": MDLMFamily()}


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


_GPT2_KEYS = {
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


def gpt2_backbone(config: Config) -> Config:
    """The network that a published `config.json` of GPT-2 describes, as a `_target_` and its
    arguments; errors as `Family.backbone`."""
    given = read_keys(config, _GPT2_KEYS)
    start = given["vocab_size"] - 1 if given["bos_token_id"] is None else given["bos_token_id"]
    return {
        "_target_": "dnadiff.networks.backbone.gpt2.GPT2",
        "start": start,
        **arguments(given, _GPT2_KEYS),
    }
