"""Copies in the cache of files on other machines: each is fetched once, and again only if it has
changed there.

The folder `remote` of the cache has a folder for each remote folder, so that files that belong
together stay together. Next to each file is a note with its address, size, version and SHA-256. The
values of a query are not in it, only their hash: they may be secret.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff.config import CACHED
from dnadiff.data.cache import cache_dir, content_hash, hash_file, locked, unique
from dnadiff.data.files import write_json
from dnadiff.data.remote.address import Address, parse
from dnadiff.data.remote.store import LostError, store_of
from dnadiff.data.remote.transfer import transfer
from dnadiff.data.structured import read_json

if TYPE_CHECKING:
    from dnadiff.config import Json

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
    with locked(
        target.with_name(f".{target.name}.lock"),
        f"{address.shown}: another process is fetching it; waiting",
    ) as alone:
        note = _note_of(target, address)
        if note is None or _has_changed(address, note):
            _fetch(address, target, bool(alone))
        _current.add(address.text)
    return target


def fetch_some(folder: Address, names: Sequence[str]) -> Path | None:
    """The folder in the cache with those of the named files that exist in a remote folder; None if
    none of them exists.

    If the connection is lost, the file that was asked for then, without a copy, counts as absent,
    and copies of the ones after it are taken without asking the server.

    Raises:
        LostError: if the connection is lost, and there is no file.
        OSError, ValueError: as `local_copy`.
    """
    found: list[Path] = []
    lost: LostError | None = None
    for address in map(folder.inside, names):
        try:
            found.append(fetch(address) if lost is None else stored(address))
        except FileNotFoundError:
            if lost is None:
                target_of(address).unlink(missing_ok=True)  # it was there in an earlier call
        except PermissionError:  # a store may refuse what does not exist
            continue
        except LostError as error:
            lost = error
    if lost is not None and not found:
        raise lost
    if lost is not None:
        log.warning(f"{lost}; of {folder.shown} the files in the cache are used")
    return found[0].parent if found else None


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


def _fetch(address: Address, target: Path, alone: bool) -> None:
    # Where there are no locks, two processes must not append to one file: each fetches its own,
    # from the beginning.
    part = target.with_name(f".{target.name}.part") if alone else unique(target)
    try:
        version = transfer(store_of(address), address, part)
        digest, size = hash_file(part), part.stat().st_size
        if not size:
            raise ValueError(f"{address.shown} is empty; check the address")
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        if not alone:
            part.unlink(missing_ok=True)
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
