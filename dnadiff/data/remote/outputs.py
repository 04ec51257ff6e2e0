"""Outputs on other machines: written to this disk, and uploaded as a whole when they are complete."""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff.config import is_remote
from dnadiff.data.cache import cache_dir
from dnadiff.data.remote import transfer
from dnadiff.data.remote.address import Address, parse
from dnadiff.data.remote.store import LostError, store_of

if TYPE_CHECKING:
    from dnadiff.config import Config

KEYS = ("output", "per_base", "track", "dependency", "windows", "report")  # keys of commands that name a file to write
log = logging.getLogger("dnadiff")


def refuse_remote_shards(config: Config) -> None:
    """ValueError for the shards of a remote output: they write to a folder that all of them see."""
    for key in KEYS if config.get("shard") is not None or config.get("launcher") else ():
        if is_remote(config.get(key)):
            raise ValueError(
                f"{key} {config[key]} is on another machine, and shards need a folder that all of them see; name a file there, and copy what "
                "merging writes"
            )


@contextmanager
def uploading(config: Config, run_dir: Path) -> Iterator[Config]:
    """The configuration of a command with a file on this disk for each remote output; they are uploaded when the block ends without error.

    Raises:
        FileExistsError: if an output exists, unless `overwrite` or `resume` is true.
        OSError, ValueError: if it cannot be written there; the files then stay on this disk, and the message says where.
    """
    if is_remote(run_dir):
        raise ValueError(
            f"hydra.run.dir {parse(run_dir).text} is on another machine, and a run folder is on this one; give output=... instead"
        )
    remote = {key: parse(config[key]) for key in KEYS if isinstance(config.get(key), str) and is_remote(config[key])}
    places = {key: _place(address, config) for key, address in remote.items()}
    yield {**config, **{key: str(place) for key, place in places.items()}}
    for key, address in remote.items():
        _upload_all(places[key], address)


@contextmanager
def uploaded(path: str | Path, overwrite: bool) -> Iterator[Path]:
    """A file on this disk to write, which is uploaded to the address `path` when the block ends without an error."""
    address = parse(path)
    place = _place(address, {"overwrite": overwrite})
    yield place
    _upload_all(place, address)


def _place(address: Address, config: Mapping[str, object]) -> Path:
    """Where an output is written on this disk: the same place each time, so that `resume=true` finds what is there."""
    if address.is_http:
        raise ValueError(f"{address.text} cannot be written by HTTP; choose s3://, gs:// or a file")
    resumed = config.get("resume") is True
    if config.get("overwrite") is not True and not resumed and store_of(address).exists(address):
        raise FileExistsError(f"{address.text} exists; set overwrite=true to replace it, or choose another name")
    folder = cache_dir("outputs") / hashlib.sha256(address.text.encode()).hexdigest()[:32]
    if not resumed:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    return folder / address.name


def _upload_all(place: Path, address: Address) -> None:
    """Upload an output and what a command wrote next to it, the output itself last; then remove the files from this disk."""
    files = [path for path in sorted(place.parent.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    for path in sorted(files, key=lambda path: path == place):
        name = path.relative_to(place.parent).as_posix()
        _upload(path, address if path == place else address._replace(text=f"{address.folder}/{name}"), place)
    shutil.rmtree(place.parent, ignore_errors=True)


def _upload(path: Path, address: Address, place: Path) -> None:
    for number in range(len(transfer.WAITS) + 1):
        try:
            store_of(address).upload(path, address)
            log.info(f"{address.text}: uploaded {path.stat().st_size:,} bytes")
            return
        except (OSError, ValueError) as error:
            if not isinstance(error, LostError) or number == len(transfer.WAITS):
                raise OSError(f"{address.text} could not be uploaded: {error}; the result is kept in {place.parent}") from error
            time.sleep(transfer.WAITS[number])
