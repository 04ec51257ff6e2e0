"""Reading plain or gzip-compressed text as one record of characters."""

from __future__ import annotations

from pathlib import Path

from dnadiff.data.files import open_text


def read_text(path: str | Path) -> str:
    """The whole text of a UTF-8 file, line ends as `\\n`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is empty, damaged or not UTF-8.
    """
    with open_text(path) as handle:
        text = handle.read()
    if not text:
        raise ValueError(f"{path} is empty; give a text file with at least one window of characters")
    return text
