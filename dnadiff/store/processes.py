"""Work on many items in several processes that end with this one."""

import itertools
import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
_POLL = 1.0  # seconds between checks that the parent process is alive
_work: Callable[[Any], Any]  # of a worker process


def num_cores() -> int:
    """The processor cores that this process may use."""
    on_linux = sys.platform.startswith("linux")
    return len(os.sched_getaffinity(0)) if on_linux else os.cpu_count() or 1


def map_in_order(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    num_proc: int,
    few: int = 1,
    ahead: int | None = None,
) -> Iterator[Result]:
    """`map(work, items)` in several processes, results in the order of the items.

    Args:
        few: as many items are processed in this process.
        ahead: items in progress or finished before their turn; None: as many as processes.

    Raises:
        BrokenProcessPool: if a process ends early.
    """
    items = iter(items)
    first = list(itertools.islice(items, few + 1)) if num_proc > 1 else []
    items = itertools.chain(first, items)
    if len(first) <= few:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(num_proc, initializer=_start_worker, initargs=(work,)) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                if len(waiting) == (ahead or num_proc):
                    yield waiting.popleft().result()
                waiting.append(pool.submit(_run_item, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker(work: Callable[[Item], Result]) -> None:
    global _work
    _work = work  # set once: to pickle a tokenizer with each item would be slow
    os.setpgrp()  # Ctrl-C reaches the parent alone, which lets the items in progress end
    # one core per process; threads do not survive a fork
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _run_item(item: Any) -> Any:
    try:
        return _work(item)
    except (ValueError, OSError):
        raise
    except Exception as error:  # exceptions of other libraries may not pickle
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


def _exit_with_parent() -> None:
    # The queues do not reveal that the parent process was killed: a forked process inherits both
    # ends of each and would wait forever, holding the inherited lock of the cache. Nor does the
    # sentinel while a forked sibling has inherited its other end; the id of the process above
    # changes then. Under `forkserver` that process is the server, and the sentinel is not
    # inherited.
    parent = multiprocessing.parent_process()
    above = os.getppid()
    while parent is not None and os.getppid() == above and not wait([parent.sentinel], _POLL):
        pass
    os._exit(1)
