"""What a user sees of a running command: a progress bar on a terminal, occasional lines elsewhere,
and messages of the log."""

import atexit
import difflib
import logging
import re
import shlex
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

log = logging.getLogger("dnadiff")
# C0 and C1 controls, line and paragraph separators, marks that reverse the direction of text, and
# halves of surrogate pairs.
CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_WORD = re.compile(r"(?:[A-Za-z_/]|\.\.?/)[\w/.+-]*", re.ASCII)
_NOT_TEXT = ("true", "false", "null", "nan", "inf")  # of words, as Hydra reads them
# characters
_LONGEST_WORD = 400
_LONGEST_TEXT = 8000
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")


class Progress:
    """Counts steps, with tokens per second and the remaining time.

    Args:
        total: number of steps; None if it is unknown. Without it, and before the first step, no
            remaining time is shown.
        initial: steps done before (a resumed run).
        every: seconds between lines if the stream is not a terminal.
    """

    def __init__(
        self,
        total: int | None,
        label: str,
        initial: int = 0,
        every: float = 20.0,
        stream: TextIO | None = None,
    ) -> None:
        self.total = total
        self.label = printable(label)
        self.done = initial
        self.initial = initial
        stream = stream or sys.stderr
        self.display: _Bar | _Lines = (
            _Bar(stream, self.label, total)
            if stream.isatty()
            else _Lines(stream, self.label, every)
        )
        self.start = self.shown = time.monotonic()
        self.tokens = 0
        self.notes: dict[str, str] = {}

    def update(self, steps: int = 1, tokens: int = 0, **notes: str | float) -> None:
        """Count `steps` and `tokens`; `notes` (name=value) are shown at the end of the line until
        replaced."""
        self.done += steps
        self.tokens += tokens
        self.notes |= {name: printable(str(value)) for name, value in notes.items()}
        now = time.monotonic()
        if now - self.shown >= self.display.every or (
            self.total is not None and self.done >= self.total and self.display.shows_end
        ):
            self.shown = now
            self.display.show(self.done, self._text(now))

    def _text(self, now: float) -> str:
        seconds = max(now - self.start, 1e-9)
        count = f"{self.done}" if self.total is None else f"{self.done}/{self.total}"
        parts = [count, *(f"{name} {value}" for name, value in self.notes.items())]
        if self.tokens:
            parts.append(f"{self.tokens / seconds:,.0f} tokens/s")
        if self.total is not None and self.done > self.initial:
            left = (self.total - self.done) * seconds / max(self.done - self.initial, 1)
            parts.append(f"{duration(left)} left")
        return "  ".join(parts)

    def close(self) -> None:
        """End the line."""
        self.display.close()


class _Lines:
    """Occasional lines, for files and pipes."""

    shows_end = False

    def __init__(self, stream: TextIO, label: str, every: float) -> None:
        self.stream = stream
        self.label = label
        self.every = every

    def show(self, done: int, text: str) -> None:
        self.stream.write(f"{self.label}  {text}\n")
        self.stream.flush()

    def close(self) -> None:
        """Every line has ended."""


class _Bar:
    """A bar of Rich, drawn again with every update; it needs no thread."""

    shows_end = True
    every = 0.2

    def __init__(self, stream: TextIO, label: str, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(24),
            TextColumn("{task.fields[text]}", markup=False),
        )
        self.bars = Bars(
            *columns, console=Console(file=stream, highlight=False), auto_refresh=False
        )
        self.task = self.bars.add_task(
            label, total=None if total is None else max(total, 1), text=""
        )
        self.bars.start()
        atexit.register(self.bars.stop)  # a process that is interrupted shows the cursor again

    def show(self, done: int, text: str) -> None:
        self.bars.update(self.task, completed=done, text=text)
        self.bars.refresh()

    def close(self) -> None:
        self.bars.stop()
        atexit.unregister(self.bars.stop)


def printable(text: str) -> str:
    r"""Text for a terminal: control characters are escaped, and long words and texts are shortened
    in their middle.

    Names of records and files come from anywhere, and an escape sequence in one of them could
    change what the terminal shows.

    >>> printable("chr1\x1b[2J " + "A" * 1000)[:40]
    'chr1\\x1b[2J AAAAAAAAAAAAAAAAAAAAAAAAAAAA'
    """
    text = without_controls(_shortened(text, _LONGEST_TEXT), "")
    return _LONG_WORD.sub(lambda found: _shortened(found[0], _LONGEST_WORD), text)


def without_controls(text: str, kept: str = "\t\n") -> str:
    """Text with control characters escaped, but those that are `kept`."""
    return CONTROL.sub(lambda found: found[0] if found[0] in kept else ascii(found[0])[1:-1], text)


class PrintableOutput:
    """A stream to which control characters are written escaped, but for tabs and ends of lines."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text."""
        return self.stream.write(without_controls(text))


def _shortened(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    return (
        f"{text[: length // 2]} [{len(text) - length:,} more characters] {text[-(length // 2) :]}"
    )


class PrintableLines(logging.Formatter):
    """Formats log messages with `printable`, line by line."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


def quoted(text: str) -> str:
    """A text as a value on a command line of Hydra: in quotes, unless it is one word."""
    if _WORD.fullmatch(text) and text.lower() not in _NOT_TEXT:
        return text
    # Hydra reads backslashes before a quote in pairs, and none elsewhere.
    escaped = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + m[2].replace('"', r"\""), text)
    return f'"{escaped}"'


def pasted(key: str, value: object) -> str:
    """An argument `key=value` of a command, as it can be pasted into a shell."""
    return shlex.quote(f"{key}={quoted(str(value))}")


def closest(word: str, known: Iterable[str]) -> str:
    """A question for the known word that is most like an unknown one; empty if none is."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return "".join(f"; did you mean {match}?" for match in found)


def duration(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def table(rows: Sequence[tuple[str, ...]], header: tuple[str, ...] | None = None) -> str:
    """Rows of text in aligned columns: the first one to the left, the others to the right.

    >>> print(table([("a", "1.5"), ("bc", "10")], ("name", "value")))
    name  value
    ----  -----
    a       1.5
    bc       10
    """
    rows = [tuple(map(printable, row)) for row in rows]
    everything = [*([header] if header else []), *rows]
    widths = [
        max(len(row[i]) for row in everything if i < len(row))
        for i in range(max(map(len, everything)))
    ]

    def line(row: tuple[str, ...]) -> str:
        return "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths))
        ).rstrip()

    lines = [line(row) for row in rows]
    return "\n".join(([line(header), "  ".join("-" * w for w in widths)] if header else []) + lines)


def configure_logging() -> None:
    """Show messages of this package at level INFO, and of other libraries only what a user must
    act on."""
    log.handlers, log.propagate = [logging.StreamHandler(sys.stderr)], False
    log.handlers[0].setFormatter(PrintableLines())
    log.setLevel(logging.INFO)
    for name in ("pytorch", "fabric"):
        # Lightning sets the level of its own root logger when it is imported, but not of this
        # child.
        logging.getLogger(f"lightning.{name}.utilities.rank_zero").setLevel(logging.ERROR)
    # Not those of CUDA, which tell why it cannot be used.
    libraries = r"(lightning|sklearn|scipy|numpy|pandas|pydantic|anndata|torch\.(?!cuda)).*"
    warnings.filterwarnings("ignore", module=libraries)
    harmless = (
        r"lr_scheduler\.step|isinstance\(treespec|num_workers|Grad strides do not match|"
        r"FSDP2-wrapped module .* returned a view"
    )
    warnings.filterwarnings("ignore", message=rf".*({harmless}).*")
