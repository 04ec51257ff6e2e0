"""Studies of many runs that survive an interruption: each finished piece is a JSON file, and tables
are made of these files.

A piece trains and evaluates by the command lines that a user would type. Starting a study again
skips finished pieces, and resumes an interrupted training run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from dnadiff.progress import duration
from dnadiff.store.disk import locked, write_json

Piece = Callable[[], Mapping[str, Any]]
_WAIT = 5.0  # seconds between two checks whether other processes have finished their pieces


class NotYet(ValueError):
    """A piece depends on another one that is not finished."""


class Kept:
    """The finished pieces of a study: `folder/NAME.json`.

    Args:
        folder: created with the first piece.
        settings: settings of the study, saved with each piece to detect pieces that were made with
            other settings.
        strict: a piece that was made with other settings, or without any, counts as not finished:
            it is never read, and is run again.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any] | None = None, strict: bool = False
    ) -> None:
        self.folder = folder
        self.settings = json.loads(json.dumps(settings or {}, default=str))
        self.strict = strict

    def path(self, name: str) -> Path:
        """The file of a piece."""
        return self.folder / f"{name}.json"

    def __contains__(self, name: str) -> bool:
        return self.path(name).is_file() and not (self.strict and self.changed(name))

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name not in self:
            raise NotYet(
                f"piece {name} is not finished in {self.folder}; run it first: --only {name}"
            )
        row = read_json(self.path(name))
        row.pop("of_study", None)
        return row

    def collect(self, names: Iterable[str], path: Path) -> None:
        """Write the finished ones of the named pieces to one JSON file, `{name: row}`: the format
        of docs/tables."""
        write_json(path, {name: self[name] for name in names if name in self})

    def restore(self, path: Path) -> None:
        """Unpack what `collect` wrote, as finished pieces with today's settings; pieces that exist
        already are not changed."""
        for name, row in read_json(path).items():
            if name not in self:
                self.keep(name, row)

    @contextmanager
    def claimed(self, name: str) -> Iterator[bool]:
        """Lock a piece; yields False if another process has locked it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = self.folder / f".{name}.lock"
        with locked(lock, wait=0) as held:
            try:
                yield held is not False
            finally:
                if held:
                    lock.unlink(missing_ok=True)

    def keep(self, name: str, row: Mapping[str, Any]) -> None:
        """Write a piece atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.path(name), {**row, "of_study": self.settings})

    def changed(self, name: str) -> str:
        """Settings that changed since a piece was made, such as `epochs 10, now 8`; empty if none
        did.

        A piece without settings, of an earlier version, has not changed unless `strict`.
        """
        before = read_json(self.path(name)).get("of_study", {} if self.strict else self.settings)
        keys = [
            key for key in {**before, **self.settings} if before.get(key) != self.settings.get(key)
        ]
        return "; ".join(
            f"{key} {_brief(before.get(key))}, now {_brief(self.settings.get(key))}" for key in keys
        )


def arguments(description: str, output: str) -> argparse.ArgumentParser:
    """The command-line options of all studies."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(output),
        help="folder for pieces and runs (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help="this piece, or all that start with NAME; can be repeated, the order counts",
    )
    parser.add_argument(
        "--list", action="store_true", help="list the pieces and which are finished"
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help="print the table of finished pieces without running any",
    )
    parser.add_argument(
        "--collect",
        type=Path,
        metavar="FILE",
        help="write all finished pieces to one JSON file, {piece: row}",
    )
    parser.add_argument(
        "--restore",
        type=Path,
        metavar="FILE",
        help="first unpack the finished pieces of a file that --collect wrote",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small sizes, in OUTPUT/quick: only tests that the study runs",
    )
    return parser


def work(
    pieces: Mapping[str, Piece],
    kept: Kept,
    options: argparse.Namespace,
    collected: Iterable[str] | None = None,
) -> None:
    """Run the chosen pieces that are not finished, in the order of `--only`.

    Finished pieces that were made with other settings are listed first; they are not run again, and
    stay in the tables, unless `kept` is strict.

    With `--restore FILE` the pieces of a collected file count as finished, so that a study
    continues on another machine; the runs of these pieces are not restored, and pieces that need
    their weights have to train them again.

    With `--collect FILE` all finished pieces, or those named in `collected`, are written to one
    JSON file at the end; add `--table` to collect without running any.

    Several processes can work in one folder: a piece that another process runs is skipped, and
    waited for at the end, because others may depend on it.

    Raises:
        ValueError: if `--only` matches no piece.
        NotYet: if a piece depends on one that no process runs.
    """
    if options.restore:
        kept.restore(options.restore)
    chosen = list(
        dict.fromkeys(
            name for start in options.only or [""] for name in pieces if name.startswith(start)
        )
    )
    if not chosen:
        raise ValueError(
            f"--only {' '.join(options.only)} matches no piece; there are {', '.join(pieces)}"
        )
    found = {name: kept.changed(name) for name in pieces if kept.path(name).is_file()}
    for change in dict.fromkeys(filter(None, found.values())):
        print(
            f"made with other settings ({change}): "
            f"{', '.join(name for name in found if found[name] == change)}",
            flush=True,
        )
    if options.list:
        for name in chosen:
            print(f"{'finished' if name in kept else '-':<10}{name}")
    if not (options.list or options.table):
        _run_all(chosen, pieces, kept)
    if options.collect:
        kept.collect(pieces if collected is None else collected, options.collect)


def _run_all(chosen: Sequence[str], pieces: Mapping[str, Piece], kept: Kept) -> None:
    while left := [name for name in chosen if name not in kept]:
        made = False
        held = False
        needs = None
        for name in left:
            with kept.claimed(name) as mine:
                if not mine:
                    held = True
                elif name not in kept:
                    try:
                        _run(name, f"{chosen.index(name) + 1} of {len(chosen)}", pieces[name], kept)
                        made = True
                    except NotYet as error:
                        needs = needs or error
        if needs and not (made or held):
            raise needs
        if held and not made:
            time.sleep(_WAIT)


class TabulatedStudy(Protocol):
    """A study that `run_study` can run."""

    pieces: Mapping[str, Piece]
    kept: Kept

    def table(self) -> str:
        """The table of finished pieces."""


def run_study(
    make: Callable[[Path, dict], TabulatedStudy],
    description: str,
    output: str,
    full: dict,
    quick: dict,
) -> None:
    """The command line of a study: run its pieces and print its table.

    Args:
        make: the study, from its folder and its settings.
        description: help text.
        output: default folder.
        full: settings of the study.
        quick: settings with `--quick`.
    """
    options = arguments(description, output).parse_args()
    made = make(
        options.output / "quick" if options.quick else options.output,
        quick if options.quick else full,
    )
    work(made.pieces, made.kept, options)
    if not options.list:
        print("\n" + made.table())


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _run(name: str, place: str, piece: Piece, kept: Kept) -> None:
    print(f"\n== {name} ({place})", flush=True)
    start = time.monotonic()
    kept.keep(name, {**piece(), "piece_seconds": round(time.monotonic() - start, 1)})
    print(f"== {name}: {duration(time.monotonic() - start)}", flush=True)


def train(
    folder: Path, arguments: Sequence[str], run: Callable[..., object] | None = None
) -> dict[str, Any]:
    """Train in `folder`, or resume or reuse the run there; returns its `metrics.json` and the
    `arguments`. `run` None is `command`.

    Raises:
        ValueError: if the run in `folder` was started with other arguments.
    """
    finished = folder / "metrics.json"
    begun = folder / "arguments.json"
    if begun.is_file() and (before := read_json(begun)) != list(arguments):
        changed = " ".join(sorted(set(before) ^ set(arguments))) or "their order"
        raise ValueError(
            f"{folder} has a run with other arguments ({changed}); set another --output, or remove "
            "that folder"
        )
    if not finished.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(begun, list(arguments))
        how = (
            "resume=true" if (folder / "checkpoints" / "last.ckpt").is_file() else "overwrite=true"
        )
        (run or command)("train", *arguments, how, f"hydra.run.dir={folder}")
    return read_json(finished) | {"arguments": list(arguments)}


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file that a command wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


def evaluate(run: Path, output: Path, *arguments: str) -> dict[str, Any]:
    """Run `python -m dnadiff.evaluate` for a run and return what it writes to `output`."""
    command(
        "evaluate",
        f"checkpoint={run}",
        f"output={output}",
        "overwrite=true",
        f"hydra.run.dir={run}",
        *arguments,
    )
    return read_json(output)


def command(name: str, *arguments: str) -> None:
    """Run one command; exits if it fails."""
    print(f"$ python -m dnadiff.{name} {' '.join(arguments)}", flush=True)
    status = subprocess.run(
        [sys.executable, "-m", f"dnadiff.{name}", *arguments], check=False
    ).returncode
    if status:
        raise SystemExit(status)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])
