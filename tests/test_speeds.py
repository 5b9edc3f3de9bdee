"""What one run of a sweep has measured holds for the others, also where they run at once."""

import json
import multiprocessing
import os
import time

import pytest

from helpers import speeds


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    for name, value in speeds.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_without_a_sweep_each_run_measures(monkeypatch):
    monkeypatch.delenv(speeds.VARIABLE, raising=False)
    numbers = iter([1.0, 2.0])
    assert [speeds.remember("a", lambda: next(numbers)) for _ in range(2)] == [1.0, 2.0]


def test_what_was_measured_is_not_measured_again(sweep):
    numbers = iter([1.5, 2.0])
    assert [speeds.remember(key, lambda: next(numbers)) for key in "abab"] == [1.5, 2.0, 1.5, 2.0]
    assert json.loads((sweep / "speeds.json").read_text("utf-8")) == {"a": 1.5, "b": 2.0}


def test_a_measurement_that_fails_leaves_nothing(sweep):
    with pytest.raises(ZeroDivisionError):
        speeds.remember("a", lambda: 1 / 0)
    assert speeds.remember("a", lambda: 3.0) == 3.0


def measure_slowly() -> float:
    time.sleep(0.3)
    return float(os.getpid())


def remember_slowly(queue) -> None:
    queue.put(speeds.remember("a", measure_slowly))


def test_runs_that_go_at_once_wait_for_the_one_that_measures(sweep):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=remember_slowly, args=(queue,)) for _ in range(3)]
    for process in processes:
        process.start()
    found = {queue.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert len(found) == 1 and found <= {float(process.pid) for process in processes}


def test_memory_that_ran_out_is_not_remembered(sweep):
    """A neighbour on the same GPU may have had it for a moment: a speed of 0 holds for this run only."""
    numbers = iter([0.0, 2.0])
    assert [speeds.remember("a", lambda: next(numbers)) for _ in range(3)] == [0.0, 2.0, 2.0]
