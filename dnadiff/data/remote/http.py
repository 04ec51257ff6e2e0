"""Reading by HTTP, with the standard library alone: ranges, versions, and checks of the servers'
replies."""

from __future__ import annotations

import http.client
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn

from typing_extensions import override

from dnadiff.data.remote.address import Address
from dnadiff.data.remote.store import WEAK, LostError, Reply, Store, is_strong

BLOCK = 1 << 20
TIMEOUT = 60.0  # seconds without a byte
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_GONE, _REFUSED, _UNCHANGED, _PARTIAL, _BEYOND = (404, 410), (401, 403), 304, 206, 416
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class HttpStore(Store):
    """Files of a web server."""

    @override
    @contextmanager
    def open(self, address: Address, start: int = 0, version: str | None = None) -> Iterator[Reply]:
        headers = {"Range": f"bytes={start}-"} if start else {}
        headers |= {"If-Range": version} if start and version and is_strong(version) else {}
        try:
            reply = _ask(address, headers)
        except urllib.error.HTTPError as error:
            if not start or error.code != _BEYOND:
                _explain(address, error)
            with self.open(address) as whole:  # the file is shorter than it was
                yield whole
            return
        with closing(reply):
            first, total = 0, _length(reply.headers.get("Content-Length"))
            if reply.status == _PARTIAL:
                found = _RANGE.fullmatch(reply.headers.get("Content-Range", ""))
                if found is None or int(found[1]) != start:
                    raise OSError(
                        f"{address.shown}: the server answered a range with "
                        f"{reply.headers.get('Content-Range')!r}; download it by "
                        "other means"
                    )
                first, total = start, int(found[3])
            if total is None and not reply.chunked:
                raise OSError(
                    f"{address.shown}: the server does not say how long the file is, so that a "
                    "part of it looks like the whole; download "
                    "it by other means, and give the name of your copy"
                )
            yield Reply(first, total, _version(reply), _blocks(address, reply))

    @override
    def has_changed(self, address: Address, version: str) -> bool:
        header = "If-None-Match" if version.startswith(('"', WEAK)) else "If-Modified-Since"
        try:
            with closing(_ask(address, {header: version})) as reply:
                return (
                    _version(reply) != version
                )  # a server that ignores the condition sends the file
        except urllib.error.HTTPError as error:
            return False if error.code == _UNCHANGED else _explain(address, error)

    @override
    def exists(self, address: Address) -> bool:
        raise _read_only(address)

    @override
    def matches(self, address: Address) -> list[str]:
        raise ValueError(
            f"{address.shown}: HTTP cannot list files; name each, or give a manifest with a column "
            "path"
        )

    @override
    def upload(self, file: Path, address: Address) -> None:
        raise _read_only(address)


def _read_only(address: Address) -> ValueError:
    return ValueError(f"{address.shown} cannot be written by HTTP; choose s3://, gs:// or a file")


def _ask(address: Address, headers: dict[str, str]) -> http.client.HTTPResponse:
    """The reply to a GET; HEAD is not asked, because signed addresses are for one method."""
    try:
        return urllib.request.urlopen(
            urllib.request.Request(address.text, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError:
        raise
    except (ValueError, http.client.InvalidURL) as error:
        raise ValueError(
            f"{address.shown} is not an address that HTTP can read ({error}); check it"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, socket.gaierror) and reason.errno in (
            socket.EAI_NONAME,
            socket.EAI_NODATA,
        ):
            raise LostError(
                f"{address.shown} could not be fetched (there is no server of that name, or no "
                f"network: {reason})"
            ) from error
        raise LostError(
            f"{address.shown} could not be fetched ({reason or type(reason).__name__})"
        ) from error


def _explain(address: Address, error: urllib.error.HTTPError) -> NoReturn:
    error.close()
    status = f"HTTP {error.code} {error.reason}"
    if error.code in _GONE:
        raise FileNotFoundError(
            f"{address.shown} does not exist ({status}); check the address"
        ) from error
    if error.code in _REFUSED:
        raise PermissionError(
            f"{address.shown} could not be fetched: the server refuses it ({status}); check the "
            "address and your access to it"
        )
    raise (LostError if error.code in _PASSING else OSError)(
        f"{address.shown} could not be fetched ({status})"
    ) from error


def _version(reply: http.client.HTTPResponse) -> str | None:
    """The strong entity tag, or else the time of the last change, or else the weak tag, by which a
    transfer is not resumed (`is_strong`)."""
    tag = reply.headers.get("ETag", "")
    return (
        tag
        if tag.startswith('"')
        else reply.headers.get("Last-Modified") or (tag if tag.startswith(WEAK) else None)
    )


def _length(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _blocks(address: Address, reply: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while block := reply.read(BLOCK):
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise LostError(
            f"{address.shown}: the connection was lost ({error or type(error).__name__})"
        ) from error
