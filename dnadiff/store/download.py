"""Download of a large file: resumable, with checks of size and checksum, and a remedy in the
message where there is no network."""

from __future__ import annotations

import http.client
import os
import re
import urllib.error
import urllib.request
from pathlib import Path

from dnadiff.checks import PositiveInt
from dnadiff.store.cache import cache_dir, content_hash, hash_file, locked, megabytes, unique
from dnadiff.store.disk import names_file, write_all

_BLOCK = 1 << 20
_TRIES = 3
_TIMEOUT = 60.0  # seconds without a byte


class Download:
    """A file at a fixed address, downloaded into the folder `downloads` of the cache.

    Not `buildable` from a checkpoint: only the user's own command line may access the network.

    Args:
        url: http or https address; its last part is the name of the file.
        size: in bytes.
        sha256: of its content.
    """

    def __init__(self, url: str, size: PositiveInt, sha256: str) -> None:
        self.url, self.size, self.sha256 = url, size, sha256.lower()
        self.name = url.rpartition("/")[2]
        if not re.fullmatch(r"https?://(.*/)?\w[\w.-]*(?<!\.part)(?<!\.lock)", url):
            raise ValueError(
                f"download.url is {url!r}; expected http:// or https:// and a file name at its end"
            )

    @property
    def target(self) -> Path:
        """Where the file is, or will be."""
        folder = (
            cache_dir("downloads") / self.sha256[:16]
        )  # files of one name and different content never meet
        folder.mkdir(parents=True, exist_ok=True)
        return folder / self.name

    def fetch(self) -> Path:
        """The file, downloaded if it is not in the cache; an interrupted download is resumed.

        Raises:
            OSError: if it cannot be downloaded; the message names the file and where to put it.
            ValueError: if the downloaded file is not the expected one.
        """
        target = self.target
        if self._is_there(target):
            return target
        with locked(
            target.with_name(f".{target.name}.lock"),
            f"{target.name}: another process is fetching it; waiting",
        ) as alone:
            if not self._is_there(target):
                # Where there are no locks, two processes must not append to one file: each fetches
                # its own, from the beginning.
                part = target.with_name(f"{target.name}.part") if alone else unique(target)
                try:
                    self._complete(part)
                    os.replace(part, target)
                finally:
                    if not alone:
                        part.unlink(missing_ok=True)
        return target

    def _is_there(self, target: Path) -> bool:
        if not target.is_file():
            return False
        if target.stat().st_size != self.size or content_hash(target) != self.sha256:
            raise ValueError(
                f"{target} has {target.stat().st_size:,} bytes and is not the file of "
                f"{self.size:,} bytes expected (sha256 {self.sha256}); "
                f"remove it, or set data.path to the file you want"
            )
        return True

    def _complete(self, part: Path) -> None:
        problem: Exception | None = None
        for _ in range(_TRIES):
            before = _size(part)
            try:
                if before < self.size:
                    self._more(part, before)
                problem = None
            except urllib.error.HTTPError as error:
                raise self._unreachable(f"HTTP {error.code} {error.reason}", part) from error
            except (OSError, http.client.HTTPException) as error:
                problem = error
            after = _size(part)
            if after >= self.size or (problem is not None and after == before):
                break
        if problem is not None:
            raise self._unreachable(str(getattr(problem, "reason", problem)), part) from problem
        if (size := _size(part)) < self.size:
            raise self._unreachable(f"it stopped after {size:,} bytes", part)
        if size > self.size or hash_file(part) != self.sha256:
            part.unlink()
            raise ValueError(
                f"{self.url}: the downloaded file is not the expected one (sha256 {self.sha256}); "
                f"it was removed: {self._remedy()}"
            )

    def _more(self, part: Path, done: int) -> None:
        """Append what is missing."""
        request = urllib.request.Request(
            self.url, headers={"Range": f"bytes={done}-"} if done else {}
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:
            if done and reply.status != 206:  # a server that cannot resume sends everything again
                done = 0
            with (
                part.open("ab" if done else "wb", buffering=0) as file,
                megabytes(self.size, f"fetching {self.name}", done) as progress,
            ):
                while done <= self.size and (
                    block := reply.read(_BLOCK)
                ):  # a server that never ends does not fill the disk
                    with names_file(part, self.size):
                        write_all(file, block)
                    done += len(block)
                    progress(len(block))

    def _unreachable(self, reason: str, part: Path) -> OSError:
        kept = f"; {_size(part):,} bytes are kept, and the next call resumes" if _size(part) else ""
        return OSError(f"{self.url} could not be fetched ({reason}){kept}: {self._remedy()}")

    def _remedy(self) -> str:
        return (
            f"put {self.name} ({self.size:,} bytes, sha256 {self.sha256}) at {self.target}, or "
            "set data.path to a copy of yours"
        )


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
