"""Map a function over shards behind `concurrent.futures.Executor`: in this process, or in several.

A stage is a function from shard to shard. It does not know where it runs; this module does, and knows nothing of text.
"""

import contextlib
import multiprocessing
import operator
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

from helpers.progress import Bar

T = TypeVar("T")
R = TypeVar("R")
IN_FLIGHT = 512  # tasks handed out and not yet collected: what is taken from a lazy source, and held in memory
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds of processor time, and in how many
MOST_PROCESSES = 61 if sys.platform == "win32" else 10_000  # Windows waits for no more


class InProcess(Executor):
    """Run each task at once in the calling process: no start-up cost, plain tracebacks."""

    def submit(self, fn: Callable, /, *args, **kwargs) -> Future:
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # an executor hands a task's error to the caller of result()
            future.set_exception(error)
        return future


def cores() -> int:
    """Return the number of processor cores that this process may use, in a container those that it was given."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no container with cgroup 2, or "max": no limit
        quota, period = map(int, CPU_QUOTA.read_text("ascii").split())
        count = min(count, max(1, quota // period))
    return count


def executor(workers: int = 0) -> Executor:
    """Return an executor for `workers` processes: 0 means one per core, 1 means in this process. Use it with `with`."""
    if workers < 0:
        raise ValueError(f"workers is {workers}: give 0 (one per core), 1 (this process), or a number of processes")
    workers = min(workers or cores(), MOST_PROCESSES)
    if workers == 1:
        return InProcess()
    # spawn: a forked child would inherit torch's and the notebook's threads in an undefined state
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def map_shards(
    pool: Executor, function: Callable[[T], R], items: Iterable[T], label: str = "", total: int | None = None
) -> list[R]:
    """Return [function(item) for item in items], in order, with a progress bar named `label` (none if empty).

    `total` is the number of items, where `items` has no length: it may be lazy, at most IN_FLIGHT are held in memory.
    Raises RuntimeError when a worker process was killed.
    """
    total = operator.length_hint(items) or total
    source = iter(items)
    results: list[R] = []
    waiting: deque[Future[R]] = deque()
    at_once = 1 if isinstance(pool, InProcess) else IN_FLIGHT  # in this process a task runs when it is handed out
    with Bar(label, total, "shards") as bar:
        try:
            waiting.extend(pool.submit(function, item) for item in islice(source, at_once))
            while waiting:
                results.append(waiting.popleft().result())
                bar.update()
                waiting.extend(pool.submit(function, item) for item in islice(source, 1))
        except BrokenExecutor as error:
            raise RuntimeError(
                "a worker process was ended from outside, most often because the memory was full: run this again with "
                "fewer workers, or on a machine with more memory"
            ) from error
        finally:
            for future in waiting:
                future.cancel()
    return results
