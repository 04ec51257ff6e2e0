"""The parts of an address such as `s3://bucket/genomes/x.fa.gz`, and its secrets.

A query may be secret. Commands read, print and write addresses without it (`shortened`), and only
`parse`, in the memory of the process, knows the complete ones. A shortened address that is read in
another process names the copy in the cache.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from dnadiff.progress import CONTROL, printable

# `dnadiff.store.objects.build` marks the addresses that a checkpoint names: they are never fetched.
CACHED = "cached:"
_REMOTE = re.compile(r"(https?|s3|gs|hf):/", re.IGNORECASE)
SCHEMES = ("https", "http", "s3", "gs", "hf")
_FORM = re.compile(r"(\w+):/+(.*)", re.DOTALL)
# Of web servers, and of whatever else is no object store, whose names may contain `?`.
_SERVER = r"(?:https?:/|(?!(?:s3|gs|hf|file):)[a-z]\w*://)"
_USER = re.compile(r"(\w+:/+)[^/?#\s]*@", re.IGNORECASE)
# A value that is an address may contain spaces; one inside a text ends at the first.
_QUERY = re.compile(
    rf"""((?P<all>^(?:[\w.@/+~-]*=)?['"]?(?:cached:)?)?{_SERVER}(?(all)[^?]*|[^?\s]*))\?"""
    r"""(?!\.\.\.(?:$|[\s'",\]}]))(?(all).*|\S*)""",
    re.DOTALL | re.IGNORECASE,
)
_SHORT = re.compile(r".*\?\.\.\.\d*")
# An address is what follows `key=`, alone, in quotes, or as a part of a list or mapping; other
# texts, such as prompts, stay as they are.
_BEFORE = re.compile(r"""(?:[\w.@/+~-]*=)?(?:cached:)?(?=(\w+:/)|[\[{'"]|\S+$)""")
_PART = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\w+:/[^\s,\[\]{}'"]*""", re.IGNORECASE)
_complete: dict[str, str] = {}  # addresses by what `shortened` made of them


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


def cache_root() -> Path:
    """The folder of the cache, which need not exist; a `~` in `$DNADIFF_CACHE` is not expanded."""
    if chosen := os.environ.get("DNADIFF_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dnadiff"


def existing(path: str) -> Path:
    """The path as `expand_user`; a FileNotFoundError if nothing is there."""
    found = expand_user(path)
    if not found.exists():
        raise FileNotFoundError(
            f"{path} does not exist; check the path (it is read from {Path.cwd()})"
        )
    return found


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
    complete = f"{found[1].lower()}://{found[2]}"
    address = Address(found[1].lower(), _complete.get(complete, complete))
    if address.is_http and " " in text:
        raise ValueError(f"{shown(text)!r} contains a space; write %20 for a space in an address")
    if not text.isprintable():
        raise ValueError(
            f"{shown(text)!r} contains a control character, or a space of another kind; remove it"
        )
    _short(address.text)
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


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A value of a configuration, or a list or mapping of such, in which `change` replaces each
    text."""
    if isinstance(value, Mapping):
        return {key: with_texts(each, change) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_texts(each, change) for each in value]
    return change(value) if isinstance(value, str) else value


def shown_addresses(value: Any) -> Any:
    """A value of a configuration with addresses as files show them."""
    return with_texts(value, shown)


def shortened(value: Any) -> Any:
    """As `shown_addresses`, of what this process will read: `parse` knows the complete addresses.

    Those that differ in their query alone get a number, as in `https://server/file?...2`.

    Args:
        value: or arguments of a command line, `key=value`.

    Raises:
        ValueError: for an address with a user name or a password.
    """
    return with_texts(value, _without_secrets)


def is_short(address: str) -> bool:
    """Whether an address is one that `shortened` made."""
    return _SHORT.fullmatch(address) is not None


def _without_secrets(text: str) -> str:
    if (start := _BEFORE.match(text)) is None:
        return text
    if start[1]:
        return start[0] + _short(text[start.end() :])
    return _PART.sub(_short_part, text)


def _short_part(found: re.Match[str]) -> str:
    quote = found[0][0] if found[0][0] in "'\"" else ""
    if not quote:
        return _short(found[0])
    inside = found[0][1:-1].replace(f"\\{quote}", quote)
    short = _without_secrets(inside)
    return found[0] if short == inside else quote + short + quote


def _short(address: str) -> str:
    if _USER.match(address):
        raise ValueError(
            f"{shown(address)} contains a user name, which is not sent to the server; give an "
            "address without it, or a local file"
        )
    if is_short(address) or shown(address) == address:
        return address
    scheme, rest = address.split(":", 1)
    address = f"{scheme.lower()}://{rest.lstrip('/')}"
    name = shown(address)
    number = 1
    while _complete.setdefault(name, address) != address:
        number += 1
        name = f"{shown(address)}{number}"
    return name


def file_name(path: object) -> str:
    """The name of the file that a path or an address names, without a query and without `cached:`:
    what its ending is read from."""
    text = str(path).removeprefix(CACHED)
    return PurePosixPath(text.partition("?")[0] if is_remote(text) else text).name


def refuse_controls(where: str, *names: str) -> None:
    """ValueError for a name with a control character, or with bytes that are not UTF-8: files get
    all names as they are."""
    for name in names:
        if CONTROL.search(name) or "\ufffd" in name:
            raise ValueError(
                f"{where}: the name {printable(name)} contains a control character, or is not "
                "UTF-8 text; rename it"
            )
