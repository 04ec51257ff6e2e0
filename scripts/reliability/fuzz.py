"""Damage every file that the package reads, in thousands of ways, and check that no damage hangs,
crashes or passes unnoticed.

    python scripts/reliability/fuzz.py [--count 10000] [--seed 0] [--reader NAME ...] [--json FILE]
    [--folder FOLDER]

Hypothesis draws a file of a reader (`readers`) and one or two mutations of it (`mutations`). Each
input is read in a forked process. It passes if the reader, within 10 seconds and 2 GB,

- returns the content of the undamaged file, or what the damaged file contains by the definition of
  its format (`formats`), or
- raises ValueError or OSError (no UnicodeError) with one line of text that names the file.

The first input of a reader that does not pass is saved in `wrong`, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import hypothesis
import mutations
from formats import InvalidError
from hypothesis import strategies as st
from readers import CACHE, READERS, Reader, train_runs

SECONDS, MEMORY, LINE = 10.0, 2 << 30, 10_000
NEED_RUNS = (
    *("checkpoint", "exported folder", "model card", "checkpoint of text", "resume"),
    *("metrics.csv", "evaluate.json", "dnd"),
)
IMPORTED = (
    *("Bio.SeqIO", "pyarrow.parquet", "tokenizers", "yaml", "lightning", "safetensors.torch"),
    *("dnadiff.options.command", "dnadiff.data.genome.genome", "dnadiff.model", "dnadiff.train"),
)


@dataclass(frozen=True)
class Damage:
    """A damaged file.

    Args:
        path: in the folder of its reader.
        content: its bytes.
        names: of the mutations.
        keeps_time: whether its time stamp is that of the undamaged file.
    """

    path: Path
    content: bytes
    names: str
    keeps_time: bool

    @property
    def forged(self) -> bool:
        """Whether it is a well-formed file of other values."""
        return all(name.startswith("forged") for name in self.names.split(" + "))


@st.composite
def damages(draw: st.DrawFn, reader: Reader, source: Path) -> Damage:
    """One of the files of a reader, damaged."""
    pattern = draw(st.sampled_from(sorted(reader.files)))
    path = draw(st.sampled_from(sorted(source.glob(pattern))))
    chance = draw(st.randoms(use_true_random=True))  # as many kinds of damage as inputs
    names, content = mutations.mutate(chance, reader.files[pattern], path.read_bytes())
    return Damage(path.relative_to(source), content, names, draw(st.booleans()))


@dataclass
class Row:
    """The outcomes of one reader: how many inputs were read, refused and wrong, and why."""

    reader: str
    counts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    memory: int = 0
    wrong: str = ""

    def __str__(self) -> str:
        counts = (self.counts[kind] for kind in ("success", "refused", "wrong"))
        return (
            f"{self.reader:<24}{self.counts.total():>7,}"
            + "".join(f"{count:>9,}" for count in counts)
            + f"{self.slowest:>9.2f} s{self.memory >> 20:>8,} MB"
        )


HEADER = f"{'reader':<24}{'inputs':>7}{'success':>9}{'refused':>9}{'wrong':>9}{'slowest':>11}"


class WrongError(Exception):
    """An input that does not pass."""


def in_a_fork(call: Callable[[], tuple[str, str]], seconds: float) -> tuple[str, str, int]:
    """What a call returns in a forked process, and the memory of this process at its peak; `wrong`
    with the reason if it hangs, dies or takes too much."""
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        try:
            silence = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):
                os.dup2(silence, stream)
            limit = memory("VmSize") + 2 * MEMORY  # no input takes the machine with it
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
            answer: tuple[str, str] = call()
        except BaseException:
            answer = "wrong", traceback.format_exc()[-2000:]
        finally:
            os.write(theirs, json.dumps([*answer, memory("VmHWM")]).encode())
            os._exit(0)
    os.close(theirs)
    ready, _, _ = select.select([ours], [], [], seconds)
    received = os.read(ours, 1 << 16) if ready else b""
    os.close(ours)
    if not ready:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not ready:
        return "wrong", f"hangs: more than {seconds:g} s", 0
    if not received:
        return "wrong", f"ends the process with status {status}", 0
    kind, why, peak = json.loads(received)
    return ("wrong", f"takes {peak >> 20:,} MB", peak) if peak > MEMORY else (kind, why, peak)


def memory(key: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    return 0


def judge(reader: Reader, work: Path, damage: Damage, undamaged: object) -> tuple[str, str]:
    """Read a damaged folder: the kind of outcome, and why it is wrong."""
    # Reading may change or remove files: the rule is applied first.
    try:
        allowed: object = reader.expected(work, str(damage.path))
        valid = True
    except InvalidError as error:
        allowed, valid = str(error), False
    try:
        content = reader.read(work)
    except (ValueError, OSError) as error:
        return refusal(reader, damage.path, error)
    except BaseException as error:  # a panic of the package tokenizers is no Exception
        return "wrong", f"raises {type(error).__name__}: {_short(error)}"
    undetectable = damage.forged and not valid and reader.expected.__name__ == "nothing"
    if content == undamaged or (valid and allowed == content) or undetectable:
        return "success", ""
    if valid:
        return "wrong", "is accepted, but reads as something else"
    return "wrong", f"is accepted, but is damaged ({_short(allowed)})"


def refusal(reader: Reader, path: Path, error: Exception) -> tuple[str, str]:
    """Whether an error is of a documented type and names the file, and what a command shows of it
    is one line."""
    from dnadiff.options.command import report

    name = type(error).__name__
    if isinstance(error, UnicodeError) or type(error).__module__ == "json.decoder":
        return "wrong", f"raises a bare {name}: {_short(error)}"
    if not any(word in str(error) for word in (path.name, *reader.also_named)):
        return "wrong", f"an error without the name of the file: {name}: {_short(error)}"
    text = report(error, []).removeprefix("error: ")
    if "\n" in text or "\x1b" in text or len(text) > LINE:
        return "wrong", f"not one line: {_short(text)}"
    return "refused", text[:200]


def _short(what: object) -> str:
    return ascii(str(what))[1:-1][:200]


def place(source: Path, work: Path, damage: Damage | None) -> None:
    """Put the files of a reader into `work`, one of them damaged."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work)
    if damage is not None:
        about = (work / damage.path).stat()
        (work / damage.path).write_bytes(damage.content)
        if damage.keeps_time:
            os.utime(work / damage.path, ns=(about.st_atime_ns, about.st_mtime_ns))


def check(reader: Reader, source: Path, count: int, seed: int) -> Row:
    """Damage and read `count` files of a reader."""
    row, work = Row(reader.name), Path("work")
    os.environ["DNADIFF_CACHE"] = str(work / CACHE)
    place(source, work, None)
    undamaged = reader.read(work)

    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.seed(seed)
    @hypothesis.given(damages(reader, source))
    def passes(damage: Damage) -> None:
        place(source, work, damage)
        begin = time.monotonic()
        kind, why, peak = in_a_fork(lambda: judge(reader, work, damage, undamaged), SECONDS)
        row.slowest = max(row.slowest, time.monotonic() - begin)
        row.memory = max(row.memory, peak)
        row.counts[kind] += 1
        if kind == "wrong":
            row.wrong = f"{damage.path} ({damage.names}): {why}"
            saved = Path("wrong") / f"{slug(reader)}-{damage.path.name}"
            saved.parent.mkdir(exist_ok=True)
            saved.write_bytes(damage.content)
            raise WrongError(row.wrong)

    with suppress(WrongError, hypothesis.errors.Flaky):
        passes()
    return row


def prepare(readers: Sequence[Reader]) -> tuple[str, str]:
    """Write the undamaged files of readers into `files`."""
    # what zip files record, so that they have the same bytes every time
    time.localtime = lambda *_: time.gmtime(315_532_800)
    os.environ["DNADIFF_CACHE"] = str(Path.cwd() / CACHE)
    if any(reader.name in NEED_RUNS for reader in readers):
        train_runs()
    for reader in readers:
        target = Path("files") / slug(reader)
        target.mkdir(parents=True)
        reader.make(target)
    return "success", ""


def slug(reader: Reader) -> str:
    """The name of a reader as a folder."""
    return "".join(c if c.isalnum() or c in ".-" else "_" for c in reader.name)


def run(readers: Sequence[Reader], count: int, seed: int, folder: Path) -> Iterator[Row]:
    """Damage and read `count` files of these readers, one reader after the other."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        kind, why, _ = in_a_fork(lambda: prepare(readers), 600)
        if kind == "wrong":
            raise SystemExit(f"the undamaged files could not be written: {why}")
        total = sum(reader.share for reader in readers)
        for reader in readers:
            share = max(1, round(count * reader.share / total))
            yield check(reader, Path("files") / slug(reader), share, seed)
    finally:
        os.chdir(before)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each reader, and the inputs that do not pass."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--reader", action="append", choices=sorted(READERS))
    parser.add_argument("--count", type=int, default=10_000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the outcomes here")
    name = f"dnadiff-fuzz-{os.getuid()}-{hashlib.sha256(str(Path.cwd()).encode()).hexdigest()[:8]}"
    default = Path(tempfile.gettempdir()) / name
    parser.add_argument("--folder", type=Path, default=default, help="emptied first")
    given = parser.parse_args(argv)
    begin = time.monotonic()
    for imported in IMPORTED:
        importlib.import_module(imported)
    print(HEADER)
    rows = []
    target = None if given.json is None else given.json.absolute()
    chosen = [READERS[name] for name in given.reader or READERS]
    for row in run(chosen, given.count, given.seed, given.folder.absolute()):
        rows.append(row)
        print(row, flush=True)
        if target is not None:
            content = {"seed": given.seed, "readers": [vars(row) for row in rows]}
            target.write_text(json.dumps(content, indent=1) + "\n")
    for row in rows:
        if row.wrong:
            print(f"{row.reader}: {row.wrong}")
    inputs = sum(row.counts.total() for row in rows)
    print(f"{inputs:,} inputs in {time.monotonic() - begin:.0f} s, seed {given.seed}")
    return int(any(row.wrong for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
