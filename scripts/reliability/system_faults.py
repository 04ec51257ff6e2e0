"""Let the system fail under every command: full disk, read-only folders, limits, signals, clocks,
other processes.

    python scripts/reliability/system_faults.py --json docs/tables/system_faults.json    # about 30
    minutes on one core python scripts/reliability/system_faults.py --case train --fault full_disk
    --points 17

The command of each case of `cases.py` meets each fault at some of its calls that change a file
(`supervisor.py`). It must either end with the result of an undisturbed run, or with a one-line
error (for the disk, one that names the file) and a status other than 0, leaving neither a temporary
nor a half-written file. Once the fault is gone, the next start must end with the result of an
undisturbed run.

Faults:

    full_disk     from call k on, whatever needs space fails (ENOSPC)
    io_error      call k alone fails (EIO)
    read_only     the output folder, and then the cache, cannot be changed (EROFS)
    file_size     files are limited to some bytes (RLIMIT_FSIZE)
    memory        the address space is limited (RLIMIT_AS); OpenMP itself ends a process that cannot
    start a thread, with a line of its own sigint        SIGINT at call k: status 130, and no
    temporary file is left sigterm       SIGTERM at call k; training saves a checkpoint first
    clock         the clock jumps by up to a day at each reading, and input files are from 1970 or
    2100 two           a second process runs the same command with the same cache, while the first
    is held at call k worker        (train) the data loader's process is killed
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from bench import Bench, Reference, is_temporary, one_line, sample
from cases import CASES, Case, case
from crash_points import is_refusal
from supervisor import PASS, REMOVALS, Call, Decision, Outcome, unavailable

_RANDOM_PART = re.compile(r"[0-9a-f]{32}|compiling-")
_MEGABYTE = 1 << 20


@dataclass
class Row:
    """One fault in one case: `succeeded` commands ended as undisturbed ones despite it."""

    case: str
    fault: str
    trials: int = 0
    succeeded: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


@dataclass
class Trial:
    """Where faults are tried: the folders, the case, its undisturbed run, the points to try and the
    seed."""

    bench: Bench
    case: Case
    reference: Reference
    points: Sequence[int] | None
    count: int
    seed: int
    row: Row

    def chosen(self, suitable: Callable[[Call], bool] = lambda call: True) -> list[int]:
        """Calls at which the fault happens."""
        numbers = [call.number for call in self.reference.outcome.calls if suitable(call)]
        return (
            [n for n in numbers if n in self.points]
            if self.points
            else sample(numbers, self.count, self.seed, self.case.name)
        )

    def start(
        self, decide: Decision = lambda call: PASS, before: Callable[[], None] = lambda: None
    ) -> Outcome:
        """Run the command with a fault in empty folders."""
        self.row.trials += 1
        self.bench.reset()
        return self.bench.start(self.case, decide=decide, before=before)

    def problems(
        self,
        outcome: Outcome,
        statuses: Sequence[int] = (1,),
        names_file: bool = False,
        keeps_parts: bool = False,
        saves: bool = False,
    ) -> Iterator[str]:
        """What is wrong with the end of a command that met a fault; with `saves` it may have saved
        a checkpoint at another step."""
        if outcome.timed_out:
            yield "it did not end"
        elif outcome.status == 0:
            self.row.succeeded += 1
            yield from (
                d
                for d in self.bench.compare(self.case, self.reference)
                if not d.startswith("cache/")
            )
        elif outcome.status not in statuses:
            yield f"it ended with status {outcome.status}: {outcome.errors[-400:]}"
        elif outcome.status == 1 and not (
            message := one_line(outcome.errors) or _openmp(outcome.errors)
        ):
            yield f"its error is not one line: {outcome.errors[-1500:]}"
        elif names_file and not any(
            text in message for text in (str(self.bench.out), str(self.bench.cache), "run/")
        ):
            yield f"its error does not name the file: {message}"
        yield from (
            found
            for found in self.bench.half_written(self.case, self.reference)
            if not (saves and self.is_checkpoint(found))
        )
        left = [
            name
            for name in self.bench.contents(self.case)
            if is_temporary(name) and _RANDOM_PART.search(name)
        ]
        if left and not keeps_parts:
            yield f"left over: {', '.join(left)}"

    def is_checkpoint(self, found: str) -> bool:
        """Whether a file that `half_written` names is a checkpoint that can be read completely."""
        from dnadiff.weights import checkpoint

        path = self.bench.folder / found.partition(" is ")[0]
        if path.suffix != ".ckpt":
            return False
        try:
            checkpoint.read(path)
        except (ValueError, OSError):
            return False
        return True

    def recovery(self) -> Iterator[str]:
        """What is wrong with the next start, without the fault."""
        last = self.bench.start(self.case, resumed=True)
        complete = is_refusal(last)
        if last.status and not complete:
            yield (
                f"the next start ends with status {last.status}: "
                f"{one_line(last.errors) or last.errors[-600:]}"
            )
        for problem in self.bench.compare(self.case, self.reference):
            if not (
                complete and problem.startswith("cache/") and problem.endswith(" is missing")
            ):  # a complete result needs no cache
                yield f"after the next start {problem}"


def full_disk(trial: Trial) -> Iterator[str]:
    for point in trial.chosen(lambda call: call.creates):
        outcome = trial.start(
            lambda call, point=point: (
                errno.ENOSPC if call.number >= point and call.creates else PASS
            )
        )
        for problem in [*trial.problems(outcome, names_file=True), *trial.recovery()]:
            yield f"point {point}, {where(trial, point)}: {problem}"


def io_error(trial: Trial) -> Iterator[str]:
    for point in trial.chosen(lambda call: call.name not in REMOVALS):
        outcome = trial.start(lambda call, point=point: errno.EIO if call.number == point else PASS)
        for problem in [*trial.problems(outcome, names_file=True), *trial.recovery()]:
            yield f"point {point}, {where(trial, point)}: {problem}"


def read_only(trial: Trial) -> Iterator[str]:
    for folder in (trial.bench.out, trial.bench.cache):
        outcome = trial.start(
            lambda call, folder=folder: (
                errno.EROFS if any(p.is_relative_to(folder) for p in call.paths) else PASS
            )
        )
        for problem in [*trial.problems(outcome, names_file=True), *trial.recovery()]:
            yield f"{folder.name}: {problem}"


def file_size(trial: Trial) -> Iterator[str]:
    for size in (0, 300, 3_000, 30_000):
        outcome = trial.start(
            before=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
        )
        for problem in [*trial.problems(outcome, names_file=True), *trial.recovery()]:
            yield f"{size} bytes: {problem}"


def memory(trial: Trial) -> Iterator[str]:
    def limit(more: int) -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))

    for megabytes in (0, 4, 16, 64, 256):
        outcome = trial.start(before=partial(limit, megabytes * _MEGABYTE))
        for problem in [*trial.problems(outcome), *trial.recovery()]:
            yield f"{megabytes} MB more: {problem}"


def sigint(trial: Trial) -> Iterator[str]:
    for point in trial.chosen():
        outcome = trial.start(partial(interrupt, point=point, number=signal.SIGINT))
        saves = trial.case.command == "train"
        for problem in [*trial.problems(outcome, statuses=(130,), saves=saves), *trial.recovery()]:
            yield f"point {point}, {where(trial, point)}: {problem}"


def sigterm(trial: Trial) -> Iterator[str]:
    for point in trial.chosen():
        outcome = trial.start(partial(interrupt, point=point, number=signal.SIGTERM))
        saves = trial.case.command == "train" and outcome.status != -signal.SIGTERM
        statuses = (-signal.SIGTERM, 128 + signal.SIGTERM)
        for problem in [
            *trial.problems(outcome, statuses, keeps_parts=not saves, saves=saves),
            *trial.recovery(),
        ]:
            yield f"point {point}, {where(trial, point)}: {problem}"


def clock(trial: Trial) -> Iterator[str]:
    def jumping(seed: int) -> None:
        draw, real = random.Random(seed), time.time
        time.time = lambda: real() + draw.uniform(-86_400, 86_400)

    times = {path: path.stat() for path in trial.bench.world.rglob("*") if path.is_file()}
    for number, year in enumerate((None, 1970, 2100)):
        if year is not None:
            for path in times:
                os.utime(path, ((year - 1970) * 31_556_952.0 + 1, (year - 1970) * 31_556_952.0 + 1))
        outcome = trial.start(before=partial(jumping, number))
        if outcome.status:
            yield (
                f"input files of {year or 'today'}: it ended with status {outcome.status}: "
                f"{outcome.errors[-400:]}"
            )
        for problem in trial.problems(outcome, statuses=()):
            if year is None or not problem.startswith(
                "cache/"
            ):  # the cache names and describes input files by their time stamps
                yield f"input files of {year or 'today'}: {problem}"
    for path, about in times.items():
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def two(trial: Trial) -> Iterator[str]:
    for point in trial.chosen(
        lambda call: any(p.is_relative_to(trial.bench.cache) for p in call.paths)
    ):
        other = Companion(trial, point)
        outcome = trial.start(other)
        status = other.wait(60)
        found = [] if status == 0 else [f"the second process ended with status {status}"]
        if outcome.status:
            found.append(
                f"the first process ended with status {outcome.status}: {outcome.errors[-400:]}"
            )
        for problem in [*found, *trial.bench.compare(trial.case, trial.reference)]:
            yield f"point {point}, {where(trial, point)}: {problem}"
        trial.row.succeeded += not found


def worker(trial: Trial) -> Iterator[str]:
    if trial.case.command != "train":
        return
    with_workers = replace(trial.case, arguments=(*trial.case.arguments, "data.num_workers=1"))
    trial = replace(trial, case=with_workers, reference=trial.bench.undisturbed(with_workers))
    for point in [
        call.number for call in trial.reference.outcome.calls if call.paths[0].name == "metrics.csv"
    ][:3]:
        outcome = trial.start(partial(kill_workers, point=point))
        found = [*trial.problems(outcome)]
        if outcome.status == 1 and "worker" not in one_line(outcome.errors):
            found.append(f"its error does not name the worker: {one_line(outcome.errors)}")
        for problem in [*found, *trial.recovery()]:
            yield f"point {point}, {where(trial, point)}: {problem}"


FAULTS: dict[str, Callable[[Trial], Iterator[str]]] = {
    f.__name__: f
    for f in (
        full_disk,
        io_error,
        read_only,
        file_size,
        memory,
        sigint,
        sigterm,
        two,
        worker,
        clock,
    )
}


class Companion:
    """Starts a second process when the first one reaches a call, and holds the first until it ends
    or waits, at most 2 seconds."""

    def __init__(self, trial: Trial, point: int) -> None:
        self.trial, self.point, self.process, self.status = trial, point, 0, 0

    def __call__(self, call: Call) -> int:
        if call.number == self.point:
            out = self.trial.bench.folder / "other"
            out.mkdir(exist_ok=True)
            self.process = os.fork()
            if not self.process:
                self._run(out)
            self._poll(2.0)
        return PASS

    def _run(self, out: Path) -> None:
        status = 70
        try:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1), os.dup2(nothing, 2)
            with tempfile.TemporaryDirectory(dir=out) as folder:
                status = self.trial.bench.call(self.trial.case, Path(folder))
                os.chdir(out)
        finally:
            os._exit(status)

    def _poll(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self.process and time.monotonic() < end:
            ended, status = os.waitpid(self.process, os.WNOHANG)
            if ended:
                self.process, self.status = 0, os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return not self.process

    def wait(self, seconds: float) -> int | str:
        """The exit status of the second process."""
        if self._poll(seconds):
            return self.status
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        return "none: it did not end"


def _openmp(errors: str) -> str:
    return (
        errors.strip().rpartition("\n")[2] if "\nlibgomp: Thread creation failed" in errors else ""
    )


def interrupt(call: Call, point: int, number: int) -> int:
    """Send a signal at a call; it arrives when the call is done."""
    if call.number == point:
        os.kill(call.thread, number)
    return PASS


def kill_workers(call: Call, point: int) -> int:
    """Kill the child processes at a call."""
    if call.number == point:
        for path in Path(f"/proc/{call.thread}/task").glob("*/children"):
            for child in path.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
    return PASS


def where(trial: Trial, point: int) -> str:
    """A call of the undisturbed run."""
    return str(trial.reference.outcome.calls[point - 1]).replace(f"{trial.bench.folder}/", "")


def table(rows: Sequence[Row]) -> str:
    """Trials of each case and fault, with the number of failures in brackets, as Markdown."""
    faults = list(dict.fromkeys(row.fault for row in rows))
    by_case = {
        name: {row.fault: row for row in rows if row.case == name}
        for name in dict.fromkeys(row.case for row in rows)
    }
    lines = [["case", *faults], ["---", *["---:"] * len(faults)]]
    for name, found in by_case.items():
        lines.append([name, *(cell([found[fault]] if fault in found else []) for fault in faults)])
    lines.append(["all", *(cell([row for row in rows if row.fault == fault]) for fault in faults)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(rows: Sequence[Row]) -> str:
    """The number of trials, and of failures if there are any."""
    failures = sum(len(row.failures) for row in rows)
    return f"{sum(row.trials for row in rows):,}" + (f" ({failures} failed)" if failures else "")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--case",
        action="append",
        choices=[c.name for c in CASES],
        help="only this case; several may be given",
    )
    parser.add_argument(
        "--fault",
        action="append",
        choices=list(FAULTS),
        help="only this fault; several may be given",
    )
    parser.add_argument("--points", help="only at these calls, as in 3,17")
    parser.add_argument(
        "--count",
        type=int,
        default=10,
        help="size of the sample of calls for each fault (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the samples (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument(
        "--folder",
        type=Path,
        help="keep the files of the last trial, and the world, in this folder",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    if reason := unavailable():
        print(f"skipped: {reason}")
        return 0
    points = [int(n) for n in args.points.split(",")] if args.points else None
    rows: list[Row] = []
    with ExitStack() as stack:
        bench = Bench(
            args.folder
            or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="system-faults-")))
        )
        cases = [case(name) for name in args.case] if args.case else CASES
        bench.prepare(runs=any(c.reads_runs for c in cases))
        for one in cases:
            bench.settle()
            reference = bench.undisturbed(one)
            for fault in args.fault or FAULTS:
                row, start = Row(one.name, fault), time.monotonic()
                for problem in FAULTS[fault](
                    Trial(bench, one, reference, points, args.count, args.seed, row)
                ):
                    row.failures.append(problem)
                    print(f"FAILED {one.name}, {fault}, {problem}", flush=True)
                row.seconds = round(time.monotonic() - start, 1)
                print(
                    f"{one.name}, {fault}: {row.trials} trials, {row.succeeded} succeeded, "
                    f"{len(row.failures)} failed, {row.seconds} s",
                    flush=True,
                )
                rows.append(row)
                if args.json:
                    args.json.write_text(
                        json.dumps(
                            {
                                "count": args.count,
                                "seed": args.seed,
                                "rows": [asdict(r) for r in rows],
                            },
                            indent=1,
                        )
                        + "\n"
                    )
    print(table(rows))
    return int(any(row.failures for row in rows))


if __name__ == "__main__":
    sys.exit(main())
