"""Damage every file that the package reads, in thousands of ways, and check that no damage hangs,
crashes or passes unnoticed.

    python scripts/reliability/fuzz.py [--count 10000] [--seed 0] [--reader NAME ...] [--json FILE]
    [--folder FOLDER] python scripts/reliability/fuzz.py --reader NAME --input N --save FILE

An input is a reader (`readers`), one of its files, and one or two mutations (`mutations`), all
decided by seed, reader and number. Each is read in a forked process. It passes if the reader,
within 10 seconds and 2 GB,

- returns the content of the undamaged file, or what the damaged file contains by the definition of
  its format (`formats`), or
- raises ValueError or OSError (no UnicodeError) with one line of text that names the file.

The exit status is 1 if an input does not pass. With --input the damaged file is saved and read once
more, with the traceback.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import mutations
from formats import InvalidError
from readers import CACHE, READERS, Reader, train_runs

SECONDS, MEMORY, LINE = 10.0, 2 << 30, 10_000
FORK_AGAIN = 256 << 20  # bytes by which a process may grow before a new one takes over
PASSED = ("success", "refused")


@dataclass
class Outcome:
    """What became of one input."""

    number: int
    kind: str  # success, refused or wrong
    why: str = ""
    mutation: str = ""
    seconds: float = 0.0
    memory: int = 0  # bytes, peak of the process

    def __str__(self) -> str:
        return f"input {self.number} ({self.mutation}): {self.why}"


@dataclass
class Row:
    """The outcomes of one reader."""

    reader: str
    counts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    memory: int = 0
    wrong: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.counts[outcome.kind] += 1
        self.slowest, self.memory = (
            max(self.slowest, outcome.seconds),
            max(self.memory, outcome.memory),
        )
        if outcome.kind not in PASSED:
            self.wrong.append(outcome)


def damage(reader: Reader, source: Path, seed: int, number: int) -> tuple[Path, bytes, str, bool]:
    """The damaged file of an input: its path in the folder, content, mutations, and whether its
    time stamp is kept."""
    draw = random.Random(f"{seed} {reader.name} {number}")
    pattern = draw.choice(sorted(reader.files))
    path = draw.choice(sorted(source.glob(pattern)))
    names, content = mutations.mutate(draw, reader.files[pattern], path.read_bytes())
    return path.relative_to(source), content, names, draw.random() < 0.5


def place(reader: Reader, source: Path, work: Path, seed: int, number: int) -> tuple[Path, str]:
    """Put the files of an input into `work`; returns the damaged one and its mutations."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work)
    path, content, names, keeps_time = damage(reader, source, seed, number)
    about = (work / path).stat()
    (work / path).write_bytes(content)
    if keeps_time:
        os.utime(work / path, ns=(about.st_atime_ns, about.st_mtime_ns))
    return path, names


def judge(reader: Reader, work: Path, path: Path, names: str, undamaged: object) -> tuple[str, str]:
    """Read a damaged folder: the kind of outcome, and why it is wrong."""
    forged = all(name.startswith("forged") for name in names.split(" + "))
    # Reading may change or remove files: the rule is applied first.
    try:
        allowed: object = reader.expected(work, str(path))
        valid = True
    except InvalidError as error:
        allowed, valid = str(error), False
    try:
        content = reader.read(work)
    except (ValueError, OSError) as error:
        return refusal(reader, path, error)
    except BaseException as error:  # a panic of the package tokenizers is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return "wrong", f"raises {type(error).__name__}: {_short(error)}"
    if (
        content == undamaged
        or (valid and allowed == content)
        or (forged and not valid and reader.expected.__name__ == "nothing")
    ):
        return "success", ""
    return (
        "wrong",
        "is accepted, but reads as something else"
        if valid
        else f"is accepted, but is damaged ({_short(allowed)})",
    )


def refusal(reader: Reader, path: Path, error: Exception) -> tuple[str, str]:
    """Whether an error is of a documented type and names the file, and what a command shows of it
    is one line."""
    from dnadiff.commands import explain
    from dnadiff.progress import printable

    if isinstance(error, UnicodeError) or type(error).__module__ == "json.decoder":
        return "wrong", f"raises a bare {type(error).__name__}: {_short(error)}"
    if not any(word in str(error) for word in (path.name, *reader.also_named)):
        return (
            "wrong",
            f"an error without the name of the file: {type(error).__name__}: {_short(error)}",
        )
    text = printable(explain(error, "train", []))
    if "\n" in text or "\x1b" in text or len(text) > LINE:
        return "wrong", f"not one line: {_short(text)}"
    return "refused", text


def _short(what: object) -> str:
    return ascii(str(what))[1:-1][:200]


def serve(
    reader: Reader, source: Path, work: Path, seed: int, numbers: Sequence[int], pipe: int
) -> None:
    """In a forked process: read input after input, and report each as a line of JSON."""
    os.fsync = lambda handle: None  # the disk is not what is tested
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    os.environ["DNADIFF_CACHE"] = str(work / CACHE)
    size = _memory("VmSize")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work)
    undamaged = reader.read(work)
    resource.setrlimit(
        resource.RLIMIT_AS, (size + 2 * MEMORY, resource.RLIM_INFINITY)
    )  # so that no input takes the machine with it
    started = _memory("VmRSS")
    for number in numbers:
        path, names = place(reader, source, work, seed, number)
        os.write(pipe, (json.dumps({"number": number, "mutation": names}) + "\n").encode())
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
        before = time.monotonic()
        kind, why = judge(reader, work, path, names, undamaged)
        outcome = Outcome(number, kind, why, names, time.monotonic() - before, _memory("VmHWM"))
        os.write(pipe, (json.dumps(vars(outcome)) + "\n").encode())
        if _memory("VmRSS") > started + FORK_AGAIN:
            return


def _memory(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    return 0


def outcomes(
    reader: Reader, source: Path, work: Path, seed: int, numbers: Sequence[int]
) -> Iterator[Outcome]:
    """The outcome of each input; a process that hangs or dies is replaced by another, which
    continues with the next input."""
    left = list(numbers)
    while left:
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            os.close(ours)
            status = 1
            try:
                serve(reader, source, work, seed, left, theirs)
                status = 0
            except BaseException:
                os.write(
                    theirs, (json.dumps({"failed": traceback.format_exc()[-2000:]}) + "\n").encode()
                )
            finally:
                os._exit(status)
        os.close(theirs)
        before = len(left)
        for outcome in _received(ours, child):
            left.remove(outcome.number)
            yield outcome
        os.close(ours)
        if len(left) == before:
            raise RuntimeError(f"{reader.name}: the process that reads it ends without a result")


def _received(pipe: int, child: int) -> Iterator[Outcome]:
    buffer, current, ended = b"", None, None
    while True:
        ready, _, _ = select.select([pipe], [], [], 60 if current is None else SECONDS)
        block = os.read(pipe, 1 << 16) if ready else None
        if block is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            if current is not None:
                yield Outcome(
                    current["number"],
                    "wrong",
                    f"hangs: more than {SECONDS:g} s",
                    current["mutation"],
                    SECONDS,
                )
            return
        if not block:
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if current is not None:
                yield Outcome(
                    current["number"],
                    "wrong",
                    f"ends the process with status {ended}",
                    current["mutation"],
                )
            return
        *lines, buffer = (buffer + block).split(b"\n")
        for line in lines:
            content = json.loads(line)
            if "failed" in content:
                raise RuntimeError(content["failed"])
            if "kind" not in content:
                current = content
                continue
            outcome, current = Outcome(**content), None
            if outcome.memory > MEMORY:
                outcome.kind, outcome.why = "wrong", f"takes {outcome.memory >> 20:,} MB"
            elif outcome.seconds > SECONDS:
                outcome.kind, outcome.why = "wrong", f"takes {outcome.seconds:.1f} s"
            yield outcome


def prepare(readers: Sequence[Reader], folder: Path) -> None:
    """Write the undamaged files, in a forked process so that this one stays small and without
    threads."""
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            raise SystemExit(
                "the undamaged files could not be "
                f"written:\n{(folder / 'prepare.log').read_text()[-2000:]}"
            )
        return
    status = 1
    try:
        time.localtime = lambda *_: time.gmtime(
            315_532_800
        )  # what zip files record, so that they have the same bytes every time
        os.environ["DNADIFF_CACHE"] = str(folder / CACHE)
        with (folder / "prepare.log").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        if any(reader.name in NEED_RUNS for reader in readers):
            train_runs()
        for reader in readers:
            target = folder / "files" / slug(reader)
            target.mkdir(parents=True)
            reader.make(target.relative_to(folder))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


NEED_RUNS = (
    "checkpoint",
    "exported folder",
    "model card",
    "checkpoint of text",
    "resume",
    "metrics.csv",
    "evaluate.json",
    "dnd",
)


def slug(reader: Reader) -> str:
    return "".join(c if c.isalnum() or c in ".-" else "_" for c in reader.name)


def shares(readers: Sequence[Reader], count: int) -> dict[str, int]:
    """How many inputs each reader gets, at least one."""
    total = sum(reader.share for reader in readers)
    return {reader.name: max(1, round(count * reader.share / total)) for reader in readers}


def import_all(readers: Sequence[Reader]) -> None:
    """What the readers import, once, before processes are forked."""
    import importlib

    names = [
        "Bio.SeqIO",
        "pyarrow.parquet",
        "tokenizers",
        "yaml",
        "dnadiff.commands",
        "dnadiff.data.genome.genome",
        "dnadiff.data.text.pretrained",
    ]
    names += [
        f"dnadiff.{name}"
        for name in (
            "supervised.table",
            "supervised.results",
            "design.output",
            "data.text.tokenized",
        )
    ]
    if any(reader.name in NEED_RUNS for reader in readers):
        names += [
            f"dnadiff.{name}"
            for name in (
                "train",
                "evaluate",
                "decompress",
                "judge_text",
                "model",
                "published",
                "report.results",
            )
        ]
        names += [
            "lightning",
            "constriction",
            "safetensors.torch",
            "dnadiff.training.callbacks",
            "dnadiff.data.text.datamodule",
        ]
    for name in names:
        importlib.import_module(name)


def run(
    readers: Sequence[Reader], count: int, seed: int, folder: Path, keep: int = 3
) -> Iterator[Row]:
    """Damage and read `count` files of these readers, one reader after the other; the first inputs
    that do not pass are saved in `wrong`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        prepare(readers, folder)
        for reader, number in zip(readers, shares(readers, count).values()):
            row, source = Row(reader.name), Path("files") / slug(reader)
            for outcome in outcomes(reader, source, Path("work"), seed, range(number)):
                row.add(outcome)
                if outcome.kind not in PASSED and len(row.wrong) <= keep:
                    path, content, *_ = damage(reader, source, seed, outcome.number)
                    target = Path("wrong") / f"{slug(reader)}-{outcome.number}-{path.name}"
                    target.parent.mkdir(exist_ok=True)
                    target.write_bytes(content)
            yield row
    finally:
        os.chdir(before)


def line_of(row: Row) -> str:
    total, wrong = row.counts.total(), row.counts["wrong"]
    return f"{row.reader:<24}{total:>7,}{row.counts['success']:>9,}{row.counts['refused']:>9,}{wrong:>7,}{row.slowest:>9.2f} s{row.memory >> 20:>8,} MB"


HEADER = f"{'reader':<24}{'inputs':>7}{'success':>9}{'refused':>9}{'wrong':>7}{'slowest':>11}{'memory':>11}"


def summary(rows: Sequence[Row]) -> str:
    """The last line of the table, and the inputs that do not pass, by reason."""
    every = Row("all")
    for row in rows:
        every.counts += row.counts
        every.slowest, every.memory = max(every.slowest, row.slowest), max(every.memory, row.memory)
    lines = [line_of(every)]
    for row in rows:
        groups: dict[str, list[Outcome]] = {}
        for outcome in row.wrong:
            groups.setdefault(outcome.why[:60], []).append(outcome)
        lines += [f"{row.reader}: {len(group)} x, as {group[0]}" for group in groups.values()]
    return "\n".join(lines)


def show_one(reader: Reader, seed: int, number: int, folder: Path, save: Path | None) -> int:
    """Save the damaged file of one input, and read it with the traceback."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save = None if save is None else save.absolute()
    os.chdir(folder)
    import_all([reader])
    prepare([reader], folder)
    source, work = Path("files") / slug(reader), Path("work")
    os.environ["DNADIFF_CACHE"] = str(work / CACHE)
    shutil.copytree(source, work)
    undamaged = reader.read(work)
    path, names = place(reader, source, work, seed, number)
    if save is not None:
        shutil.copy(work / path, save)
    print(f"{reader.name}, input {number}: {path}, {names}")
    kind, why = judge(reader, work, path, names, undamaged)
    print(f"{kind}: {why}")
    place(reader, source, work, seed, number)
    try:
        print(_short(reader.read(work)))
    except BaseException:
        traceback.print_exc(limit=-6)
    return int(kind not in PASSED)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--reader", action="append", choices=sorted(READERS), help="only these readers"
    )
    parser.add_argument("--count", type=int, default=10_000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the outcomes here")
    parser.add_argument("--input", type=int, help="only this input of one reader")
    parser.add_argument("--save", type=Path, help="with --input: write the damaged file here")
    name = f"dnadiff-fuzz-{os.getuid()}-{hashlib.sha256(str(Path.cwd()).encode()).hexdigest()[:8]}"
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / name,
        help="for the files; emptied first",
    )
    given = parser.parse_args(argv)
    chosen = [READERS[name] for name in given.reader or READERS]
    if given.input is not None:
        if len(chosen) != 1:
            parser.error("--input needs one --reader")
        return show_one(chosen[0], given.seed, given.input, given.folder.absolute(), given.save)
    started = time.monotonic()
    import_all(chosen)
    print(HEADER)
    rows: list[Row] = []
    target = None if given.json is None else given.json.absolute()
    for row in run(chosen, given.count, given.seed, given.folder.absolute()):
        rows.append(row)
        print(line_of(row), flush=True)
        if target is not None:
            content = [
                {**vars(row), "wrong": [vars(outcome) for outcome in row.wrong]} for row in rows
            ]
            target.write_text(json.dumps({"seed": given.seed, "readers": content}, indent=1) + "\n")
    print(summary(rows))
    print(
        f"{sum(row.counts.total() for row in rows):,} inputs in {time.monotonic() - started:.0f} "
        f"s, seed {given.seed}"
    )
    return int(any(row.wrong for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
