"""Published models of the Hugging Face Hub: data files alone, at one commit. No code of a repository is fetched or run."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

PREFIX = "hf:"
COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(rf"{PREFIX}(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
log = logging.getLogger("dnadiff")


def parse(name: str) -> tuple[str, str | None]:
    """Repository and revision of `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`; ValueError for another form."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"checkpoint {name} is not the name of a repository of the Hub; write hf:ORG/NAME or hf:ORG/NAME@REVISION")
    return found["repository"], found["revision"]


def fetch(repository: str, revision: str | None, required: Sequence[str], optional: Sequence[str] = ()) -> Path:
    """Fetch files of a repository, and return their folder in the Hub's cache.

    Without a network, files of an earlier download are used. If `revision` is not a commit (40 hexadecimal digits), the commit that it
    stands for today is logged.

    Raises:
        ValueError: if the repository cannot be reached or lacks a required file; it says which files to put where.
    """
    from dnadiff.data.text.hub import hub_is_reachable

    listed = f"{' and '.join(required)} (and {', '.join(optional)}, if they exist)" if optional else " and ".join(required)
    remedy = f"download {listed} of https://huggingface.co/{repository} into a folder, and give checkpoint=FOLDER"
    hub, offline = _package(repository, remedy), not hub_is_reachable()
    patterns = [*required, *optional]
    try:
        commit = revision if revision is not None and COMMIT.fullmatch(revision) else None
        if commit is None and not offline:
            commit = str(hub.HfApi().model_info(repository, revision=revision).sha)
        path = Path(hub.snapshot_download(repository, revision=commit or revision, allow_patterns=patterns, local_files_only=offline))
    except Exception as error:  # several libraries raise, depending on what fails
        message = " ".join(str(error).split())[:160]
        raise ValueError(
            f"{PREFIX}{repository} could not be fetched from the Hugging Face Hub ({type(error).__name__}: {message}), nor is it in the Hub's "
            f"cache; {remedy}"
        ) from error
    if revision is None or not COMMIT.fullmatch(revision):
        log.info(f"{PREFIX}{repository}: commit {commit or path.name}; to pin it: {PREFIX}{repository}@{commit or path.name}")
    if missing := [name for name in required if not (path / name).is_file()]:
        raise ValueError(f"{PREFIX}{repository} has no {' and no '.join(missing)}, and only weights in safetensors are read; {remedy}")
    return path


def _package(repository: str, remedy: str) -> ModuleType:
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(f"{PREFIX}{repository} needs huggingface_hub (pip install 'dnadiff[hub]'); without it {remedy}") from None
    return huggingface_hub
