"""A folder for each part, in it a folder for each class, in it a text file for each sequence: Genomic Benchmarks as it is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dnadiff.downstream.labeled import PART_OF_WORD, LabeledSequences, LabeledTask


class FolderTask(LabeledTask):
    """`path/train/CLASS/*.txt` and `path/test/CLASS/*.txt`, each file one sequence; `valid` (or `dev`) may be there too.

    Args:
        path: the folder.
        name: of the task; None: the folder's.
        **settings: see `LabeledTask`.
    """

    def __init__(self, path: str, name: str | None = None, **settings: Any) -> None:
        self.path = str(path)
        super().__init__(name or Path(self.path).name, **settings)

    def read(self, tokenizer: Any) -> LabeledSequences:
        """See `LabeledTask`."""
        found = LabeledSequences(self.path, divided=True, place="the class folders", part_place="its folders")
        for part, name, folder in class_places(self.path, ""):
            files = sorted(folder.glob("*.txt"))
            if not files:
                raise ValueError(f"{folder} holds no .txt file; put one sequence into each, or remove the folder")
            for file in files:
                found.add(tokenizer, "".join(file.read_text(encoding="utf-8", errors="replace").split()), name, part, str(file))
        return found

    def sources(self) -> list[Path]:
        """See `LabeledTask`."""
        return [file for _, _, folder in class_places(self.path, "") for file in sorted(folder.glob("*.txt"))]


def class_places(path: str, ending: str) -> list[tuple[str, str, Path]]:
    """(part, class, place) of what lies at `path/PART/CLASS<ending>`: folders if `ending` is empty, else files.

    Raises:
        FileNotFoundError: if there is no such folder, or it holds no `train`.
        ValueError: if a class that one part has is missing in another.
    """
    top = Path(path).expanduser()
    if not top.is_dir():
        raise FileNotFoundError(f"{path} does not exist or is no folder; set task.path to the folder that holds train and test")
    parts = {p: PART_OF_WORD[p.name] for p in sorted(top.iterdir()) if p.is_dir() and p.name in PART_OF_WORD}
    for needed in ("train", "test"):
        if needed not in parts.values():
            raise FileNotFoundError(f"{path} has no folder {needed!r}; set task.path to the folder that holds train and test")
    if ending:
        found = {part: {f.name.removesuffix(ending): f for f in sorted(part.iterdir()) if f.name.endswith(ending)} for part in parts}
    else:
        found = {part: {f.name: f for f in sorted(part.iterdir()) if f.is_dir()} for part in parts}
    classes = set().union(*found.values())
    if not classes:
        raise ValueError(f"{path} has parts and no class in them; expected {top.name}/train/CLASS{ending}")
    for part, there in found.items():
        if missing := classes - set(there):
            raise ValueError(f"{part} has no class {min(missing)!r}, which another part has; add {part / (min(missing) + ending)}")
    return [(parts[part], name, place) for part, there in found.items() for name, place in there.items()]
