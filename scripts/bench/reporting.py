"""How `gpu.py` reports: rows that are written immediately, a time limit, and new processes that
continue after one has died."""

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

STATE = "DNADIFF_BENCH_STATE"  # file with the state that earlier processes of `supervised` left


class Report:
    """Result rows, written to a file immediately, and a time limit."""

    def __init__(self, path: Path | None, minutes: float) -> None:
        self.path, self.state = path, Path(os.environ[STATE]) if STATE in os.environ else None
        self.rows: list[dict] = []
        self.tried: list[str] = []
        self.lost: list[str] = []
        self.under_way, self.end = "", time.time() + 60 * minutes
        if self.state and self.state.exists():
            self.rows, self.tried, self.lost, died, self.end = json.loads(
                self.state.read_text(encoding="utf-8")
            )
            if died:
                self.lost.append(died)
                self.rows.append({"name": died, "error": "the process ended"})
        self._write()

    def add(self, name: str, value: float, unit: str, **more: float | str | None) -> None:
        """Print and keep a row."""
        self.rows.append({"name": name, "value": value, "unit": unit, **more})
        notes = "  ".join(
            f"{key} {x:.3g}" if isinstance(x, float) else f"{key} {x}"
            for key, x in more.items()
            if x is not None
        )
        shown = f"{value:14.1e}" if abs(value) < 0.01 else f"{value:14,.2f}"
        print(f"{name:66} {shown} {unit:10} {notes}", flush=True)
        self._write()

    def first(self, prefix: str) -> float | None:
        """The value of the first row whose name starts with `prefix`."""
        return next(
            (
                row["value"]
                for row in self.rows
                if row["name"].startswith(prefix) and "value" in row
            ),
            None,
        )

    def begin(self, name: str) -> bool:
        """Record what is running; False if a process has died of it before."""
        if name in self.lost:
            return False
        self.under_way = name
        self._write()
        return True

    def finish(self) -> None:
        """Record that it has ended; exits, so that a new process continues, if the GPU no longer
        works."""
        if not alive():
            print(f"{self.under_way:66} left the GPU unusable", flush=True)
            self._write()
            os._exit(1)  # not by an exception: PyTorch would need the GPU to clean up
        self.under_way = ""
        self._write()

    def cell(self, name: str, f: Callable[[], None], seconds: float = 15) -> None:
        """Run the measurement of a cell once, if there is time for it; a failure is recorded as a
        row."""
        if name in self.tried:
            return
        if time.time() + seconds > self.end:
            print(f"{name:66} skipped: no time left (--minutes)", flush=True)
            return
        self.tried.append(name)
        self.begin(name)
        try:
            f()
        except Exception as error:  # the other cells still run
            where = traceback.extract_tb(error.__traceback__)[-1]
            message = (str(error) or repr(error)).strip().splitlines()[0][:200]
            self.rows.append({"name": name, "error": message})
            print(
                f"{name:66} failed: {message} ({Path(where.filename).name}:{where.lineno})",
                flush=True,
            )
        self.finish()

    def _write(self) -> None:
        state = [self.rows, self.tried, self.lost, self.under_way, self.end]
        for path, what in ((self.path, self.rows), (self.state, state)):
            if path:
                new = path.with_suffix(".new")
                new.write_text(json.dumps(what, indent=1) + "\n", encoding="utf-8")
                new.replace(path)


def alive() -> bool:
    """Whether the GPU still computes: after an illegal memory access it does not work for this
    process any more."""
    torch = sys.modules.get("torch")  # without torch there is no GPU to check
    if torch is None or not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return float(torch.ones(1, device="cuda").sum()) == 1
    except Exception:
        return False


def supervised(minutes: float) -> int:
    """Run this script in a child process, and in a new one after each that died; returns the exit
    status of the last one.

    A process that hangs is stopped 45 seconds after the time limit.
    """
    end = time.time() + 60 * minutes + 45
    with tempfile.TemporaryDirectory(prefix="dnadiff-bench-") as folder:
        state, before = Path(folder) / "state.json", ""
        while True:
            try:
                code = subprocess.run(
                    [sys.executable, *sys.argv],
                    env=os.environ | {STATE: str(state)},
                    timeout=max(end - time.time(), 1),
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                print("stopped: 45 seconds after the time limit (--minutes)", flush=True)
                return 1
            after = json.loads(state.read_text(encoding="utf-8"))[1:4] if state.exists() else ""
            if code == 0 or code == 2 or after == before:
                return code
            before = after
            print(f"the process ended with status {code}; a new one continues", flush=True)
