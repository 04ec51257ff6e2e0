"""Several tasks in one table: which of them have data, wherever in a folder these lie and in whichever of the published forms."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dnadiff.downstream.benchmark import SPLIT
from dnadiff.downstream.labeled import PART_OF_WORD
from dnadiff.downstream.table import ENDINGS, header_of, rows_of

log = logging.getLogger("dnadiff")


def present(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The tasks whose data are there, each with the path that its data have; the others are named.

    Where nothing lies at a task's own path, its name is looked for beside it, see `forms`.

    Args:
        tasks: name to settings, of which `path` is FOLDER/NAME.

    Raises:
        FileNotFoundError: if none is there.
    """
    there = {}
    for name, task in tasks.items():
        path = Path(str(task["path"])).expanduser()
        if found := [path] if path.exists() else forms(path.parent, path.name):
            there[name] = {**task, "path": str(found[0])}
            also = (
                f"; not used: {', '.join(one.name for one in found[1:])} (task.tasks.{name}.path=FILE takes another)" if found[1:] else ""
            )
            log.info(f"{name}: {found[0]}{also}")
    if missing := [name for name in tasks if name not in there]:
        log.info(f"no data for {', '.join(missing)}")
    if not there:
        folder = Path(str(next(iter(tasks.values()))["path"])).parent
        raise FileNotFoundError(
            f"{folder} holds none of {', '.join(tasks)}; set task.path to the folder that holds a folder NAME or a table NAME.csv of each"
        )
    return there


def forms(folder: Path, name: str) -> list[Path]:
    """What a folder holds of a task, the fittest first; nothing if it holds none.

    A folder `NAME` (the download), `datasets/NAME` (intervals) or `Genomic_Benchmarks_NAME` (a copy from the Hub); else tables
    `NAME.csv` or `NAME.ANYTHING.csv`, in each ending that is read: those with training and test rows first, then the larger ones.
    """
    if folders := [path for path in (folder / name, folder / "datasets" / name, folder / f"Genomic_Benchmarks_{name}") if path.is_dir()]:
        return folders
    tables = [path for path in folder.glob(f"{name}.*") if path.is_file() and path.name.endswith(ENDINGS)]
    exact = {name + ending for ending in ENDINGS}
    return sorted(tables, key=lambda path: (path.name not in exact, not _is_divided(path), -path.stat().st_size, path.name))


def _is_divided(path: Path) -> bool:
    """Whether a table has training rows and test rows; one that cannot be read has not."""
    try:
        column = next((name for name in SPLIT if name in header_of(str(path))), None)
        parts = {PART_OF_WORD.get(cells[0].lower()) for _, cells in rows_of(str(path), {"split_column": column})} if column else set()
    except (ValueError, OSError):
        return False
    return {"train", "test"} <= parts
