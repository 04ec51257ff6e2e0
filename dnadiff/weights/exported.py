"""Folders that `python -m dnadiff.export` writes: the published layout, and `dnadiff.json` with
what is needed to load the same model.

`config.json` and `model.safetensors` are those of `dnadiff.weights.published`. `dnadiff.json`
repeats nothing that the network needs to run in the published code; it records how the model is
used here, what it was trained on, and hashes of itself and of the weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from dnadiff.checks import Natural, check_value
from dnadiff.config import Config, Json, Keys
from dnadiff.renamed import VERSION
from dnadiff.store.disk import read_json
from dnadiff.weights import tensors
from dnadiff.weights.layouts import published_layout
from dnadiff.weights.loaded import (
    Loaded,
    Origin,
    build_denoiser,
    built_tokenizer,
    label_names,
    names_file,
    other_process,
    read_origin,
)
from dnadiff.weights.published import (
    CONFIG,
    DESCRIPTION,
    DESCRIPTION_KEY,
    TENSORS,
    described_config,
    named_tensors,
)

FORMAT = 1
MODEL = (
    "backbone",
    "objective",
    "noise",
    "time_conditioning",
)  # of the configuration: what the denoiser is built from
_KEYS: Keys = {
    **dict.fromkeys(("backbone", "objective", "noise", "tokenizer", "origin"), dict),
    "time_conditioning": bool | None,
    "data": dict | None,
    "labels": list[str],
    "step": Natural,
    "fingerprint": str,
}
_REMEDY, _BUNDLED = "use another copy of it", "bundled:"
_DEFAULTS = {
    "scan": "auto",
    "activation_checkpointing": False,
    "compile": False,
}  # how a network is computed, not which one it is


def description(loaded: Loaded, origin: Origin) -> Config:
    """The contents of `dnadiff.json` for a model; `origin` is what else is recorded of it, without
    paths of this machine."""
    config = {key: loaded.config[key] for key in MODEL} | other_process(loaded.config)
    backbone = dict(config["backbone"])
    config["backbone"] = backbone | {
        key: value for key, value in _DEFAULTS.items() if key in backbone
    }
    content = {
        "format": FORMAT,
        "version": VERSION,
        **config,
        "data": portable_data(loaded.config.get("data")),
        "tokenizer": {
            key: portable(value) if key == "name" else value
            for key, value in loaded.tokenizer.config().items()
        },
        "labels": list(loaded.labels),
        "step": loaded.step,
        "origin": {key: value for key, value in asdict(origin).items() if key != "kind"},
        "fingerprint": tensors.fingerprint(loaded.denoiser),
    }
    content = json.loads(json.dumps(content))  # as it is read again: lists for tuples
    return content | {"check": check_of(content)}


def portable(value: Json) -> Json:
    """Nested values in which the absolute paths of this machine are replaced by the names of their
    files."""
    if isinstance(value, Mapping):
        return {str(key): portable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [portable(each) for each in value]
    return Path(value).name if isinstance(value, str) and value.startswith(("/", "~")) else value


def portable_data(data: Config | None) -> Config | None:
    """The configuration of training data for other machines: files keep their path only if all of
    them ship with the package.

    Elsewhere the data are named again by data=. The tokenizer is left out, because the model has
    its own.
    """
    if data is None:
        return None
    kept = {key: value for key, value in data.items() if key != "tokenizer"}
    paths = list(_strings(kept.get("path")))
    result = portable(kept)
    if result == kept and all(path.startswith(_BUNDLED) for path in paths):
        return result
    return result | {"path": None, "name": data_name(kept)}


def data_name(data: Config) -> str | None:
    """The name of training data in their configuration, or else of their files; None if they have
    neither."""
    given = data.get("name")
    return (
        str(given)
        if given
        else ", ".join(
            Path(path).name.removeprefix(_BUNDLED) for path in _strings(data.get("path"))
        )
        or None
    )


def _strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(each)


def check_of(content: Config) -> str:
    """SHA-256 of everything in a description besides `check`."""
    return hashlib.sha256(
        json.dumps({k: v for k, v in content.items() if k != "check"}, sort_keys=True).encode()
    ).hexdigest()


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


def load_folder(folder: Path, trust: Sequence[str]) -> Loaded:
    """The model of an exported folder.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, names classes that are not trusted, or the files are not
            of one model.
    """
    path, content = folder / TENSORS[0], read_description(folder)
    for name in (CONFIG, TENSORS[0]):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder / name} does not exist; an exported model has it next to {DESCRIPTION}"
            )
    given = named_tensors(path)
    with names_file(folder), torch.random.fork_rng(devices=()):
        with names_file(folder / DESCRIPTION):
            origin = read_origin("exported folder", content["origin"])
            tokenizer = built_tokenizer(content["tokenizer"], trust, folder / DESCRIPTION)
            with tensors.without_memory(
                len(given), path
            ):  # a network that the file cannot fill is refused before memory is allocated
                denoiser = build_denoiser(content, tokenizer, trust)[0]
                layout = published_layout(denoiser.backbone)
                described = described_config(denoiser, layout)
            labels = label_names(content, denoiser.backbone.num_labels)
        check_config(folder / CONFIG, described)
        layout.check(given, path)
        tensors.check_memory(given.values(), path)
        denoiser, process = build_denoiser(content, tokenizer, trust)
        published_layout(denoiser.backbone).fill(given, path)
        check_fingerprint(denoiser, content["fingerprint"], path)
        data = (
            {} if content["data"] is None else {"data": content["data"]}
        )  # of published weights nothing is known
        config = {key: content[key] for key in MODEL} | other_process(content) | data
        return Loaded(
            denoiser.eval(), process, tokenizer, config, path, int(content["step"]), labels, origin
        )


def check_config(path: Path, expected: Config) -> None:
    """Raise ValueError, naming the keys, if a `config.json` is not the one that was exported."""
    content = {
        DESCRIPTION_KEY: DESCRIPTION,
        **read_json(path, (), _REMEDY),
    }  # a folder without the key is complete if it has the file
    expected = json.loads(json.dumps(expected | {DESCRIPTION_KEY: DESCRIPTION}))
    if changed := sorted(
        key for key in content.keys() | expected.keys() if content.get(key) != expected.get(key)
    ):
        raise ValueError(
            f"{path} and {DESCRIPTION} describe different networks: {', '.join(changed)[:200]}; "
            f"{_REMEDY}"
        )


def check_fingerprint(denoiser: torch.nn.Module, expected: str, path: Path) -> None:
    """Raise ValueError if the weights are not those that were exported."""
    if tensors.fingerprint(denoiser) != expected:
        raise ValueError(
            f"{path} holds different weights from those that {DESCRIPTION} describes; {_REMEDY}"
        )
