"""Packing of many sequence files, one file after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from typing_extensions import override

from dnadiff.data.genome.datamodule import DNADataModule
from dnadiff.data.genome.packed import pack
from dnadiff.jobs.job import Job, Result
from dnadiff.store.disk import write_json
from dnadiff.store.files import resolve


class PackJob(Job):
    """Packs files into the cache. Items are files; a result lists the name, checksum, records and
    bases of one.

    Args:
        describe: what is printed of the packed genome, after some seconds.
    """

    stream = "files"
    label = "genome"

    def __init__(
        self, data: DNADataModule, output: Path, describe: Callable[[DNADataModule, float], str]
    ) -> None:
        self.data, self.output, self.describe = data, output, describe
        self.sources = data.source_files()
        sizes = [[each.path, resolve(each.path).stat().st_size] for each in self.sources]
        self.settings = {"files": sizes}

    @override
    def starts(self) -> list[int]:
        return list(range(len(self.sources) + 1))

    @override
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        for source in self.sources[start + skip :]:
            file = pack(source.path)
            bases = int(file.offsets[-1])
            about = {
                "file": source.path,
                "sha256": file.digest,
                "records": len(file.records),
                "bases": bases,
            }
            self.report(1, bases)
            yield Result(1, json.dumps(about).encode())

    @override
    def write(self, results: Iterator[Result]) -> None:
        self.data.open()  # packs in several processes, and finds what shards have packed
        write_json(self.output, {"files": [json.loads(result.content) for result in results]})

    @override
    def closing(self, seconds: float) -> str:
        return f"{self.describe(self.data, seconds)}\n{super().closing(seconds)}"
