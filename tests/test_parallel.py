"""The same shards give the same results, in this process or in several, and errors come through."""

import os
import signal
import time
from types import SimpleNamespace

import pytest

from helpers import parallel


def square(x):
    time.sleep(0.1 * (x == 0))  # the first shard finishes last
    return x * x


def is_here(pid):
    return os.getpid() == pid


def fail_at_two(x):
    if x == 2:
        raise ValueError("shard 2 is torn")
    return x


def end_at_two(x):
    if x == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


@pytest.mark.parametrize("workers", [1, 2])
def test_results_are_in_the_order_of_the_shards_and_errors_come_through(workers):
    with parallel.executor(workers) as pool:
        assert parallel.map_shards(pool, square, range(4)) == [0, 1, 4, 9]
        assert parallel.map_shards(pool, square, []) == []
        assert set(parallel.map_shards(pool, is_here, [os.getpid()] * 3)) == {workers == 1}
        with pytest.raises(ValueError, match="shard 2 is torn"):
            parallel.map_shards(pool, fail_at_two, range(4))


def test_zero_workers_means_one_a_core_and_less_is_refused():
    assert parallel.cores() >= 1
    with pytest.raises(ValueError, match="workers is -1"):
        parallel.executor(-1)


def test_in_a_container_the_cores_are_those_that_it_was_given(monkeypatch, tmp_path):
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(parallel, "CPU_QUOTA", quota)
    monkeypatch.setattr(parallel.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    for text, cores in (("max 100000", 64), ("200000 100000", 2), ("50000 100000", 1), ("9900000 100000", 64)):
        quota.write_text(text + "\n")
        assert parallel.cores() == cores
    quota.unlink()
    assert parallel.cores() == 64


def test_windows_waits_for_61_processes_at_most(monkeypatch):
    asked = []
    monkeypatch.setattr(parallel, "ProcessPoolExecutor", lambda workers, **_: asked.append(workers))
    monkeypatch.setattr(parallel, "cores", lambda: 128)
    for most in (61, 10_000):
        monkeypatch.setattr(parallel, "MOST_PROCESSES", most)
        parallel.executor()
    assert asked == [61, 128]


def test_a_worker_that_was_killed_is_told_in_words():
    with parallel.executor(2) as pool, pytest.raises(RuntimeError, match="memory was full.*fewer workers"):
        parallel.map_shards(pool, end_at_two, range(4))


def test_a_label_shows_progress_and_its_absence_shows_nothing(capfd, monkeypatch):
    monkeypatch.setenv("HEADLESS", "")
    monkeypatch.setenv("TQDM_DISABLE", "")
    with parallel.executor(1) as pool:
        parallel.map_shards(pool, square, range(3))
        assert capfd.readouterr() == ("", "")
        parallel.map_shards(pool, square, iter(range(3)), label="counting", total=3)
    shown = "".join(capfd.readouterr())
    assert "counting" in shown and "0/3" in shown


def test_a_lazy_source_is_never_held_whole(monkeypatch):
    """Where a task is done only when its result is asked for: as if all workers were slow."""
    monkeypatch.setattr(parallel, "IN_FLIGHT", 7)
    waiting, most = [], []

    def submit(function, item):
        waiting.append(item)
        most.append(len(waiting))
        return SimpleNamespace(result=lambda: waiting.remove(item) or function(item))

    pool = SimpleNamespace(submit=submit)
    assert parallel.map_shards(pool, square, iter(range(100))) == [n * n for n in range(100)]
    assert max(most) == 7
    with parallel.executor(1) as here:  # and in this process an item is taken when the one before is done
        order = []
        items = (order.append(("taken", n)) or n for n in range(3))
        parallel.map_shards(here, lambda n: order.append(("done", n)), items)
    assert order == [(what, n) for n in range(3) for what in ("taken", "done")]
