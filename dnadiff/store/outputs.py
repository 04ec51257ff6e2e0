"""Outputs on other machines: written to this disk, and uploaded as a whole when they are complete.

A command that resumes finds on this disk what an earlier one left there. If that was uploaded
already, it finds a copy of what is there, so that it says of a complete output what it says of a
local one.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dnadiff.store.address import Address, is_remote, parse
from dnadiff.store.cache import cache_dir, hash_file
from dnadiff.store.disk import Json, read_json, write_json
from dnadiff.store.remote import WAITS, LostError, store_of, transfer

_FETCHED = (
    ".fetched.json"  # names and SHA-256 of the files in a folder that are copies of what is there
)
log = logging.getLogger("dnadiff")


def refuse_remote_shards(outputs: Mapping[str, object]) -> None:
    """ValueError for the shards of a remote output: they write to a folder that all of them see."""
    for key, path in outputs.items():
        if is_remote(path):
            raise ValueError(
                f"{key} {path} is on another machine, and shards need a folder that all of "
                "them see; name a file there, and copy what "
                "merging writes"
            )


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
            _upload_all(places[key], address)
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
    folder = cache_dir("outputs") / hashlib.sha256(address.text.encode()).hexdigest()[:32]
    if resume and _written(folder):
        return folder / address.name
    exists = (resume or not overwrite) and store_of(address).exists(address)
    if exists and not resume:
        raise FileExistsError(
            f"{address.shown} exists; set overwrite=true to replace it, or choose another name"
        )
    shutil.rmtree(folder, ignore_errors=True)
    if exists:
        _fetch(address, folder)
    folder.mkdir(exist_ok=True)
    return folder / address.name


def _fetch(address: Address, folder: Path) -> None:
    """Copy an output, and the JSON file next to it if there is one, into a folder that is there
    only when it is complete."""
    staging, about = (
        folder.with_name(f"{folder.name}.fetching"),
        address._replace(text=f"{address.text}.json"),
    )
    shutil.rmtree(staging, ignore_errors=True)  # of a killed process
    staging.mkdir()
    try:
        transfer(store_of(address), address, staging / address.name)
        with suppress(FileNotFoundError, PermissionError):  # a store may refuse what does not exist
            transfer(store_of(about), about, staging / about.name)
        write_json(staging / _FETCHED, {path.name: hash_file(path) for path in staging.iterdir()})
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _written(folder: Path) -> list[Path]:
    """The files in the folder of an output that a command wrote: all but those that are copies of
    what is there."""
    digests: dict[str, Json] = {}
    with suppress(OSError, ValueError):
        digests = read_json(folder / _FETCHED)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != _FETCHED]
    return [
        path
        for path in files
        if path.parent != folder
        or path.name not in digests
        or digests[path.name] != hash_file(path)
    ]


def _upload_all(place: Path, address: Address) -> None:
    """Upload an output and what a command wrote next to it, the output itself last."""
    files = [path for path in _written(place.parent) if not path.name.startswith(".")]
    if place.exists() and place not in files:
        log.info(f"{address.shown} is complete already; it is not uploaded again")
    for path in sorted(files, key=lambda path: path == place):
        name = path.relative_to(place.parent).as_posix()
        _upload(
            path,
            address if path == place else address._replace(text=f"{address.folder}/{name}"),
            place,
        )


def _upload(path: Path, address: Address, place: Path) -> None:
    for number in range(len(WAITS) + 1):
        try:
            store_of(address).upload(path, address)
            log.info(f"{address.shown}: uploaded {path.stat().st_size:,} bytes")
            return
        except (OSError, ValueError) as error:
            if not isinstance(error, LostError) or number == len(WAITS):
                raise OSError(
                    f"{address.shown} could not be uploaded: {error}; the result is kept in "
                    f"{place.parent}"
                ) from error
            time.sleep(WAITS[number])
