"""Stopping a training run by a signal: Ctrl-C, or the signal that a scheduler sends before its time
limit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None
# SLURM sends SIGTERM at the time limit, and with --signal=USR1@120 SIGUSR1 two minutes before.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Stopped(Exception):
    """Training was stopped by a signal; `last.ckpt` holds its state.

    Attributes:
        status: exit status of the process, 128 + the number of the signal, as a shell reports it:
            130 for Ctrl-C, 143 for SIGTERM.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.status = 128 + number


class StopSignals:
    """Remembers the first signal; a second one ends the process at once.

    Attributes:
        received: the signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._handlers: dict[int, Handler] = {}

    def install(self) -> None:
        """Handle the signals, if this is the main thread (others cannot)."""
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self.on_signal) for number in SIGNALS}

    def restore(self) -> None:
        """Install the previous handlers again."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        if self.received not in (
            None,
            signal.SIGUSR1,
        ):  # SIGUSR1 is an early notice, which SIGTERM may follow
            self.restore()
            raise SystemExit(128 + number)
        if self.received is None:
            name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            print(f"\n{name}: saving after this step; a second signal stops at once", flush=True)
        self.received = number
