"""The folder `OUTPUT.shards`: the manifest, and for each shard its parts and, written last, an
entry that says that it is complete."""

from __future__ import annotations

import json
import platform
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from dnadiff.config import Json
from dnadiff.data.work import Result
from dnadiff.design.output import ResumableOutput, crc_of
from dnadiff.shards.manifest import Manifest, Task, plain
from dnadiff.shards.part import unpacked
from dnadiff.shards.shard import Shard
from dnadiff.store.disk import read_json, write_json

_ENTRY = ("shard", "fingerprint", "parts", "environment", "check")
_LISTED = 20  # missing shards in a message


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
        self, command: str, shard: Shard, overrides: list[str], tasks: Mapping[str, Task]
    ) -> Manifest:
        """The manifest, written now if this is the first shard.

        Raises:
            ValueError: if there is one of another configuration, or there are more shards than
                units of work.
        """
        settings = {name: plain(task.settings) for name, task in tasks.items()}
        if not self.manifest_path.exists():
            Manifest.of(command, shard, overrides, tasks).write(self.manifest_path)
        manifest = Manifest.read(self.manifest_path)
        manifest.check(self.path, command, shard.count, settings)
        return manifest

    def read(self) -> Manifest:
        """The manifest; a FileNotFoundError if there are no shards."""
        if not self.manifest_path.exists():
            raise FileNotFoundError(
                f"{self.path} does not exist or has no shards; compute them first: shard=1/N, ..., "
                "shard=N/N"
            )
        return Manifest.read(self.manifest_path)

    def part(self, shard: Shard, stream: str) -> Path:
        """The file of a shard's results."""
        return self.path / f"{self._name(shard)}.{stream}.part"

    def entry(self, shard: Shard) -> Path:
        """The file that says that a shard is complete."""
        return self.path / f"{self._name(shard)}.json"

    def log(self, shard: Shard) -> Path:
        """What a launched shard prints."""
        return self.path / f"{self._name(shard)}.log"

    def _name(self, shard: Shard) -> str:
        return f"{shard.number:0{max(4, len(str(shard.count)))}d}"

    def is_complete(self, shard: Shard, fingerprint: str) -> bool:
        """Whether a shard of this configuration is complete."""
        return self.entry(shard).exists() and self._entry(shard)["fingerprint"] == fingerprint

    def complete(
        self, shard: Shard, fingerprint: str, streams: Mapping[str, ResumableOutput]
    ) -> None:
        """Write the entry of a shard whose parts have their names."""
        parts = {
            name: {"items": stream.done, "bytes": stream.bytes, "crc": stream.crc}
            for name, stream in streams.items()
        }
        content = {
            "shard": str(shard),
            "fingerprint": fingerprint,
            "parts": parts,
            "environment": environment(),
        }
        write_json(self.entry(shard), content | {"check": _check_of(content)})

    def missing(self, manifest: Manifest) -> list[int]:
        """The numbers of the shards that are not complete, or of another configuration."""
        shards = (Shard(number, manifest.count) for number in range(1, manifest.count + 1))
        return [
            shard.number for shard in shards if not self.is_complete(shard, manifest.fingerprint)
        ]

    def check_complete(self) -> Manifest:
        """The manifest; a ValueError that lists the shards that are not complete."""
        manifest = self.read()
        if missing := self.missing(manifest):
            shown = ", ".join(map(str, missing[:_LISTED])) + (
                ", ..." if len(missing) > _LISTED else ""
            )
            raise ValueError(
                f"{self.path} lacks {len(missing):,} of {manifest.count:,} shards: {shown}; "
                "compute them, then merge again"
            )
        return manifest

    def results(self, manifest: Manifest, stream: str, skip: int = 0) -> Iterator[Result]:
        """The results of all shards in the order of their items, without the first `skip` items.

        Raises:
            ValueError: if a part is missing or damaged, before any of its results.
        """
        items = manifest.streams[stream].items
        for number in range(1, manifest.count + 1):
            if items[number] <= skip:
                continue
            self._check_part(
                Shard(number, manifest.count), stream, items[number] - items[number - 1]
            )
            done = items[number - 1]
            for result in unpacked(self.part(Shard(number, manifest.count), stream)):
                done += result.items
                if done > skip:
                    yield result

    def _check_part(self, shard: Shard, stream: str, items: int) -> None:
        path, about = self.part(shard, stream), self._entry(shard)["parts"][stream]
        remedy = f"remove {self.entry(shard)} and compute shard={shard} again"
        if not path.is_file():
            raise ValueError(f"{path}, the part of shard {shard}, is missing; {remedy}")
        if (
            about["items"] != items
            or path.stat().st_size != about["bytes"]
            or crc_of(path, about["bytes"]) != about["crc"]
        ):
            raise ValueError(
                f"{path}, the part of shard {shard}, was changed or cut short; {remedy}"
            )

    def environments(self, manifest: Manifest) -> list[str]:
        """The different environments in which shards were computed, as text."""
        shards = (Shard(number, manifest.count) for number in range(1, manifest.count + 1))
        return sorted(
            {
                ", ".join(
                    f"{key} {value}" for key, value in self._entry(shard)["environment"].items()
                )
                for shard in shards
            }
        )

    def _entry(self, shard: Shard) -> dict[str, Json]:
        path, remedy = self.entry(shard), f"remove it and compute shard={shard} again"
        content = read_json(path, _ENTRY, remedy)
        if content.pop("check") != _check_of(content):
            raise ValueError(f"{path} is damaged (its checksum differs); {remedy}")
        return content


def environment() -> dict[str, Json]:
    """What the last bits of numbers may depend on besides the configuration."""
    import torch

    from dnadiff.renamed import VERSION

    return {
        "dnadiff": VERSION,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }


def _check_of(content: Mapping[str, Json]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
