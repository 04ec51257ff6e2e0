"""Models by name: (denoiser, tokenizer, configuration) from a run, an exported folder, published
weights or the Hub.

A checkpoint of a run is a Lightning file read as a plain dict: weights (averaged, if training
averaged them), and under `hyper_parameters` the resolved configuration and the tokenizer. Nothing
in a file is executed: only classes of this package are built (`dnadiff.store.objects.build`).

A folder that `python -m dnadiff.export` writes has the published layout, and `dnadiff.json` with
what is needed to load the same model. That file repeats nothing that the network needs to run in
the published code; it records how the model is used here, what it was trained on, and hashes of
itself and of the weights.
"""

import functools
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dnadiff.data.tokenizer import FILE_SETS
from dnadiff.data.windows import Conditions
from dnadiff.fields import Json
from dnadiff.networks.adapter import LoRA
from dnadiff.progress import log
from dnadiff.store import remote
from dnadiff.store.address import Address, expand_user, is_remote, parse, shown_addresses
from dnadiff.store.disk import atomic_write, read_json
from dnadiff.store.objects import PACKAGE, without_key
from dnadiff.store.remote import (
    HUB_PREFIX,
    LostError,
    bundled_names,
    check_model,
    fetch,
    fetch_hub,
    fetch_some,
    is_hub_commit,
    target_of,
)
from dnadiff.weights import tensors
from dnadiff.weights.loaded import (
    CARD,
    CONFIG,
    DESCRIPTION,
    DESCRIPTION_KEY,
    MODEL,
    REMEDY,
    TENSORS,
    Loaded,
    Origin,
    build_denoiser,
    built_tokenizer,
    described_config,
    filled_network,
    names_file,
    other_parts,
    read_description,
    read_origin,
)

EVALUATION = "evaluate.json"
SUMMARY = "metrics.json"
_OPTIONAL = (
    DESCRIPTION,
    EVALUATION,
    CARD,
    *(name for names in FILE_SETS for name in names),
)  # next to weights
_CHECKPOINTS = ("checkpoints/best.ckpt", "checkpoints/last.ckpt")  # of a run folder
_PREFIX = "denoiser."
LATEST = "latest"
_FOLDER = "checkpoints"


def load(
    checkpoint: str | os.PathLike[str], trust: Sequence[str] = (), needs_tokenizer: bool = True
) -> Loaded:
    """The model of a name.

    Args:
        checkpoint: a run folder, a .ckpt file, `latest`, an exported or published folder, the
            address of one of these (`s3://...`), `hf:ORG/NAME[@REVISION]`, or a bundled model; a
            file or folder of that name is preferred to a bundled model.
        trust: additional packages whose classes its configuration may name.
        needs_tokenizer: False if the caller gives a text model its tokenizer
            (`Loaded.with_tokenizer`).

    Raises:
        ValueError: if it is damaged, names classes that are not trusted, its weights do not match
            its configuration, or a text model comes without the tokenizer that is needed.
        FileNotFoundError: if it does not exist.
    """
    loaded = load_silently(checkpoint, trust)
    if needs_tokenizer:
        loaded.check_tokenizer()
    if not loaded.objective.trains_bound and not loaded.objective.own_bound:
        _explain(loaded.path, loaded.path.resolve())
    return loaded


def load_silently(checkpoint: str | os.PathLike[str], trust: Sequence[str] = ()) -> Loaded:
    """As `load`, without a remark on what the model was trained for; the tokenizer may be
    unknown."""
    name = str(checkpoint)
    allowed = (PACKAGE, *trust)
    if Path(name).name in TENSORS:  # as messages name the weights; it stands for its folder
        name = str(Path(name).parent)
    if is_remote(name):
        return _load_remote(parse(name), allowed)
    path = expand_user(name)
    if name.startswith(HUB_PREFIX) or (is_hub_commit(name) and not path.is_dir()):
        files = fetch_hub(
            HUB_PREFIX + name.removeprefix(HUB_PREFIX), (CONFIG, TENSORS[0]), _OPTIONAL
        )
        return _from("Hugging Face Hub", _load_folder(files, allowed))
    if (loaded := _load_folder(path, allowed)) is not None:
        return loaded
    if name in bundled_names() and not path.is_file() and not candidates_in(path):
        return _from("bundled with dnadiff", _load_folder(remote.BUNDLED / name, allowed))
    if name == LATEST or path.exists():
        return load_file(find(name), allowed)
    check_model(name)
    raise AssertionError  # which there is


@functools.cache
def _explain(path: Path, resolved: Path) -> None:
    log.info(
        f"{path}: trained by masked language modeling, not by diffusion: its likelihoods are valid "
        "bounds, but of a model that never saw most noise levels, and its samples are affected "
        "too; embeddings and fine-tuning are what it was trained for (docs/models.md)"
    )


def find(checkpoint: str | os.PathLike[str], runs: str | os.PathLike[str] = "runs/train") -> Path:
    """The checkpoint file of a run folder, of a file name, or of `latest`, the newest run;
    FileNotFoundError if there is none.

    For a run folder that is `checkpoints/best.ckpt`, or `last.ckpt` if no validation has run.
    """
    path = expand_user(Path(checkpoint))
    if str(checkpoint) == LATEST:
        found = sorted(Path(runs).glob("*/checkpoints/last.ckpt"), key=lambda p: p.stat().st_mtime)
        if not found:
            raise FileNotFoundError(
                f"checkpoint=latest found no run under {runs}; train one, or name a run folder"
            )
        path = found[-1].parent.parent
    if path.is_dir():
        candidates = candidates_in(path)
        if not candidates:
            raise FileNotFoundError(
                f"{path} holds no checkpoints/best.ckpt or checkpoints/last.ckpt; name a run "
                "folder that python -m dnadiff.train made, or a "
                "folder of published weights with its config.json"
            )
        return candidates[0]
    if not path.is_file():
        raise FileNotFoundError(
            f"checkpoint {path} does not exist; give a run folder, a .ckpt file, or latest"
        )
    return path


def candidates_in(folder: Path) -> list[Path]:
    """The checkpoint files of a run folder, preferred first."""
    return [
        path
        for part in (folder / _FOLDER, folder)
        for name in ("best.ckpt", "last.ckpt")
        if (path := part / name).is_file()
    ]


def read(path: Path, provide: Callable[[str], None] | None = None) -> dict[str, Json]:
    """The contents of a checkpoint file; no code in it runs. `provide`: see `read_sharded`.

    Raises:
        ValueError: if the file is truncated, holds pickled code, or is not a checkpoint of this
            package.
    """

    def lacking(part: Json, *keys: str) -> list[str]:
        return [
            key for key in keys if not isinstance(part, dict) or not isinstance(part.get(key), dict)
        ]

    content = tensors.read_sharded(path, provide)
    missing = lacking(content, "state_dict", "hyper_parameters")
    missing = missing or lacking(content["hyper_parameters"], "config", "tokenizer")
    if missing := missing or lacking(
        content["hyper_parameters"]["config"], "noise", "backbone", "objective", "data"
    ):
        raise ValueError(
            f"{path} is not a dnadiff checkpoint: it lacks {', '.join(missing)}; name another file"
        )
    if type(content.get("global_step", 0)) is not int:
        raise ValueError(
            f"{path} is not a dnadiff checkpoint: its step is "
            f"{str(content['global_step'])[:40]!r}, not an integer; name another file"
        )
    return content


def load_file(
    path: Path, trust: Sequence[str], provide: Callable[[str], None] | None = None
) -> Loaded:
    """The model of a checkpoint file. `provide`: see `read_sharded`.

    Raises:
        ValueError: if it is damaged, names classes that are not trusted, or its weights do not
            match its configuration.
    """
    content = read(path, provide)
    described = content["hyper_parameters"]
    config = shown_addresses(described["config"])  # an earlier version stored complete ones
    with names_file(path):
        tokenizer = built_tokenizer(described["tokenizer"], trust, path)
        state = {
            name.removeprefix(_PREFIX): tensor
            for name, tensor in content["state_dict"].items()
            if name.startswith(_PREFIX)
        }
        # A network that the file cannot fill is refused before memory is allocated.
        with tensors.without_memory(len(state), path):
            own = build_denoiser(config, tokenizer, trust)[0].state_dict()
        tensors.refuse(tensors.misfits(own, state), path)
        tensors.check_memory(state.values(), path)
        denoiser, process = build_denoiser(config, tokenizer, trust)
        denoiser.load_state_dict(state)
        LoRA.merge(denoiser)

        def recorded(value: Json, kind: type) -> Json:
            return value if isinstance(value, kind) else None

        return Loaded(
            denoiser.eval(),
            process,
            tokenizer,
            without_key(config, "adapter"),  # which is part of the weights now
            path,
            content.get("global_step", 0),
            Conditions.read(described, denoiser.backbone.num_labels),
            Origin(
                "run",
                recorded(content.get("tokens_seen"), int),
                recorded(described.get("split_hash"), str),
                recorded(described.get("digest"), str),
                recorded((described.get("alignment") or {}).get("identity"), str),
            ),
        )


def load_exported(folder: Path, trust: Sequence[str]) -> Loaded:
    """The model of an exported folder.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, names classes that are not trusted, or the files are not
            of one model.
    """
    about = folder / DESCRIPTION
    content = read_description(folder)
    for name in (CONFIG, TENSORS[0]):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder / name} does not exist; an exported model has it next to {DESCRIPTION}"
            )
    with names_file(about):
        origin = read_origin("exported folder", content["origin"])
        tokenizer = built_tokenizer(content["tokenizer"], trust, about)
    denoiser, process, path = filled_network(
        folder, DESCRIPTION, lambda: build_denoiser(content, tokenizer, trust)
    )
    network = denoiser.backbone
    # A folder without the key is complete if it has the file.
    expected, given = (
        {**json.loads(json.dumps(each)), DESCRIPTION_KEY: DESCRIPTION}
        for each in (
            described_config(network, denoiser.time_conditioning),
            read_json(folder / CONFIG, (), REMEDY),
        )
    )
    if changed := sorted(
        key for key in given.keys() | expected.keys() if given.get(key) != expected.get(key)
    ):
        raise ValueError(
            f"{folder / CONFIG} and {DESCRIPTION} describe different networks: "
            f"{', '.join(changed)[:200]}; {REMEDY}"
        )
    if tensors.fingerprint(denoiser) != content["fingerprint"]:
        raise ValueError(
            f"{path} holds different weights from those that {DESCRIPTION} describes; {REMEDY}"
        )
    config = {key: content[key] for key in MODEL} | other_parts(content)
    if content["data"] is not None:  # of published weights nothing is known
        config["data"] = shown_addresses(content["data"])
    conditions = Conditions.read(content, network.num_labels)
    return Loaded(
        denoiser.eval(), process, tokenizer, config, path, int(content["step"]), conditions, origin
    )


def _load_remote_run(checkpoint: Address, trust: Sequence[str]) -> Loaded:
    """The model of a checkpoint file; what describes its run is fetched into the local folder of
    its run, if it exists.

    The cache has a folder for each remote folder. In that of the run `checkpoints/` has links to
    the checkpoint and its shards, so that whatever reads a run folder finds all of its files.
    Without links, the checkpoint is read where it is, without the files beside it.

    Raises:
        FileNotFoundError: if it does not exist, or lacks a shard.
    """
    path = fetch(checkpoint)
    folder = checkpoint._replace(text=checkpoint.folder)
    is_run = folder.name == _FOLDER
    home = folder._replace(text=folder.folder) if is_run else folder
    # No connection and no copies, or a file is damaged: the model is loaded without them.
    with suppress(OSError, ValueError):
        fetch_some(home, (EVALUATION, SUMMARY))
    if is_run:
        link = target_of(home.inside(_FOLDER)).parent / _FOLDER / path.name
        path = link if _is_linked(link, path) else path
    shards = tensors.shards_of(path)

    def provide(name: str) -> None:
        # The file names its shards: `parse` checks the name. No two shards have the same name.
        copy = fetch(parse(folder.inside(f"{shards.name}/{name}").text))
        if not _is_linked(shards / name, copy):
            with copy.open("rb") as source, atomic_write(shards / name, overwrite=True) as file:
                shutil.copyfileobj(source, file)

    return load_file(path, trust, provide)


def _is_linked(path: Path, target: Path) -> bool:
    """Make `path` a link to `target`; False if the file system or the user's rights have no such
    links."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.symlink_to(os.path.relpath(target, path.parent))
    except FileExistsError:  # the folder of a copy depends on its address alone
        return True
    except (OSError, NotImplementedError):
        return False
    return True


def _load_folder(folder: Path, trust: Sequence[str]) -> Loaded | None:
    """The model of an exported folder or of one in a published layout; None for any other."""
    if (folder / DESCRIPTION).is_file():
        return load_exported(folder, trust)
    if not (folder / CONFIG).is_file():
        return None
    from dnadiff.weights.published import load_folder

    return load_folder(folder)


def _from(kind: str, loaded: Loaded | None) -> Loaded:
    """A model with what is recorded of its source in words."""
    assert loaded is not None
    return replace(loaded, origin=replace(loaded.origin, kind=kind))


def _load_remote(address: Address, trust: Sequence[str]) -> Loaded:
    """The model of a checkpoint file, of a run folder, or of a folder with an exported or a
    published model."""
    if address.name.endswith(".ckpt"):
        return _load_remote_run(address, trust)
    lost: OSError | None = None
    try:
        if found := fetch_some(address, (CONFIG, TENSORS[0], *_OPTIONAL)):
            loaded = _load_folder(target_of(found[0]).parent, trust)
            if loaded is not None:
                return loaded
    except (LostError, PermissionError) as error:
        lost = error  # a folder of a run has none of them, and its checkpoint may be in the cache
    if found := fetch_some(address, _CHECKPOINTS, only_first=True):
        return _load_remote_run(found[0], trust)
    raise lost or FileNotFoundError(
        f"checkpoint {address.shown} does not exist, or is no folder with an exported or a "
        "published model, or with checkpoints/best.ckpt; check the address"
    )
