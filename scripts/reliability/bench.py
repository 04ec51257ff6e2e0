"""Folders, starts and comparisons that the reliability harnesses share.

Each trial begins with an empty output folder and a cache that holds nothing but compiled kernels,
always under the same names, because some files record paths. Commands run in child processes,
forked from one that has imported everything and computed nothing.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import json
import os
import pkgutil
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
import yaml
from cases import Case, build_world, cache_in, start
from supervisor import PASS, RENAMES, Call, Decision, Outcome, supervise

ROOT = Path(__file__).parents[2]
_SETTLED = 2.5  # seconds after which the cache trusts the time stamp of an input file
# Keys that hold time stamps of files in the cache, or a checksum over them.
_STAMPS = ("mtime", "ctime", "check")
# Files that grow by one row at a time; a killed run leaves a beginning of them.
APPENDED = ("metrics.csv", "results.csv")
Contents = dict[str, str]


class Bench:
    """A world, and the folders `out` and `cache` of one trial after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.world, self.out, self.cache = (
            self.folder / name for name in ("world", "out", "cache")
        )
        self._kernels, self._modules = self.folder / "kernels", self.folder / "modules"

    def prepare(self, runs: bool = True) -> None:
        """Import the package and build the world, with the trained `runs` that most cases read."""
        sys.path.insert(0, str(ROOT))
        import dnadiff

        torch.set_num_threads(1)
        for module in pkgutil.walk_packages(dnadiff.__path__, "dnadiff."):
            with suppress(ImportError):  # Triton, where it is not installed
                importlib.import_module(module.name)
        if not self.world.exists():
            built = supervise(lambda: self._build(runs), (), timeout=600)
            if built.status:
                raise SystemExit(f"error: the world cannot be built: {built.errors[-2000:]}")
        self.settle()

    def settle(self) -> None:
        """Wait until the cache trusts the time stamps of the input files."""
        time.sleep(
            max(0.0, max(p.stat().st_ctime for p in self.world.rglob("*")) + _SETTLED - time.time())
        )

    def _build(self, runs: bool) -> int:
        from dnadiff.networks.kernels import native

        self._kernels.mkdir(parents=True, exist_ok=True)
        with suppress(native.CannotCompile):  # the kernels in Python are used instead
            native.load_library()
            for library in native.cache_folder().glob("*.so"):
                shutil.copy(library, self._kernels)
        with cache_in(self.folder / "cache_of_world"):
            shutil.copytree(self._kernels, native.cache_folder())
            build_world(self.world, runs)
        return 0

    def reset(self) -> None:
        """Empty the folders."""
        for folder in (self.out, self.cache):
            make_writable(folder)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        (self.out / "run").mkdir()  # kept if it stays empty, unlike one that a command makes
        kernels = self.cache / "kernels"
        kernels.mkdir(mode=0o700)
        for file in self._kernels.iterdir():
            os.link(file, kernels / file.name)

    def start(
        self,
        case: Case,
        resumed: bool = False,
        decide: Decision = lambda call: PASS,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
        timeout: float = 120.0,
    ) -> Outcome:
        """Run the command of a case, for so many seconds at most; `before` and `after` are called
        in the child process."""

        def work() -> int:
            before()
            status = self.call(case, self.out, resumed)
            after()
            return status

        return supervise(work, (self.out, self.cache), decide, timeout)

    def call(self, case: Case, out: Path, resumed: bool = False) -> int:
        """Run the command of a case in this process; returns its exit status."""
        os.chdir(out)
        with cache_in(self.cache):
            return start(case.command, case.command_line(self.world, out, resumed))

    def note_modules(self) -> None:
        """Write down what this process has imported."""
        self._modules.write_text("\n".join(sys.modules))

    def import_what_was_used(self) -> None:
        """Import in this process what the last command imported, so that the next one need not."""
        for name in self._modules.read_text().split("\n"):
            if name not in sys.modules and not name.startswith("__"):
                with suppress(Exception):
                    importlib.import_module(name)

    def contents(self, case: Case, hidden: bool = True) -> Contents:
        """A digest of each file and folder under `out` and `cache`; `hidden` includes temporary
        files."""
        paths = sorted(path for folder in (self.out, self.cache) for path in folder.rglob("*"))
        named = [(path, str(path.relative_to(self.folder))) for path in paths]
        return {
            n: "folder" if p.is_dir() else digest(p, n, case.ignored)
            for p, n in named
            if hidden or not is_temporary(n)
        }

    def undisturbed(self, case: Case) -> Reference:
        """Run a case twice without a disturbance and return its files and calls.

        Raises:
            ValueError: if it fails, or if the two runs differ.
        """
        found = []
        for _ in range(2):
            self.reset()
            versions: dict[str, set[str]] = {}

            def note(call: Call, versions: dict[str, set[str]] = versions) -> int:
                if (
                    call.name in RENAMES and call.paths[0].exists() and self._own(call.paths[1])
                ):  # complete now, whatever becomes of it
                    old, new = (str(path.relative_to(self.folder)) for path in call.paths)
                    for path in [call.paths[0], *call.paths[0].rglob("*")]:
                        name = new + str(path.relative_to(self.folder)).removeprefix(old)
                        versions.setdefault(name, set()).add(
                            "folder" if path.is_dir() else digest(path, name, case.ignored)
                        )
                return PASS

            outcome = self.start(case, decide=note, after=self.note_modules)
            if outcome.status:
                raise ValueError(
                    f"{case.name}: the undisturbed command ends with status {outcome.status}: "
                    f"{outcome.errors[-600:]}"
                )
            self.import_what_was_used()
            contents = self.contents(case)
            for name, value in contents.items():
                versions.setdefault(name, set()).add(value)
            found.append(Reference(contents, versions, outcome))
        if different := differences(found[0].contents, found[1].contents):
            raise ValueError(
                f"{case.name}: two undisturbed runs differ: {', '.join(different[:5])}"
            )
        if left := [name for name in found[1].contents if is_temporary(name)]:
            raise ValueError(
                f"{case.name}: the undisturbed run leaves temporary files: {', '.join(left[:5])}"
            )
        return found[1]

    def _own(self, path: Path) -> bool:
        return path.is_relative_to(self.out) or path.is_relative_to(self.cache)

    def half_written(self, case: Case, reference: Reference) -> list[str]:
        """Files under their final names that are no complete version of themselves; locks have no
        content."""
        found = []
        for name, value in self.contents(case, hidden=False).items():
            known = reference.versions.get(name)
            if name.endswith(".lock"):
                continue
            if name.endswith(APPENDED) and value != "folder":
                if not is_beginning(self.folder / name, case):
                    found.append(f"{name} is not a table of complete rows")
            elif known is None and value != "folder":
                found.append(f"{name} is no file of the undisturbed run")
            elif known is not None and value not in known:
                found.append(
                    f"{name} is half-written or has other contents "
                    f"({(self.folder / name).stat().st_size} bytes)"
                )
        return found

    def compare(self, case: Case, reference: Reference) -> list[str]:
        """How the folders differ from those of the undisturbed run, temporary files included."""
        return differences(reference.contents, self.contents(case)) + self._wrong_hashes()

    def _wrong_hashes(self) -> list[str]:
        """Checkpoints that are not those whose SHA-256 the run recorded."""
        found = []
        for path in self.out.rglob("metrics.json"):
            for name, value in json.loads(path.read_text()).get("sha256", {}).items():
                if (
                    hashlib.sha256((path.parent / "checkpoints" / name).read_bytes()).hexdigest()
                    != value
                ):
                    found.append(f"{name} is not the file whose hash metrics.json records")
        return found

    def state(self) -> str:
        """A digest of the bytes of all files, with random parts of names left out."""
        found = hashlib.sha256()
        for folder in (self.out, self.cache):
            for path in sorted(folder.rglob("*"), key=lambda path: _plain(str(path))):
                found.update(
                    _plain(str(path)).encode()
                    + b"\0"
                    + (b"" if path.is_dir() else hashlib.sha256(path.read_bytes()).digest())
                )
        return found.hexdigest()


class Reference:
    """The undisturbed run of a case: final `contents`, all complete `versions` of each file, and
    the `outcome` with its calls."""

    def __init__(self, contents: Contents, versions: dict[str, set[str]], outcome: Outcome) -> None:
        self.contents, self.versions, self.outcome = contents, versions, outcome


def is_temporary(name: str) -> bool:
    """Whether a file, or a folder above it, has the name of an unfinished one."""
    return not name.endswith(".lock") and any(
        part.startswith((".", "compiling-")) for part in Path(name).parts
    )


def _plain(name: str) -> str:
    return re.sub(r"[0-9a-f]{32}(?=\b)", "*", name) if "/." in name else name


def differences(one: Contents, other: Contents) -> list[str]:
    """Missing, further and changed files, in words."""
    missing = [f"{name} is missing" for name in one if name not in other]
    more = [f"{name} is left over" for name in other if name not in one]
    return (
        missing
        + more
        + [f"{name} differs" for name in one if name in other and one[name] != other[name]]
    )


def digest(path: Path, name: str, ignored: Sequence[str]) -> str:
    """A digest of what a file named `name` says, without the keys and columns of `ignored`; of its
    bytes if it cannot be read."""
    content = path.read_bytes()
    ignored, suffix = (*ignored, *_STAMPS), Path(name).suffix
    with suppress(
        Exception
    ):  # a damaged file keeps its bytes, which differ from those of every complete version
        if suffix == ".ckpt":
            content = _plain_values(without(_checkpoint(content), ignored))
        elif suffix == ".json":
            content = repr(without(json.loads(content), ignored)).encode()
        elif suffix == ".yaml":
            content = repr(without(yaml.safe_load(content), ignored)).encode()
        elif suffix == ".csv":
            content = repr(
                [without(row, ignored) for row in csv.DictReader(io.StringIO(content.decode()))]
            ).encode()
        elif suffix == ".npz":
            with np.load(io.BytesIO(content)) as arrays:
                values = {key: arrays[key] for key in arrays if key not in ignored}
            texts = {
                key: without(json.loads(str(value)), ignored)
                for key, value in values.items()
                if value.dtype.kind == "U"
            }
            content = repr(
                [
                    (key, texts.get(key) or (value.dtype, value.shape, value.tobytes()))
                    for key, value in values.items()
                ]
            ).encode()
    return hashlib.sha256(content).hexdigest()


def _checkpoint(content: bytes) -> dict[str, Any]:
    """A checkpoint without two of Lightning's counts, which depend on where it was saved.

    Its last training batch counts as completed or not, which Lightning corrects on resume. Its
    total of validation batches includes those of a validation that is repeated.
    """
    found = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    loops = found["loops"]["fit_loop"]
    for counts in loops["epoch_loop.batch_progress"].values():
        if isinstance(counts, dict):
            counts["completed"] = counts["processed"]
    loops["epoch_loop.val_loop.batch_progress"]["total"] = None
    return found


def without(value: object, ignored: Sequence[str]) -> object:
    """A value without some keys of its dictionaries."""
    if isinstance(value, dict):
        return {key: without(inner, ignored) for key, inner in value.items() if key not in ignored}
    return (
        [without(inner, ignored) for inner in value] if isinstance(value, (list, tuple)) else value
    )


def _plain_values(value: object) -> bytes:
    """Every bit of a nested structure of tensors."""
    if isinstance(value, torch.Tensor):
        return (
            f"{value.dtype}{tuple(value.shape)}".encode()
            + value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    if isinstance(value, dict):
        return (
            b"{"
            + b",".join(
                repr(key).encode() + b":" + _plain_values(inner) for key, inner in value.items()
            )
            + b"}"
        )
    if isinstance(value, (list, tuple)):
        return b"[" + b",".join(map(_plain_values, value)) + b"]"
    return repr(value).encode()


def is_beginning(path: Path, case: Case) -> bool:
    """Whether a table has its header, and complete rows but perhaps the last."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    rows = list(csv.reader(lines[:-1]))
    return bool(rows) and all(len(row) == len(rows[0]) for row in rows)


def make_writable(folder: Path) -> None:
    """Undo read-only folders of a trial."""
    for path in [folder, *folder.rglob("*")] if folder.exists() else ():
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def one_line(errors: str) -> str:
    """The error message that a command printed last, without `error: `; empty if there is none or
    it has several lines."""
    lines = [line for line in errors.splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        return ""
    return lines[-1].removeprefix("error: ") if lines and lines[-1].startswith("error: ") else ""


def sample(numbers: Sequence[int], count: int, *seed: object) -> list[int]:
    """A sorted sample with a fixed seed."""
    draw = random.Random("/".join(map(str, seed)))
    return sorted(draw.sample(list(numbers), min(count, len(numbers))))
