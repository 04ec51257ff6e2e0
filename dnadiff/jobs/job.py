"""What a command computes into one file: units that do not depend on each other, the results of
each, and how results become the file.

The items of a job (windows, samples, rows) are numbered. A unit is a run of items that are computed
together: the results of a unit do not depend on which other units are computed, where, or in which
order. `dnadiff.jobs.runner` runs a job, at once or after an interruption, in one process or in
shards.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, NamedTuple, TypeAlias

from dnadiff.fields import Json, JsonMap

# For keys of settings, the values that earlier versions wrote in their place, computed when a value
# differs.
Earlier: TypeAlias = Mapping[str, Callable[[], tuple[Json, ...]]]
Report: TypeAlias = Callable[..., None]  # items that are finished, and tokens read for them


class Result(NamedTuple):
    """What was computed of some consecutive items.

    Attributes:
        items: how many.
        content: bytes of them.
        about: numbers of these items alone, ready for JSON; a job adds up those of all.
    """

    items: int
    content: bytes
    about: JsonMap = MappingProxyType({})


class Job(ABC):
    """A file that is written at once when all results are there.

    Attributes:
        stream: the name of its results in a folder of shards.
        label: of the progress bar.
        items: what the items are called in messages.
        calls: network calls of an item, as far as they are known beforehand; for the progress bar.
        output: the file.
        settings: everything that the results depend on: options, the identity of the model, hashes
            of the inputs.
        earlier: for keys of the settings, the values that earlier versions wrote in their place.
        side_files: files written next to the output, besides its JSON file.
        prepared: what `prepare` returned in the process that started the shards.
        report: called while results are computed.
    """

    stream: ClassVar[str]
    label: str
    items = ""
    calls = 0.0
    output: Path
    settings: JsonMap
    earlier: Earlier = MappingProxyType({})
    side_files: Sequence[Path] = ()
    prepared: Json = None
    report: Report = staticmethod(lambda *finished, **notes: None)  # not shown

    @abstractmethod
    def starts(self) -> Sequence[int]:
        """The first item of each unit, ascending from 0, and the number of all items: one entry
        more than there are units."""

    @staticmethod
    def starts_of(units: Iterable[Sequence[object]]) -> list[int]:
        """What `starts` returns for units that are lists of items."""
        return list(accumulate(map(len, units), initial=0))

    @property
    def total(self) -> int:
        """The number of items."""
        return self.starts()[-1]

    def prepare(self) -> Json:
        """What must be computed before any item and is the same for all shards; None if there is
        nothing."""
        return None

    def check(self, first: int = 0, last: int | None = None) -> None:
        """Check the input of the items `first` to `last` (left out; None is all) before any of them
        is computed; ValueError naming what is wrong."""

    def begin(self) -> None:
        """Log what will be computed, and start clocks; not called in shards."""

    @abstractmethod
    def results(self, start: int = 0, skip: int = 0) -> Iterator[Result]:
        """Results of the items from `start + skip` to the last one, computed one by one as they are
        asked for.

        Args:
            start: first item of a unit.
            skip: items after it that earlier results contain.
        """

    def write(self, results: Iterator[Result]) -> None:
        """Write the file of all results, atomically and after everything next to it."""
        raise NotImplementedError

    def closing(self, seconds: float) -> str:
        """What is printed when the file is there, after `seconds` of computing."""
        return f"files are in {self.output}"


class ResumableJob(Job):
    """A file that grows with each result and can be resumed.

    Attributes:
        totals: running totals, which the journal keeps (`ResumableOutput.notes`).
        position: items whose results are in the file.
        bgzip: whether a name that ends in `.gz` means bgzip.
        converts: whether `convert` makes the file of the collected results.
        of_convert: keys of the settings that `convert` alone depends on: they may change when an
            unfinished file is resumed.
    """

    items = "records"
    bgzip = False
    converts = False
    of_convert: Collection[str] = ()
    position = 0

    def __init__(self) -> None:
        self.totals: dict[str, Json] = {}

    @property
    def collected(self) -> Path:
        """The file that a `ResumableOutput` collects."""
        return self.output

    def resume(self, done: int, notes: JsonMap) -> None:
        """Continue after what the journal says: the number and the `totals` of the finished
        items."""
        self.totals = {**self.totals, **notes}
        self.position = done

    def header(self) -> bytes:
        """What precedes the first result."""
        return b""

    def fold(self, result: Result) -> tuple[bytes, int]:
        """Add a result to the totals; the bytes that are written of it, and the number of their
        items."""
        self.position += result.items
        return result.content, result.items

    def convert(self, collected: Path) -> None:
        """Write the output of the collected results, atomically."""
        raise NotImplementedError

    def finish(self, collected: Path) -> JsonMap:
        """Write the side files when the output is complete; what its JSON file says.

        Args:
            collected: the results, which are the output unless it was converted.
        """
        return {}

    def after(self) -> None:
        """Write what is made from the output and its JSON file; without it both are complete."""

    def found_complete(self) -> None:
        """Write what is missing next to an output that a run before this one has completed."""
