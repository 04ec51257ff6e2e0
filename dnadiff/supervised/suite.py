"""Several tasks in one run: finds the data of each task in a folder, in any of the published
formats."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from dnadiff.checks import expand_user
from dnadiff.config import Config
from dnadiff.supervised.benchmark import SPLIT
from dnadiff.supervised.labeled import PART_NAMES
from dnadiff.supervised.table import ENDINGS, read_header, read_rows

log = logging.getLogger("dnadiff")


def find_tasks(tasks: Mapping[str, Config]) -> dict[str, Config]:
    """The tasks that have data, each with the path of its data; the other tasks are logged.

    If there is nothing at a task's own path, `find_sources` looks for its name in the same folder.

    Raises:
        FileNotFoundError: if no task has data.
    """
    found: dict[str, Config] = {}
    for name, task in tasks.items():
        path = expand_user(str(task["path"]))
        if sources := [path] if path.exists() else find_sources(path.parent, path.name):
            found[name] = {**task, "path": str(sources[0])}
            unused = ", ".join(source.name for source in sources[1:])
            log.info(
                f"{name}: {sources[0]}"
                + (
                    f"; not used: {unused} (task.tasks.{name}.path=FILE selects another)"
                    if unused
                    else ""
                )
            )
    if missing := [name for name in tasks if name not in found]:
        log.info(f"no data for {', '.join(missing)}")
    if not found:
        folder = Path(str(next(iter(tasks.values()))["path"])).parent
        raise FileNotFoundError(
            f"{folder} holds none of {', '.join(tasks)}; set task.path to the folder that holds a "
            "folder NAME or a table NAME.csv of each"
        )
    return found


def find_sources(folder: Path, name: str) -> list[Path]:
    """The data of a task in a folder, best match first; an empty list if there is none.

    A folder `NAME` (the download), `datasets/NAME` (intervals) or `Genomic_Benchmarks_NAME` (a copy
    from the Hub); else tables `NAME.csv` or `NAME.ANYTHING.csv`, with any supported ending: the
    exact name first, then tables with training and test rows, then larger ones.
    """
    if folders := [
        path
        for path in (
            folder / name,
            folder / "datasets" / name,
            folder / f"Genomic_Benchmarks_{name}",
        )
        if path.is_dir()
    ]:
        return folders
    tables = [
        path for path in folder.glob(f"{name}.*") if path.is_file() and path.name.endswith(ENDINGS)
    ]
    exact = {name + ending for ending in ENDINGS}
    return sorted(
        tables,
        key=lambda path: (
            path.name not in exact,
            not _is_divided(path),
            -path.stat().st_size,
            path.name,
        ),
    )


def _is_divided(path: Path) -> bool:
    try:
        column = next((name for name in SPLIT if name in read_header(str(path))), None)
        parts = (
            {
                PART_NAMES.get(cells[0].lower())
                for _, cells in read_rows(str(path), {"task.split_column": column})
            }
            if column
            else set()
        )
    except (ValueError, OSError):
        return False
    return {"train", "test"} <= parts
