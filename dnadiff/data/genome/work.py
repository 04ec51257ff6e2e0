"""Packing of many sequence files, one file after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import override

from dnadiff.data.genome.packed import pack
from dnadiff.data.genome.sources import Source
from dnadiff.data.work import Result, Work


@dataclass
class PackWork(Work):
    """Packs files into the cache. Items are files; a result lists the name, checksum, records and
    bases of one."""

    sources: Sequence[Source]

    unit = "files"

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
