"""CSV tables that this package wrote and reads back: a header, and rows with as many fields.

Tables of users are read in `dnadiff.supervised.tasks` and `dnadiff.data.text.documents`.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

log = logging.getLogger("dnadiff")


def read_csv(
    path: str | os.PathLike[str], ended: bool = False
) -> tuple[list[str], list[dict[str, str]]]:
    """The column names and the rows of a table.

    A last row with fewer fields and without a line break was cut when the process that wrote it was
    killed. It is left out, with a warning.

    Args:
        ended: leave out any last row without a line break; its last field may be cut too.

    Raises:
        ValueError: naming file and line, if the file is not such a table.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
        csv.field_size_limit(2**31 - 1)
        table = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = [(table.line_num, row) for row in table if row]
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is damaged: it is not UTF-8 text ({error.reason}); use another copy of it, or "
            "remove it"
        ) from None
    except csv.Error as error:
        raise ValueError(
            f"{path} is damaged: it is not a table ({error}); use another copy of it, or remove it"
        ) from None
    header = rows[0][1] if rows else []
    if len(set(header)) < len(header) or not all(header):
        raise ValueError(
            f"{path} is damaged: a column has no name, or the name of another one; use another "
            "copy of it, or remove it"
        )
    if (
        len(rows) > 1
        and not text.endswith(("\n", "\r"))
        and (ended or len(rows[-1][1]) < len(header))
    ):
        log.warning(f"{path}: line {rows[-1][0]} was cut and is left out")
        rows.pop()
    for line, row in rows:
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {line}: the row has {len(row)} fields, the header {len(header)}; "
                "correct the row or remove it"
            )
    return header, [dict(zip(header, row)) for _, row in rows[1:]]


def read_log(
    path: str | os.PathLike[str], columns: Sequence[str], required: Sequence[str]
) -> list[dict[str, str]]:
    """The rows of a table of numbers to which a process appends, without a last one that was cut.

    Args:
        columns: the columns that it may have.
        required: those that have a number in every row.

    Raises:
        ValueError: naming file and line, if the file is not such a table.
    """
    header, rows = read_csv(path, ended=True)
    if wrong := [name for name in header if name not in columns] or [
        name for name in required if name not in header
    ]:
        raise ValueError(
            f"{path} is damaged: its columns are not {', '.join(columns)} ({wrong[0][:40]!r}); "
            "remove it"
        )
    for line, row in enumerate(rows, 2):
        for name in row:
            if math.isnan(number_in(row, name, f"{path}, line {line}")) and name in required:
                raise ValueError(
                    f"{path}, line {line}: the row has no {name}; correct the row or remove it"
                )
    return rows


def number_in(row: Mapping[str, str], name: str, where: str) -> float:
    """The number in a cell; NaN if it is empty. Raises ValueError, naming `where`, if it is not a
    number."""
    try:
        return float(row[name]) if row[name].strip() else float("nan")
    except ValueError:
        raise ValueError(f"{where}: {name} is {row[name][:40]!r}, which is not a number") from None
