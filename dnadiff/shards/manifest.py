"""What the shards of one output have in common: `manifest.json` in their folder. A shard of another
configuration is refused."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Self

from dnadiff.config import Json
from dnadiff.data.work import Work
from dnadiff.design.output import first_difference
from dnadiff.shards.shard import Shard, bounds
from dnadiff.store.address import shown
from dnadiff.store.disk import names_file, read_json

FORMAT = 1
_KEYS = ("format", "command", "count", "overrides", "streams", "check")


class Task(NamedTuple):
    """A work, with everything that its results depend on: configuration, a fingerprint of the
    weights, hashes of the inputs."""

    work: Work
    settings: Mapping[str, Json]


@dataclass(frozen=True)
class Stream:
    """One kind of results: a command with a track has two.

    Attributes:
        settings: as those of a `Task`.
        items: the first item of each shard, and the number of all items.
        prepared: as `Work.prepare` computed it.
    """

    settings: Json
    items: list[int]
    prepared: Json = None


@dataclass(frozen=True)
class Manifest:
    """The shards of one output.

    Attributes:
        command: its name.
        count: number of shards.
        overrides: arguments of the command, for merging. They may contain a signed address, which
            merging reads: only the owner of the file may read it then.
        streams: by name.
    """

    command: str
    count: int
    overrides: Sequence[str]
    streams: Mapping[str, Stream]

    @classmethod
    def of(
        cls, command: str, shard: Shard, overrides: Sequence[str], tasks: Mapping[str, Task]
    ) -> Self:
        """The manifest of shards of some tasks; the first task decides how many shards there can
        be.

        Raises:
            ValueError: if it has fewer units than there are shards.
        """
        streams: dict[str, Stream] = {}
        for name, (work, settings) in tasks.items():
            starts = work.starts()
            if not streams and shard.count > (most := len(starts) - 1):
                if not most:
                    raise ValueError(
                        f"shard {shard}: there is no work to divide; the input is empty"
                    )
                raise ValueError(
                    f"shard {shard}: more shards than units of work, {most:,} ({work.unit}); use "
                    f"at most {most:,}"
                )
            places = [starts[unit] for unit in bounds(len(starts) - 1, shard.count)]
            streams[name] = Stream(
                plain(settings), [int(place) for place in places], work.prepare()
            )
        return cls(command, shard.count, list(overrides), streams)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The manifest in a file; a ValueError if it is damaged, or of another version."""
        content = read_json(path, _KEYS, "remove its folder and start over")
        if content["format"] != FORMAT:
            raise ValueError(
                f"{path} has format {content['format']!r}, and this version reads {FORMAT}; use "
                "the version that wrote it"
            )
        if content.pop("check") != _check_of(content):
            raise ValueError(
                f"{path} is damaged (its checksum differs); remove its folder and start over"
            )
        streams = {name: Stream(**about) for name, about in content["streams"].items()}
        return cls(content["command"], content["count"], content["overrides"], streams)

    def write(self, path: Path) -> None:
        """Write it atomically, unless another process has written one: all shards read the same."""
        content = {"format": FORMAT, **plain(asdict(self))}
        part = path.with_name(
            f".{path.name}.{uuid.uuid4().hex}.part"
        )  # a name that `discard` removes
        try:
            with names_file(path):
                part.parent.mkdir(parents=True, exist_ok=True)
                with part.open("wb") as file:
                    if any(shown(override) != override for override in self.overrides):
                        os.fchmod(file.fileno(), 0o600)
                    file.write(
                        (
                            json.dumps(content | {"check": _check_of(content)}, indent=1) + "\n"
                        ).encode()
                    )
                    file.flush()
                    os.fsync(file.fileno())
            os.link(part, path)
        except (
            FileExistsError,
            FileNotFoundError,
        ):  # another shard has removed `part`, which it takes for that of a killed process
            if not path.exists():
                raise
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP):
                raise
            os.replace(part, path)  # a file system without links
        finally:
            part.unlink(missing_ok=True)

    @property
    def fingerprint(self) -> str:
        """A hash of everything that the results depend on."""
        content = [
            self.command,
            self.count,
            {name: [stream.settings, stream.items] for name, stream in self.streams.items()},
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    def check(self, folder: Path, command: str, count: int, settings: Mapping[str, Json]) -> None:
        """Raise ValueError, naming what differs, if a shard is of another command, number of shards
        or configuration."""
        now = {"command": command, "number of shards": count, **_flat(settings)}
        was = {
            "command": self.command,
            "number of shards": self.count,
            **_flat({name: s.settings for name, s in self.streams.items()}),
        }
        if (found := first_difference(was, now)) is not None:
            key, before, after = found
            raise ValueError(
                f"shard: {folder} holds shards with {key}={before}, not {after}; shards of one "
                "output have the same configuration, "
                "weights and inputs: give the same, or remove that folder to start over"
            )


def plain(value: Json) -> Json:
    """A value as it comes back from JSON."""
    return json.loads(json.dumps(value))


def _flat(settings: Mapping[str, Json]) -> dict[str, Json]:
    """The settings of all streams; those of the first one keep their names."""
    first = next(iter(settings))
    return {
        (key if name == first else f"{name}.{key}"): value
        for name, each in settings.items()
        for key, value in each.items()
    }


def _check_of(content: Mapping[str, Json]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
