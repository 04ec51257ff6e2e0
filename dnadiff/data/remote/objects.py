"""Reading and writing of object stores by fsspec: s3:// (s3fs), gs:// (gcsfs) and hf://
(huggingface_hub)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from dnadiff.data.remote.address import Address, shown
from dnadiff.data.remote.store import LostError, Reply, Store

if TYPE_CHECKING:
    from dnadiff.config import Json

BLOCK = 1 << 23
_EXTRA = {"s3": "remote", "gs": "remote", "hf": "hub"}
_MARKS = (
    "ETag",
    "etag",
    "blob_id",
    "generation",
    "LastModified",
    "mtime",
    "created",
)  # of s3fs, gcsfs, huggingface_hub and others


class ObjectStore(Store):
    """The files of one kind of object store. Access is configured as its own tools do: environment
    variables, or files in the home folder.

    Raises:
        ValueError: if the package that reads it is missing.
    """

    def __init__(self, address: Address) -> None:
        try:
            import fsspec

            self._files = fsspec.filesystem(address.scheme)
        except ImportError as error:
            extra = _EXTRA[address.scheme]
            raise ValueError(
                f"{address.text} needs a package that is not installed: pip install -e "
                f"'.[{extra}]' in the checkout ({error})"
            ) from None
        except Exception as error:
            raise _explained(address, error) from error

    @override
    @contextmanager
    def open(self, address: Address, start: int = 0, version: str | None = None) -> Iterator[Reply]:
        about = self._about(address)
        total, now = int(about["size"]), _version(about)
        start = start if start <= total and version in (None, now) else 0
        yield Reply(start, total, now, self._blocks(address, start, total, now))

    def _blocks(
        self, address: Address, start: int, total: int, version: str | None
    ) -> Iterator[bytes]:
        for first in range(start, total, BLOCK):
            try:
                yield self._files.cat_file(address.text, start=first, end=min(first + BLOCK, total))
            except Exception as error:
                raise _explained(address, error) from error
        if version is not None and self.has_changed(
            address, version
        ):  # the ranges may be of two versions
            raise LostError(f"{address.text} changed while it was read")

    @override
    def has_changed(self, address: Address, version: str) -> bool:
        return _version(self._about(address)) != version

    @override
    def exists(self, address: Address) -> bool:
        try:
            return bool(
                self._found(address)
            )  # also if it is a folder, such as that of an exported model
        except FileNotFoundError:
            return False

    @override
    def matches(self, address: Address) -> list[str]:
        try:
            found = sorted(str(path) for path in self._files.glob(address.text))
        except Exception as error:
            raise _explained(address, error) from error
        return [f"{address.scheme}://{path.removeprefix(f'{address.scheme}://')}" for path in found]

    @override
    def upload(self, file: Path, address: Address) -> None:
        try:
            self._files.put_file(str(file), address.text)
            self._files.invalidate_cache()
        except Exception as error:
            raise _explained(address, error) from error
        if (size := int(self._about(address)["size"])) != file.stat().st_size:
            raise LostError(
                f"{address.text} has {size:,} bytes after the upload of {file.stat().st_size:,}"
            )

    def _found(self, address: Address) -> dict[str, Json]:
        try:
            self._files.invalidate_cache()  # it stores what it has seen
            return self._files.info(address.text)
        except Exception as error:
            raise _explained(address, error) from error

    def _about(self, address: Address) -> dict[str, Json]:
        about = self._found(address)
        if about.get("type") == "directory":
            raise FileNotFoundError(f"{address.text} is a folder; name a file in it")
        return about


def _version(about: dict[str, Json]) -> str | None:
    return next((str(about[key]) for key in _MARKS if about.get(key) is not None), None)


def _explained(address: Address, error: Exception) -> Exception:
    """The error with a message for users. The packages raise many kinds; what is not known to be
    final may pass."""
    if isinstance(error, (OSError, ValueError)) and str(error).startswith(address.text):
        return error
    reason = shown(" ".join(f"{type(error).__name__}: {error}".split()))[
        :200
    ]  # some packages name a signed address
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"{address.text} does not exist; check the address")
    if isinstance(error, PermissionError) or "credential" in reason.lower():
        return PermissionError(
            f"{address.text} could not be read or written: access is refused ({reason}); check "
            "your credentials for it"
        )
    if isinstance(error, (TypeError, ValueError, ImportError, NotImplementedError)):
        return OSError(f"{address.text} could not be read or written ({reason})")
    return LostError(f"{address.text} could not be read or written ({reason})")
