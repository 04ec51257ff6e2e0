"""The kinds of names that `checkpoint=` and `dnadiff.load` accept, each a class that recognizes its
names and loads them."""

from __future__ import annotations

import functools
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from dnadiff.checkpoint import exported, remote_run, run
from dnadiff.checkpoint.loaded import Loaded, UnknownTokenizer, wrapped
from dnadiff.checkpoint.origin import Origin
from dnadiff.checks import expand_user
from dnadiff.config import PACKAGE
from dnadiff.data.text.pretrained import FILE_SETS, Pretrained
from dnadiff.data.tokenizer import Tokenizer
from dnadiff.published import hub
from dnadiff.published.model import CONFIG, TENSORS, PublishedModel, find_tensors, is_published
from dnadiff.published.model import read as read_published
from dnadiff.store.address import Address, is_remote, parse
from dnadiff.store.remote import LostError, fetch, fetch_some, target_of

BUNDLED = (
    Path(__file__).resolve().parents[1] / "bundled"
)  # a folder for each model that ships with the package
CARD, EVALUATION, SUMMARY = "README.md", "evaluate.json", "metrics.json"
_OPTIONAL = (
    exported.DESCRIPTION,
    EVALUATION,
    CARD,
    *(file for files in FILE_SETS for file in files),
)  # next to weights
_CHECKPOINTS = ("checkpoints/best.ckpt", "checkpoints/last.ckpt")  # of a run folder
_LICENSE = re.compile(r"^license: *[\"']?([\w.-]{1,60})[\"']? *$", re.MULTILINE)
log = logging.getLogger("dnadiff")


class ModelSource(ABC):
    """One kind of name."""

    @abstractmethod
    def matches(self, name: str) -> bool:
        """Whether it is a name of this kind."""

    @abstractmethod
    def load(self, name: str, trust: Sequence[str]) -> Loaded:
        """The model of that name; errors as `load`."""


class RunSource(ModelSource):
    """A run folder, a checkpoint file, or `latest`."""

    @override
    def matches(self, name: str) -> bool:
        path = expand_user(name)
        return name == run.LATEST or path.is_file() or bool(run.candidates_in(path))

    @override
    def load(self, name: str, trust: Sequence[str]) -> Loaded:
        return run.load_file(run.find(name), trust)


class ExportedSource(ModelSource):
    """A folder that `python -m dnadiff.export` wrote."""

    @override
    def matches(self, name: str) -> bool:
        return (expand_user(name) / exported.DESCRIPTION).is_file()

    @override
    def load(self, name: str, trust: Sequence[str]) -> Loaded:
        return exported.load_folder(expand_user(name), trust)


class PublishedSource(ModelSource):
    """A folder in a published layout: Caduceus-Ph, Caduceus-PS or MDLM's DiT."""

    @override
    def matches(self, name: str) -> bool:
        return (expand_user(name) / CONFIG).is_file()

    @override
    def load(self, name: str, trust: Sequence[str]) -> Loaded:
        found = read_published(expand_user(name))
        tokenizer = _tokenizer(found)
        denoiser, process = wrapped(found.denoiser.backbone, found.config)
        origin = Origin("published folder", license=license_in(found.path / CARD))
        unknown = UnknownTokenizer(found.denoiser.vocab, found.path)
        loaded = Loaded(
            denoiser.eval(),
            process,
            found.tokenizer or unknown,
            found.config,
            find_tensors(found.path),
            0,
            origin=origin,
        )
        return loaded if tokenizer is None else loaded.with_tokenizer(tokenizer)


class BundledSource(ModelSource):
    """A model that ships with the package, by the name of its folder."""

    @override
    def matches(self, name: str) -> bool:
        return name in bundled_names()

    @override
    def load(self, name: str, trust: Sequence[str]) -> Loaded:
        loaded = exported.load_folder(BUNDLED / name, trust)
        return replace(loaded, origin=replace(loaded.origin, kind="bundled with dnadiff"))


class HubSource(ModelSource):
    """`hf:ORG/NAME[@REVISION]` or `ORG/NAME@COMMIT`, a repository of the Hugging Face Hub with an
    exported or a published model."""

    @override
    def matches(self, name: str) -> bool:
        return name.startswith(hub.PREFIX) or (
            is_published(name) and not expand_user(name).is_dir()
        )

    @override
    def load(self, name: str, trust: Sequence[str]) -> Loaded:
        name = hub.PREFIX + name.removeprefix(hub.PREFIX)
        folder = str(hub.fetch(*hub.parse(name), (CONFIG, TENSORS[0]), _OPTIONAL))
        loaded = next(
            kind for kind in (ExportedSource(), PublishedSource()) if kind.matches(folder)
        ).load(folder, trust)
        return replace(loaded, origin=replace(loaded.origin, kind="Hugging Face Hub"))


class RemoteSource(ModelSource):
    """The address of a checkpoint file, of a run folder, or of a folder with an exported or a
    published model."""

    @override
    def matches(self, name: str) -> bool:
        return is_remote(name)

    @override
    def load(self, name: str, trust: Sequence[str]) -> Loaded:
        address = parse(name)
        if address.name.endswith(".ckpt"):
            return remote_run.load(address, (EVALUATION, SUMMARY), trust)
        folder: Path | None = None
        lost: LostError | None = None
        try:
            folder = fetch_some(address, (CONFIG, TENSORS[0], *_OPTIONAL))
        except (
            LostError
        ) as error:  # a folder of a run has none of them, and its checkpoint may be in the cache
            lost = error
        if kind := next(
            (
                kind
                for kind in (ExportedSource(), PublishedSource())
                if folder is not None and kind.matches(str(folder))
            ),
            None,
        ):
            return kind.load(str(folder), trust)
        if (file := _first(address, _CHECKPOINTS)) is not None:
            return remote_run.load(file, (EVALUATION, SUMMARY), trust)
        raise lost or FileNotFoundError(
            f"checkpoint {address.shown} does not exist, or is no folder with an exported or a "
            "published model, or with "
            "checkpoints/best.ckpt; check the address"
        )


SOURCES: tuple[ModelSource, ...] = (
    RemoteSource(),
    HubSource(),
    ExportedSource(),
    PublishedSource(),
    RunSource(),
    BundledSource(),
)


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
    if not loaded.objective.trains_bound:
        _explain(loaded.path, loaded.path.resolve())
    return loaded


def load_silently(checkpoint: str | os.PathLike[str], trust: Sequence[str] = ()) -> Loaded:
    """As `load`, without a remark on what the model was trained for; the tokenizer may be
    unknown."""
    name, allowed = str(checkpoint), (PACKAGE, *trust)
    if (
        Path(name).name in TENSORS
    ):  # the file of the weights, as messages name it, stands for its folder
        name = str(Path(name).parent)
    for source in SOURCES:
        if source.matches(name):
            return source.load(name, allowed)
    path = expand_user(name)
    if path.is_dir() or name == run.LATEST:
        run.find(name)  # raises
    names = bundled_names()
    raise FileNotFoundError(
        f"checkpoint {name} does not exist; give a run folder, a .ckpt file, latest, a folder with "
        "a published or exported model, "
        "hf:ORG/NAME, or a model that ships with dnadiff "
        f"({', '.join(names) or 'this version has none'})"
    )


def bundled_names() -> list[str]:
    """The names of the models that ship with the package."""
    return sorted(path.parent.name for path in BUNDLED.glob(f"*/{exported.DESCRIPTION}"))


def license_in(card: Path) -> str | None:
    """The license that the metadata of a model card name; None if there is no card, or it names
    none."""
    try:
        text = card.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    head = text.split("\n---", 1)[0] if text.startswith("---\n") else ""
    found = _LICENSE.search(head)
    return found[1] if found else None


def _first(folder: Address, names: Sequence[str]) -> Address | None:
    """The first of the named files of a folder that exists, None if none does; PermissionError or
    LostError if no other can be read.

    After a lost connection, which does not show whether a file exists, only copies of the others
    are used.
    """
    problem: OSError | None = None
    for address in map(folder.inside, names):
        if isinstance(problem, LostError) and not target_of(address).is_file():
            continue
        try:
            fetch(address)
        except FileNotFoundError:
            continue
        except (PermissionError, LostError) as error:  # a store may refuse what does not exist
            problem = problem or error
            continue
        if problem is not None:
            log.warning(f"{problem}; {address.shown} is used")
        return address
    if problem is not None:
        raise problem
    return None


def _tokenizer(found: PublishedModel) -> Tokenizer | None:
    """The tokenizer whose files are next to a published text model; None if there are none."""
    names = [name for files in FILE_SETS for name in files]
    if found.tokenizer is not None or not any(
        (found.path / f"{name}{end}").is_file() for name in names for end in ("", ".gz")
    ):
        return None
    return Pretrained(str(found.path), name=found.path.name).load()


@functools.cache
def _explain(path: Path, resolved: Path) -> None:
    log.info(
        f"{path}: trained by masked language modeling, not by diffusion: its likelihoods are valid "
        "bounds, but of a model that never saw most "
        "noise levels, and its samples are affected too; embeddings and fine-tuning are what it "
        "was trained for (docs/models.md)"
    )
