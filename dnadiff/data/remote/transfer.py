"""Transfer of a file to this disk: tried again and resumed when the connection is lost, and
complete or absent."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import NamedTuple

from dnadiff.data.cache import megabytes
from dnadiff.data.disk import names_file, write_all
from dnadiff.data.files import write_json
from dnadiff.data.remote.address import Address
from dnadiff.data.remote.store import LostError, Store, is_strong
from dnadiff.data.structured import read_json

WAITS = (
    0.5,
    1.0,
    2.0,
    4.0,
)  # seconds before each further try; a try that brings something starts again with the first
log = logging.getLogger("dnadiff")


class _Position(NamedTuple):
    """What a part holds: the first `done` bytes of a version of the file."""

    done: int = 0
    version: str | None = None
    total: int | None = None


def transfer(store: Store, address: Address, part: Path) -> str | None:
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
            _note(part).unlink(missing_ok=True)
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


def _more(store: Store, address: Address, part: Path, position: _Position) -> _Position:
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
        write_json(_note(part), {"version": reply.version, "total": reply.total})
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
        note = read_json(_note(part), ("version", "total"))
        done = part.stat().st_size
    except (OSError, ValueError):
        return _Position()
    if note["total"] is None or (current is None and not is_strong(note["version"])):
        return _Position()
    return _Position(done, note["version"], note["total"])


def _note(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")
