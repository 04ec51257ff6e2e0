"""The parts of an address such as `s3://bucket/genomes/x.fa.gz`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

# `dnadiff.store.objects.build` marks the addresses that a checkpoint names: they are never fetched.
CACHED, _REMOTE = "cached:", re.compile(r"(https?|s3|gs|hf):/", re.IGNORECASE)
SCHEMES = ("https", "http", "s3", "gs", "hf")
_FORM = re.compile(r"(\w+):/+(.*)", re.DOTALL)
_USER, _QUERY = (
    re.compile(r"(https?:/+)[^/?#@\s]*@", re.IGNORECASE),
    re.compile(r"(https?:/[^?]*)\?.*", re.DOTALL | re.IGNORECASE),
)


def is_remote(path: object) -> bool:
    """Whether a value is the address of a file on another machine, also one that went through
    `Path`, which drops a slash."""
    return _REMOTE.match(str(path)) is not None


def expand_user(path: str | Path) -> Path:
    """The path with `~` and `~name` replaced by home folders; a ValueError if there is no such
    user, or no home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"{path}: this machine knows no such home folder; write out the complete path, or ./~ "
            "for a file of that name"
        ) from error


class Address(NamedTuple):
    """A file, or a folder, on another machine."""

    scheme: str  # one of SCHEMES
    text: str  # the complete address

    @property
    def shown(self) -> str:
        """The address as messages and files show it (`shown`)."""
        return shown(self.text)

    @property
    def name(self) -> str:
        """The name of the file: the last part of the path, without a query."""
        if self.is_http:
            return PurePosixPath(unquote(urlsplit(self.text).path)).name
        return PurePosixPath(self.text.partition("://")[2].partition("/")[2]).name

    @property
    def folder(self) -> str:
        """The address of the folder that it is in, with the query, which may say more than the name
        does."""
        base, query = self._parts
        return base.rpartition("/")[0] + query

    @property
    def is_http(self) -> bool:
        """Whether it is read by HTTP, which has neither folders nor patterns."""
        return self.scheme in ("http", "https")

    def inside(self, name: str) -> Address:
        """A file in this folder."""
        base, query = self._parts
        return self._replace(text=f"{base}/{name}{query}")

    @property
    def _parts(self) -> tuple[str, str]:
        base, mark, query = self.text.partition("?") if self.is_http else (self.text, "", "")
        return base.rstrip("/"), mark + query


def parse(path: object) -> Address:
    """The address in a text.

    Raises:
        ValueError: if it names no server or no file, or contains what no address contains. Names in
            object stores may contain spaces.
    """
    text = str(path)
    found = _FORM.fullmatch(text)
    if found is None or found[1].lower() not in SCHEMES:
        raise ValueError(
            f"{shown(text)} is not an address; expected one that begins with "
            f"{', '.join(f'{scheme}://' for scheme in SCHEMES)}"
        )
    address = Address(found[1].lower(), f"{found[1].lower()}://{found[2]}")
    if address.is_http and " " in text:
        raise ValueError(f"{shown(text)!r} contains a space; write %20 for a space in an address")
    if not text.isprintable():
        raise ValueError(
            f"{shown(text)!r} contains a control character, or a space of another kind; remove it"
        )
    if address.is_http and "@" in urlsplit(address.text).netloc:
        raise ValueError(
            f"{shown(text)} contains a user name, which is not sent to the server; give an address "
            "without it, or a local file"
        )
    if not address.name or address.name in (".", ".."):
        raise ValueError(
            f"{shown(text)} names no file; expected "
            f"{address.scheme}://{'SERVER' if address.is_http else 'BUCKET'}/PATH/FILE"
        )
    return address


def shown(text: object) -> str:
    """A path, an address or an argument as messages and files show it: without the values of a
    query and a user name, which may be secret.

    Examples:
        >>> shown("https://server/genomes/x.fa?sv=1&sig=SECRET")
        'https://server/genomes/x.fa?...'
    """
    return _QUERY.sub(r"\1?...", _USER.sub(r"\1", str(text)))


def shown_addresses(value: Any) -> Any:
    """A value of a configuration, or a list or mapping of such, with addresses as files show them
    (`shown`)."""
    if isinstance(value, Mapping):
        return {key: shown_addresses(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown_addresses(each) for each in value]
    return shown(value) if isinstance(value, str) else value


def file_name(path: object) -> str:
    """The name of the file that a path or an address names, without a query and without `cached:`:
    what its ending is read from."""
    text = str(path).removeprefix(CACHED)
    return PurePosixPath(text.partition("?")[0] if is_remote(text) else text).name
