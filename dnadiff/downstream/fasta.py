"""A FASTA file for each class."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dnadiff.data.files import resolve
from dnadiff.data.genome.fasta import read_fasta
from dnadiff.downstream.labeled import PART_OF_WORD, LabeledSequences, LabeledTask


class FastaTask(LabeledTask):
    """Each record is a sequence of its file's class.

    Args:
        path: class name -> FASTA file, or part -> (class name -> FASTA file): `'task.path={promoter: p.fa, other: o.fa}'`.
        name: of the task.
        **settings: see `LabeledTask`.
    """

    def __init__(self, path: Mapping[str, Any], name: str = "fasta", **settings: Any) -> None:
        if not isinstance(path, Mapping):
            raise ValueError(f"path {path!r} is not a file for each class; write 'task.path={{promoter: p.fa, other: o.fa}}'")
        if any(isinstance(files, Mapping) for files in path.values()) and not all(isinstance(files, Mapping) for files in path.values()):
            raise ValueError("path has parts beside files; write 'task.path={train: {promoter: p.fa, ...}, test: {promoter: q.fa, ...}}'")
        self.divided = bool(path) and all(isinstance(files, Mapping) for files in path.values())
        if self.divided and (unknown := set(path) - set(PART_OF_WORD)):
            raise ValueError(f"path has a part {min(unknown)!r}; the parts are train, valid and test")
        named = [str(name) for files in (path.values() if self.divided else [path]) for name in files]
        if not named:
            raise ValueError("path names no file; write 'task.path={promoter: p.fa, other: o.fa}'")
        self.files = {part: dict(files) for part, files in path.items()} if self.divided else {"train": dict(path)}
        super().__init__(name, **settings)

    def read(self, tokenizer: Any) -> LabeledSequences:
        """See `LabeledTask`."""
        every = [str(file) for files in self.files.values() for file in files.values()]
        found = LabeledSequences(", ".join(every), divided=self.divided, place="task.path", part_place="task.path")
        for part, files in self.files.items():
            for name, file in files.items():
                for record in read_fasta(file):
                    sequence = record.sequence
                    text = sequence.decode("latin-1") if isinstance(sequence, bytes) else str(sequence)
                    found.add(tokenizer, text, str(name), PART_OF_WORD[part], f"{file}: record {record.name}")
        return found

    def sources(self) -> list[Path]:
        """See `LabeledTask`."""
        return [resolve(file) for files in self.files.values() for file in files.values()]
