"""What a user sees of a running command: a progress bar on a terminal, occasional lines elsewhere,
and messages of the log."""

from __future__ import annotations

import atexit
import difflib
import logging
import math
import re
import shlex
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
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


class Interrupted(SystemExit):
    """Ctrl-C or another signal that ends a command; the code is the exit status, 128 + the signal.

    Attributes:
        run_dir: the folder in which the command can be resumed, if it is not its run folder.
    """

    def __init__(self, status: int, run_dir: Path | None = None) -> None:
        super().__init__(status)
        self.run_dir = run_dir


class Progress:
    """Counts steps, with their rate and the remaining time.

    While a network computes (`beat`), the display is drawn again, and the steps of an unfinished
    batch are estimated by its network calls.

    Args:
        total: number of steps; None if it is unknown. Without it, and before the first step, no
            remaining time is shown.
        initial: steps done before (a resumed run).
        every: seconds between lines if the stream is not a terminal.
        unit: what the steps are, such as "rows".
        calls: network calls of a step, as far as they are known before the first one has ended;
            math.inf: unfinished batches are not estimated.
        display: what shows it; None is a bar on a terminal, and lines on another stream. It has
            `every`, `shows_end`, `show` and `close`.
        clock: seconds.
    """

    def __init__(
        self,
        total: int | None,
        label: str,
        initial: int = 0,
        every: float = 20.0,
        stream: TextIO | None = None,
        unit: str = "",
        calls: float = 0.0,
        display: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self.label = printable(label)
        self.unit = unit
        self.done = initial
        self.initial = initial
        self.calls_per_step = calls
        self.stream = stream = stream or sys.stderr
        self.display = display or (
            _Bar(stream, self.label, total)
            if stream.isatty()
            else _Lines(stream, self.label, every)
        )
        self.clock = clock
        self.start = self.shown = self.told = clock()
        self.tokens = 0
        self.calls = self.counted = 0  # network calls, and those of finished steps
        self.position = float(initial)  # what was shown last, which never falls back
        self.notes: dict[str, str] = {}
        _open.append(weakref.ref(self))

    def update(self, steps: int = 1, tokens: int = 0, **notes: str | float) -> None:
        """Count `steps` and `tokens`; `notes` (name=value) are shown at the end of the line until
        replaced."""
        self.done += steps
        self.tokens += tokens
        self.notes |= {name: printable(str(value)) for name, value in notes.items()}
        if tokens:
            self.told = self.clock()
        if steps:
            self.counted = self.calls
        self._show(self.total is not None and self.done >= self.total and self.display.shows_end)

    def beat(self, calls: int, draws: bool = True) -> None:
        """Count network calls, one for each sequence that the network reads."""
        self.calls += calls
        if draws:
            self._show()

    def _show(self, is_last: bool = False) -> None:
        now = self.clock()
        if is_last or now - self.shown >= self.display.every:
            self.shown = now
            self.position = max(self.position, self._reached())
            self.display.show(self.position, self._text(now))

    def _reached(self) -> float:
        """The finished steps, with an estimate for the batch in progress."""
        steps = self.done - self.initial
        rate = self.calls_per_step
        if steps and self.counted and math.isfinite(rate):
            rate = self.counted / steps
        found = self.done + (self.calls - self.counted) / rate if rate else self.done
        # Where the estimate was too low, nothing is known about the rest.
        return self.done if self.total is not None and found >= self.total else found

    def _text(self, now: float) -> str:
        seconds = max(now - self.start, 1e-9)
        position = self.position
        count = f"{position:,.0f}" if self.total is None else f"{position:,.0f}/{self.total:,}"
        parts = [f"{count} {self.unit}".rstrip(), *(f"{k} {v}" for k, v in self.notes.items())]
        if self.tokens:
            parts.append(f"{self.tokens / max(self.told - self.start, 1e-9):,.0f} tokens/s")
        elif self.calls:
            parts.append(f"{self.calls / seconds:,.0f} calls/s")
        if self.total is not None and position > self.initial:
            left = (self.total - position) * seconds / (position - self.initial)
            parts.append(f"{duration(left)} left")
        return "  ".join(parts)

    def close(self) -> None:
        """End the line."""
        _open[:] = [each for each in _open if each() not in (self, None)]
        self.display.close()


# What is displayed, the innermost one last. Nothing closes the display of a call that failed.
_open: list[weakref.ref[Progress]] = []


def _shown() -> list[Progress]:
    found = [each() for each in _open]
    return [each for each in found if each and not each.stream.closed]


def beat(calls: int = 1) -> None:
    """Count network calls for everything that is displayed; the innermost display is drawn
    again."""
    shown = _shown()
    for each in shown:
        each.beat(calls, each is shown[-1])


def advance(steps: int, tokens: int = 0) -> None:
    """Count steps of the innermost display, if there is one."""
    if shown := _shown():
        shown[-1].update(steps, tokens)


@contextmanager
def phase(label: str) -> Iterator[None]:
    """Say what runs in the block, whose length is not known: a moving bar with the time on a
    terminal, which disappears, and a line elsewhere."""
    stream = sys.stderr
    if stream.isatty():
        shown = Progress(None, label, display=_Bar(stream, printable(label), None, moves=True))
    else:
        shown = Progress(None, label)
        shown.display.show(0, "...")
    with closing(shown):
        yield


@contextmanager
def bar(
    total: int | None, label: str, unit: str, enabled: bool, calls: float = 0.0
) -> Iterator[None]:
    """Progress of a loop in Python, which `advance` and `beat` count, by tqdm: a widget in a
    notebook, text elsewhere; nothing unless it is `enabled`."""
    if not enabled:
        yield
        return
    with closing(Progress(total, label, unit=unit, calls=calls, display=_Tqdm(label, total))):
        yield


@dataclass
class _Lines:
    """Occasional lines, for files and pipes."""

    stream: TextIO
    label: str
    every: float
    shows_end = False

    def show(self, done: float, text: str) -> None:
        self.stream.write(f"{self.label}  {text}\n")
        self.stream.flush()

    def close(self) -> None:
        """Every line has ended."""


class _Tqdm:
    """A bar of tqdm."""

    shows_end = True
    every = 0.2

    def __init__(self, label: str, total: int | None) -> None:
        from tqdm.auto import tqdm

        self.bar = tqdm(
            total=total, desc=label, bar_format="{desc} {percentage:3.0f}%|{bar}|{postfix}"
        )

    def show(self, done: float, text: str) -> None:
        self.bar.n = round(done)
        self.bar.set_postfix_str(text)

    def close(self) -> None:
        self.bar.close()


class _Bar:
    """A bar of Rich, drawn again with every update; it needs no thread. Bars that are open at the
    same time are lines of one display.

    Args:
        moves: a thread shows that time passes, and nothing is left at the end.
    """

    shows_end = True
    every = 0.2

    def __init__(self, stream: TextIO, label: str, total: int | None, moves: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        outer = _bar_of(stream)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(24),
            TextColumn("{task.fields[text]}", markup=False),
            *([TimeElapsedColumn()] if moves else []),
        )
        self.stream = stream
        self.is_outer = outer is None
        self.bars: Bars = (
            outer.bars
            if outer
            else Bars(
                *columns,
                console=Console(file=stream, highlight=False),
                auto_refresh=moves,
                refresh_per_second=4,
                transient=moves,
                redirect_stdout=sys.stdout.isatty(),  # a file or pipe gets what is printed
            )
        )
        self.task = self.bars.add_task(
            label, total=None if total is None else max(total, 1), text=""
        )
        if self.is_outer:
            self.bars.start()
            # A process that is interrupted shows the cursor again.
            atexit.register(self.bars.stop)

    def show(self, done: float, text: str) -> None:
        self.bars.update(self.task, completed=done, text=text)
        self.bars.refresh()

    def close(self) -> None:
        if self.is_outer:
            self.bars.stop()
            atexit.unregister(self.bars.stop)
        else:
            self.bars.remove_task(self.task)


def _bar_of(stream: TextIO) -> _Bar | None:
    """The bar on a terminal, if there is one."""
    stream = getattr(stream, "rich_proxied_file", stream)  # while a bar is shown
    bars = [each.display for each in _shown() if isinstance(each.display, _Bar)]
    return next((each for each in bars if each.stream is stream), None)


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


class _Messages(logging.StreamHandler[TextIO]):
    """Writes messages of the log above the bar on the same terminal, if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        if (here := _bar_of(self.stream)) is None:
            super().emit(record)
        else:
            here.bars.console.out(self.format(record), highlight=False)


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
    log.handlers, log.propagate = [_Messages(sys.stderr)], False
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
