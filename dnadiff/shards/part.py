"""The file of one shard: results one after the other, each with its number of items and what it
says about them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from dnadiff.data.work import Result

_HEAD = struct.Struct("<QIQ")  # items, bytes of the JSON text, bytes of the content


def packed(result: Result) -> bytes:
    """A result as bytes."""
    about = json.dumps(dict(result.about)).encode()
    return _HEAD.pack(result.items, len(about), len(result.content)) + about + result.content


def unpacked(path: Path) -> Iterator[Result]:
    """The results in a file.

    Raises:
        ValueError: if the file is damaged.
    """
    with path.open("rb") as file:
        while head := file.read(_HEAD.size):
            try:
                count, of_about, of_content = _HEAD.unpack(head)
                about, content = json.loads(file.read(of_about)), file.read(of_content)
            except (struct.error, ValueError) as error:
                raise ValueError(
                    f"{path} is damaged ({error}); remove it and compute its shard again"
                ) from error
            if len(content) != of_content:
                raise ValueError(f"{path} is cut short; remove it and compute its shard again")
            yield Result(count, content, about)
