"""Published models of the Hugging Face Hub: data files alone, at one commit. No code of a
repository is fetched or run."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

PREFIX = "hf:"
COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(rf"{PREFIX}(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
log = logging.getLogger("dnadiff")


def parse(name: str) -> tuple[str, str | None]:
    """Repository and revision of `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`; ValueError for another
    form."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f"checkpoint {name} is not the name of a repository of the Hub; write hf:ORG/NAME or "
            "hf:ORG/NAME@REVISION"
        )
    return found["repository"], found["revision"]


def fetch(
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
    source = Repository(_package(repository, remedy), repository, revision, (*required, *optional))
    try:
        path = source.download()
    except Exception as error:  # several libraries raise, depending on what fails
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        stored = source.stored()
        if stored is None or not all((stored / name).is_file() for name in required):
            raise ValueError(
                f"{PREFIX}{repository} could not be fetched from the Hugging Face Hub ({reason}), "
                f"nor is it in the Hub's cache; {remedy}"
            ) from error
        log.info(
            f"{PREFIX}{repository}: not fetched ({reason}); the files of an earlier download are "
            f"used, commit {stored.name}"
        )
        path = stored
    if not source.is_pinned:
        log.info(
            f"{PREFIX}{repository}: commit {path.name}; to pin it: {PREFIX}{repository}@{path.name}"
        )
    if missing := [name for name in required if not (path / name).is_file()]:
        raise ValueError(
            f"{PREFIX}{repository} has no {' and no '.join(missing)}, and only weights in "
            f"safetensors are read; {remedy}"
        )
    return path


class Repository(NamedTuple):
    """Files of one repository at one revision: `hub` is the package `huggingface_hub`."""

    hub: ModuleType
    name: str
    revision: str | None
    files: tuple[str, ...]

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit."""
        return self.revision is not None and COMMIT.fullmatch(self.revision) is not None

    def download(self) -> Path:
        """The folder of the files, which has the name of their commit; raises an error of one of
        several libraries if that fails."""
        from dnadiff.data.text.corpus import hub_is_reachable

        if not hub_is_reachable():
            raise ConnectionError("there is no network, or HF_HUB_OFFLINE is set")
        self.hub.HfApi().model_info(
            self.name, revision=self.revision
        )  # raises where `snapshot_download` would use what is stored
        return Path(
            self.hub.snapshot_download(
                self.name, revision=self.revision, allow_patterns=list(self.files)
            )
        )

    def stored(self) -> Path | None:
        """The folder of an earlier download; None if there is none."""
        try:
            return Path(
                self.hub.snapshot_download(
                    self.name,
                    revision=self.revision,
                    allow_patterns=list(self.files),
                    local_files_only=True,
                )
            )
        except Exception:  # several libraries raise
            return None


def _package(repository: str, remedy: str) -> ModuleType:
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(
            f"{PREFIX}{repository} needs huggingface_hub (pip install -e '.[hub]' in the "
            f"checkout); without it {remedy}"
        ) from None
    return huggingface_hub
