"""Published models: the names of tensors and keys of `config.json` of each family, folders of that
file with `model.safetensors` or `pytorch_model.bin`, and the Hub.

Families are Caduceus (arXiv 2403.03234; Caduceus-Ph and Caduceus-PS), MDLM's DiT (arXiv 2406.07524)
and GPT-2. Of a repository of the Hub data files alone are fetched, at one commit; no code of it is
run.
"""

import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

import torch
from annotated_types import Interval

from dnadiff.data.text.pretrained import Pretrained
from dnadiff.data.tokenizer import FILE_SETS, DNATokenizer
from dnadiff.diffusion.denoiser import BaseDenoiser, CausalDenoiser
from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import Config, Fraction, Json, JsonDict, Natural, check_arguments, check_value
from dnadiff.store.disk import atomic_write, check_output, read_json, read_small, write_json
from dnadiff.store.objects import build
from dnadiff.store.remote import fetch_hub, is_hub_commit
from dnadiff.weights.loaded import (
    CARD,
    CONFIG,
    DESCRIPTION,
    DESCRIPTION_KEY,
    TENSORS,
    VOCAB_KEY,
    Loaded,
    Origin,
    UnknownTokenizer,
    described_config,
    filled_network,
    layout_of,
    names_file,
    with_vocab,
    wrapped,
)

_LICENSE = re.compile(r"^license: *[\"']?([\w.-]{1,60})[\"']? *$", re.MULTILINE)
# A file with larger values is damaged or hostile.
Width = Annotated[int, Interval(ge=1, le=2**16)]
Layers = Annotated[int, Interval(ge=1, le=2**12)]
Count = Annotated[int, Interval(ge=1, le=2**24)]
T = TypeVar("T")


class Family(NamedTuple):
    """One family of published models that unmask tokens: how its `config.json` is read.

    Attributes:
        objective: class of the published training.
        implied_vocab: of a configuration, the vocabulary if the file does not describe one.
        backbone: of a configuration and its vocabulary, the network, as a `_target_` and its
            arguments; ValueError for a value of the wrong type or size, or that is not supported.
    """

    objective: str
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
    return kind(**check_arguments(kind, config))


# The keys of published files that are read; those of the initialization are not.
@dataclass(frozen=True)
class _Caduceus:
    d_model: Width
    n_layer: Layers
    vocab_size: Count
    pad_vocab_size_multiple: Width = 8
    ssm_cfg: JsonDict | None = None
    rms_norm: bool = True
    norm_epsilon: Fraction = 1e-5
    residual_in_fp32: bool = True
    fused_add_norm: bool = True
    bidirectional_strategy: str | None = None
    bidirectional_weight_tie: bool = True
    rcps: bool = False
    complement_map: JsonDict | None = None
    dnadiff_labels: JsonDict | None = None


@dataclass(frozen=True)
class _Mamba:
    d_state: Width = 16
    d_conv: Width = 4
    expand: Width = 2
    dt_rank: Width | Literal["auto"] | None = None
    time_conditioning: bool = False  # no key of published files


@dataclass(frozen=True)
class _Labels:
    num_labels: Natural
    cond_dim: Width


def caduceus_backbone(config: Config, vocab: Vocab) -> Config:
    """See `Family.backbone`."""
    given = _read(_Caduceus, config, bidirectional=True, tie_word_embeddings=True)
    ssm = _read(_Mamba, given.ssm_cfg or {}, layer="Mamba1", conv_bias=True, bias=False)
    labels = given.dnadiff_labels
    pad = given.pad_vocab_size_multiple
    table = given.complement_map
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
    return Vocab.ending_in_mask(check_value("vocab_size", config["vocab_size"], Count))


FAMILIES = {
    "caduceus": Family("mlm.MLM", lambda config: DNATokenizer().vocab, caduceus_backbone),
    "mdlm": Family("mdlm.MDLM", mdlm_vocab, mdlm_backbone),
}


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
    path = Path(folder)
    source = f"{folder}@{revision}" if revision else str(folder)
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
            "says how the model was trained; copy the complete folder, or export the model again"
        )
    family = FAMILIES[config["model_type"]]
    with names_file(path / CONFIG):
        described = check_value(VOCAB_KEY, config.get(VOCAB_KEY), dict | None)
        vocab = family.implied_vocab(config) if described is None else _read(Vocab, described)
        backbone = family.backbone(config, vocab)
    training = {
        "backbone": backbone,
        "objective": {
            "_target_": f"dnadiff.diffusion.objective.{family.objective}",
            "_partial_": True,
        },
        "noise": {"_target_": "dnadiff.diffusion.noise.LogLinear"},
        "time_conditioning": (config | backbone).get("time_conditioning", False),
    }
    denoiser, process, file = filled_network(
        path, CONFIG, lambda: wrapped(build(backbone, vocab=vocab), training)
    )
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
    denoiser, *_ = filled_network(
        path, CONFIG, lambda: (CausalDenoiser(build(backbone, vocab=vocab)), None)
    )
    return denoiser.eval()


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

    if denoiser.backbone.columns is not None and not needs_description:
        raise ValueError(
            "published formats have no columns of an alignment; use python -m dnadiff.export"
        )
    path = Path(folder)
    config = described_config(denoiser.backbone, denoiser.time_conditioning)
    if needs_description:
        config[DESCRIPTION_KEY] = DESCRIPTION
    for name in (CONFIG, TENSORS[0]):
        check_output(path / name, overwrite)
    layout = layout_of(denoiser)
    weights = {
        name: tensor.to(dtype or tensor.dtype)
        for tensor, names in layout.weights
        for name in (names if duplicate_tied else names[:1])
    }
    copies = {
        name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in (weights | dict(layout.constants)).items()
    }
    content = save(copies, metadata={"format": "pt"})
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
            f"{path} describes a model of type {model_type!r}; expected {', '.join(model_types)}"
        )
    return config


def load_folder(folder: Path) -> Loaded:
    """The model of a folder in a published layout, with its tokenizer and license."""
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
        head, *_ = read_small(card).decode().split("\n---", 1)
        if head.startswith("---\n") and (found := _LICENSE.search(head)):
            return found[1]
    return None
