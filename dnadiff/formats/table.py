"""Tables with a header: comma- or tab-separated, plain or compressed, and parquet.

`read_csv` and `read_log` read back tables that this package wrote, of which the last row may have
been cut when a process was killed.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, ClassVar

from dnadiff.progress import log
from dnadiff.store.address import file_name
from dnadiff.store.disk import atomic_write, read_small
from dnadiff.store.files import bare_name, open_text, resolve

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

# The names of the columns to read, of those in a header
Choose = Callable[[list[str]], Sequence[str]]
_ROW_GROUP = 1 << 16  # rows of a Parquet file written at once
_ROWS = 1024  # rows of a parquet file read at once
_DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars", " ": "spaces"}
csv.field_size_limit(1 << 26)  # the module's default limit is 131,072 characters


class TableFormat(ABC):
    """A format of tables, known by the ending of its name; a subclass in an imported module is
    found by itself.

    Attributes:
        endings: of the names of its files, in lower case, without that of a compression.
    """

    endings: ClassVar[tuple[str, ...]]

    @classmethod
    @abstractmethod
    def rows(
        cls, path: str, choose: Choose, blank: bool = False
    ) -> Iterator[tuple[int, list[Any]]]:
        """The number of each row, of text that of its line, and its cells of some columns.

        Args:
            choose: the names of the columns to read, of those in the header.
            blank: also rows without any text.

        Raises:
            ValueError: naming file and line.
        """


class Delimited(TableFormat):
    """Comma-separated text."""

    endings: ClassVar[tuple[str, ...]] = (".csv",)
    delimiter = ","

    @classmethod
    def rows(
        cls, path: str, choose: Choose, blank: bool = False
    ) -> Iterator[tuple[int, list[str]]]:
        rows = delimited(path, cls.delimiter, blank)
        header = next(rows, (0, list[str]()))[1]
        places = [header.index(name) for name in choose(header)]
        yield from ((number, [cells[place] for place in places]) for number, cells in rows)


class TabDelimited(Delimited, TableFormat):
    """Tab-separated text."""

    endings = (".tsv", ".tab")
    delimiter = "\t"


class Parquet(TableFormat):
    """Parquet, read by pyarrow; damage is noticed where the writer stored checksums of pages."""

    endings = (".parquet",)

    @classmethod
    def rows(
        cls, path: str, choose: Choose, blank: bool = False
    ) -> Iterator[tuple[int, list[Any]]]:
        import pyarrow
        from pyarrow import parquet

        source = resolve(path)
        count = 0
        try:
            with parquet.ParquetFile(source, page_checksum_verification=True) as file:
                columns = choose(file.schema_arrow.names)
                if not columns:
                    return
                for batch in file.iter_batches(_ROWS, columns=list(dict.fromkeys(columns))):
                    found = [batch.column(name).to_pylist() for name in columns]
                    yield from enumerate(map(list, zip(*found)), count + 1)
                    count += batch.num_rows
                # A damaged page header, which has no checksum, may end a column early.
                if count != file.metadata.num_rows:
                    raise ValueError(
                        f"{path} is damaged: {count:,} of its {file.metadata.num_rows:,} rows can "
                        "be read; fetch it again"
                    )
                # Now that they could be read: pyarrow ends the process if it is asked for the
                # description of a damaged column.
                read = [i for i, name in enumerate(file.schema.names) if name in columns]
                if not has_page_checksums(source, file.metadata, read):
                    log.warning(
                        f"{path}: its pages have no checksums, so damage to them may go unnoticed; "
                        "pyarrow writes them with write_page_checksum=True"
                    )
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = "not UTF-8" if isinstance(error, UnicodeError) else shorten(str(error), 200)
            raise ValueError(
                f"{path} is not a parquet file, or is damaged ({reason}); fetch it again"
            ) from error


def endings() -> tuple[str, ...]:
    """The endings of the names of tables, without that of a compression."""
    return tuple(ending for kind in TableFormat.__subclasses__() for ending in kind.endings)


def ending_of(path: str | Path) -> str:
    """The ending of the name of a table, with that of its compression."""
    bare = bare_name(path)
    ending = next(ending for ending in endings() if bare.endswith(ending))
    return file_name(path).lower()[len(bare) - len(ending) :]


def is_table(path: str | Path) -> bool:
    """Whether a file or an address has the name of a table, in either case."""
    return bare_name(path).endswith(endings())


def format_of(path: str, delimiter: str | None = None) -> type[TableFormat]:
    """The format that the name of a file indicates, or text with a delimiter; commas by default."""
    if delimiter is not None:
        return type("Other", (Delimited,), {"delimiter": delimiter})
    bare = bare_name(path)
    kinds = (kind for kind in TableFormat.__subclasses__() if bare.endswith(kind.endings))
    if (found := next(kinds, Delimited)) is Parquet and file_name(path).lower() != bare:
        raise ValueError(
            f"{path}: parquet is not read from a compressed file; unpack it (gunzip), since its "
            "columns are compressed already"
        )
    return found


def read_header(path: str, delimiter: str | None = None) -> list[str]:
    """The names of the columns of a table."""
    names: list[str] = []

    def choose(header: list[str]) -> Sequence[str]:
        names.extend(name.strip() for name in header)
        return ()

    next(format_of(path, delimiter).rows(path, choose), None)
    return names


def read_cells(
    path: str, columns: Iterable[tuple[str, str]], delimiter: str | None = None, blank: bool = False
) -> Iterator[tuple[int, list[Any]]]:
    """Number and cells of each row of a table, as the file has them.

    Args:
        columns: key of the configuration, for messages, and name of each column.
        delimiter: of a table of text; None: a tab if the name ends in .tsv or .tab, else a comma.
        blank: also rows without any text.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for a missing column, a row with too few or too many fields, or a file that is
            not a table.
    """
    wanted = list(columns)
    kind = format_of(path, delimiter)

    def choose(header: list[str]) -> Sequence[str]:
        name_of = {name.strip(): name for name in header}
        for key, name in wanted:
            if name not in name_of:
                if issubclass(kind, Delimited):
                    check_delimiter(path, header, kind.delimiter, name, key)
                raise ValueError(
                    f"{path} has no column {name!r}; its columns are {', '.join(name_of)}: set "
                    f"{key} to one of them"
                )
        return [name_of[name] for _, name in wanted]

    yield from kind.rows(path, choose, blank)


def check_delimiter(
    path: str | Path, header: list[str], own: str, column: str, key: str = ""
) -> None:
    """ValueError, with the remedy, if a header without a column has it, or has more columns, under
    another delimiter.

    Args:
        key: that names the column; none if the delimiter does not follow from the file's name.
    """
    text = own.join(header)
    of_task = key.startswith("task.")
    is_one = len(header) == 1
    # Names of columns may contain the others, and a table of a task has several columns.
    most = max("\t;|" + "," * is_one + " " * (is_one and of_task), key=text.count)
    for other, word in _DELIMITERS.items():
        named = column in (cell.strip(' "') for cell in text.split(other))
        if other != own and (named or (other == most and text.count(most) > text.count(own))):
            name = {",": "name it .csv", "\t": "name it .tsv"}.get(other if key else "")
            remedy = name or f"write it with {_DELIMITERS.get(own, repr(own))}"
            if of_task:
                shown = ascii(other)[1:-1]
                remedy = f"set 'task.delimiter=\"{shown}\"'" + (f", or {name}" if name else "")
            raise ValueError(f"{path} is separated by {word}, not by {own!r}; {remedy}")


def read_rows(
    path: str, columns: Mapping[str, str], delimiter: str | None = None
) -> Iterator[tuple[int, list[str]]]:
    """As `read_cells`, as text without surrounding white space; rows without any text are
    skipped.

    Args:
        columns: configuration key -> column name.
    """
    for number, cells in read_cells(path, columns.items(), delimiter):
        yield number, ["" if cell is None else str(cell).strip() for cell in cells]


def delimited(
    path: str | Path, delimiter: str, blank: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each row of a table of text, its header first; empty lines are
    skipped, and unless `blank` rows without any text."""
    width = 0
    try:
        with open_text(path) as handle:
            rows = csv.reader(handle, delimiter=delimiter, strict=True)
            for row in rows:
                if not row or not (blank or any(row)):
                    continue
                width = width or len(row)
                if len(row) != width:
                    raise ValueError(
                        f"{path}: line {rows.line_num} has {len(row)} fields, the header has "
                        f"{width}; complete the row, or quote a field with commas (a "
                        "table with another delimiter needs task.delimiter)"
                    )
                yield rows.line_num, row
    except csv.Error as error:
        raise ValueError(
            f"{path}: line {rows.line_num} is not a row of a table ({error}); correct it if the "
            f"delimiter is {delimiter!r}, else set it (task.delimiter), or name a file of tabs .tsv"
        ) from None


def has_page_checksums(path: Path, metadata: FileMetaData, columns: Iterable[int]) -> bool:
    """Whether the first page of each of these columns has a checksum: the optional fourth field of
    its header, in Thrift's compact protocol.

    Source: https://github.com/apache/parquet-format, `PageHeader` in parquet.thrift.
    """
    with path.open("rb") as raw:
        for group, column in itertools.product(range(metadata.num_row_groups), columns):
            about = metadata.row_group(group).column(column)
            raw.seek(max(0, about.dictionary_page_offset or about.data_page_offset))
            header = raw.read(32)
            place = 0
            # Type, size and compressed size: a byte that says "next field, an integer", then its
            # bytes.
            for _ in range(3):
                place += 1
                while header[place : place + 1] > b"\x7f":
                    place += 1
                place += 1
            if header[place : place + 1] != b"\x15":
                return False
    return True


def write_parquet(rows: Iterator[Mapping[str, Any]], path: Path, types: Mapping[str, str]) -> None:
    """Write rows as Parquet with checksums of its pages, some thousand at a time.

    Args:
        types: of the columns, as pyarrow calls them; cells may be text that holds such a value.
    """
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema(types.items())
    with (
        atomic_write(path, overwrite=True) as file,
        pyarrow.parquet.ParquetWriter(file, schema, write_page_checksum=True) as writer,
    ):
        while group := list(itertools.islice(rows, _ROW_GROUP)):
            writer.write_table(pyarrow.Table.from_pylist(group).select(list(types)).cast(schema))


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
        text = read_small(Path(path)).decode("utf-8-sig")
        table = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = [(table.line_num, row) for row in table if row]
    except (UnicodeDecodeError, csv.Error) as error:
        what = f"a table ({error})" if isinstance(error, csv.Error) else "UTF-8 text"
        raise ValueError(
            f"{path} is damaged: it is not {what}; use another copy of it, or remove it"
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
        for name, text in row.items():
            try:
                float(text if name in required else text.strip() or 0)
            except ValueError:
                raise ValueError(
                    f"{path}, line {line}: {name} is {text[:40]!r}, which is not a number; correct "
                    "the row or remove it"
                ) from None
    return rows
