"""Files on other machines: read by HTTP or fsspec and copied into the cache, and outputs uploaded.

`http://` and `https://` need no further package; `s3://`, `gs://` and `hf://` are read by fsspec
(s3fs, gcsfs, huggingface_hub). Each file is fetched once, and again only if it has changed there;
a lost connection is tried again, and resumed where the store can.

The folder `remote` of the cache has a folder for each remote folder, so that files that belong
together stay together. Next to each file is a note with its address, size, version and SHA-256. The
values of a query are not in it, only their hash: they may be secret.

Outputs are written to this disk, and uploaded as a whole when they are complete. A command that
resumes finds on this disk what an earlier one left there. If that was uploaded already, it finds a
copy of what is there, so that it says of a complete output what it says of a local one.
"""

import glob
import hashlib
import http.client
import os
import re
import shutil
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from dnadiff.fields import JsonMap, PositiveInt
from dnadiff.progress import closest, log
from dnadiff.store.address import Address, existing, expand_user, is_remote, is_short, parse, shown
from dnadiff.store.disk import (
    Json,
    cache_dir,
    content_hash,
    hash_file,
    locked,
    megabytes,
    names_file,
    read_json,
    unique,
    write_all,
    write_json,
)
from dnadiff.store.objects import leaves

BUNDLED = Path(__file__).resolve().parents[1] / "bundled"  # a folder for each model
# KEY=VALUE of commands that name files to read. Of regions only a name that cannot be a region
# counts; the default of a task has a message of its own, and tasks of `task.tasks` may be absent.
_FILES = re.compile(
    r"(vcf|genome|samples|real|template|start|paths|data\.(path|blacklist|split\.bed)"
    r"|task\.path(?!=~/\.genomic_benchmarks)|task\.(\w+_)?genome|reward\.(.+\.)?matrix)(\..+)?=.*"
    r"|(task\.)?(input|regions|saturate|infill)=.*\.(bed|gtf|gff3?)(\.\w+)?",
    re.IGNORECASE,
)
WEAK = 'W/"'  # the beginning of a weak entity tag
_BLOCK = 1 << 20
_TIMEOUT = 60.0  # seconds without a byte
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_PARTIAL = 206
_UNCHANGED = 304
_BEYOND = 416
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_RANGE_BYTES = 1 << 23
# Of s3fs, gcsfs, huggingface_hub and others.
_MARKS = ("ETag", "etag", "blob_id", "generation", "LastModified", "mtime", "created")
# Seconds before each further try; a try that brings something starts again with the first.
WAITS = (0.5, 1.0, 2.0, 4.0)
# Names and SHA-256 of the files in the folder of an output that are copies of what is there.
_FETCHED = ".fetched.json"
_current: set[str] = set()  # addresses that this process has compared with the server


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


@contextmanager
def _in_one_line(address: Address) -> Iterator[None]:
    """Errors with a message for users. The packages raise many kinds; what is not known to be final
    may pass."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (OSError, ValueError)) and str(error).startswith(address.text):
            raise
        # Some packages name a signed address.
        reason = shown(" ".join(f"{type(error).__name__}: {error}".split()))[:200]
        kind: type[Exception] = LostError
        text = f"could not be read or written ({reason})"
        if isinstance(error, ImportError):
            extra = "hub" if address.scheme == "hf" else "remote"
            kind = ValueError
            text = (
                f"needs a package that is not installed: pip install -e '.[{extra}]' in the "
                f"checkout ({error})"
            )
        elif isinstance(error, FileNotFoundError):
            kind = FileNotFoundError
            text = "does not exist; check the address"
        elif isinstance(error, PermissionError) or "credential" in reason.lower():
            kind = PermissionError
            text += "; access is refused: check your credentials for it"
        elif isinstance(error, (TypeError, ValueError, NotImplementedError)):
            kind = OSError
        raise kind(f"{address.text} {text}") from error


class ObjectStore:
    """A file in an object store. Access is configured as its own tools do: environment variables,
    or files in the home folder.

    Every method raises FileNotFoundError if there is no such file, PermissionError if this user may
    not read it, LostError if a retry may succeed, and OSError or ValueError otherwise, also if the
    package that reads it is missing, each in one line that names the address.
    """

    def __init__(self, address: Address) -> None:
        import fsspec

        self.address = address
        with _in_one_line(address):
            self._files = fsspec.filesystem(address.scheme)

    @contextmanager
    def open(self, start: int = 0, version: str | None = None) -> Iterator[Reply]:
        """The bytes from `start`, if the file still has this version; otherwise all of it."""
        about = self._about()
        total = int(about["size"])
        now = _object_version(about)
        start = start if start <= total and version in (None, now) else 0

        def blocks() -> Iterator[bytes]:
            for first in range(start, total, _RANGE_BYTES):
                last = min(first + _RANGE_BYTES, total)
                with _in_one_line(self.address):
                    block = self._files.cat_file(self.address.text, start=first, end=last)
                yield block
            if now is not None and self.has_changed(now):  # the ranges may be of two versions
                raise LostError(f"{self.address.text} changed while it was read")

        yield Reply(start, total, now, blocks())

    def has_changed(self, version: str) -> bool:
        """Whether the file is not of this version any more."""
        return _object_version(self._about()) != version

    def exists(self) -> bool:
        """Whether there is such a file, or a folder, such as that of an exported model; asked
        before one is written."""
        try:
            self._about(may_be_folder=True)
        except FileNotFoundError:
            return False
        return True

    def matches(self) -> list[str]:
        """The addresses of the files that a pattern with `*`, `?` or `[...]` describes, sorted."""
        with _in_one_line(self.address):
            found = sorted(map(str, self._files.glob(self.address.text)))
        start = f"{self.address.scheme}://"
        return [start + path.removeprefix(start) for path in found]

    def upload(self, file: Path) -> None:
        """Write a complete file; what was there before stays until it is complete."""
        with _in_one_line(self.address):
            self._files.put_file(str(file), self.address.text)
        if (size := int(self._about()["size"])) != file.stat().st_size:
            raise LostError(
                f"{self.address.text} has {size:,} bytes after the upload of "
                f"{file.stat().st_size:,}"
            )

    def _about(self, may_be_folder: bool = False) -> dict[str, Json]:
        with _in_one_line(self.address):
            self._files.invalidate_cache()  # it stores what it has seen
            about: dict[str, Json] = self._files.info(self.address.text)
        if about.get("type") == "directory" and not may_be_folder:
            raise FileNotFoundError(f"{self.address.text} is a folder; name a file in it")
        return about


def _object_version(about: dict[str, Json]) -> str | None:
    return next((str(about[key]) for key in _MARKS if about.get(key) is not None), None)


HttpReply = http.client.HTTPResponse | urllib.error.HTTPError


class HttpStore(ObjectStore):
    """A file of a web server, read with the standard library alone, and never written."""

    def __init__(self, address: Address) -> None:
        self.address = address

    @contextmanager
    def open(self, start: int = 0, version: str | None = None) -> Iterator[Reply]:
        shown = self.address.shown
        headers = {"Range": f"bytes={start}-"} if start else {}
        if start and version and is_strong(version):
            headers["If-Range"] = version
        with closing(self._ask(headers)) as reply:
            if reply.status == _BEYOND:  # the file is shorter than it was
                with self.open() as whole:
                    yield whole
                return
            length = reply.headers.get("Content-Length", "")
            first = 0
            total = int(length) if length.isdecimal() else None
            if reply.status == _PARTIAL:
                found = _RANGE.fullmatch(part := reply.headers.get("Content-Range", ""))
                if found is None or int(found[1]) != start:
                    raise OSError(
                        f"{shown}: the server answered a range with {part!r}; download it by "
                        "other means"
                    )
                first = start
                total = int(found[3])
            if total is None and "Transfer-Encoding" not in reply.headers:
                raise OSError(
                    f"{shown}: the server does not say how long the file is, so that a "
                    "part of it looks like the whole; download "
                    "it by other means, and give the name of your copy"
                )

            def blocks() -> Iterator[bytes]:
                try:
                    while block := reply.read(_BLOCK):
                        yield block
                except (OSError, http.client.HTTPException) as error:
                    raise LostError(
                        f"{shown}: the connection was lost ({error or type(error).__name__})"
                    ) from error

            yield Reply(first, total, _http_version(reply), blocks())

    def has_changed(self, version: str) -> bool:
        header = "If-None-Match" if version.startswith(('"', WEAK)) else "If-Modified-Since"
        with closing(self._ask({header: version})) as reply:
            # A server that ignores the condition sends the file.
            return reply.status != _UNCHANGED and _http_version(reply) != version

    def matches(self) -> list[str]:
        raise ValueError(
            f"{self.address.shown}: HTTP cannot list files; name each, or give a manifest with a "
            "column path"
        )

    def _ask(self, headers: dict[str, str]) -> HttpReply:
        """The reply to a GET, also that nothing has changed or that a range is beyond the end.

        HEAD is not asked, because signed addresses are for one method.
        """
        shown = self.address.shown
        request = urllib.request.Request(self.address.text, headers=headers)
        try:
            return urllib.request.build_opener(_Redirects).open(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code == _UNCHANGED or (error.code == _BEYOND and "Range" in headers):
                return error
            error.close()
            status = f"HTTP {error.code} {error.reason}"
            if error.code in (404, 410):
                raise FileNotFoundError(
                    f"{shown} does not exist ({status}); check the address"
                ) from error
            if error.code in (401, 403):
                raise PermissionError(
                    f"{shown} could not be fetched: the server refuses it ({status}); check "
                    "the address and your access to it"
                ) from error
            kind = LostError if error.code in _PASSING else OSError
            raise kind(f"{shown} could not be fetched ({status})") from error
        except (ValueError, http.client.InvalidURL) as error:
            raise ValueError(
                f"{shown} is not an address that HTTP can read ({error}); check it"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            why = str(reason) or type(reason).__name__
            unknown = (socket.EAI_NONAME, socket.EAI_NODATA)
            if isinstance(reason, socket.gaierror) and reason.errno in unknown:
                why = f"there is no server of that name, or no network: {why}"
            raise LostError(f"{shown} could not be fetched ({why})") from error


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from an encrypted connection to one that is not."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.lower().startswith(("https:", f"{req.type}:")):
            raise ValueError(
                f"it is redirected to {shown(newurl)}, which is not encrypted; to allow that, give "
                "this address itself"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _http_version(reply: HttpReply) -> str | None:
    """The strong entity tag, or else the time of the last change, or else the weak tag, by which a
    transfer is not resumed (`is_strong`)."""
    tag = reply.headers.get("ETag", "")
    changed = reply.headers.get("Last-Modified")
    return tag if tag.startswith('"') else changed or (tag if tag.startswith(WEAK) else None)


def store_of(address: Address) -> ObjectStore:
    """The store that reads an address.

    Raises:
        ValueError: if a package is missing, or nothing may be fetched (`reading_cache`).
    """
    if _is_set(_OFFLINE):
        raise ValueError(f"{address.shown} is not read, because {_OFFLINE} is set")
    return HttpStore(address) if address.is_http else ObjectStore(address)


class _Kept(NamedTuple):
    """What a part holds: the first `done` bytes of a version of the file."""

    done: int = 0
    version: str | None = None
    total: int | None = None


def _kept(part: Path, of_this_call: bool) -> _Kept:
    """What `part` holds, if its complete length is known, and its version; in the same call also
    without a strong version."""
    with suppress(OSError, ValueError):
        note = read_json(_part_note(part), ("version", "total"))
        if note["total"] is not None and (of_this_call or is_strong(note["version"])):
            return _Kept(part.stat().st_size, note["version"], note["total"])
    return _Kept()


def _part_note(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def transfer(address: Address, part: Path) -> str | None:
    """Write the file to `part`, continuing what an earlier call left there, and return its version.

    Raises:
        LostError: if the connection fails each time; what came stays in `part` for the next call if
            the store can resume.
        OSError: if it cannot be fetched.
    """
    store = store_of(address)
    furthest = 0
    failures = 0
    while True:
        try:
            version = _more(store, part, _kept(part, of_this_call=failures > 0))
            _part_note(part).unlink(missing_ok=True)
            return version
        except LostError as error:
            kept = _kept(part, of_this_call=True)
            failures = failures + 1 if kept.done <= furthest else 1
            furthest = max(furthest, kept.done)
            if failures > len(WAITS):
                resumes = (
                    f"; {kept.done:,} bytes are kept, and the next call resumes"
                    if kept.done and is_strong(kept.version)
                    else ""
                )
                raise LostError(f"{error} after {failures} tries{resumes}") from error
            time.sleep(WAITS[failures - 1])


def _more(store: ObjectStore, part: Path, kept: _Kept) -> str | None:
    """Append what is missing, and return the version; raises LostError if it did not come."""
    address = store.address
    with store.open(kept.done, kept.version) as reply:
        done = reply.start
        total = reply.total
        if done and (total, reply.version) != (kept.total, kept.version):
            part.unlink(missing_ok=True)
            raise LostError(f"{address.shown} changed while it was read")
        if not done:  # before the note: bytes of one version never have the note of another
            part.unlink(missing_ok=True)
        write_json(_part_note(part), {"version": reply.version, "total": total})
        with (
            part.open("r+b" if part.exists() else "w+b", buffering=0) as file,
            megabytes(total or 0, f"fetching {address.name}", done) as progress,
        ):
            file.truncate(done)
            file.seek(done)
            for block in reply.blocks:
                done += len(block)
                if total is not None and done > total:
                    raise OSError(
                        f"{address.shown}: the server sends more than the {total:,} bytes "
                        "that it announced; download it by other means"
                    )
                with names_file(part, total):
                    write_all(file, block)
                progress(len(block))
    if total is not None and done < total:
        raise LostError(
            f"{address.shown}: the connection was lost after {done:,} of {total:,} bytes"
        )
    return reply.version


def fetch(address: Address) -> Path:
    """The copy in the cache, fetched if there is none, or if the file has changed since. Each
    process asks the server once.

    Raises:
        FileNotFoundError: if there is no such file.
        OSError, ValueError: if it cannot be fetched, in one line that names the address.
    """
    target = target_of(address)
    if is_short(address.text) or _is_set(_OFFLINE):  # what another process fetched
        return stored(address)
    if address.text in _current and _note_of(target, address) is not None:
        return target
    with _part_of(target, address.shown) as part:
        note = _note_of(target, address)
        if note is None or _has_changed(address, note):
            version = transfer(address, part)
            digest = hash_file(part)
            size = part.stat().st_size
            if not size:
                raise ValueError(f"{address.shown} is empty; check the address")
            with part.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(part, target)
            known = {
                "address": address.shown,
                "address_sha256": _digest(address.text),
                "size": size,
                "version": version,
                "sha256": digest,
                "fetched": time.strftime("%Y-%m-%d %H:%M:%S"),
            }
            write_json(_note(target), known)
            log.info(f"{address.shown}: fetched {size:,} bytes, sha256 {digest}")
        _current.add(address.text)
    return target


@contextmanager
def _part_of(target: Path, name: str) -> Iterator[Path]:
    """Where the bytes of a file arrive, while no other process fetches it."""
    with locked(
        target.with_name(f".{target.name}.lock"), f"{name}: another process is fetching it; waiting"
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
        OSError, ValueError: as `fetch`.
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
        used = ", ".join(address.name for address in found)
        log.warning(f"{problem}; of {folder.shown} the files in the cache are used: {used}")
    return found


def stored(address: Address) -> Path:
    """The copy in the cache, without asking the server.

    Raises:
        FileNotFoundError: if there is none.
    """
    target = target_of(address)
    copies = {}
    if _note_of(target, address) is not None:
        return target
    if is_short(address.text):
        for copy in cache_dir("remote").glob(f"*/{glob.escape(address.name)}"):
            note = _note_of(copy)
            if note is not None and shown(note["address"]) == address.shown:
                copies[note["sha256"]] = copy
    if len(copies) == 1:
        return copies.popitem()[1]
    remedy = (
        "what a checkpoint names is not fetched; name it on the command line to allow that, as in "
        f"data=fasta data.path={address.shown}"
    )
    if is_short(address.text):
        remedy = "no file has what ... stands for; give the complete address"
    elif _is_set(_OFFLINE):
        remedy = f"nothing is fetched; unset {_OFFLINE}, or give merge fetch=true"
    raise FileNotFoundError(
        f"{address.shown} is {'several files' if copies else 'not'} in the cache, and {remedy}"
    )


def target_of(address: Address) -> Path:
    """Where the copy is, or will be."""
    folder = cache_dir("remote") / _digest(address.folder)[:32]
    folder.mkdir(exist_ok=True)
    return folder / address.name


def _note(target: Path) -> Path:
    return target.with_name(f".{target.name}.json")


def _note_of(target: Path, address: Address | None = None) -> dict[str, Json] | None:
    """What is known of a complete copy; None if there is none, it was changed, or it is of another
    address."""
    with suppress(OSError, ValueError):
        note = read_json(_note(target), ("address", "size", "version", "sha256", "fetched"))
        # Those of earlier versions have no hash of the address, and its query.
        of = note.get("address_sha256") or _digest(str(note["address"]))
        is_same = address is None or of == _digest(address.text)
        known = target.stat().st_size, content_hash(target)
        if is_same and (note["size"], note["sha256"]) == known:
            return note
    return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _has_changed(address: Address, note: dict[str, Json]) -> bool:
    if note["version"] is None:  # nothing to compare
        return False
    try:
        changed = store_of(address).has_changed(note["version"])
    except (LostError, PermissionError, ValueError) as error:
        log.warning(f"{error}; the copy of {note['fetched']} in the cache is used")
        return False
    if changed:
        log.warning(f"{address.shown} has changed since {note['fetched']}; it is fetched again")
    return changed


class Download:
    """A file at a fixed address, downloaded into the folder `downloads` of the cache.

    Not `buildable` from a checkpoint: only the user's own command line may access the network.

    Args:
        url: http or https address; its last part is the name of the file.
        size: in bytes.
        sha256: of its content.
    """

    def __init__(self, url: str, size: PositiveInt, sha256: str) -> None:
        self.url = url
        self.size = size
        self.sha256 = sha256.lower()
        self.name = url.rpartition("/")[2]
        if not re.fullmatch(r"https?://(.*/)?\w[\w.-]*(?<!\.part)(?<!\.lock)", url):
            raise ValueError(
                f"download.url is {url!r}; expected http:// or https:// and a file name at its end"
            )

    @property
    def target(self) -> Path:
        """Where the file is, or will be."""
        # Files of one name and different content never meet.
        folder = cache_dir("downloads") / self.sha256[:16]
        folder.mkdir(parents=True, exist_ok=True)
        return folder / self.name

    def fetch(self) -> Path:
        """The file, downloaded if it is not in the cache; an interrupted download is resumed.

        Raises:
            OSError: if it cannot be downloaded; the message names the file and where to put it.
            ValueError: if the downloaded file is not the expected one.
        """
        target = self.target
        remedy = (
            f"put {self.name} ({self.size:,} bytes, sha256 {self.sha256}) at {target}, or "
            "set data.path to a copy of yours"
        )
        with _part_of(target, target.name) as part:
            if target.is_file():
                size = target.stat().st_size
                if size != self.size or content_hash(target) != self.sha256:
                    raise ValueError(
                        f"{target} has {size:,} bytes and is not the file of {self.size:,} bytes "
                        f"expected (sha256 {self.sha256}); remove it, or set data.path to the file "
                        "you want"
                    )
                return target
            try:
                transfer(parse(self.url), part)
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


@contextmanager
def uploading(
    outputs: Mapping[str, object], resume: bool = False, overwrite: bool = False
) -> Iterator[dict[str, str]]:
    """A file on this disk for each output of a command that is an address; they are uploaded when
    the block ends without error.

    Args:
        outputs: paths and addresses, by the key of the command.

    Raises:
        FileExistsError: if an output exists, unless `overwrite` is true; with `resume` the command
            decides, as for a file of this disk.
        OSError, ValueError: if it cannot be written there; the files then stay on this disk, and
            the message says where.
    """
    remote = {key: parse(path) for key, path in outputs.items() if is_remote(path)}
    places = {key: _place(address, resume, overwrite) for key, address in remote.items()}
    try:
        yield {key: str(place) for key, place in places.items()}
        for key, address in remote.items():
            _upload(places[key], address)
        # Only now: if an upload fails, a command that resumes finds all files.
        for place in places.values():
            shutil.rmtree(place.parent, ignore_errors=True)
    except FileExistsError as error:  # of a command that resumes: it names the copy
        text = str(error)
        for key, place in places.items():
            text = text.replace(str(place), remote[key].shown)
        raise FileExistsError(text) from error
    finally:
        for place in places.values():
            if not _written(place.parent):
                shutil.rmtree(place.parent, ignore_errors=True)


def _place(address: Address, resume: bool, overwrite: bool) -> Path:
    """Where an output is written on this disk: the same place each time, so that `resume=true`
    finds what is there."""
    if address.is_http:
        raise ValueError(
            f"{address.shown} cannot be written by HTTP; choose s3://, gs:// or a file"
        )
    folder = cache_dir("outputs") / _digest(address.text)[:32]
    if resume and _written(folder):
        return folder / address.name
    exists = (resume or not overwrite) and store_of(address).exists()
    if exists and not resume:
        raise FileExistsError(
            f"{address.shown} exists; set overwrite=true to replace it, or choose another name"
        )
    shutil.rmtree(folder, ignore_errors=True)
    if exists:
        # A copy of it, and of the JSON file next to it, in a folder that is there only when it is
        # complete.
        staging = folder.with_name(f"{folder.name}.fetching")
        shutil.rmtree(staging, ignore_errors=True)  # of a killed process
        staging.mkdir()
        try:
            transfer(address, staging / address.name)
            about = address._replace(text=f"{address.text}.json")
            # A store may refuse what does not exist.
            with suppress(FileNotFoundError, PermissionError):
                transfer(about, staging / about.name)
            hashes = {path.name: hash_file(path) for path in staging.iterdir()}
            write_json(staging / _FETCHED, hashes)
            staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    return folder / address.name


def _written(folder: Path) -> list[Path]:
    """The files in the folder of an output that a command wrote: all but those that are copies of
    what is there."""
    digests: dict[str, Json] = {}
    with suppress(OSError, ValueError):
        digests = read_json(folder / _FETCHED)
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name != _FETCHED
        and (path.parent != folder or digests.get(path.name) != hash_file(path))
    ]


def _upload(place: Path, address: Address) -> None:
    """Upload an output and what a command wrote next to it, the output itself last."""
    files = [path for path in _written(place.parent) if not path.name.startswith(".")]
    if place.exists() and place not in files:
        log.info(f"{address.shown} is complete already; it is not uploaded again")
    for path in sorted(files, key=lambda path: path == place):
        name = path.relative_to(place.parent).as_posix()
        beside = address._replace(text=f"{address.folder}/{name}")
        target = address if path == place else beside
        for wait in (*WAITS, None):
            try:
                store_of(target).upload(path)
                break
            except (OSError, ValueError) as error:
                if wait is None or not isinstance(error, LostError):
                    raise OSError(
                        f"{target.shown} could not be uploaded: {error}; the result is kept in "
                        f"{place.parent}"
                    ) from error
                time.sleep(wait)
        log.info(f"{target.shown}: uploaded {path.stat().st_size:,} bytes")


_OFFLINE = "DNADIFF_OFFLINE"
_PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "http_proxy", "HTTP_PROXY")


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")


@contextmanager
def reading_cache(only: bool = True) -> Iterator[None]:
    """Until the block ends, nothing is fetched, and files of other machines are read from the
    cache; `only` false changes nothing."""
    before = os.environ.get(_OFFLINE, "")
    os.environ[_OFFLINE] = "1" if only else before
    try:
        yield
    finally:
        os.environ[_OFFLINE] = before


def hub_is_reachable() -> bool:
    """Whether the host name of the Hugging Face Hub resolves, so that a machine without a network
    fails at once instead of after many retries.

    True with a proxy, which resolves the name itself; False if `HF_HUB_OFFLINE` or
    `DNADIFF_OFFLINE` is set.
    """
    if _is_set("HF_HUB_OFFLINE") or _is_set(_OFFLINE):
        return False
    if any(os.environ.get(name) for name in _PROXIES):
        return True
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        socket.getaddrinfo(urllib.parse.urlsplit(address).hostname, 443)
        return True
    except OSError:
        return False


_COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_PREFIX = "hf:"
_HUB = re.compile(rf"({HUB_PREFIX})?(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def is_hub_commit(name: str) -> bool:
    """Whether a name is that of a commit of a repository of the Hub, `ORG/NAME@<40 digits>`."""
    hub = _HUB.fullmatch(name)
    return hub is not None and _COMMIT.fullmatch(hub["revision"] or "") is not None


def bundled_names() -> list[str]:
    """The names of the models that ship with the package."""
    return sorted(path.parent.name for path in BUNDLED.glob("*/dnadiff.json"))


def is_elsewhere(name: str) -> bool:
    """Whether a name is that of a file of the package, or of one on another machine."""
    return re.match(r"\w+:", name) is not None or is_hub_commit(name)


def check_model(name: str) -> None:
    """Raise FileNotFoundError, with the closest name, if there is no such model; other machines are
    not asked."""
    known = bundled_names()
    if name not in ("latest", *known) and not is_elsewhere(name) and not expand_user(name).exists():
        raise FileNotFoundError(
            f"checkpoint {name} does not exist{closest(name, known)}; give a run folder, a .ckpt "
            "file, latest, a folder with a published or exported model, hf:ORG/NAME, or a model "
            f"that ships with dnadiff ({', '.join(known) or 'this version has none'})"
        )


def check_names(config: JsonMap, models: Sequence[str]) -> None:
    """Check that the models and files that a command names are there, before anything is loaded; a
    FileNotFoundError names one that is not. Not checked are patterns, other machines and, where a
    region may be given, what has no name of a BED, GTF or GFF file."""
    for key in models:
        if isinstance(name := config.get(key), str):
            check_model(name)
    named = list(leaves(config))
    for key, name in named:
        if isinstance(name, list):
            named += [(key, each) for each in name]
        elif not isinstance(name, str) or is_elsewhere(name) or glob.has_magic(name):
            continue
        elif _FILES.fullmatch(f"{key}={name}") or (
            config.get("genome") is None and config.get("input") == name
        ):
            existing(name)


def fetch_hub(name: str, required: Sequence[str], optional: Sequence[str] = ()) -> Path:
    """Fetch files of the repository `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`, and return their
    folder in the Hub's cache.

    If the Hub cannot be reached, the files of an earlier download are used, which is logged. If the
    revision is not a commit (40 hexadecimal digits), the commit that it resolves to today, or
    without the Hub resolved to then, is logged.

    Raises:
        ValueError: if the name has another form, the files can neither be fetched nor are in the
            cache, or the repository lacks a required file; it says which files to put where.
    """
    import huggingface_hub

    found = _HUB.fullmatch(name)
    if found is None:
        raise ValueError(
            f"checkpoint {name} is not the name of a repository of the Hub; write hf:ORG/NAME or "
            "hf:ORG/NAME@REVISION"
        )
    repository = found["repository"]
    revision = found["revision"]
    shown = f"{HUB_PREFIX}{repository}"
    remedy = (
        f"download {' and '.join(required)} (and {', '.join(optional)}, if they exist) of "
        f"https://huggingface.co/{repository} into a folder, and give checkpoint=FOLDER"
    )

    def snapshot(local_files_only: bool) -> Path:
        return Path(
            huggingface_hub.snapshot_download(
                repository,
                revision=revision,
                allow_patterns=[*required, *optional],
                local_files_only=local_files_only,
            )
        )

    try:  # several libraries raise, depending on what fails
        if not hub_is_reachable():
            raise ConnectionError("there is no network, or HF_HUB_OFFLINE is set")
        # Raises where `snapshot_download` would use what is stored.
        huggingface_hub.HfApi().model_info(repository, revision=revision)
        path = snapshot(local_files_only=False)
    except Exception as error:
        reason = shorten(f"{type(error).__name__}: {error}", 200)
        path = Path()
        with suppress(Exception):
            path = snapshot(local_files_only=True)
        if not all((path / each).is_file() for each in required):
            raise ValueError(
                f"{shown} could not be fetched from the Hugging Face Hub "
                f"({reason}), nor is it in the Hub's cache; {remedy}"
            ) from error
        log.info(
            f"{shown}: not fetched ({reason}); the files of an earlier download "
            f"are used, commit {path.name}"
        )
    if not _COMMIT.fullmatch(revision or ""):
        log.info(f"{shown}: commit {path.name}; to pin it: {shown}@{path.name}")
    if missing := [each for each in required if not (path / each).is_file()]:
        raise ValueError(
            f"{shown} has no {' and no '.join(missing)}, and only weights in "
            f"safetensors are read; {remedy}"
        )
    return path
