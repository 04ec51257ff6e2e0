"""Loads and writes published models: folders of `config.json` with `model.safetensors` or
`pytorch_model.bin`, and the Hub.

The names of tensors and keys are in `layouts`; here are files, the choice of the family, and the
vocabulary. Of a repository of the Hub data files alone are fetched, at one commit; no code of it is
run.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from dnadiff.data.text.corpus import hub_is_reachable
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.diffusion.denoiser import BaseDenoiser, CausalDenoiser, Denoiser
from dnadiff.diffusion.noise import LogLinear
from dnadiff.diffusion.vocab import Vocab
from dnadiff.fields import Config
from dnadiff.networks.backbone.base import Backbone
from dnadiff.store.disk import atomic_write, check_output, read_json, write_json
from dnadiff.store.objects import build
from dnadiff.weights import tensors
from dnadiff.weights.layouts import (
    FAMILIES,
    MAX_VOCAB,
    Family,
    Key,
    PublishedLayout,
    gpt2_backbone,
    published_layout,
    read_keys,
)
from dnadiff.weights.loaded import with_vocab

CONFIG, TENSORS = "config.json", ("model.safetensors", "pytorch_model.bin")
NOISE: Config = {"_target_": "dnadiff.diffusion.noise.LogLinear"}  # of all published models
# not a published key: written if the vocabulary is not the one that the format implies
VOCAB_KEY = "dnadiff_vocab"
DESCRIPTION = (
    "dnadiff.json"  # next to the weights of an exported model; published folders have none
)
# not a published key: names that file, without which the objective would be unknown
DESCRIPTION_KEY = "dnadiff_description"
_HUB = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>.*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_PREFIX = "hf:"
_HUB_NAME = re.compile(rf"{HUB_PREFIX}(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
log = logging.getLogger("dnadiff")


@dataclass(frozen=True)
class PublishedModel:
    """A published model.

    Attributes:
        denoiser: in evaluation mode, with its weights.
        config: `backbone` (a `_target_` with arguments), `objective`, `noise` and
            `time_conditioning`, as in a training configuration.
        path: the folder it came from.
    """

    denoiser: BaseDenoiser
    config: Config
    path: Path

    @property
    def tokenizer(self) -> DNATokenizer | None:
        """Its tokenizer for DNA; None for text, because published folders hold no tokenizer: see
        `loaded.with_vocab`."""
        return DNATokenizer() if self.denoiser.vocab == DNATokenizer().vocab else None


def is_published(name: str | os.PathLike[str]) -> bool:
    """Whether `read` can load it: a folder with `config.json`, or a Hub id with a commit,
    `organization/name@<40 digits>`."""
    hub = _HUB.fullmatch(str(name))
    return (Path(name) / CONFIG).is_file() or bool(hub and _COMMIT.fullmatch(hub["revision"] or ""))


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
    return with_vocab(found.denoiser, found.config, vocab, found.path)


def read(folder: str | os.PathLike[str], revision: str | None = None) -> PublishedModel:
    """Load a published folder of any family.

    Args:
        folder: a folder, or a Hub id `organization/name` or `organization/name@revision`.
        revision: the commit to take from the Hub, 40 hexadecimal digits; a folder has none.

    Raises:
        FileNotFoundError: if the folder lacks a file; also the `dnadiff.json` of an exported model.
        ValueError: if a file is damaged, the model is of another type, or tensors are missing or
            surplus (they are listed).
    """
    path = Path(folder)
    if not path.is_dir() and (hub := _HUB.fullmatch(str(folder))):
        path = download(hub["repository"], revision or hub["revision"])
    config = read_config(path / CONFIG, FAMILIES)
    if (
        DESCRIPTION_KEY in config and not (path / DESCRIPTION).is_file()
    ):  # it would be taken for a model of the published objective
        raise FileNotFoundError(
            f"{path / DESCRIPTION} is missing: this folder was exported by dnadiff, and that file "
            "says how the model was trained; "
            "copy the complete folder, or export the model again"
        )
    family = FAMILIES[config["model_type"]]

    def described() -> tuple[Config, Vocab]:
        vocab = _vocab(config, family)
        return family.backbone(config, vocab), vocab

    network, backbone = _load_network(path, described)
    time_conditioning = family.records_time and config.get("time_conditioning", False)
    denoiser = Denoiser(
        network,
        noise=LogLinear() if time_conditioning else None,
        time_conditioning=time_conditioning,
    )
    described_by = {
        "backbone": backbone,
        "objective": dict(family.objective),
        "noise": dict(NOISE),
        "time_conditioning": time_conditioning,
    }
    return PublishedModel(denoiser.eval(), described_by, path)


def load_gpt2(folder: str | os.PathLike[str], vocab: Vocab) -> CausalDenoiser:
    """GPT-2 from a folder, in evaluation mode, to evaluate samples. Texts start with its own start
    token. Errors as `read`.

    Args:
        folder: holds `config.json` and the weights.
        vocab: of its tokenizer; further ids (a mask, padding) are never emitted.
    """
    config = read_config(Path(folder) / CONFIG, ("gpt2",))
    network, _ = _load_network(Path(folder), lambda: (gpt2_backbone(config), vocab))
    return CausalDenoiser(network).eval()


def _load_network(
    path: Path, described: Callable[[], tuple[Config, Vocab]]
) -> tuple[Backbone, Config]:
    """The network of a folder with its weights, and its configuration; `described` reads that and
    the vocabulary from `config.json`."""
    with _names_config(path):
        backbone, vocab = described()
    file = find_tensors(path)
    given = named_tensors(file)
    with _names_config(path), tensors.without_memory(len(given), file):
        layout = published_layout(build(backbone, vocab=vocab))
    layout.check(
        given, file
    )  # before memory is allocated for a network that does not match the file
    tensors.check_memory(given.values(), file)
    with torch.random.fork_rng(
        devices=()
    ):  # the initial weights are overwritten: keep the caller's random state
        network = build(backbone, vocab=vocab)
    published_layout(network).fill(given, file)
    return network, backbone


@contextmanager
def _names_config(path: Path) -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{path / CONFIG} lacks {error.args[0]}") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path / CONFIG}: {error}") from None


def described_config(denoiser: BaseDenoiser, layout: PublishedLayout) -> Config:
    """The contents of the `config.json` of a denoiser, given the layout of its network."""
    config = dict(layout.config)
    if FAMILIES[config["model_type"]].records_time:
        config["time_conditioning"] = denoiser.time_conditioning
    if _implied_vocab(layout) != denoiser.vocab:
        config[VOCAB_KEY] = asdict(denoiser.vocab)
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

    layout, path = published_layout(denoiser.backbone), Path(folder)
    config = described_config(denoiser, layout) | (
        {DESCRIPTION_KEY: DESCRIPTION} if needs_description else {}
    )
    for name in (CONFIG, TENSORS[0]):
        check_output(path / name, overwrite)
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


def find_tensors(path: Path) -> Path:
    """The file of tensors in a folder; safetensors if there are both."""
    for name in TENSORS:
        if (path / name).is_file():
            return path / name
    raise FileNotFoundError(f"{path} holds neither {' nor '.join(TENSORS)}")


def named_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; ValueError if it is damaged or holds anything else."""
    content = tensors.read(path)
    if not isinstance(content, dict) or not all(
        isinstance(value, Tensor) for value in content.values()
    ):
        raise ValueError(f"{path} is not a file of named tensors")
    return content


def download(repository: str, revision: str | None) -> Path:
    """Fetch a Hub repository at one commit, data files only; returns its local folder."""
    if not _COMMIT.fullmatch(revision or ""):
        raise ValueError(
            f"{repository} is not a local folder; to fetch it from the Hub, name a commit: add "
            "revision=, or @, with its 40 hexadecimal digits"
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ValueError(
            f"fetching {repository} needs huggingface_hub (pip install huggingface_hub); "
            f"or download {CONFIG} and {TENSORS[0]} and name their folder"
        ) from None
    for name in TENSORS:
        path = Path(
            snapshot_download(
                repository, revision=revision, allow_patterns=[CONFIG, DESCRIPTION, name]
            )
        )
        if (path / name).is_file():
            break
    return path


_VOCAB_KEYS = {
    "size": Key(int, minimum=2, maximum=MAX_VOCAB),
    "mask_id": Key(int, minimum=0, maximum=MAX_VOCAB),
    "pad_id": Key(int, minimum=0, maximum=MAX_VOCAB),
    "never_emitted": Key(list),
    "complement": Key(list, None, null=True),
}


def _vocab(config: Config, family: Family) -> Vocab:
    described = Key(dict, None).read(VOCAB_KEY, config)
    return (
        family.implied_vocab(config)
        if described is None
        else Vocab(**read_keys(described, _VOCAB_KEYS))
    )


def _implied_vocab(layout: PublishedLayout) -> Vocab:
    return FAMILIES[layout.config["model_type"]].implied_vocab(layout.config)


def parse_hub(name: str) -> tuple[str, str | None]:
    """Repository and revision of `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`; ValueError for another
    form."""
    found = _HUB_NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f"checkpoint {name} is not the name of a repository of the Hub; write hf:ORG/NAME or "
            "hf:ORG/NAME@REVISION"
        )
    return found["repository"], found["revision"]


def fetch_hub(
    repository: str, revision: str | None, required: Sequence[str], optional: Sequence[str] = ()
) -> Path:
    """Fetch files of a repository, and return their folder in the Hub's cache.

    If the Hub cannot be reached, the files of an earlier download are used, which is logged. If
    `revision` is not a commit (40 hexadecimal digits), the commit that it resolves to today, or
    without the Hub resolved to then, is logged.

    Raises:
        ValueError: if the files can neither be fetched nor are in the cache, or the repository
            lacks a required file; it says which files to put where.
    """
    listed = (
        f"{' and '.join(required)} (and {', '.join(optional)}, if they exist)"
        if optional
        else " and ".join(required)
    )
    remedy = (
        f"download {listed} of https://huggingface.co/{repository} into a folder, and give "
        "checkpoint=FOLDER"
    )
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(
            f"{HUB_PREFIX}{repository} needs huggingface_hub (pip install -e '.[hub]' in the "
            f"checkout); without it {remedy}"
        ) from None

    def snapshot(local_files_only: bool) -> Path:
        return Path(
            huggingface_hub.snapshot_download(
                repository,
                revision=revision,
                allow_patterns=[*required, *optional],
                local_files_only=local_files_only,
            )
        )

    # Several libraries raise, depending on what fails.
    try:
        if not hub_is_reachable():
            raise ConnectionError("there is no network, or HF_HUB_OFFLINE is set")
        # Raises where `snapshot_download` would use what is stored.
        huggingface_hub.HfApi().model_info(repository, revision=revision)
        path = snapshot(local_files_only=False)
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        stored = None
        with suppress(Exception):
            stored = snapshot(local_files_only=True)
        if stored is None or not all((stored / name).is_file() for name in required):
            raise ValueError(
                f"{HUB_PREFIX}{repository} could not be fetched from the Hugging Face Hub "
                f"({reason}), nor is it in the Hub's cache; {remedy}"
            ) from error
        log.info(
            f"{HUB_PREFIX}{repository}: not fetched ({reason}); the files of an earlier download "
            f"are used, commit {stored.name}"
        )
        path = stored
    if not _COMMIT.fullmatch(revision or ""):
        log.info(
            f"{HUB_PREFIX}{repository}: commit {path.name}; to pin it: "
            f"{HUB_PREFIX}{repository}@{path.name}"
        )
    if missing := [name for name in required if not (path / name).is_file()]:
        raise ValueError(
            f"{HUB_PREFIX}{repository} has no {' and no '.join(missing)}, and only weights in "
            f"safetensors are read; {remedy}"
        )
    return path
