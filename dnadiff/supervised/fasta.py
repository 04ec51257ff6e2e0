"""Tasks with one FASTA file per class."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from typing_extensions import Unpack, override

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.formats.sequences import read_sequences
from dnadiff.store.files import resolve
from dnadiff.supervised.labeled import (
    PART_NAMES,
    LabeledSequences,
    LabeledTask,
    LabeledTaskSettings,
)


class FastaTask(LabeledTask):
    """Each record is a sequence of its file's class.

    Args:
        path: class name -> FASTA file, or part -> (class name -> FASTA file):
            `'task.path={promoter: p.fa, other: o.fa}'`.
    """

    def __init__(
        self,
        path: Mapping[str, str] | Mapping[str, Mapping[str, str]],
        name: str = "fasta",
        **settings: Unpack[LabeledTaskSettings],
    ) -> None:
        if not isinstance(path, Mapping):
            raise ValueError(
                f"path {path!r} is not a file for each class; write 'task.path={{promoter: p.fa, "
                f"other: o.fa}}'"
            )
        parts = {
            str(part): dict(files) for part, files in path.items() if isinstance(files, Mapping)
        }
        if parts and len(parts) < len(path):
            raise ValueError(
                "path mixes parts and files; write 'task.path={train: {promoter: p.fa, ...}, test: "
                "{promoter: q.fa, ...}}'"
            )
        self.divided = bool(parts)
        if unknown := set(parts) - set(PART_NAMES):
            raise ValueError(
                f"path has a part {min(unknown)!r}; the parts are train, valid and test"
            )
        self.files: dict[str, dict[str, str]] = parts or {
            "train": {name: str(file) for name, file in path.items()}
        }
        if not any(self.files.values()):
            raise ValueError("path names no file; write 'task.path={promoter: p.fa, other: o.fa}'")
        super().__init__(name, **settings)

    @override
    def read(self, tokenizer: DNATokenizer) -> LabeledSequences:
        every = [str(file) for files in self.files.values() for file in files.values()]
        found = LabeledSequences(
            ", ".join(every),
            divided=self.divided,
            label_source="task.path",
            split_source="task.path",
        )
        for part, files in self.files.items():
            for name, file in files.items():
                for record in read_sequences(file):
                    found.add(
                        tokenizer,
                        record.sequence.decode("latin-1"),
                        str(name),
                        PART_NAMES[part],
                        f"{file}: record {record.name}",
                    )
        return found

    @override
    def sources(self) -> list[Path]:
        return [resolve(file) for files in self.files.values() for file in files.values()]
