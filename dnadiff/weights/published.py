"""Published models: the names of tensors and keys of `config.json` of each family, folders of that
file with `model.safetensors` or `pytorch_model.bin`, and the Hub.

Families are Caduceus (arXiv 2403.03234; Caduceus-Ph and Caduceus-PS), MDLM's DiT (arXiv 2406.07524)
and GPT-2. Of a repository of the Hub data files alone are fetched, at one commit; no code of it is
run.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import singledispatch
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar, get_type_hints

import torch
from annotated_types import Interval
from torch import Tensor

from dnadiff.data.text.pretrained import Pretrained
from dnadiff.data.tokenizer import FILE_SETS, DNATokenizer
from dnadiff.diffusion.denoiser import BaseDenoiser, CausalDenoiser
from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import Config, Fraction, Json, Natural, check_value
from dnadiff.networks.backbone.base import Backbone
from dnadiff.networks.backbone.caduceus_ps import CaduceusPS, complement_table
from dnadiff.networks.backbone.dit import DiT
from dnadiff.networks.backbone.layers import RMSNorm
from dnadiff.networks.backbone.mamba import BiMambaBackbone, MambaBlock
from dnadiff.networks.backbone.mixer import BiMamba
from dnadiff.networks.backbone.transformer import GPT2
from dnadiff.store.disk import atomic_write, check_output, read_json, write_json
from dnadiff.store.objects import build
from dnadiff.store.remote import fetch_hub, is_hub_commit
from dnadiff.weights import tensors
from dnadiff.weights.loaded import (
    CARD,
    CONFIG,
    DESCRIPTION,
    FORMAT,
    MODEL,
    TENSORS,
    Loaded,
    Origin,
    UnknownTokenizer,
    build_denoiser,
    built_tokenizer,
    check_of,
    label_names,
    names_file,
    other_process,
    read_origin,
    with_vocab,
    wrapped,
)

# Not published keys: a vocabulary that is not the one that the format implies, and labels.
VOCAB_KEY, LABELS_KEY = "dnadiff_vocab", "dnadiff_labels"
# Not a published key: names that file, without which the objective would be unknown.
DESCRIPTION_KEY = "dnadiff_description"
_LICENSE = re.compile(r"^license: *[\"']?([\w.-]{1,60})[\"']? *$", re.MULTILINE)
_REMEDY = "use another copy of it"
_KEYS: Mapping[str, object] = {
    **dict.fromkeys(("backbone", "objective", "noise", "tokenizer", "origin"), dict),
    "time_conditioning": bool | None,
    "data": dict | None,
    "labels": list[str],
    "step": Natural,
    "fingerprint": str,
}
# A file with larger values is damaged or hostile.
Width = Annotated[int, Interval(ge=1, le=2**16)]
Layers = Annotated[int, Interval(ge=1, le=2**12)]
Count = Annotated[int, Interval(ge=1, le=2**24)]
T = TypeVar("T")


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
    def fill(self, given: Mapping[str, Tensor], source: Path) -> None:
        """Copy the tensors of a file, which `check` has seen, into the network.

        Raises:
            ValueError: listing tensors that are different from the tensor to which they are tied or
                from a constant.
        """
        faults = []
        for tensor, names in self.weights:
            first, *others = (name for name in names if name in given)
            faults += [
                f"{name} differs from {first}, to which it is tied"
                for name in others
                if not torch.equal(given[name].to(tensor), given[first].to(tensor))
            ]
            tensor.copy_(given[first])
        faults += [
            f"{name} differs from the value that follows from the configuration"
            for name, constant in self.constants.items()
            if name in given and not torch.allclose(given[name].float(), constant.cpu().float())
        ]
        tensors.refuse(faults, source)

    def check(self, given: Mapping[str, Tensor], source: Path) -> None:
        """Raise ValueError, listing tensors that are missing, surplus, or of the wrong shape or
        type; also works for a network on the meta device."""
        own = {name: tensor for name, tensor in self.constants.items() if name in given}
        for tensor, names in self.weights:
            own |= dict.fromkeys([name for name in names if name in given] or names[:1], tensor)
        faults = tensors.misfits(own, given) + [
            f"{name} holds {given[name].dtype}, expected floating point"
            for name in own.keys() & given.keys() - self.constants.keys()
            if not given[name].is_floating_point()
        ]
        tensors.refuse(faults, source)


class Family(NamedTuple):
    """One family of published models that unmask tokens: how its `config.json` is read.

    Attributes:
        objective: class of the published training.
        records_time: the file records whether the network is conditioned on time.
        implied_vocab: of a configuration, the vocabulary if the file does not describe one.
        backbone: of a configuration and its vocabulary, the network, as a `_target_` and its
            arguments; ValueError for a value of the wrong type or size, or that is not supported.
    """

    objective: str
    records_time: bool
    implied_vocab: Callable[[Config], Vocab]
    backbone: Callable[[Config, Vocab], Config]


def _read(kind: type[T], config: Mapping[str, Json], **only: Json) -> T:
    """The keys of a configuration that a dataclass has; others are ignored. `only`: the single
    values that these networks support."""
    for field in fields(kind):  # type: ignore[arg-type]  # a dataclass
        if field.name not in config and field.default is MISSING:
            raise KeyError(field.name)
    for name, value in only.items():
        if config.get(name, value) != value:
            raise ValueError(
                f"{name} is {config[name]}, but these networks support only {name} {value}"
            )
    hints = get_type_hints(kind, include_extras=True)
    return kind(
        **{
            name: check_value(name, config[name], hint)
            for name, hint in hints.items()
            if name in config
        }
    )


@singledispatch
def published_layout(network: Backbone) -> PublishedLayout:
    """The published form of a network, by its class; ValueError if there is none."""
    raise ValueError(
        f"{type(network).__name__} has no published format; caduceus, caduceus_ps and dit have one"
    )


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
    weights = [
        (p.data.unsqueeze(1) if own.endswith("conv_weight") else p.data, published_names(own, tied))
        for own, p in network.named_parameters()
    ]
    return PublishedLayout(config, weights, {})


@published_layout.register
def caduceus_ps_layout(network: CaduceusPS) -> PublishedLayout:
    """The layout of Caduceus-PS: that of Caduceus-Ph with other names for the modules that run once
    per strand; errors as there."""
    layout = caduceus_layout(network)
    per_strand = r"\.(mixer)\." if network.swap_strands else r"\.(mixer|norm|norm_f)\."

    def rename(name: str) -> str:
        name = re.sub(r"(word_)(embeddings)\.|(lm_head)\.", r"\g<0>\2\3.", name)
        name = name.replace("word_embeddings.embeddings.", "word_embeddings.embedding.")
        return re.sub(per_strand, r".\1.submodule.", name)

    with torch.device("cpu"):  # also for a network on the meta device
        complement = complement_table(network.vocab, network.embedding.num_embeddings)
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
    for ours, theirs in {
        r"\.mixer\.(fwd|rev)\.": r".mixer.mamba_\1.",
        r"\.conv_(weight|bias)$": r".conv1d.\1",
        r"\.dt_(weight|bias)$": r".dt_proj.\1",
    }.items():
        name = re.sub(ours, theirs, name)
    return (name,)


# The keys of published files that are read; those of the initialization are not.
@dataclass(frozen=True)
class _Caduceus:
    d_model: Width
    n_layer: Layers
    vocab_size: Count
    pad_vocab_size_multiple: Width = 8
    ssm_cfg: dict[str, Json] | None = None
    rms_norm: bool = True
    norm_epsilon: Fraction = 1e-5
    residual_in_fp32: bool = True
    fused_add_norm: bool = True
    bidirectional_strategy: str | None = None
    bidirectional_weight_tie: bool = True
    rcps: bool = False
    complement_map: dict[str, Json] | None = None
    dnadiff_labels: dict[str, Json] | None = None


@dataclass(frozen=True)
class _Mamba:
    d_state: Width = 16
    d_conv: Width = 4
    expand: Width = 2
    dt_rank: Width | Literal["auto"] | None = None


@dataclass(frozen=True)
class _Labels:
    num_labels: Width
    cond_dim: Width


def caduceus_backbone(config: Config, vocab: Vocab) -> Config:
    """See `Family.backbone`."""
    given = _read(_Caduceus, config, bidirectional=True, tie_word_embeddings=True)
    ssm = _read(_Mamba, given.ssm_cfg or {}, layer="Mamba1", conv_bias=True, bias=False)
    labels = given.dnadiff_labels
    pad, table = given.pad_vocab_size_multiple, given.complement_map
    rows = math.ceil(given.vocab_size / pad) * pad
    complement = vocab.complement or range(vocab.size)
    if not 0 <= rows - vocab.size < max(pad, 8) or (
        table is not None and any(table.get(str(i)) != j for i, j in enumerate(complement))
    ):
        raise ValueError(
            f"vocab_size {given.vocab_size} with complement_map {table} does not describe "
            f"the {vocab.size} ids of DNA"
        )
    kind = "caduceus_ps.CaduceusPS" if given.rcps else "caduceus.Caduceus"
    return {
        "_target_": f"dnadiff.networks.backbone.{kind}",
        **({"swap_strands": given.fused_add_norm} if given.rcps else {}),
        "d_model": given.d_model,
        "n_layers": given.n_layer,
        "rms_norm": given.rms_norm,
        "norm_eps": given.norm_epsilon,
        "residual_in_fp32": given.residual_in_fp32,
        "bidirectional_strategy": given.bidirectional_strategy or "add",
        "bidirectional_weight_tie": given.bidirectional_weight_tie,
        **asdict(ssm),
        "dt_rank": None if ssm.dt_rank == "auto" else ssm.dt_rank,
        **({} if labels is None else asdict(_read(_Labels, labels))),
        "pad_vocab_to": pad if math.ceil(vocab.size / pad) * pad == rows else rows,
    }


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


@dataclass(frozen=True)
class _MDLM:
    vocab_size: Count
    hidden_dim: Width
    n_blocks: Layers
    n_heads: Width
    cond_dim: Width
    dropout: Fraction = 0.1
    model_length: Count | None = None
    time_conditioning: bool = False


def mdlm_backbone(config: Config, vocab: Vocab) -> Config:
    """See `Family.backbone`."""
    given = _read(_MDLM, config)
    return {
        "_target_": "dnadiff.networks.backbone.dit.DiT",
        "d_model": given.hidden_dim,
        "n_layers": given.n_blocks,
        "n_heads": given.n_heads,
        "cond_dim": given.cond_dim,
        "dropout": given.dropout,
        "max_length": given.model_length,
    }


def mdlm_vocab(config: Config) -> Vocab:
    """Any tokens, with the mask as the last id."""
    last = check_value("vocab_size", config["vocab_size"], Count) - 1
    return Vocab(size=last + 1, mask_id=last, pad_id=last, never_emitted=(last,))


FAMILIES = {
    "caduceus": Family("mlm.MLM", False, lambda config: DNATokenizer().vocab, caduceus_backbone),
    "mdlm": Family("mdlm.MDLM", True, mdlm_vocab, mdlm_backbone),
}


@published_layout.register
def gpt2_layout(network: GPT2) -> PublishedLayout:
    """The layout of GPT-2; published files store the matrices transposed."""
    names = {
        "blocks.": "h.",
        ".attn_in.": ".attn.c_attn.",
        ".attn_out.": ".attn.c_proj.",
        ".mlp.0.": ".mlp.c_fc.",
        ".mlp.2.": ".mlp.c_proj.",
    }
    weights = []
    for name, p in network.named_parameters():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        transposed = p.ndim == 2 and not name.startswith(("wte", "wpe"))
        tied = ["lm_head.weight"] if name == "wte.weight" else []
        weights.append((p.data.t() if transposed else p.data, (name, f"transformer.{name}", *tied)))
    # Old files also hold the causal mask and the value of masked scores.
    seen = torch.ones(len(network.wpe.weight), len(network.wpe.weight)).tril()[None, None]
    held = {"attn.bias": seen, "attn.masked_bias": torch.tensor(-1e4)}
    constants = {
        f"{start}h.{number}.{name}": value
        for start in ("", "transformer.")
        for number in range(len(network.blocks))
        for name, value in held.items()
    }
    return PublishedLayout({"model_type": "gpt2"}, weights, constants)


@dataclass(frozen=True)
class _GPT2:
    vocab_size: Count
    n_embd: Width
    n_layer: Layers
    n_head: Width
    n_positions: Count
    n_inner: Count | None = None
    layer_norm_epsilon: Fraction = 1e-5
    bos_token_id: Natural | None = None


def gpt2_backbone(config: Config) -> Config:
    """The network that a published `config.json` of GPT-2 describes, as a `_target_` and its
    arguments; errors as `Family.backbone`."""
    given = _read(
        _GPT2,
        config,
        activation_function="gelu_new",
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    return {
        "_target_": "dnadiff.networks.backbone.transformer.GPT2",
        "start": given.vocab_size - 1 if given.bos_token_id is None else given.bos_token_id,
        "rows": given.vocab_size,
        "d_model": given.n_embd,
        "n_layers": given.n_layer,
        "n_heads": given.n_head,
        "max_length": given.n_positions,
        "inner": given.n_inner,
        "eps": given.layer_norm_epsilon,
    }


def load_published(
    folder: str | os.PathLike[str], revision: str | None = None, vocab: Vocab | None = None
) -> BaseDenoiser:
    """The model of a published folder: Caduceus-Ph, Caduceus-PS or MDLM's DiT; see `read`.

    Args:
        folder, revision: as in `read`.
        vocab: of the tokenizer of a text model (`loaded.with_vocab`); None is the published
            one, in which MDLM's padding and mask are one id.
    """
    found = read(folder, revision)
    if vocab is None:
        return found.denoiser
    network = with_vocab(found.denoiser.backbone, found.config, vocab, found.path.parent)
    return wrapped(network, found.config)[0].eval()


def read(folder: str | os.PathLike[str], revision: str | None = None) -> Loaded:
    """The model of a published folder of any family. Folders hold no tokenizer of text: see
    `Loaded.with_tokenizer`.

    Args:
        folder: a folder, or a Hub id `organization/name` or `organization/name@revision`.
        revision: the commit to take from the Hub, 40 hexadecimal digits; a folder has none.

    Raises:
        FileNotFoundError: if the folder lacks a file; also the `dnadiff.json` of an exported model.
        ValueError: if a file is damaged, the model is of another type, or tensors are missing or
            surplus (they are listed).
    """
    path, source = Path(folder), f"{folder}@{revision}" if revision else str(folder)
    if not path.is_dir() and re.fullmatch(r"[\w.-]+/[\w.-]+(@.*)?", source):
        if not is_hub_commit(source):
            raise ValueError(
                f"{folder} is not a local folder; to fetch it from the Hub, name a commit: add "
                "revision=, or @, with its 40 hexadecimal digits"
            )
        for name in TENSORS:
            path = fetch_hub(source, (CONFIG,), (DESCRIPTION, name))
            if (path / name).is_file():
                break
    config = read_config(path / CONFIG, FAMILIES)
    if DESCRIPTION_KEY in config and not (path / DESCRIPTION).is_file():
        # It would be taken for a model of the published objective.
        raise FileNotFoundError(
            f"{path / DESCRIPTION} is missing: this folder was exported by dnadiff, and that file "
            "says how the model was trained; "
            "copy the complete folder, or export the model again"
        )
    family = FAMILIES[config["model_type"]]
    with names_file(path / CONFIG):
        described = check_value(VOCAB_KEY, config.get(VOCAB_KEY), dict | None)
        vocab = family.implied_vocab(config) if described is None else _read(Vocab, described)
        backbone = family.backbone(config, vocab)
    make = names_file(path / CONFIG)(lambda: build(backbone, vocab=vocab))
    network, file = filled_network(path, make)
    training: Config = {
        "backbone": backbone,
        "objective": {
            "_target_": f"dnadiff.diffusion.objective.{family.objective}",
            "_partial_": True,
        },
        "noise": {"_target_": "dnadiff.diffusion.noise.LogLinear"},
        "time_conditioning": family.records_time and config.get("time_conditioning", False),
    }
    denoiser, process = wrapped(network, training)
    dna = DNATokenizer()
    tokenizer = dna if vocab == dna.vocab else UnknownTokenizer(vocab, path)
    return Loaded(denoiser.eval(), process, tokenizer, training, file, 0)


def load_gpt2(folder: str | os.PathLike[str], vocab: Vocab) -> CausalDenoiser:
    """GPT-2 from a folder, in evaluation mode, to evaluate samples. Texts start with its own start
    token. Errors as `read`.

    Args:
        folder: holds `config.json` and the weights.
        vocab: of its tokenizer; further ids (a mask, padding) are never emitted.
    """
    path = Path(folder)
    config = read_config(path / CONFIG, ("gpt2",))
    with names_file(path / CONFIG):
        backbone = gpt2_backbone(config)
    make = names_file(path / CONFIG)(lambda: build(backbone, vocab=vocab))
    return CausalDenoiser(filled_network(path, make)[0]).eval()


def filled_network(path: Path, make: Callable[[], Backbone]) -> tuple[Backbone, Path]:
    """A network with the weights of a folder, and their file."""
    file = next((path / name for name in TENSORS if (path / name).is_file()), None)
    if file is None:
        raise FileNotFoundError(f"{path} holds neither {' nor '.join(TENSORS)}")
    given = tensors.read(file)
    if not isinstance(given, dict) or not all(isinstance(each, Tensor) for each in given.values()):
        raise ValueError(f"{file} is not a file of named tensors")
    # Before memory is allocated for a network that does not match the file.
    with tensors.without_memory(len(given), file):
        layout = published_layout(make())
    layout.check(given, file)
    tensors.check_memory(given.values(), file)
    with torch.random.fork_rng(devices=()):  # the initial weights are overwritten
        network = make()
    published_layout(network).fill(given, file)
    return network, file


def described_config(network: Backbone, time_conditioning: bool) -> Config:
    """The contents of the `config.json` of a network."""
    layout = published_layout(network)
    config, family = dict(layout.config), FAMILIES[layout.config["model_type"]]
    if family.records_time:
        config["time_conditioning"] = time_conditioning
    if family.implied_vocab(config) != network.vocab:
        config[VOCAB_KEY] = asdict(network.vocab)
    return config


def export_published(
    denoiser: BaseDenoiser,
    folder: str | os.PathLike[str],
    overwrite: bool = False,
    needs_description: bool = False,
    duplicate_tied: bool = True,
    dtype: torch.dtype | None = None,
) -> Path:
    """Write a Caduceus or a DiT in its published format: `config.json` and `model.safetensors`,
    each atomically.

    Args:
        overwrite: replace such files.
        needs_description: record in `config.json` that the model is not complete without a
            `dnadiff.json`; published code ignores it.
        duplicate_tied: write a tied tensor under each of its published names, as published code
            expects; False writes it once, under the first, as `safetensors.torch.save_model` does.
            This package loads both.
        dtype: of the weights in the file; None is that of the network. See `round_weights`.

    Raises:
        ValueError: if the network has parts that the format does not support.
        FileExistsError: if the folder holds such files and `overwrite` is false.
    """
    from safetensors.torch import save

    path, config = Path(folder), described_config(denoiser.backbone, denoiser.time_conditioning)
    if needs_description:
        config[DESCRIPTION_KEY] = DESCRIPTION
    for name in (CONFIG, TENSORS[0]):
        check_output(path / name, overwrite)
    layout = published_layout(denoiser.backbone)
    content = save(layout.tensors(duplicate_tied, dtype), metadata={"format": "pt"})
    with atomic_write(path / TENSORS[0], overwrite, len(content)) as file:
        file.write(content)
    write_json(path / CONFIG, config)
    return path


def read_config(path: Path, model_types: Collection[str]) -> Config:
    """The contents of a `config.json` of one of these model types."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; a published model is a folder of config.json and "
            f"{' or '.join(TENSORS)}"
        )
    config = read_json(path, remedy="use another copy of it")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in model_types:
        raise ValueError(
            f"{path} describes a model of type {model_type!r}; known are {', '.join(model_types)}"
        )
    return config


def load_folder(folder: Path, trust: Sequence[str]) -> Loaded:
    """The model of a folder that `python -m dnadiff.export` wrote, or of one in a published layout
    (Caduceus-Ph, Caduceus-PS, MDLM's DiT)."""
    if (folder / DESCRIPTION).is_file():
        return load_exported(folder, trust)
    found = read(folder)
    origin = Origin("published folder", license=license_in(folder / CARD))
    found = replace(found, origin=origin)
    if found.known_tokenizer is None and any(
        (folder / f"{name}{end}").is_file()
        for names in FILE_SETS
        for name in names
        for end in ("", ".gz")
    ):
        return found.with_tokenizer(Pretrained(str(folder), name=folder.name).load())
    return found


def license_in(card: Path) -> str | None:
    """The license that the metadata of a model card name; None if there is no card, or it names
    none."""
    with suppress(OSError, ValueError):
        head, *_ = card.read_text(encoding="utf-8").split("\n---", 1)
        if head.startswith("---\n") and (found := _LICENSE.search(head)):
            return found[1]
    return None


def read_description(folder: Path) -> Config:
    """The contents of the `dnadiff.json` in a folder, in which every key has its type.

    Raises:
        ValueError: if it is damaged or was changed, or another version of dnadiff wrote it.
    """
    path = folder / DESCRIPTION
    content = read_json(path, ("format",), _REMEDY)
    if content["format"] != FORMAT:
        raise ValueError(
            f"{path} has format {str(content['format'])[:40]!r}, and this version of dnadiff reads "
            f"{FORMAT}; update dnadiff"
        )
    if missing := [key for key in ("check", *_KEYS) if key not in content]:
        raise ValueError(f"{path} lacks {', '.join(missing)}; {_REMEDY}")
    if content["check"] != check_of(content):
        raise ValueError(
            f"{path} was changed after it was exported; {_REMEDY}, or export the model again"
        )
    with names_file(path):
        for key, hint in _KEYS.items():
            check_value(key, content[key], hint)
    return content


def load_exported(folder: Path, trust: Sequence[str]) -> Loaded:
    """The model of an exported folder.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, names classes that are not trusted, or the files are not
            of one model.
    """
    about, content = folder / DESCRIPTION, read_description(folder)
    for name in (CONFIG, TENSORS[0]):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder / name} does not exist; an exported model has it next to {DESCRIPTION}"
            )
    with names_file(about):
        origin = read_origin("exported folder", content["origin"])
        tokenizer = built_tokenizer(content["tokenizer"], trust, about)

    @names_file(about)
    def make() -> Backbone:
        return build_denoiser(content, tokenizer, trust)[0].backbone

    network, path = filled_network(folder, make)
    denoiser, process = wrapped(network, content, trust)
    # A folder without the key is complete if it has the file.
    expected, given = (
        {**json.loads(json.dumps(each)), DESCRIPTION_KEY: DESCRIPTION}
        for each in (
            described_config(network, denoiser.time_conditioning),
            read_json(folder / CONFIG, (), _REMEDY),
        )
    )
    if changed := sorted(
        key for key in given.keys() | expected.keys() if given.get(key) != expected.get(key)
    ):
        raise ValueError(
            f"{folder / CONFIG} and {DESCRIPTION} describe different networks: "
            f"{', '.join(changed)[:200]}; {_REMEDY}"
        )
    if tensors.fingerprint(denoiser) != content["fingerprint"]:
        raise ValueError(
            f"{path} holds different weights from those that {DESCRIPTION} describes; {_REMEDY}"
        )
    config = {key: content[key] for key in MODEL} | other_process(content)
    if content["data"] is not None:  # of published weights nothing is known
        config["data"] = content["data"]
    labels = label_names(content, network.num_labels)
    return Loaded(
        denoiser.eval(), process, tokenizer, config, path, int(content["step"]), labels, origin
    )
