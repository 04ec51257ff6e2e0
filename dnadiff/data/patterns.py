"""Patterns in the names of files, such as `genomes/*.fa.gz` or `s3://BUCKET/*.jsonl`."""

from __future__ import annotations

import glob
from pathlib import Path

from dnadiff.checks import expand_user
from dnadiff.store.address import CACHED, is_remote
from dnadiff.store.remote import expand as expand_remote


def matches(text: str) -> list[str] | None:
    """The files that a pattern with `*`, `?`, `[...]` or `**` describes, sorted; None if the text
    is no pattern.

    Raises:
        FileNotFoundError: if there are none.
    """
    if is_remote(text):
        pattern = (
            text.partition("?")[0] if text.lower().startswith("http") else text
        )  # what follows is a query
        return expand_remote(text) if glob.has_magic(pattern) else None
    if text.startswith(CACHED) or not glob.has_magic(text) or expand_user(text).exists():
        return None
    found = sorted(
        name
        for name in glob.glob(str(expand_user(text)), recursive=True)
        if not Path(name).is_dir()
    )
    if not found:
        raise FileNotFoundError(
            f"{text} matches no file; check the pattern (it is read from {Path.cwd()})"
        )
    return found
