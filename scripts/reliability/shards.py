"""Kill a third of the shards of a scoring and of a sampling run, requeue them, merge, and compare
with one run.

    python scripts/reliability/shards.py --json docs/tables/shards.json       # 200 shards of each:
    about 20 minutes on one core python scripts/reliability/shards.py --shards 6 --command sample

Shards run in random order, each in a process of its own. A third of them are killed with SIGKILL
just before one of their calls that change a file (`supervisor.py`), drawn at random, and go to the
end of the queue; some of these are killed a second time. The merge is killed once too. With
`--folder` the files are kept, and a run that was stopped continues with the shards that are not
complete.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import Bench, one_line
from cases import DNA, Case
from crash_points import Killer
from supervisor import unavailable

_TIMEOUT = 3600.0  # seconds of one process
MOST_CALLS = 25  # of a shard that change a file, about
OUTPUTS = {"score": "scores.tsv", "sample": "samples.fa"}


def case_of(command: str, shards: int, world: Path) -> Case:
    """The command line; a shard of samples has two units of work, one of scores has one."""
    output = f"output={{out}}/{OUTPUTS[command]}"
    if command == "sample":
        return Case(
            command,
            (
                DNA,
                f"num_samples={4 * shards}",
                "batch_size=2",
                "length=12",
                "sampler.num_groups=3",
                "accelerator=cpu",
                output,
            ),
        )
    path, draw = world / f"records_{shards}.fa", random.Random(0)
    if (
        not path.exists()
    ):  # 512 windows of two bases for each shard; most borders of shards are inside records
        letters, records = "".join(draw.choices("ACGT", k=1024 * shards)), []
        while letters:
            size = min(draw.randrange(2, 2000, 2), len(letters))
            records.append(f">r{len(records)}\n{letters[:size]}\n")
            letters = letters[size:]
        path.write_text("".join(records))
    return Case(
        command,
        (DNA, f"input={{world}}/{path.name}", "window=2", "num_draws=2", "accelerator=cpu", output),
    )


def kill_shards(bench: Bench, command: str, shards: int, seed: int = 0) -> dict:
    """Run, kill, requeue and merge the shards of one command, and compare; a ValueError if one
    fails without being killed."""
    start, draw = time.monotonic(), random.Random(f"{command} {seed}")
    case = case_of(command, shards, bench.world)
    whole, parts = bench.out / "whole" / OUTPUTS[command], bench.out / "parts" / OUTPUTS[command]
    for path in (whole, parts):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not Path(f"{whole}.done").exists():
        finished(bench, in_folder(case, "whole", "overwrite=true"))
        Path(f"{whole}.done").touch()
    order = list(range(1, shards + 1))
    draw.shuffle(order)
    doomed = set(draw.sample(order, -(-shards // 3)))
    again = set(draw.sample(sorted(doomed), len(doomed) // 4))
    found = {
        "command": command,
        "shards": shards,
        "killed shards": len(doomed),
        "kills": 0,
        "continued": 0,
    }
    queue = [
        number
        for number in order
        if not (parts.with_name(f"{parts.name}.shards") / f"{number:04d}.json").exists()
    ]
    while queue:
        number = queue.pop(0)
        one = in_folder(case, "parts", f"shard={number}/{shards}")
        if number in doomed or number in again:
            (doomed if number in doomed else again).discard(number)
            killer = Killer(draw.randint(1, MOST_CALLS))
            bench.start(one, decide=killer, timeout=_TIMEOUT)
            if killer.call is not None:
                found["kills"] += 1
                queue.append(number)
                continue
        found["continued"] += "resuming after" in finished(bench, one)
    merge = Case("merge", (f"output={{out}}/parts/{OUTPUTS[command]}",))
    killer = Killer(12)
    bench.start(merge, decide=killer, timeout=_TIMEOUT)
    found["merge killed"] = killer.call is not None
    if found["merge killed"]:
        finished(bench, merge)
    equal = contents(whole.parent) == contents(
        parts.parent
    )  # no shards or temporary files are left either
    return found | {
        "bytes": whole.stat().st_size,
        "equal": equal,
        "seconds": round(time.monotonic() - start, 1),
    }


def in_folder(case: Case, folder: str, *more: str) -> Case:
    """A case that writes to a folder in `out`."""
    return Case(
        case.command, (*(a.replace("{out}/", f"{{out}}/{folder}/") for a in case.arguments), *more)
    )


def finished(bench: Bench, case: Case) -> str:
    """Run a case, which must succeed; what it printed."""
    outcome = bench.start(case, timeout=_TIMEOUT)
    if outcome.status:
        raise ValueError(
            f"{case.command}: status {outcome.status}: "
            f"{one_line(outcome.errors) or outcome.errors[-600:]}"
        )
    return outcome.output + outcome.errors


def contents(folder: Path) -> dict[str, str]:
    """A digest of each file, without the time that sampling took."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.suffix != ".done"):
        content = path.read_bytes() if path.is_file() else b"folder"
        if path.suffix == ".json":
            content = repr(
                {key: value for key, value in json.loads(content).items() if key != "seconds"}
            ).encode()
        found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shards", type=int, default=200, help="of each command (default: %(default)s)"
    )
    parser.add_argument("--command", action="append", choices=tuple(OUTPUTS), help="only this one")
    parser.add_argument("--seed", type=int, default=0, help="of the kills (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    parser.add_argument(
        "--folder", type=Path, help="keep the files in this folder, and continue in it"
    )
    args = parser.parse_args(arguments)
    if reason := unavailable():
        print(f"skipped: {reason}")
        return 0
    rows = []
    with ExitStack() as stack:
        bench = Bench(
            args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shards-")))
        )
        bench.prepare()
        if not (bench.out.exists() and bench.cache.exists()):
            bench.reset()
        for command in args.command or OUTPUTS:
            rows.append(kill_shards(bench, command, args.shards, args.seed))
            print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
            if args.json:
                args.json.write_text(json.dumps({"seed": args.seed, "rows": rows}, indent=1) + "\n")
    return int(not all(row["equal"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
