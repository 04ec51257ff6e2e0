"""Published weights in and out: folders of `config.json` with `model.safetensors` or `pytorch_model.bin`, and the Hub.

The names of tensors and settings belong to the families (`caduceus`, `mdlm`, `gpt2`); here are files, the choice of the family, and
the vocabulary.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dnadiff.backbone.dit import DiT
from dnadiff.config import build
from dnadiff.data.files import atomic_write, check_output
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.denoiser import CausalDenoiser, Denoiser
from dnadiff.noise import LogLinear
from dnadiff.published import caduceus, gpt2, mdlm, tensors
from dnadiff.published.keys import LARGEST, Key, settings
from dnadiff.published.layout import published_layout
from dnadiff.vocab import Vocab

CONFIG, TENSORS = "config.json", ("model.safetensors", "pytorch_model.bin")
ALPHABET = "dnadiff_vocab"  # our own key, written where an alphabet is not the one that the format implies
_HUB = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>.*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class PublishedModel:
    """A published model.

    Attributes:
        denoiser: in evaluation mode, with its weights.
        config: `backbone`, a `_target_` with arguments, and `time_conditioning`, as in a training configuration.
        path: the folder it came from.
    """

    denoiser: Denoiser
    config: dict[str, Any]
    path: Path

    @property
    def tokenizer(self) -> DNATokenizer | None:
        """What turns letters into its ids; None for text, as published folders hold no tokenizer: see `over`."""
        return DNATokenizer() if self.denoiser.vocab == DNATokenizer().vocab else None

    def over(self, vocab: Vocab) -> PublishedModel:
        """The same model of text over the alphabet of a tokenizer, which may have ids of its own behind those that were published.

        Under GPT-2's tokenizer the published code gives padding and mask one id, 50,257; here padding is 50,258. Its row of the embedding is
        that of the mask, so that padding is read as there; the head's is zero, and nothing emits it.

        Raises:
            ValueError: if the ids cannot be the published ones.
        """
        network, known = self.denoiser.backbone, self.denoiser.vocab
        if vocab == known:
            return self
        theirs = _implied(published_layout(network).config) == known  # nothing but the number of ids is known
        behind = set(range(known.size, vocab.size))
        fits = isinstance(network, DiT) and theirs and vocab.complement is None and vocab.size >= known.size
        if not fits or not behind <= set(vocab.never_emitted) or vocab.mask_id >= known.size:
            raise ValueError(
                f"{self.path} has {known.size} ids with the mask {known.mask_id}, and this alphabet {vocab.size} with the mask {vocab.mask_id}: not "
                "those that the model was trained on; choose its tokenizer (tokenizer=gpt2 for MDLM on OpenWebText)"
            )
        with torch.random.fork_rng(devices=()):
            wider = build(self.config["backbone"], vocab=vocab)
        state = network.state_dict()
        embedding, new = state["vocab_embed.embedding"], len(behind)
        state["vocab_embed.embedding"] = torch.cat([embedding, embedding[vocab.mask_id].expand(new, -1)])
        for name in ("output_layer.linear.weight", "output_layer.linear.bias"):
            state[name] = torch.cat([state[name], state[name].new_zeros(new, *state[name].shape[1:])])
        wider.load_state_dict(state)
        told = self.denoiser.time_conditioning
        return replace(self, denoiser=Denoiser(wider, noise=self.denoiser.noise, time_conditioning=told).eval())


def is_published(name: str | os.PathLike[str]) -> bool:
    """Whether `read` is meant: a folder with `config.json`, or a Hub id with a commit, `organisation/name@<40 digits>`."""
    hub = _HUB.fullmatch(str(name))
    return (Path(name) / CONFIG).is_file() or bool(hub and _COMMIT.fullmatch(hub["revision"] or ""))


def load_published(folder: str | os.PathLike[str], revision: str | None = None, vocab: Vocab | None = None) -> Denoiser:
    """The model of a published folder: Caduceus-Ph, Caduceus-PS or MDLM's DiT; see `read`.

    Args:
        folder, revision: as in `read`.
        vocab: the alphabet of the tokenizer that a model of text is used with (`PublishedModel.over`); None is the published one, in which
            MDLM's padding has no id besides the mask's.
    """
    found = read(folder, revision)
    return (found if vocab is None else found.over(vocab)).denoiser


def read(folder: str | os.PathLike[str], revision: str | None = None) -> PublishedModel:
    """Find out what a published folder holds, and load it.

    Args:
        folder: a folder, or a Hub id `organisation/name`, also `organisation/name@revision`.
        revision: the commit to take from the Hub, 40 hexadecimal digits; a folder has none.

    Raises:
        FileNotFoundError: if the folder lacks a file.
        ValueError: if a file is damaged, the model is of another kind, or tensors are missing or surplus (they are listed).
    """
    path = Path(folder)
    if not path.is_dir() and (hub := _HUB.fullmatch(str(folder))):
        path = download(hub["repository"], revision or hub["revision"])
    said = read_config(path / CONFIG)
    try:
        vocab, backbone = _FAMILIES[said["model_type"]](said)
        time_conditioning = said["model_type"] == "mdlm" and said.get("time_conditioning", False)
        with torch.device("meta"):
            described = published_layout(build(backbone, vocab=vocab))
    except KeyError as error:
        raise ValueError(f"{path / CONFIG} lacks {error.args[0]}") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path / CONFIG}: {error}") from None
    file = find_tensors(path)
    given = named_tensors(file)
    described.check(given, file)  # no memory is taken for a network that the file does not fill
    with torch.random.fork_rng(devices=()):  # the weights drawn here are overwritten; a caller's random numbers stay as they were
        network = build(backbone, vocab=vocab)
    published_layout(network).fill(given, file)
    denoiser = Denoiser(network, noise=LogLinear() if time_conditioning else None, time_conditioning=time_conditioning)
    return PublishedModel(denoiser.eval(), {"backbone": backbone, "time_conditioning": time_conditioning}, path)


def load_gpt2(folder: str | os.PathLike[str], vocab: Vocab) -> CausalDenoiser:
    """GPT-2 from a folder, in evaluation mode: a judge of samples, with texts beginning at its own token for that.

    Args:
        folder: holds `config.json` and the weights.
        vocab: of its tokenizer; ids beyond its own (a mask, padding) may be there and are never emitted.

    Raises:
        FileNotFoundError, ValueError: as `read`.
    """
    path = Path(folder)
    said = read_config(path / CONFIG, ("gpt2",))
    try:
        network = build(gpt2.from_published(said), vocab=vocab)
    except KeyError as error:
        raise ValueError(f"{path / CONFIG} lacks {error.args[0]}") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path / CONFIG}: {error}") from None
    file = find_tensors(path)
    given, layout = named_tensors(file), published_layout(network)
    layout.check(given, file)
    layout.fill(given, file)
    return CausalDenoiser(network).eval()


def export_published(denoiser: Denoiser, folder: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Write a Caduceus or a DiT as the published models are: `config.json` and `model.safetensors`, each whole or not at all.

    Raises:
        ValueError: if the network has parts that the format does not know.
        FileExistsError: if the folder holds such files and `overwrite` is false.
    """
    from safetensors.torch import save

    layout, path = published_layout(denoiser.backbone), Path(folder)
    said = dict(layout.config)
    if said["model_type"] == "mdlm":
        said["time_conditioning"] = denoiser.time_conditioning
    if _implied(said) != denoiser.vocab:
        said[ALPHABET] = asdict(denoiser.vocab)
    for name in (CONFIG, TENSORS[0]):
        check_output(path / name, overwrite)
    with atomic_write(path / TENSORS[0], overwrite) as file:
        file.write(save(layout.tensors(), metadata={"format": "pt"}))
    with atomic_write(path / CONFIG, overwrite) as file:
        file.write((json.dumps(said, indent=2) + "\n").encode())
    return path


def read_config(path: Path, kinds: Sequence[str] | None = None) -> dict[str, Any]:
    """The contents of a `config.json` of one of these kinds of model; None: those that unmask.

    Raises:
        FileNotFoundError, ValueError: if it does not exist, is not JSON, or describes another kind of model.
    """
    kinds = tuple(_FAMILIES) if kinds is None else kinds
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; a published model is a folder of config.json and {' or '.join(TENSORS)}")
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error})") from None
    kind = said.get("model_type") if isinstance(said, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"{path} describes a model of type {kind!r}; known are {', '.join(kinds)}")
    return said


def find_tensors(path: Path) -> Path:
    """The file of tensors in a folder; safetensors where there are both."""
    for name in TENSORS:
        if (path / name).is_file():
            return path / name
    raise FileNotFoundError(f"{path} holds neither {' nor '.join(TENSORS)}")


def named_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Raises:
        ValueError: if it is damaged or holds anything else.
    """
    content = tensors.read(path)
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} is not a file of named tensors")
    return content


def download(repository: str, revision: str | None) -> Path:
    """The folder of a Hub repository at one commit; data files only, never code.

    Raises:
        ValueError: if no commit is named, or huggingface_hub is not installed.
    """
    if not _COMMIT.fullmatch(revision or ""):
        raise ValueError(
            f"{repository} is no folder here; from the Hub it is fetched at a commit: add revision=, or @, with its 40 hexadecimal digits"
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ValueError(
            f"fetching {repository} needs huggingface_hub (pip install huggingface_hub); "
            f"or download {CONFIG} and {TENSORS[0]} yourself and name their folder"
        ) from None
    for name in TENSORS:
        path = Path(snapshot_download(repository, revision=revision, allow_patterns=[CONFIG, name]))
        if (path / name).is_file():
            break
    return path


def _implied(settings: Mapping[str, Any]) -> Vocab:
    """The alphabet that a format stands for: DNA for Caduceus; for MDLM any, with the mask as the last id."""
    if settings["model_type"] == "caduceus":
        return DNATokenizer().vocab
    last = settings["vocab_size"] - 1
    return Vocab(size=last + 1, mask_id=last, pad_id=last, never_emitted=(last,))


_VOCAB_KEYS = {
    "size": Key(int, least=2, most=LARGEST),
    "mask_id": Key(int, least=0, most=LARGEST),
    "pad_id": Key(int, least=0, most=LARGEST),
    "never_emitted": Key(list),
    "complement": Key(list, None, null=True),
}


def _vocab(config: Mapping[str, Any]) -> Vocab:
    described = Key(dict, None).read(ALPHABET, config)
    return _implied(config) if described is None else Vocab(**settings(described, _VOCAB_KEYS))


def _caduceus(config: Mapping[str, Any]) -> tuple[Vocab, dict[str, Any]]:
    vocab = _vocab(config)
    return vocab, caduceus.from_published(config, vocab)


def _mdlm(config: Mapping[str, Any]) -> tuple[Vocab, dict[str, Any]]:
    backbone = mdlm.from_published(config)  # checks the size that the alphabet is made from
    return _vocab(config), backbone


_FAMILIES: dict[str, Callable[[Mapping[str, Any]], tuple[Vocab, dict[str, Any]]]] = {"caduceus": _caduceus, "mdlm": _mdlm}
