"""Map a function over shards behind `concurrent.futures.Executor`: in this process or in several.

A stage is a function from shard to shard. It does not know who runs it; this module does, and knows nothing of text.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ProcessPoolExecutor

from tqdm.auto import tqdm


class InProcess(Executor):
    """An executor that runs each task at once in the calling process: no start-up cost, plain tracebacks."""

    def submit(self, fn: Callable, /, *args, **kwargs) -> Future:
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # an executor hands a task's error to whoever asks for its result
            future.set_exception(error)
        return future


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def executor(workers: int = 0) -> Executor:
    """Return an executor for `workers` processes: 0 means one a core, 1 means in this process. Use it with `with`."""
    if workers < 0:
        raise ValueError(f"workers is {workers}: give 0 (one a core), 1 (this process), or a number of processes")
    workers = workers or cores()
    if workers == 1:
        return InProcess()
    # spawn: a forked child would inherit torch's and the notebook's threads in an undefined state
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def map_shards(pool: Executor, function: Callable, items: Iterable, label: str = "") -> list:
    """Return [function(item) for item in items], in order, with a progress bar named `label` (none if empty).

    There is no bar either where the environment variable HEADLESS says that nobody watches.
    """
    futures = [pool.submit(function, item) for item in items]
    bar = tqdm(futures, desc=label, unit="shard", disable=not label or bool(os.environ.get("HEADLESS")), leave=False)
    try:
        return [future.result() for future in bar]
    except BaseException:
        for future in futures:
            future.cancel()
        raise
