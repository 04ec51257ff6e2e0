"""Experiments of many runs that survive an interruption: each finished piece is one JSON file, and tables are made of the files.

A piece trains and evaluates by the command lines that a user would type; a second start skips what is finished, and goes on with the
training run in hand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dnadiff.data.cache import locked
from dnadiff.data.files import write_json
from dnadiff.progress import duration

Piece = Callable[[], Mapping[str, Any]]
_WAIT = 5.0  # seconds between two looks at what other processes have in hand


class NotYet(ValueError):
    """A piece needs another one that is not finished."""


class Kept:
    """The finished pieces of a study: `folder/NAME.json`.

    Args:
        folder: made when the first piece is kept.
        settings: of the study, kept with each piece, so that one made with others is known.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.folder, self.settings = folder, json.loads(json.dumps(settings or {}, default=str))

    def path(self, name: str) -> Path:
        """Where a piece is kept."""
        return self.folder / f"{name}.json"

    def __contains__(self, name: str) -> bool:
        return self.path(name).is_file()

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name not in self:
            raise NotYet(f"piece {name} is not finished in {self.folder}; it comes first: --only {name}")
        row = self._read(name)
        row.pop("of_study", None)
        return row

    def _read(self, name: str) -> dict[str, Any]:
        return json.loads(self.path(name).read_text(encoding="utf-8"))

    @contextmanager
    def claimed(self, name: str) -> Iterator[bool]:
        """Hold a piece against other processes; yields False where one of them has it in hand."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = self.folder / f".{name}.lock"
        with locked(lock, wait=False) as held:
            try:
                yield held is not False
            finally:
                if held:
                    lock.unlink(missing_ok=True)

    def keep(self, name: str, row: Mapping[str, Any]) -> None:
        """Write a piece, all of it or nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.path(name), {**row, "of_study": self.settings})

    def changed(self, name: str) -> str:
        """What a piece was made with that is now otherwise: `epochs 10, now 8`; empty if nothing is, or the piece does not say."""
        before = self._read(name).get("of_study", self.settings)
        keys = [key for key in {**before, **self.settings} if before.get(key) != self.settings.get(key)]
        return "; ".join(f"{key} {_brief(before.get(key))}, now {_brief(self.settings.get(key))}" for key in keys)


def arguments(description: str, output: str) -> argparse.ArgumentParser:
    """The options that every study has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(output), help="folder of the kept pieces and runs (default: %(default)s)")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="this piece, or all whose names begin so; may be given again, and the order counts"
    )
    parser.add_argument("--list", action="store_true", help="show the pieces and what is finished")
    parser.add_argument("--table", action="store_true", help="print the table of what is finished, and run nothing")
    parser.add_argument("--quick", action="store_true", help="everything small, in OUTPUT/quick: shows that it runs, and nothing else")
    return parser


def work(pieces: Mapping[str, Piece], kept: Kept, options: argparse.Namespace) -> None:
    """Run what is asked for and not finished: in the order of `--only`, and of the pieces under each.

    Finished pieces that were made with other settings are named first; they stay, and enter the tables.

    Several processes may work in one folder: a piece that another one has in hand is passed over, and waited for at the end, for others
    may need it.

    Raises:
        ValueError: if `--only` names no piece.
        NotYet: if a piece needs one that nobody is at.
    """
    chosen = list(dict.fromkeys(name for start in options.only or [""] for name in pieces if name.startswith(start)))
    if not chosen:
        raise ValueError(f"--only {' '.join(options.only)} names no piece; there are {', '.join(pieces)}")
    found = {name: kept.changed(name) for name in pieces if name in kept}
    for change in dict.fromkeys(filter(None, found.values())):
        print(f"made with other settings ({change}): {', '.join(name for name in found if found[name] == change)}", flush=True)
    if options.list:
        for name in chosen:
            print(f"{'finished' if name in kept else '-':<10}{name}")
    if options.list or options.table:
        return
    while left := [name for name in chosen if name not in kept]:
        made, held, needs = False, False, None
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


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _run(name: str, place: str, piece: Piece, kept: Kept) -> None:
    print(f"\n== {name} ({place})", flush=True)
    start = time.monotonic()
    kept.keep(name, {**piece(), "piece_seconds": round(time.monotonic() - start, 1)})
    print(f"== {name}: {duration(time.monotonic() - start)}", flush=True)


def train(folder: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """`metrics.json` of a training run in `folder`, begun, gone on with, or long finished; `arguments` is added to what it says.

    Raises:
        ValueError: if the run in `folder` was begun with other arguments: its numbers would pass for those of these.
    """
    finished, begun = folder / "metrics.json", folder / "arguments.json"
    if begun.is_file() and (before := json.loads(begun.read_text(encoding="utf-8"))) != list(arguments):
        changed = " ".join(sorted(set(before) ^ set(arguments))) or "their order"
        raise ValueError(f"{folder} holds a run with other arguments ({changed}); set another --output, or remove that folder")
    if not finished.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(begun, list(arguments))
        how = "resume=true" if (folder / "checkpoints" / "last.ckpt").is_file() else "overwrite=true"
        command("train", *arguments, how, f"hydra.run.dir={folder}")
    return json.loads(finished.read_text(encoding="utf-8")) | {"arguments": list(arguments)}


def evaluate(run: Path, output: Path, *arguments: str) -> dict[str, Any]:
    """What `python -m dnadiff.evaluate` writes for the run, at `output`."""
    command("evaluate", f"checkpoint={run}", f"output={output}", "overwrite=true", f"hydra.run.dir={run}", *arguments)
    return json.loads(output.read_text(encoding="utf-8"))


def command(name: str, *arguments: str) -> None:
    """Run one command line as a user would type it; ends this process if it fails."""
    print(f"$ python -m dnadiff.{name} {' '.join(arguments)}", flush=True)
    status = subprocess.run([sys.executable, "-m", f"dnadiff.{name}", *arguments], check=False).returncode
    if status:
        raise SystemExit(status)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for the documentation.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])
