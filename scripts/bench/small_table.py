"""Seconds that `finetune` takes for a small table, beyond its start.

    python scripts/bench/small_table.py [ROWS] [finetune arguments]

One run of `finetune epochs=1 scratch=false baselines=none seeds=1` on ROWS (120) sequences of 250
bases. Printed are the seconds until the log names the task (Python, libraries, weights, the table),
and those after it, by the clock and of the processor, which other programs disturb less.
"""

import time

START = time.monotonic()

import logging  # noqa: E402, the clock starts first
import random  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402

from dnadiff import finetune  # noqa: E402

QUICK = ("epochs=1", "scratch=false", "baselines=none", "seeds=1", "accelerator=cpu")


class Marks(logging.Filter):
    """The clock and the time of the processor when the log names the task."""

    task = (0.0, 0.0)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("task:"):
            self.task = now()
        return True


def now() -> tuple[float, float]:
    """Seconds since the start by the clock, and of the processor."""
    return time.monotonic() - START, time.process_time()


def main() -> None:
    rows, *arguments = sys.argv[1:] or ["120"]
    draw = random.Random(0)
    marks = Marks()
    logging.getLogger("dnadiff").addFilter(marks)
    with tempfile.TemporaryDirectory() as folder:
        bases = [draw.choices("ACGT", (2, 3, 3, 2) if i % 2 else (3, 2, 2, 3), k=250)
                 for i in range(int(rows))]  # fmt: skip
        lines = [f"{''.join(letters)},{number % 2}\n" for number, letters in enumerate(bases)]
        Path(folder, "t.csv").write_text("sequence,label\n" + "".join(lines))
        task = ("checkpoint=human_chr20", "task=csv", f"task.path={folder}/t.csv")
        finetune.main([*task, *QUICK, f"hydra.run.dir={folder}/run", *arguments])
    for name, start, end in zip(("clock", "processor"), marks.task, now()):
        print(f"{name}: start {start:.1f} s, then {end - start:.1f} s")


if __name__ == "__main__":
    main()
