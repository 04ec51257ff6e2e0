"""Documents of the Hugging Face Hub, read with `datasets`, which is imported on first use and never
allowed to run code."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from typing_extensions import override

from dnadiff.data.splits import PARTS
from dnadiff.data.text.documents import Documents, columns_of, expanded, joined
from dnadiff.store.cache import content_hash

if TYPE_CHECKING:
    from dnadiff.config import Json

_LOCAL = ("parquet", "json", "text", "csv", "arrow")  # readers of files, not repositories
_PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "http_proxy", "HTTP_PROXY")


def hub_is_reachable() -> bool:
    """Whether the host name of the Hub resolves, so that a machine without a network fails at once
    instead of after many retries.

    True with a proxy, which resolves the name itself; False if `HF_HUB_OFFLINE` is set.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if any(os.environ.get(name) for name in _PROXIES):
        return True
    try:
        socket.getaddrinfo(
            urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname, 443
        )
        return True
    except OSError:
        return False


class Hub:
    """A dataset of the Hub, or local files read by `datasets` (`id` parquet, json, text, csv or
    arrow, with `data_files`).

    Args:
        splits: names of the parts in the dataset: `{train: train, valid: validation, test: test}`.
        subset: name of the configuration, for repositories with several.
        column: name of the text column. Several columns are joined by a space.
        data_files: files of the repository (patterns) for each of its splits; None: the
            repository's own choice.
    """

    buildable: ClassVar[bool] = (
        True  # a checkpoint's configuration may name it (`dnadiff.config.locate`)
    )

    def __init__(
        self,
        id: str,
        splits: Mapping[str, str],
        subset: str | None = None,
        revision: str | None = None,
        column: str | Sequence[str] = "text",
        data_files: Mapping[str, str | Sequence[str]] | None = None,
    ) -> None:
        if wrong := [part for part in splits if part not in PARTS]:
            raise ValueError(f"hub.splits names {wrong[0]!r}; expected train, valid and test")
        self.id, self.subset, self.revision, self.splits = id, subset, revision, dict(splits)
        self.columns = columns_of(column)
        self.data_files = (
            None
            if data_files is None
            else {split: [f] if isinstance(f, str) else list(f) for split, f in data_files.items()}
        )


class HubPart(Documents):
    """The documents of one part, in order; `streaming` reads without storing. `name` is that of the
    data in messages."""

    def __init__(self, hub: Hub, part: str, name: str, streaming: bool = False) -> None:
        self.hub, self.part, self.name, self.streaming = hub, part, name, streaming

    @override
    def key(self) -> dict[str, Json]:
        hub = self.hub
        content = [
            [Path(f).name, content_hash(Path(f))] for f in self._local_files()
        ]  # repositories are identified by their revision
        named = {
            "hub": hub.id,
            "subset": hub.subset,
            "revision": hub.revision,
            "split": hub.splits[self.part],
        }
        return {
            **named,
            "columns": hub.columns,
            "data_files": hub.data_files,
            **({"files": content} if content else {}),
        }

    def _local_files(self) -> list[str]:
        hub = self.hub
        if hub.id not in _LOCAL and Path(hub.id).is_dir():
            return sorted(str(path) for path in Path(hub.id).rglob("*") if path.is_file())
        given = (
            hub.data_files.get(hub.splits[self.part], [])
            if hub.id in _LOCAL and hub.data_files
            else []
        )
        return expanded([path for path in given if "://" not in str(path)])

    @override
    def __iter__(self) -> Iterator[str]:
        return self.since(0)

    @override
    def since(self, number: int) -> Iterator[str]:
        for place, row in enumerate(self._read(iter(self._load(number))), number + 1):
            yield joined(
                row,
                self.hub.columns,
                f"{self.hub.id}: row {place:,} of {self.hub.splits[self.part]}",
                "data.hub.column",
            )

    def _read(self, rows: Iterator[dict[str, Json]]) -> Iterator[dict[str, Json]]:
        try:
            yield from rows
        except (
            ValueError,
            OSError,
            RuntimeError,
        ) as error:  # of pyarrow and of `datasets`; none names the file
            source = ", ".join(self._local_files()) or self.hub.id
            message = " ".join(str(error).split())[:160]
            raise ValueError(
                f"{self.name}: {source} is damaged or cannot be read ({type(error).__name__}: "
                f"{message}); fetch it again"
            ) from error

    def _load(self, skip: int) -> Iterable[dict[str, Json]]:
        if not hub_is_reachable():
            os.environ.setdefault(
                "HF_HUB_OFFLINE", "1"
            )  # read when `datasets` is imported; stored datasets are still found
        import datasets

        hub = self.hub
        settings = {"split": hub.splits[self.part], "streaming": self.streaming}
        settings |= {
            key: value
            for key, value in (("revision", hub.revision), ("data_files", hub.data_files))
            if value
        }
        try:
            rows = datasets.load_dataset(hub.id, hub.subset, **settings)
        except Exception as error:  # several libraries raise, depending on what fails
            message = " ".join(str(error).split())[:160]
            files = ", ".join(f"{part}: FILE" for part in hub.splits)
            raise ValueError(
                f"{self.name}: the dataset {hub.id} could not be loaded from the Hugging Face Hub "
                f"({type(error).__name__}: {message}); "
                f"without a network, give the file of its {self.part} part, and of other parts "
                f"that are needed: 'data.path={{{files}}}' "
                "(.txt, .jsonl or .parquet with "
                f"{'a column' if len(hub.columns) == 1 else 'columns'} {', '.join(hub.columns)})"
            ) from error
        return rows.skip(skip) if skip else rows
