"""Damage every file that the package reads, in thousands of ways, and check that no damage hangs,
crashes, passes unnoticed or is refused without a clear message.

    python scripts/reliability/fuzz.py [--count 10000] [--seed 0] [--reader NAME ...]
    [--folder FOLDER] [--table FILE.md]

Hypothesis draws a file of a reader (`readers`), a compression, and one or two mutations of the file
(`mutations`). Inputs are read in processes forked from this one. One passes if the reader, within
10 seconds of processor time and 2 GB,

- returns the content of the undamaged file, or what the damaged file contains by the definition of
  its format (`formats`), or
- raises ValueError or OSError with one line that names the file or the key, says what to do or what
  is expected, and is no text of a library.

Outcomes are written to `inputs.jsonl` in the folder as they come, so that the same command resumes
a stopped one. Inputs that do not pass are saved in `wrong`, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
sys.path.insert(0, str(Path(__file__).parent))

import hypothesis
from formats import InvalidError
from mutations import Damage, damages
from readers import CACHE, MODELS, READERS, Reader, nothing, train_runs

SECONDS, MEMORY, LINE = 10.0, 2 << 30, 10_000
WAIT = 12  # times SECONDS, on a busy machine
IMPORTED = (
    *("pyarrow.parquet", "tokenizers", "yaml", "lightning", "safetensors.torch", "pysam"),
    *("dnadiff.options.command", "dnadiff.data.genome.genome", "dnadiff.model", "dnadiff.train"),
)
# Texts of Python and of libraries, which tell a user nothing.
INTERNAL = re.compile(
    r"codec can't|requires a buffer|has no attribute|subscriptable|NoneType|invalid literal for|"
    r"out of range|could not convert|positional arg|unhashable|Errno|not "
    r"iterable|<class|Traceback|__init__|during string formatting"
)
REMEDY = re.compile(
    r"\b(expected|give|use|fetch|correct|remove|set|rename|complete|write|name|choose|make|start|"
    r"convert|unpack|shorten|restore|needs|allowed|load|compress|compute|fit|update|number|begin|"
    r"check|known|add|again|must be|decompress|install|the records are)\b"
)


class Worker:
    """Calls a function in a forked process: a new one after 50 calls, and after a call that hangs,
    ends it or takes too much."""

    def __init__(self, function: Callable[..., tuple[str, str]], seconds: float) -> None:
        self.function, self.seconds, self.process, self.left = function, seconds, None, 0

    def __call__(self, *arguments: object) -> tuple[str, str, float, int]:
        """What the function returns, the processor time that it took and its memory at its peak;
        `wrong` with the reason if it hangs, dies or takes too much."""
        if not self.left:
            self.stop()
            context, self.left = multiprocessing.get_context("fork"), 50
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=self.serve, args=(theirs,), daemon=True)
            self.process.start()
            theirs.close()
        self.left -= 1
        self.pipe.send(arguments)
        try:
            if not self.pipe.poll(WAIT * self.seconds):
                self.left = 0
                return "wrong", f"hangs: more than {WAIT * self.seconds:g} s", 0.0, 0
            kind, why, taken, peak = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            self.left = 0
            return "wrong", f"ends the process with status {self.process.exitcode}", 0.0, 0
        if peak > MEMORY or taken > self.seconds:
            kind, why = "wrong", f"takes {peak >> 20:,} MB and {taken:.1f} s"
        self.left *= kind != "wrong"
        return kind, why, taken, peak

    def serve(self, pipe: Connection) -> None:
        silence = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silence, stream)
        limit = memory("VmSize") + 2 * MEMORY  # no input takes the machine with it
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        while True:
            arguments = pipe.recv()
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
            begin = time.process_time()
            try:
                answer = self.function(*arguments)
            except BaseException:
                answer = "wrong", traceback.format_exc()[-2000:]
            pipe.send((*answer, time.process_time() - begin, memory("VmHWM")))

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()


def memory(key: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:")), 0)


def judge(reader: Reader, work: Path, damage: Damage, undamaged: object) -> tuple[str, str]:
    """Read a damaged folder: the kind of outcome, and why it is wrong."""
    path, allowed, invalid = work / damage.path, None, ""
    try:  # first, because reading may change or remove files
        allowed = reader.expected(work, path)
    except InvalidError as error:
        invalid = f"is accepted, but is damaged ({_short(error)})"
    try:
        content = reader.read(work, path)
    except (ValueError, OSError) as error:
        return refusal(reader, path, error)
    except BaseException as error:  # a panic of the package tokenizers is no Exception
        return "wrong", f"raises {type(error).__name__}: {_short(error)}"
    is_forged = all(name.startswith("forged") for name in damage.names.split(" + "))
    if content == undamaged or (not invalid and allowed == content):
        return "read", ""
    if invalid and is_forged and reader.expected is nothing:
        return "read", ""  # as other values: nothing can tell
    return "wrong", invalid or "is accepted, but reads as something else"


def refusal(reader: Reader, path: Path, error: Exception) -> tuple[str, str]:
    """Whether what a command shows of an error is one clear line that names the file."""
    from dnadiff.options.command import report

    text = report(error, []).removeprefix("error: ")
    name, shown = type(error).__name__, _short(text)
    if isinstance(error, UnicodeError) or type(error).__module__ == "json.decoder":
        return "wrong", f"raises a bare {name}: {shown}"
    if not any(word in text for word in (path.name, *reader.names)):
        return "wrong", f"an error without the name of the file: {shown}"
    if "\n" in text or "\x1b" in text or len(text) > LINE:
        return "wrong", f"not one line: {shown}"
    if found := INTERNAL.search(text):
        return "wrong", f"an error of a library ({found[0]}): {shown}"
    if not REMEDY.search(text):
        return "wrong", f"does not say what to do: {shown}"
    return "refused", text[:200]


def _short(what: object) -> str:
    return ascii(str(what))[1:-1][:300]


def place(source: Path, work: Path, damage: Damage | None) -> None:
    """Put the files of a reader into `work`, one of them damaged."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work)
    if damage is not None:
        about, path = (work / damage.of).stat(), work / damage.path
        (work / damage.of).unlink()
        path.write_bytes(damage.content)
        if damage.keeps_time:
            os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


class Fuzzer:
    """Damages files in a folder, from where an earlier start of the same fuzzer stopped.

    Args:
        done: the outcomes of all inputs so far, one object for each.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed, self.done = folder, seed, list[dict[str, object]]()
        self.damaged, self.log = folder / "damaged", folder / "inputs.jsonl"
        if self.log.is_file():
            lines = self.log.read_text().splitlines(keepends=True)
            self.done = [json.loads(line) for line in lines if line.endswith("\n")]
            self.log.write_text("".join(json.dumps(row) + "\n" for row in self.done))
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["DNADIFF_CACHE"] = str(self.damaged / CACHE)

    def prepare(self, readers: Sequence[Reader]) -> tuple[str, str]:
        """Write the undamaged files of readers into `files`."""
        os.chdir(self.folder)  # runs record relative paths, which do not depend on the folder
        if any(reader in MODELS for reader in readers) and not Path("runs/card").is_dir():
            shutil.rmtree("runs", ignore_errors=True)
            train_runs()
        for reader in readers:
            target = Path("files") / slug(reader)
            if not target.is_dir():
                reader.make(Path(f"{target}.part"))
                Path(f"{target}.part").rename(target)
        return "read", ""

    def run(self, reader: Reader, count: int) -> None:
        """Damage and read `count` files of a reader."""
        source, first = self.folder / "files" / slug(reader), self.count(reader)
        if first >= count:
            return
        place(source, self.damaged, None)
        pattern = next(iter(reader.files))
        undamaged = reader.read(self.damaged, next(iter(sorted(self.damaged.glob(pattern)))))
        worker = Worker(lambda damage: judge(reader, self.damaged, damage, undamaged), SECONDS)

        @hypothesis.settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=(hypothesis.Phase.generate,),
            suppress_health_check=list(hypothesis.HealthCheck),
            verbosity=hypothesis.Verbosity.quiet,
        )
        @hypothesis.seed(self.seed)
        @hypothesis.given(damages(source, reader.files, reader.packs))
        def passes(damage: Damage) -> None:
            nonlocal first
            if first:  # of an earlier start: the same seed draws the same inputs
                first -= 1
            elif self.count(reader) < count:
                place(source, self.damaged, damage)
                self.note(reader, damage, *worker(damage._replace(content=b"")))

        passes()
        worker.stop()

    def count(self, reader: Reader) -> int:
        return sum(row["reader"] == reader.name for row in self.done)

    def note(
        self, reader: Reader, damage: Damage, kind: str, why: str, seconds: float, peak: int
    ) -> None:
        """Log the outcome of an input."""
        row = {"reader": reader.name, "kind": kind, "file": str(damage.path), "why": why}
        row |= {"mutation": damage.names, "seconds": seconds, "memory": peak}
        self.done.append(row)
        with self.log.open("a") as log:
            log.write(json.dumps(row) + "\n")
        if kind == "wrong":
            saved = self.folder / "wrong" / f"{slug(reader)}-{len(self.done)}-{damage.path.name}"
            saved.parent.mkdir(exist_ok=True)
            saved.write_bytes(damage.content)
            print(f"{reader.name}: {damage.path} ({damage.names}): {why}", flush=True)

    def table(self) -> str:
        """The outcomes of each reader, in Markdown."""
        lines = ["| reader | inputs | read | refused | wrong | slowest | memory |"]
        lines.append("|---|---:|---:|---:|---:|---:|---:|")
        for name in (*dict.fromkeys(row["reader"] for row in self.done), "all"):
            rows = [row for row in self.done if name in (row["reader"], "all")]
            kinds = Counter(row["kind"] for row in rows)
            counts = (len(rows), *(kinds[kind] for kind in ("read", "refused", "wrong")))
            slowest, peak = (max(row[key] for row in rows) for key in ("seconds", "memory"))
            cells = (*(f"{count:,}" for count in counts), f"{slowest:.1f} s", f"{peak >> 20:,} MB")
            lines.append(f"| {name} | {' | '.join(cells)} |")
        return "\n".join(lines)


def slug(reader: Reader) -> str:
    """The name of a reader as a folder."""
    return re.sub(r"[^\w.-]", "_", reader.name)


def main(argv: Sequence[str] | None = None) -> int:
    """Damage files, and print a row for each reader."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--reader", action="append", choices=sorted(READERS))
    parser.add_argument("--count", type=int, default=10_000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    here = hashlib.sha256(str(Path.cwd()).encode()).hexdigest()[:8]
    default = Path(tempfile.gettempdir()) / f"dnadiff-fuzz-{os.getuid()}-{here}"
    parser.add_argument("--folder", type=Path, default=default, help="of an earlier start: resumed")
    parser.add_argument("--table", type=Path, help="write the outcomes here, in Markdown")
    given = parser.parse_args(argv)
    for imported in IMPORTED:
        importlib.import_module(imported)
    chosen = [READERS[name] for name in given.reader or READERS]
    fuzzer = Fuzzer(given.folder.absolute(), given.seed)
    preparing = Worker(lambda: fuzzer.prepare(chosen), 600)
    kind, why, *_ = preparing()
    preparing.stop()
    if kind == "wrong":
        raise SystemExit(f"the undamaged files could not be written: {why}")
    os.chdir(given.folder)
    for reader in chosen:
        fuzzer.run(reader, -(-given.count // len(chosen)))
    print(fuzzer.table())
    if given.table is not None:
        given.table.write_text(fuzzer.table() + "\n")
    return int(any(row["kind"] == "wrong" for row in fuzzer.done))


if __name__ == "__main__":
    raise SystemExit(main())
