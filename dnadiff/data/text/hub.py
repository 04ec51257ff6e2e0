"""Documents of the Hugging Face Hub, through `datasets`: imported when a document is asked for, and never allowed to run code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from dnadiff.data.cache import content_hash
from dnadiff.data.text.documents import columns_of, expanded
from dnadiff.data.text.reach import reachable

_LOCAL = ("parquet", "json", "text", "csv", "arrow")  # readers of files, not repositories


class Hub:
    """A dataset of the Hub, or local files read by `datasets` (`id` parquet, json, text, csv or arrow, with `data_files`).

    Args:
        id: of the repository, `owner/name`.
        splits: what `datasets` calls the parts: `{train: train, valid: validation, test: test}`.
        subset: name of the configuration, where the repository has several.
        revision: commit, branch or tag.
        column: where the text stands; several columns are joined by a space.
        data_files: files of the repository (patterns) for each of its splits; None: as the repository says.
    """

    buildable: ClassVar[bool] = True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)

    def __init__(
        self,
        id: str,
        splits: Mapping[str, str],
        subset: str | None = None,
        revision: str | None = None,
        column: str | Sequence[str] = "text",
        data_files: Mapping[str, Any] | None = None,
    ) -> None:
        if wrong := [part for part in splits if part not in ("train", "valid", "test")]:
            raise ValueError(f"hub.splits names {wrong[0]!r}; expected train, valid and test")
        self.id, self.subset, self.revision, self.splits = id, subset, revision, dict(splits)
        self.columns = columns_of(column)
        self.data_files = None if data_files is None else {split: [f] if isinstance(f, str) else list(f) for split, f in data_files.items()}

    def part(self, part: str, name: str, streaming: bool = False) -> HubPart:
        """The documents of one part.

        Args:
            part: train, valid or test.
            name: what reports call the data.
            streaming: read without storing.
        """
        return HubPart(self, part, name, streaming)


class HubPart:
    """The documents of one part, in their order; `skip` leaves some out without reading their text."""

    def __init__(self, hub: Hub, part: str, name: str, streaming: bool) -> None:
        self.hub, self.part, self.name, self.streaming = hub, part, name, streaming

    def key(self) -> dict[str, Any]:
        """What decides which documents come out: plain values. Local files count by their content, repositories by their revision."""
        hub, files = self.hub, self._local_files()
        content = {"files": [[Path(f).name, content_hash(Path(f))] for f in files]} if files else {}
        named = {"hub": hub.id, "subset": hub.subset, "revision": hub.revision, "split": hub.splits[self.part]}
        return {**named, "columns": hub.columns, "data_files": hub.data_files, **content}

    def _local_files(self) -> list[str]:
        """Files on this machine that the documents come from, patterns expanded; none for a repository."""
        hub = self.hub
        if hub.id not in _LOCAL and Path(hub.id).is_dir():
            return sorted(str(path) for path in Path(hub.id).rglob("*") if path.is_file())
        given = hub.data_files.get(hub.splits[self.part], []) if hub.id in _LOCAL and hub.data_files else []
        return expanded([path for path in given if "://" not in str(path)])

    def __iter__(self) -> Iterator[str]:
        return self.since(0)

    def since(self, first: int) -> Iterator[str]:
        """Documents from number `first`, counted from 0."""
        rows = self._load()
        rows = rows.skip(first) if first else rows
        for row in rows:
            for column in self.hub.columns:
                if not isinstance(row.get(column), str):
                    raise ValueError(f"{self.hub.id} has no text in {column!r}; set data.hub.column to one of {', '.join(map(repr, row))}")
            yield " ".join(row[column] for column in self.hub.columns)

    def _load(self) -> Any:
        if not reachable():
            os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when `datasets` is imported: what it has stored before is still found
        import datasets

        hub, settings = self.hub, {"split": self.hub.splits[self.part], "streaming": self.streaming}
        settings |= {key: value for key, value in (("revision", hub.revision), ("data_files", hub.data_files)) if value}
        try:
            return datasets.load_dataset(hub.id, hub.subset, **settings)
        except Exception as error:  # of several libraries below, depending on what fails
            said = " ".join(str(error).split())[:160]
            files = ", ".join(f"{part}: FILE" for part in hub.splits)
            raise ValueError(
                f"{self.name}: the dataset {hub.id} could not be loaded from the Hugging Face Hub ({type(error).__name__}: {said}); "
                f"without a network, give the file of its {self.part} part, and of others that are needed: 'data.path={{{files}}}' (.txt, .jsonl or .parquet with "
                f"{'a column' if len(hub.columns) == 1 else 'columns'} {', '.join(hub.columns)})"
            ) from error
