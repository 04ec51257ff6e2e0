"""The mark of a merge that has begun: a file next to its output. It tells the output of this merge
from a file that was there before."""

from __future__ import annotations

from pathlib import Path

from dnadiff.design.output import temporary_path
from dnadiff.store.disk import atomic_write


class MergeMark:
    """The mark of the merge into one output."""

    def __init__(self, output: Path) -> None:
        self.output, self.path = output, temporary_path(output, "merging")

    def set(self) -> None:
        """Begin a merge: note which file has the name of the output now."""
        with atomic_write(self.path, overwrite=True) as file:
            file.write(self._identity().encode())

    def remove(self) -> None:
        """End the merge."""
        self.path.unlink(missing_ok=True)

    @property
    def has_output(self) -> bool:
        """Whether a merge that has begun has written its output; what is written after it may be
        missing."""
        return (
            self.path.exists()
            and self.output.exists()
            and self.path.read_text(encoding="utf-8") != self._identity()
        )

    @property
    def is_under_way(self) -> bool:
        """Whether a merge that has begun has written its output, or a part of it."""
        return self.has_output or (
            self.path.exists() and temporary_path(self.output, "journal").exists()
        )

    def _identity(self) -> str:
        """What distinguishes the file from others that had its name; empty if there is none."""
        if not self.output.exists():
            return ""
        about = self.output.stat()
        return f"{about.st_ino} {about.st_size} {about.st_mtime_ns}"
