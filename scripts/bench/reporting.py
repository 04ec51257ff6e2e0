"""How `gpu.py` reports: rows that are written as they come, a time limit, and processes that go on where one has died."""

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

STATE = "DNADIFF_BENCH_STATE"  # the file in which a process of `supervised` finds what those before it did


class Report:
    """Rows, written to a file as they come, and the time that is left."""

    def __init__(self, path: Path | None, minutes: float) -> None:
        self.path, self.state = path, Path(os.environ[STATE]) if STATE in os.environ else None
        self.rows: list[dict] = []
        self.tried: list[str] = []
        self.lost: list[str] = []
        self.under_way, self.end = "", time.time() + 60 * minutes
        if self.state and self.state.exists():
            self.rows, self.tried, self.lost, died, self.end = json.loads(self.state.read_text(encoding="utf-8"))
            if died:
                self.lost.append(died)
                self.rows.append({"name": died, "error": "the process ended"})
        self._write()

    def add(self, name: str, value: float, unit: str, **more: float | str | None) -> None:
        """Print and keep a row."""
        self.rows.append({"name": name, "value": value, "unit": unit, **more})
        notes = "  ".join(f"{key} {x:.3g}" if isinstance(x, float) else f"{key} {x}" for key, x in more.items() if x is not None)
        shown = f"{value:14.1e}" if abs(value) < 0.01 else f"{value:14,.2f}"
        print(f"{name:66} {shown} {unit:10} {notes}", flush=True)
        self._write()

    def first(self, prefix: str) -> float | None:
        """The value of the first row whose name begins so."""
        return next((row["value"] for row in self.rows if row["name"].startswith(prefix) and "value" in row), None)

    def begin(self, name: str) -> bool:
        """Note what is under way; False if a process has died of it."""
        if name in self.lost:
            return False
        self.under_way = name
        self._write()
        return True

    def finish(self) -> None:
        """What was under way is over: go on, or leave to a new process if the card does not answer any more."""
        if not alive():
            print(f"{self.under_way:66} left the card unusable", flush=True)
            self._write()
            os._exit(1)  # not by an exception: to clean up, PyTorch would need the card
        self.under_way = ""
        self._write()

    def cell(self, name: str, f: Callable[[], None], seconds: float = 15) -> None:
        """Run what fills a cell, once, if there is time for it; its failure is a row."""
        if name in self.tried:
            return
        if time.time() + seconds > self.end:
            print(f"{name:66} left out: the time is up (--minutes)", flush=True)
            return
        self.tried.append(name)
        self.begin(name)
        try:
            f()
        except Exception as error:  # the other cells are still wanted
            where = traceback.extract_tb(error.__traceback__)[-1]
            message = (str(error) or repr(error)).strip().splitlines()[0][:200]
            self.rows.append({"name": name, "error": message})
            print(f"{name:66} failed: {message} ({Path(where.filename).name}:{where.lineno})", flush=True)
        self.finish()

    def _write(self) -> None:
        whole = [self.rows, self.tried, self.lost, self.under_way, self.end]
        for path, what in ((self.path, self.rows), (self.state, whole)):
            if path:
                new = path.with_suffix(".new")
                new.write_text(json.dumps(what, indent=1) + "\n", encoding="utf-8")
                new.replace(path)


def alive() -> bool:
    """Whether the card still computes: after an illegal address it does nothing more for the process."""
    torch = sys.modules.get("torch")  # where nothing has imported it, there is no card to ask
    if torch is None or not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return float(torch.ones(1, device="cuda").sum()) == 1
    except Exception:
        return False


def supervised(minutes: float) -> int:
    """This script in a process of its own, and in another one behind the cell that a process died of; the last one's exit status.

    One that hangs is ended 45 seconds after the time is up.
    """
    end = time.time() + 60 * minutes + 45
    with tempfile.TemporaryDirectory(prefix="dnadiff-bench-") as folder:
        state, before = Path(folder) / "state.json", ""
        while True:
            try:
                code = subprocess.run(
                    [sys.executable, *sys.argv], env=os.environ | {STATE: str(state)}, timeout=max(end - time.time(), 1), check=False
                ).returncode
            except subprocess.TimeoutExpired:
                print("ended: 45 seconds past the time (--minutes)", flush=True)
                return 1
            after = json.loads(state.read_text(encoding="utf-8"))[1:4] if state.exists() else ""
            if code == 0 or code == 2 or after == before:
                return code
            before = after
            print(f"the process ended with status {code}; another one goes on", flush=True)
