"""Shards of a command's output: part `i` of `n`, the folder `OUTPUT.shards` that all of them write
into, and the mark of a merge that has begun.

The folder has the manifest, which says what the shards have in common, and for each shard its
results and, written last, an entry that says that it is complete.
"""

from __future__ import annotations

import json
import platform
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from dnadiff.fields import Json, JsonDict
from dnadiff.jobs.job import Job, Result
from dnadiff.jobs.journal import (
    ResumableOutput,
    check_of,
    crc_of,
    first_difference,
    plain,
    temporary_path,
)
from dnadiff.renamed import VERSION
from dnadiff.store.disk import (
    atomic_write,
    json_hash,
    load_json,
    locked,
    names_file,
    read_json,
    write_json,
)

FORMAT = 1
_FORM = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")
_HEAD = struct.Struct("<QIQ")  # items, bytes of the JSON text, bytes of the content
_KEYS = ("format", "command", "count", "overrides", "streams", "check")
_ENTRY = ("shard", "fingerprint", "parts", "environment", "check")
_LISTED = 20  # missing shards in a message


@dataclass(frozen=True)
class Shard:
    """Part `number` of `count`, counted from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: object) -> Self:
        """The shard that the key `shard` names.

        Raises:
            ValueError: unless it is `i/n` with i from 1 to n.
        """
        found = _FORM.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError(f"shard {text!r} must be i/n, as in shard=3/200: part 3 of 200")
        shard = cls(int(found[1]), int(found[2]))
        if not 1 <= shard.number <= shard.count:
            raise ValueError(
                f"shard {text}: the first number must be from 1 to the second one, which says how "
                "many shards there are"
            )
        return shard

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def without(overrides: Sequence[str], keys: Collection[str]) -> list[str]:
    """The arguments of a command line that do not set one of these keys, or something in them."""
    return [
        each
        for each in overrides
        if each.lstrip("+~").partition("=")[0].partition(".")[0] not in keys
    ]


def packed(result: Result) -> bytes:
    """A result as bytes."""
    about = json.dumps(dict(result.about)).encode()
    return _HEAD.pack(result.items, len(about), len(result.content)) + about + result.content


def unpacked(path: Path) -> Iterator[Result]:
    """The results in a file.

    Raises:
        ValueError: if the file is damaged.
    """
    with path.open("rb") as file:
        while head := file.read(_HEAD.size):
            try:
                count, of_about, of_content = _HEAD.unpack(head)
                about, content = load_json(file.read(of_about).decode()), file.read(of_content)
            except (struct.error, ValueError, RecursionError) as error:
                raise ValueError(
                    f"{path} is damaged ({error}); remove it and compute its shard again"
                ) from error
            if len(content) != of_content:
                raise ValueError(f"{path} is cut short; remove it and compute its shard again")
            yield Result(count, content, about)


@dataclass(frozen=True)
class Stream:
    """The results of one job.

    Attributes:
        settings, prepared: of the job.
        items: the first item of each shard, and the number of all items.
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
        overrides: arguments of the command, for merging.
        streams: by name.
    """

    command: str
    count: int
    overrides: Sequence[str]
    streams: Mapping[str, Stream]

    @classmethod
    def of(cls, command: str, count: int, overrides: Sequence[str], jobs: Sequence[Job]) -> Self:
        """The manifest of `count` shards of some jobs. Shards that are more than the units of a job
        have no items of it."""
        streams: dict[str, Stream] = {}
        for job in jobs:
            starts = job.starts()
            units = [(len(starts) - 1) * number // count for number in range(count + 1)]
            items = [int(starts[unit]) for unit in units]
            streams[job.stream] = Stream(plain(job.settings), items, job.prepare())
        return cls(command, count, list(overrides), streams)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The manifest in a file; a ValueError if it is damaged, or of another version."""
        content = read_json(path, _KEYS, "remove its folder and start over")
        if content["format"] != FORMAT:
            raise ValueError(
                f"{path} has format {content['format']!r}, and this version reads {FORMAT}; use "
                "the version that wrote it"
            )
        if content.pop("check") != json_hash(content)[:16]:
            raise ValueError(
                f"{path} is damaged (its checksum differs); remove its folder and start over"
            )
        streams = {name: Stream(**about) for name, about in content["streams"].items()}
        return cls(content["command"], content["count"], content["overrides"], streams)

    def write(self, path: Path) -> None:
        """Write it, unless another process has written one: all shards read the same."""
        content = {"format": FORMAT, **plain(asdict(self))}
        content |= {"check": json_hash(content)[:16]}
        with names_file(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock := path.with_name(f".{path.name}.lock.part")):
            if not path.exists():
                with atomic_write(path) as file:
                    file.write((json.dumps(content, indent=1) + "\n").encode())
            lock.unlink(missing_ok=True)

    @property
    def shards(self) -> list[Shard]:
        """All of them."""
        return [Shard(number, self.count) for number in range(1, self.count + 1)]

    @property
    def fingerprint(self) -> str:
        """A hash of everything that the results depend on."""
        streams = {name: [each.settings, each.items] for name, each in self.streams.items()}
        return json_hash([self.command, self.count, streams])[:32]

    def check(self, folder: Path, command: str, count: int, jobs: Sequence[Job]) -> None:
        """Raise ValueError, naming what differs, if a shard is of another command, number of shards
        or configuration."""
        start = {"command": self.command, "number of shards": self.count}
        was = start | _flat({name: stream.settings for name, stream in self.streams.items()})
        now = {"command": command, "number of shards": count}
        now |= _flat({job.stream: plain(job.settings) for job in jobs})
        earlier = _flat({job.stream: job.earlier for job in jobs})
        if (found := first_difference(was, now, earlier)) is not None:
            key, before, after = found
            raise ValueError(
                f"shard: {folder} holds shards with {key}={before}, not {after}; shards of one "
                "output have the same configuration, weights and inputs: give the same, or remove "
                "that folder to start over"
            )


def _flat(settings: Mapping[str, Json]) -> JsonDict:
    """The settings of all streams; those of the first one keep their names."""
    first = next(iter(settings))
    return {
        (key if name == first else f"{name}.{key}"): value
        for name, each in settings.items()
        for key, value in each.items()
    }


class ShardFolder:
    """The shards of one output."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / "manifest.json"

    @classmethod
    def of(cls, output: Path) -> ShardFolder:
        """The folder next to an output."""
        return cls(output.with_name(f"{output.name}.shards"))

    def join(
        self, command: str, shard: Shard, overrides: Sequence[str], jobs: Sequence[Job]
    ) -> Manifest:
        """The manifest, written now if this is the first shard; a ValueError if there is one of
        another configuration."""
        if not self.manifest_path.exists():
            Manifest.of(command, shard.count, overrides, jobs).write(self.manifest_path)
        manifest = self.manifest
        manifest.check(self.path, command, shard.count, jobs)
        return manifest

    @property
    def manifest(self) -> Manifest:
        """The manifest, read now; a FileNotFoundError if there are no shards."""
        if not self.manifest_path.exists():
            raise FileNotFoundError(
                f"{self.path} does not exist or has no shards; compute them first: shard=1/N, ..., "
                "shard=N/N"
            )
        return Manifest.read(self.manifest_path)

    def _file(self, shard: Shard, ending: str) -> Path:
        return self.path / f"{shard.number:0{max(4, len(str(shard.count)))}d}.{ending}"

    def part(self, shard: Shard, stream: str) -> Path:
        """The file of a shard's results."""
        return self._file(shard, f"{stream}.part")

    def entry(self, shard: Shard) -> Path:
        """The file that says that a shard is complete."""
        return self._file(shard, "json")

    def log(self, shard: Shard) -> Path:
        """What a launched shard prints."""
        return self._file(shard, "log")

    def is_complete(self, shard: Shard, fingerprint: str) -> bool:
        """Whether a shard of this configuration is complete."""
        return self.entry(shard).exists() and self._entry(shard)["fingerprint"] == fingerprint

    def complete(
        self, shard: Shard, fingerprint: str, streams: Mapping[str, ResumableOutput]
    ) -> None:
        """Write the entry of a shard whose parts have their names."""
        import torch

        parts = {
            name: {"items": stream.done, "bytes": stream.bytes, "crc": stream.crc}
            for name, stream in streams.items()
        }
        content = {
            "shard": str(shard),
            "fingerprint": fingerprint,
            "parts": parts,
            # What the last bits of numbers may depend on besides the configuration.
            "environment": {
                "dnadiff": VERSION,
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "machine": platform.machine(),
            },
        }
        write_json(self.entry(shard), content | {"check": check_of(content)})

    def missing(self) -> list[int]:
        """The numbers of the shards that are not complete, or of another configuration."""
        manifest = self.manifest
        fingerprint = manifest.fingerprint
        return [s.number for s in manifest.shards if not self.is_complete(s, fingerprint)]

    def check_complete(self) -> Manifest:
        """The manifest; a ValueError that lists the shards that are not complete."""
        manifest = self.manifest
        if missing := self.missing():
            listed = ", ".join([*map(str, missing[:_LISTED]), "..."][: len(missing)])
            raise ValueError(
                f"{self.path} lacks {len(missing):,} of {manifest.count:,} shards: {listed}; "
                "compute them, then merge again"
            )
        return manifest

    def results(self, stream: str, skip: int = 0) -> Iterator[Result]:
        """The results of all shards in the order of their items, without the first `skip` items.

        Raises:
            ValueError: if a part is missing or damaged, before any of its results.
        """
        manifest = self.manifest
        items = manifest.streams[stream].items
        for shard, first, last in zip(manifest.shards, items, items[1:]):
            if last <= skip:
                continue
            path = self.part(shard, stream)
            about = self._entry(shard)["parts"][stream]
            remedy = f"remove {self.entry(shard)} and compute shard={shard} again"
            if not path.is_file():
                raise ValueError(f"{path}, the part of shard {shard}, is missing; {remedy}")
            content = (path.stat().st_size, crc_of(path, about["bytes"]))
            if about["items"] != last - first or content != (about["bytes"], about["crc"]):
                raise ValueError(
                    f"{path}, the part of shard {shard}, was changed or cut short; {remedy}"
                )
            done = first
            for result in unpacked(path):
                done += result.items
                if done > skip:
                    yield result

    def others(self) -> list[str]:
        """The names in the folder that are not of files of shards or of empty folders; that of the
        folder if it is a link."""
        if self.path.is_symlink():
            return [self.path.name]
        own = (
            rf"(manifest|\d{{4,}})\.json|\d{{4,}}\.(log|({'|'.join(self.manifest.streams)})\.part)"
        )
        name = re.compile(rf"{own}|\.{{1,2}}({own})\.(\S*\.)?(part|journal)")
        return [
            path.name
            for path in sorted(self.path.iterdir())
            if (any(path.iterdir()) if path.is_dir() else not name.fullmatch(path.name))
        ]

    def environments(self) -> list[str]:
        """The different environments in which shards were computed, as text."""
        found = (self._entry(shard)["environment"] for shard in self.manifest.shards)
        return sorted(
            {", ".join(f"{key} {value}" for key, value in each.items()) for each in found}
        )

    def _entry(self, shard: Shard) -> JsonDict:
        path = self.entry(shard)
        remedy = f"remove it and compute shard={shard} again"
        content = read_json(path, _ENTRY, remedy)
        if content.pop("check") != check_of(content):
            raise ValueError(f"{path} is damaged (its checksum differs); {remedy}")
        return content


class MergeMark:
    """The mark of the merge into one output."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.path = temporary_path(output, "merging")

    def set(self) -> None:
        """Begin a merge: note which file has the name of the output now."""
        with atomic_write(self.path, overwrite=True) as file:
            file.write(self._identity().encode())

    def remove(self) -> None:
        """End the merge."""
        self.path.unlink(missing_ok=True)

    @property
    def has_output(self) -> bool:
        """Whether a merge that has begun has written its output; what is written after it may be
        missing."""
        return (
            self.path.exists()
            and self.output.exists()
            and self.path.read_text(encoding="utf-8") != self._identity()
        )

    @property
    def is_under_way(self) -> bool:
        """Whether a merge that has begun has written its output, or a part of it."""
        return self.has_output or (
            self.path.exists() and temporary_path(self.output, "journal").exists()
        )

    def _identity(self) -> str:
        """What distinguishes the file from others that had its name; empty if there is none."""
        if not self.output.exists():
            return ""
        about = self.output.stat()
        return f"{about.st_ino} {about.st_size} {about.st_mtime_ns}"
