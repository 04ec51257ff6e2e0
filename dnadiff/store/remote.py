"""Files on other machines: read by HTTP or fsspec, and copied into the cache.

`http://` and `https://` need no further package; `s3://`, `gs://` and `hf://` are read by fsspec
(s3fs, gcsfs, huggingface_hub). Each file is fetched once, and again only if it has changed there;
a lost connection is tried again, and resumed where the store can.

The folder `remote` of the cache has a folder for each remote folder, so that files that belong
together stay together. Next to each file is a note with its address, size, version and SHA-256. The
values of a query are not in it, only their hash: they may be secret.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from typing_extensions import override

from dnadiff.fields import PositiveInt
from dnadiff.store.address import CACHED, Address, parse, shown
from dnadiff.store.cache import cache_dir, content_hash, hash_file, locked, megabytes, unique
from dnadiff.store.disk import Json, names_file, read_json, write_all, write_json

WEAK = 'W/"'  # the beginning of a weak entity tag
_BLOCK = 1 << 20
_TIMEOUT = 60.0  # seconds without a byte
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_GONE, _REFUSED, _UNCHANGED, _PARTIAL, _BEYOND = (404, 410), (401, 403), 304, 206, 416
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_RANGE_BYTES = 1 << 23
_EXTRA = {"s3": "remote", "gs": "remote", "hf": "hub"}
_MARKS = (
    "ETag",
    "etag",
    "blob_id",
    "generation",
    "LastModified",
    "mtime",
    "created",
)  # of s3fs, gcsfs, huggingface_hub and others


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


class ObjectStore:
    """The files of one kind of object store. Access is configured as its own tools do: environment
    variables, or files in the home folder.

    Every method raises FileNotFoundError if there is no such file, PermissionError if this user may
    not read it, LostError if a retry may succeed, and OSError or ValueError otherwise, each in one
    line that names the address.

    Raises:
        ValueError: if the package that reads it is missing.
    """

    def __init__(self, address: Address) -> None:
        try:
            import fsspec

            self._files = fsspec.filesystem(address.scheme)
        except ImportError as error:
            extra = _EXTRA[address.scheme]
            raise ValueError(
                f"{address.text} needs a package that is not installed: pip install -e "
                f"'.[{extra}]' in the checkout ({error})"
            ) from None
        except Exception as error:
            raise _explained(address, error) from error

    @contextmanager
    def open(self, address: Address, start: int = 0, version: str | None = None) -> Iterator[Reply]:
        """The bytes from `start`, if the file still has this version; otherwise all of it."""
        about = self._about(address)
        total, now = int(about["size"]), _object_version(about)
        start = start if start <= total and version in (None, now) else 0
        yield Reply(start, total, now, self._blocks(address, start, total, now))

    def _blocks(
        self, address: Address, start: int, total: int, version: str | None
    ) -> Iterator[bytes]:
        for first in range(start, total, _RANGE_BYTES):
            try:
                yield self._files.cat_file(
                    address.text, start=first, end=min(first + _RANGE_BYTES, total)
                )
            except Exception as error:
                raise _explained(address, error) from error
        if version is not None and self.has_changed(
            address, version
        ):  # the ranges may be of two versions
            raise LostError(f"{address.text} changed while it was read")

    def has_changed(self, address: Address, version: str) -> bool:
        """Whether the file is not of this version any more."""
        return _object_version(self._about(address)) != version

    def exists(self, address: Address) -> bool:
        """Whether there is such a file; asked before one is written."""
        try:
            return bool(
                self._found(address)
            )  # also if it is a folder, such as that of an exported model
        except FileNotFoundError:
            return False

    def matches(self, address: Address) -> list[str]:
        """The addresses of the files that a pattern with `*`, `?` or `[...]` describes, sorted."""
        try:
            found = sorted(str(path) for path in self._files.glob(address.text))
        except Exception as error:
            raise _explained(address, error) from error
        return [f"{address.scheme}://{path.removeprefix(f'{address.scheme}://')}" for path in found]

    def upload(self, file: Path, address: Address) -> None:
        """Write a complete file; what was there before stays until it is complete."""
        try:
            self._files.put_file(str(file), address.text)
            self._files.invalidate_cache()
        except Exception as error:
            raise _explained(address, error) from error
        if (size := int(self._about(address)["size"])) != file.stat().st_size:
            raise LostError(
                f"{address.text} has {size:,} bytes after the upload of {file.stat().st_size:,}"
            )

    def _found(self, address: Address) -> dict[str, Json]:
        try:
            self._files.invalidate_cache()  # it stores what it has seen
            return self._files.info(address.text)
        except Exception as error:
            raise _explained(address, error) from error

    def _about(self, address: Address) -> dict[str, Json]:
        about = self._found(address)
        if about.get("type") == "directory":
            raise FileNotFoundError(f"{address.text} is a folder; name a file in it")
        return about


def _object_version(about: dict[str, Json]) -> str | None:
    return next((str(about[key]) for key in _MARKS if about.get(key) is not None), None)


def _explained(address: Address, error: Exception) -> Exception:
    """The error with a message for users. The packages raise many kinds; what is not known to be
    final may pass."""
    if isinstance(error, (OSError, ValueError)) and str(error).startswith(address.text):
        return error
    reason = shown(" ".join(f"{type(error).__name__}: {error}".split()))[
        :200
    ]  # some packages name a signed address
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"{address.text} does not exist; check the address")
    if isinstance(error, PermissionError) or "credential" in reason.lower():
        return PermissionError(
            f"{address.text} could not be read or written: access is refused ({reason}); check "
            "your credentials for it"
        )
    if isinstance(error, (TypeError, ValueError, ImportError, NotImplementedError)):
        return OSError(f"{address.text} could not be read or written ({reason})")
    return LostError(f"{address.text} could not be read or written ({reason})")


class HttpStore(ObjectStore):
    """Files of a web server, read with the standard library alone, and never written."""

    def __init__(self) -> None:
        pass

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
            yield Reply(first, total, _http_version(reply), _blocks(address, reply))

    @override
    def has_changed(self, address: Address, version: str) -> bool:
        header = "If-None-Match" if version.startswith(('"', WEAK)) else "If-Modified-Since"
        try:
            with closing(_ask(address, {header: version})) as reply:
                return (
                    _http_version(reply) != version
                )  # a server that ignores the condition sends the file
        except urllib.error.HTTPError as error:
            return False if error.code == _UNCHANGED else _explain(address, error)

    @override
    def matches(self, address: Address) -> list[str]:
        raise ValueError(
            f"{address.shown}: HTTP cannot list files; name each, or give a manifest with a column "
            "path"
        )


def _ask(address: Address, headers: dict[str, str]) -> http.client.HTTPResponse:
    """The reply to a GET; HEAD is not asked, because signed addresses are for one method."""
    try:
        return urllib.request.urlopen(
            urllib.request.Request(address.text, headers=headers), timeout=_TIMEOUT
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


def _http_version(reply: http.client.HTTPResponse) -> str | None:
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
        while block := reply.read(_BLOCK):
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise LostError(
            f"{address.shown}: the connection was lost ({error or type(error).__name__})"
        ) from error


def store_of(address: Address) -> ObjectStore:
    """The store that reads an address.

    Raises:
        ValueError: if a package is missing.
    """
    return HttpStore() if address.is_http else ObjectStore(address)


WAITS = (
    0.5,
    1.0,
    2.0,
    4.0,
)  # seconds before each further try; a try that brings something starts again with the first


class _Position(NamedTuple):
    """What a part holds: the first `done` bytes of a version of the file."""

    done: int = 0
    version: str | None = None
    total: int | None = None


def transfer(store: ObjectStore, address: Address, part: Path) -> str | None:
    """Write the file to `part`, continuing what an earlier call left there, and return its version.

    Raises:
        LostError: if the connection fails each time; what came stays in `part` for the next call if
            the store can resume.
        OSError: if it cannot be fetched.
    """
    position, furthest, failures = _left_by_earlier(part), 0, 0
    while True:
        try:
            position = _more(store, address, part, position)
            _part_note(part).unlink(missing_ok=True)
            return position.version
        except LostError as error:
            position = _left_by_earlier(part, position)
            failures = failures + 1 if position.done <= furthest else 1
            furthest = max(furthest, position.done)
            if failures > len(WAITS):
                is_kept = position.done and is_strong(position.version)
                kept = (
                    f"; {position.done:,} bytes are kept, and the next call resumes"
                    if is_kept
                    else ""
                )
                raise LostError(f"{error} after {failures} tries{kept}") from error
            time.sleep(WAITS[failures - 1])


def _more(store: ObjectStore, address: Address, part: Path, position: _Position) -> _Position:
    """Append what is missing; raises LostError if it did not come."""
    label = f"fetching {address.name}"
    with store.open(address, position.done, position.version) as reply:
        done = reply.start
        if done and (reply.total, reply.version) != (position.total, position.version):
            part.unlink(missing_ok=True)
            raise LostError(f"{address.shown} changed while it was read")
        if not done:
            part.unlink(
                missing_ok=True
            )  # before the note: bytes of one version never have the note of another
        write_json(_part_note(part), {"version": reply.version, "total": reply.total})
        with (
            part.open("r+b" if part.exists() else "w+b", buffering=0) as file,
            megabytes(reply.total or 0, label, reply.start) as progress,
        ):
            file.truncate(done)
            file.seek(done)
            for block in reply.blocks:
                if reply.total is not None and done + len(block) > reply.total:
                    raise OSError(
                        f"{address.shown}: the server sends more than the {reply.total:,} bytes "
                        "that it announced; download it by other means"
                    )
                with names_file(part, reply.total):
                    write_all(file, block)
                done += len(block)
                progress(len(block))
    if reply.total is not None and done < reply.total:
        raise LostError(
            f"{address.shown}: the connection was lost after {done:,} of {reply.total:,} bytes"
        )
    return _Position(done, reply.version, done)


def _left_by_earlier(part: Path, current: _Position | None = None) -> _Position:
    """What `part` holds, if its complete length is known, and its version; in the same call
    (`current`) also without a strong version."""
    try:
        note = read_json(_part_note(part), ("version", "total"))
        done = part.stat().st_size
    except (OSError, ValueError):
        return _Position()
    if note["total"] is None or (current is None and not is_strong(note["version"])):
        return _Position()
    return _Position(done, note["version"], note["total"])


def _part_note(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


_FIELDS = ("address", "size", "version", "sha256", "fetched")
_current: set[str] = set()  # addresses that this process has compared with the server
log = logging.getLogger("dnadiff")


def local_copy(path: str | Path) -> Path:
    """The copy in the cache of a file on another machine; with the prefix `cached:` nothing is
    fetched.

    Raises:
        FileNotFoundError: if there is no such file, or, with the prefix, no copy.
        OSError, ValueError: if it cannot be fetched, in one line that names the address.
    """
    text = str(path)
    return (
        stored(parse(text.removeprefix(CACHED))) if text.startswith(CACHED) else fetch(parse(text))
    )


def fetch(address: Address) -> Path:
    """The copy in the cache, fetched if there is none, or if the file has changed since. Each
    process asks the server once."""
    target = target_of(address)
    if address.text in _current and _note_of(target, address) is not None:
        return target
    with _part_of(target, address.shown) as part:
        note = _note_of(target, address)
        if note is None or _has_changed(address, note):
            _fetch(address, target, part)
        _current.add(address.text)
    return target


@contextmanager
def _part_of(target: Path, name: str) -> Iterator[Path]:
    """Where the bytes of a file arrive, while no other process fetches it."""
    with locked(
        target.with_name(f".{target.name}.lock"),
        f"{name}: another process is fetching it; waiting",
    ) as alone:
        # Where there are no locks, two processes must not append to one file: each fetches its own,
        # from the beginning.
        part = target.with_name(f".{target.name}.part") if alone else unique(target)
        try:
            yield part
        finally:
            if not alone:
                part.unlink(missing_ok=True)


def fetch_some(folder: Address, names: Sequence[str], only_first: bool = False) -> list[Address]:
    """The named files of a remote folder that exist, or the first one, each with a copy in the
    cache.

    If the connection is lost, the file that was asked for then, without a copy, counts as absent,
    and copies of the ones after it are taken without asking the server.

    Raises:
        LostError, PermissionError: if one was, and there is no file.
        OSError, ValueError: as `local_copy`.
    """
    found: list[Address] = []
    problem: OSError | None = None
    for address in map(folder.inside, names):
        lost = isinstance(problem, LostError)
        try:
            (stored if lost else fetch)(address)
            found.append(address)
        except FileNotFoundError:
            if not lost:
                target_of(address).unlink(missing_ok=True)  # it was there in an earlier call
        except PermissionError as error:  # a store may refuse what does not exist
            problem = problem or error
        except LostError as error:
            problem = error
        if found and only_first:
            break
    if problem is not None and not found:
        raise problem
    if isinstance(problem, LostError) or (only_first and problem is not None):
        used = ", ".join(address.shown for address in found)
        log.warning(f"{problem}; used are {used}")
    return found


def stored(address: Address) -> Path:
    """The copy in the cache, without asking the server.

    Raises:
        FileNotFoundError: if there is none.
    """
    target = target_of(address)
    if _note_of(target, address) is None:
        raise FileNotFoundError(
            f"{address.shown} is not in the cache, and what a checkpoint names is not fetched; "
            "name it on the command line to allow that, as "
            f"in data=fasta data.path={address.shown}"
        )
    return target


def target_of(address: Address) -> Path:
    """Where the copy is, or will be."""
    folder = cache_dir("remote") / _digest(address.folder)[:32]
    folder.mkdir(exist_ok=True)
    return folder / address.name


def _note(target: Path) -> Path:
    return target.with_name(f".{target.name}.json")


def _note_of(target: Path, address: Address) -> dict[str, Json] | None:
    """What is known of a complete copy; None if there is none, or it was changed."""
    with suppress(OSError, ValueError):
        note = read_json(_note(target), _FIELDS)
        if (
            _names(note, address)
            and target.stat().st_size == note["size"]
            and content_hash(target) == note["sha256"]
        ):
            return note
    return None


def _names(note: dict[str, Json], address: Address) -> bool:
    """Whether a note is of an address; those of earlier versions have no hash of it, and its
    query."""
    return (note.get("address_sha256") or _digest(str(note["address"]))) == _digest(address.text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _has_changed(address: Address, note: dict[str, Json]) -> bool:
    if note["version"] is None:  # nothing to compare
        return False
    try:
        changed = store_of(address).has_changed(address, note["version"])
    except (LostError, PermissionError, ValueError) as error:
        log.warning(f"{error}; the copy of {note['fetched']} in the cache is used")
        return False
    if changed:
        log.warning(f"{address.shown} has changed since {note['fetched']}; it is fetched again")
    return changed


def _fetch(address: Address, target: Path, part: Path) -> None:
    version = transfer(store_of(address), address, part)
    digest, size = hash_file(part), part.stat().st_size
    if not size:
        raise ValueError(f"{address.shown} is empty; check the address")
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, target)
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    known = {
        "address": address.shown,
        "address_sha256": _digest(address.text),
        "size": size,
        "version": version,
        "sha256": digest,
    }
    write_json(_note(target), {**known, "fetched": when})
    log.info(f"{address.shown}: fetched {size:,} bytes, sha256 {digest}")


def expand(path: str) -> list[str]:
    """The addresses that a pattern describes.

    Raises:
        FileNotFoundError: if there are none.
        ValueError: if the store cannot list files.
    """
    address = parse(path)
    found = store_of(address).matches(address)
    if not found:
        raise FileNotFoundError(f"{address.shown} matches no file; check the pattern")
    return found


class Download:
    """A file at a fixed address, downloaded into the folder `downloads` of the cache.

    Not `buildable` from a checkpoint: only the user's own command line may access the network.

    Args:
        url: http or https address; its last part is the name of the file.
        size: in bytes.
        sha256: of its content.
    """

    def __init__(self, url: str, size: PositiveInt, sha256: str) -> None:
        self.url, self.size, self.sha256 = url, size, sha256.lower()
        self.name = url.rpartition("/")[2]
        if not re.fullmatch(r"https?://(.*/)?\w[\w.-]*(?<!\.part)(?<!\.lock)", url):
            raise ValueError(
                f"download.url is {url!r}; expected http:// or https:// and a file name at its end"
            )

    @property
    def target(self) -> Path:
        """Where the file is, or will be."""
        folder = (
            cache_dir("downloads") / self.sha256[:16]
        )  # files of one name and different content never meet
        folder.mkdir(parents=True, exist_ok=True)
        return folder / self.name

    def fetch(self) -> Path:
        """The file, downloaded if it is not in the cache; an interrupted download is resumed.

        Raises:
            OSError: if it cannot be downloaded; the message names the file and where to put it.
            ValueError: if the downloaded file is not the expected one.
        """
        target = self.target
        if self._is_there(target):
            return target
        remedy = (
            f"put {self.name} ({self.size:,} bytes, sha256 {self.sha256}) at {target}, or "
            "set data.path to a copy of yours"
        )
        with _part_of(target, target.name) as part:
            if self._is_there(target):
                return target
            try:
                transfer(HttpStore(), parse(self.url), part)
            except OSError as error:
                raise OSError(f"{error}: {remedy}") from error
            if part.stat().st_size != self.size or hash_file(part) != self.sha256:
                part.unlink()
                raise ValueError(
                    f"{self.url}: the downloaded file is not the expected one (sha256 "
                    f"{self.sha256}); it was removed: {remedy}"
                )
            os.replace(part, target)
        return target

    def _is_there(self, target: Path) -> bool:
        if not target.is_file():
            return False
        if target.stat().st_size != self.size or content_hash(target) != self.sha256:
            raise ValueError(
                f"{target} has {target.stat().st_size:,} bytes and is not the file of "
                f"{self.size:,} bytes expected (sha256 {self.sha256}); "
                f"remove it, or set data.path to the file you want"
            )
        return True
