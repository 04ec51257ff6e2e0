"""The parts of an address such as `s3://bucket/genomes/x.fa.gz`."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from dnadiff.config import CACHED, is_remote

SCHEMES = ("https", "http", "s3", "gs", "hf")
_FORM = re.compile(r"(\w+):/+(.*)", re.DOTALL)


class Address(NamedTuple):
    """A file, or a folder, on another machine."""

    scheme: str  # one of SCHEMES
    text: str  # the complete address

    @property
    def name(self) -> str:
        """The name of the file: the last part of the path, without a query."""
        path = urlsplit(self.text).path if self.is_http else self.text.partition("://")[2].partition("/")[2]
        return PurePosixPath(unquote(path) if self.is_http else path).name

    @property
    def folder(self) -> str:
        """The address of the folder that it is in, with the query, which may say more than the name does."""
        base, mark, query = self.text.partition("?") if self.is_http else (self.text, "", "")
        return base.rstrip("/").rpartition("/")[0] + mark + query

    @property
    def is_http(self) -> bool:
        """Whether it is read by HTTP, which has neither folders nor patterns."""
        return self.scheme in ("http", "https")

    def inside(self, name: str) -> Address:
        """A file in this folder."""
        base, mark, query = self.text.partition("?") if self.is_http else (self.text, "", "")
        return self._replace(text=f"{base.rstrip('/')}/{name}{mark}{query}")


def parse(path: object) -> Address:
    """The address in a text.

    Raises:
        ValueError: if it names no server or no file, or contains what no address contains.
    """
    text = str(path)
    found = _FORM.fullmatch(text)
    if found is None or found[1].lower() not in SCHEMES:
        raise ValueError(f"{text} is not an address; expected one that begins with {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
    address = Address(found[1].lower(), f"{found[1].lower()}://{found[2]}")
    if any(letter.isspace() or not letter.isprintable() for letter in text):
        raise ValueError(f"{text!r} contains a space or a control character; write %20 for a space in an address")
    if not address.name or address.name in (".", ".."):
        raise ValueError(f"{text} names no file; expected {address.scheme}://{'SERVER' if address.is_http else 'BUCKET'}/PATH/FILE")
    return address


def file_name(path: object) -> str:
    """The name of the file that a path or an address names, without a query and without `cached:`: what its ending is read from."""
    text = str(path).removeprefix(CACHED)
    return PurePosixPath(text.partition("?")[0] if is_remote(text) else text).name
