"""What all kinds of addresses have in common: a store gives the bytes of a file from any position,
and says which version they are of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from dnadiff.data.remote.address import Address

WEAK = 'W/"'  # the beginning of a weak entity tag


class Reply(NamedTuple):
    """The answer to a request for a file."""

    # position of the first byte of `blocks`: the one that was asked for, or 0 from a store that
    # cannot resume
    start: int
    total: int | None  # bytes of the complete file; None if only the end of `blocks` shows it
    version: str | None  # changes with the content; None if the store gives no such mark
    blocks: Iterator[bytes]


class LostError(OSError):
    """The connection failed, or the server has a temporary problem: a retry may succeed."""


def is_strong(version: str | None) -> bool:
    """Whether a version identifies the bytes of a file, so that its parts fit together (RFC 9110,
    section 13.1.5)."""
    return version is not None and not version.startswith(WEAK)


class Store(ABC):
    """One kind of address.

    Every method raises FileNotFoundError if there is no such file, PermissionError if this user may
    not read it, LostError if a retry may succeed, and OSError or ValueError otherwise, each in one
    line that names the address.
    """

    @abstractmethod
    def open(
        self, address: Address, start: int = 0, version: str | None = None
    ) -> AbstractContextManager[Reply]:
        """The bytes from `start`, if the file still has this version; otherwise all of it."""

    @abstractmethod
    def has_changed(self, address: Address, version: str) -> bool:
        """Whether the file is not of this version any more."""

    @abstractmethod
    def exists(self, address: Address) -> bool:
        """Whether there is such a file; asked before one is written."""

    @abstractmethod
    def matches(self, address: Address) -> list[str]:
        """The addresses of the files that a pattern with `*`, `?` or `[...]` describes, sorted."""

    @abstractmethod
    def upload(self, file: Path, address: Address) -> None:
        """Write a complete file; what was there before stays until it is complete."""


def store_of(address: Address) -> Store:
    """The store that reads an address.

    Raises:
        ValueError: if a package is missing.
    """
    if address.is_http:
        from dnadiff.data.remote.http import HttpStore

        return HttpStore()
    from dnadiff.data.remote.objects import ObjectStore

    return ObjectStore(address)
