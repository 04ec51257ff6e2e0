"""Kill every command at each system call that changes a file, start it again, and compare with an
undisturbed run.

    python scripts/reliability/crash_points.py --json docs/tables/crash_points.json      # about 40
    minutes on one core python scripts/reliability/crash_points.py --case "train text" --points 17
    # one kill

A case of `cases.py` first runs undisturbed. Then it is killed with SIGKILL just before its k-th
call that changes a file under the run, output and cache folders (`supervisor.py`), for every k up
to `--first` and a sample of later ones; in some trials the second start is killed too. After each
kill:

1. every file under its final name is a complete version of itself (`metrics.csv` has complete rows
  but perhaps the last),
2. the next start of the same command, with the arguments that resume it, ends with status 0; or it
  refuses because its output exists,
   and nothing is missing,
3. output and cache equal those of the undisturbed run: every bit of weights, averages, optimizer
  and position in the data, every byte of
   other files but for times,
4. no temporary file is left.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import Bench, Reference, one_line, sample
from cases import CASES, Case, case
from supervisor import KILL, PASS, Call, Outcome, unavailable

REFUSALS = (
    " exists; set overwrite=true",
    " is complete already",
    " already; set trainer.max_steps above that to continue",
)
COLUMNS = (
    "case",
    "calls",
    "points",
    "kills",
    "second kills",
    "next starts",
    "refused",
    "failed",
    "seconds",
)


@dataclass
class Row:
    """The kills of one case: `calls` of the undisturbed run, next `starts` (one for kills that
    leave the same files), those `refused` because their output is complete, and `failures` in
    words."""

    case: str
    calls: int = 0
    points: int = 0
    kills: int = 0
    second_kills: int = 0
    starts: int = 0
    refused: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def cells(self) -> tuple[str, ...]:
        """As in the table."""
        numbers = (
            self.calls,
            self.points,
            self.kills,
            self.second_kills,
            self.starts,
            self.refused,
            len(self.failures),
        )
        return (self.case, *(f"{n:,}" for n in numbers), f"{self.seconds:.0f}")


class Killer:
    """Kills a command before its k-th call."""

    def __init__(self, point: int) -> None:
        self.point = point
        self.call: Call | None = None

    def __call__(self, call: Call) -> int:
        if call.number < self.point:
            return PASS
        self.call = call
        return KILL


@dataclass(frozen=True)
class Choice:
    """Where to kill: at each of `points` (`first` start, `second` start or 0), or else at every
    call up to `first` and a sample of others."""

    points: tuple[tuple[int, int], ...] = ()
    first: int = 60
    later: int = 160
    twice: int = 12
    seed: int = 0

    def trials(self, case: Case, calls: int) -> list[tuple[int, int]]:
        """Calls of the first start, and of the second or 0."""
        if self.points:
            return [pair for pair in self.points if pair[0] <= calls]
        later = sample(range(self.first + 1, calls + 1), self.later, self.seed, case.name)
        pairs = [
            (k, sample(range(1, max(2, min(40, calls))), 1, self.seed, case.name, k)[0])
            for k in sample(range(1, calls + 1), self.twice, self.seed, case.name, "first")
        ]
        return [
            *((k, 0) for k in range(1, min(self.first, calls) + 1)),
            *((k, 0) for k in later),
            *pairs,
        ]


def kill_case(
    bench: Bench, case: Case, choice: Choice, report: Callable[[str], None] = print
) -> Row:
    """All kills of a case."""
    row, start = Row(case.name), time.monotonic()
    try:
        reference = bench.undisturbed(case)
    except ValueError as error:
        row.failures.append(str(error))
        report(f"FAILED {error}")
        return row
    row.calls, known = len(reference.outcome.calls), {}
    trials = choice.trials(case, row.calls)
    row.points = len(trials)
    for point, second in trials:
        for problem in trial(bench, case, reference, point, second, row, known):
            row.failures.append(problem)
            report(f"FAILED {problem}")
    row.seconds = round(time.monotonic() - start, 1)
    return row


def trial(
    bench: Bench,
    case: Case,
    reference: Reference,
    point: int,
    second: int,
    row: Row,
    known: dict[str, list[str]],
) -> list[str]:
    """Kill the first start at `point`, the second one at `second` unless that is 0, and let the
    next finish; returns what is wrong.

    `known` holds what went wrong after kills that left the same files with the same bytes: they are
    not started again.
    """
    bench.reset()
    killer = Killer(point)
    bench.start(case, decide=killer)
    if killer.call is None:
        return [
            f"{case.name}, point {point}: the command made fewer calls than the undisturbed one"
        ]
    row.kills += 1
    where = f"{case.name}, point {point}, killed before {short(bench, killer.call)}"
    found = [f"{where}: {problem}" for problem in bench.half_written(case, reference)]
    if second:
        again = Killer(second)
        bench.start(case, resumed=True, decide=again)
        if again.call is not None:
            row.kills, row.second_kills = row.kills + 1, row.second_kills + 1
            where += f", then at point {second} before {short(bench, again.call)}"
            found += [f"{where}: {problem}" for problem in bench.half_written(case, reference)]
    state = bench.state()
    if state not in known:
        known[state] = [*finish(bench, case, reference, row)]
    return found + [f"{where}: {problem}" for problem in known[state]]


def finish(bench: Bench, case: Case, reference: Reference, row: Row) -> Iterator[str]:
    """Let the next start finish, and tell what is wrong with it."""
    last = bench.start(case, resumed=True)
    row.starts += 1
    row.refused += is_refusal(last)
    if last.status and not is_refusal(last):
        yield (
            f"the next start ends with status {last.status}: "
            f"{one_line(last.errors) or last.errors[-600:]}"
        )
    yield from (f"after the next start {problem}" for problem in bench.compare(case, reference))


def is_refusal(outcome: Outcome) -> bool:
    """Whether a command refused because its output is complete."""
    return outcome.status == 1 and any(text in one_line(outcome.errors) for text in REFUSALS)


def short(bench: Bench, call: Call) -> str:
    """A call with paths relative to the folders of the trial."""
    return str(call).replace(f"{bench.folder}/", "")


def table(rows: Sequence[Row]) -> str:
    """The rows and their sums, as Markdown."""
    counted = [Row(**(asdict(row) | {"failures": row.failures})) for row in rows]
    names = ("calls", "points", "kills", "second_kills", "starts", "refused", "seconds")
    sums = {name: sum(asdict(row)[name] for row in counted) for name in names}
    everything = Row("all", **sums, failures=[f for row in counted for f in row.failures])
    lines = [
        COLUMNS,
        ("---", *["---:"] * (len(COLUMNS) - 1)),
        *(row.cells() for row in [*counted, everything]),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
        "--points",
        help="kill at these calls only, as in 17 or 3,17 or 3:9 (the second start at call 9)",
    )
    parser.add_argument(
        "--first",
        type=int,
        default=60,
        help="kill at every call up to this one (default: %(default)s)",
    )
    parser.add_argument(
        "--later",
        type=int,
        default=160,
        help="size of the sample of later calls of a case (default: %(default)s)",
    )
    parser.add_argument(
        "--twice",
        type=int,
        default=12,
        help="trials of a case whose second start is killed too (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the samples (default: %(default)s)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        help=(
            "write the rows to this file; a case in it with the same settings and without a "
            "failure is not run again"
        ),
    )
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
    parts = (
        [[int(n) for n in part.split(":")] for part in args.points.split(",")]
        if args.points
        else []
    )
    choice = Choice(
        tuple((part[0], part[1] if len(part) > 1 else 0) for part in parts),
        args.first,
        args.later,
        args.twice,
        args.seed,
    )
    cases = [case(name) for name in args.case] if args.case else list(CASES)
    settings = json.loads(json.dumps(asdict(choice)))
    known = json.loads(args.json.read_text()) if args.json and args.json.is_file() else {}
    done = (
        {row["case"]: Row(**row) for row in known.get("rows", ()) if not row["failures"]}
        if known.get("settings") == settings
        else {}
    )
    rows = []
    with ExitStack() as stack:
        bench = Bench(
            args.folder
            or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crash-points-")))
        )
        bench.prepare(runs=any(c.reads_runs for c in cases))
        for one in cases:
            rows.append(
                done.get(one.name)
                or kill_case(bench, one, choice, lambda problem: print(problem, flush=True))
            )
            print(
                ", ".join(f"{name} {cell}" for name, cell in zip(COLUMNS, rows[-1].cells())),
                flush=True,
            )
            if args.json:
                about = {
                    "settings": settings,
                    "python": platform.python_version(),
                    "system": f"{platform.system()} {platform.machine()}",
                }
                args.json.write_text(
                    json.dumps(about | {"rows": [asdict(row) for row in rows]}, indent=1) + "\n"
                )
    print(table(rows))
    return int(any(row.failures for row in rows))


if __name__ == "__main__":
    sys.exit(main())
