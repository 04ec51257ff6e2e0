"""Tasks in folders: one per part, in it one per class, in it one text file per sequence, as Genomic
Benchmarks is downloaded."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import Unpack, override

from dnadiff.checks import expand_user
from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.supervised.labeled import (
    PART_NAMES,
    LabeledSequences,
    LabeledTask,
    LabeledTaskSettings,
)


class FolderTask(LabeledTask):
    """Reads `path/train/CLASS/*.txt` and `path/test/CLASS/*.txt`, one sequence per file; `valid`
    (or `dev`) is optional."""

    def __init__(
        self, path: str, name: str | None = None, **settings: Unpack[LabeledTaskSettings]
    ) -> None:
        self.path = str(path)
        super().__init__(name or Path(self.path).name, **settings)

    @override
    def read(self, tokenizer: DNATokenizer) -> LabeledSequences:
        found = LabeledSequences(
            self.path, divided=True, label_source="the class folders", split_source="its folders"
        )
        for part, name, folder in class_paths(self.path, ""):
            files = sorted(folder.glob("*.txt"))
            if not files:
                raise ValueError(
                    f"{folder} holds no .txt file; put one sequence into each, or remove the folder"
                )
            for file in files:
                found.add(
                    tokenizer,
                    "".join(file.read_text(encoding="utf-8", errors="replace").split()),
                    name,
                    part,
                    str(file),
                )
        return found

    @override
    def sources(self) -> list[Path]:
        return [
            file
            for _, _, folder in class_paths(self.path, "")
            for file in sorted(folder.glob("*.txt"))
        ]


def class_paths(path: str, ending: str) -> list[tuple[str, str, Path]]:
    """(part, class, path) of every `path/PART/CLASS<ending>`: folders if `ending` is empty, else
    files.

    Raises:
        FileNotFoundError: if there is no such folder, or it has no `train` or `test`.
        ValueError: if a part lacks a class that another part has.
    """
    top = expand_user(path)
    if not top.is_dir():
        raise FileNotFoundError(
            f"{path} does not exist or is not a folder; set task.path to the folder that holds "
            "train and test"
        )
    parts = {
        p: PART_NAMES[p.name] for p in sorted(top.iterdir()) if p.is_dir() and p.name in PART_NAMES
    }
    for needed in ("train", "test"):
        if needed not in parts.values():
            raise FileNotFoundError(
                f"{path} has no folder {needed!r}; set task.path to the folder that holds train "
                "and test"
            )
    if ending:
        found = {
            part: {
                f.name.removesuffix(ending): f
                for f in sorted(part.iterdir())
                if f.name.endswith(ending)
            }
            for part in parts
        }
    else:
        found = {part: {f.name: f for f in sorted(part.iterdir()) if f.is_dir()} for part in parts}
    classes: set[str] = set().union(*found.values())
    if not classes:
        raise ValueError(
            f"{path} has parts and no class in them; expected {top.name}/train/CLASS{ending}"
        )
    for part, present in found.items():
        if missing := classes - set(present):
            raise ValueError(
                f"{part} has no class {min(missing)!r}, which another part has; add "
                f"{part / (min(missing) + ending)}"
            )
    return [
        (parts[part], name, place)
        for part, present in found.items()
        for name, place in present.items()
    ]
