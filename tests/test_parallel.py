"""The same shards give the same results, in this process or in several, and errors come through."""

import os
import time

import pytest

from helpers import parallel


def square(x):
    return x * x


def slow_square(x):
    time.sleep(0.05 * (3 - x))  # the first shard finishes last
    return x * x


def who(_):
    return os.getpid()


def fail_at_two(x):
    if x == 2:
        raise ValueError("shard 2 is torn")
    return x


@pytest.mark.parametrize("workers", [1, 2])
def test_results_are_in_the_order_of_the_shards(workers):
    with parallel.executor(workers) as pool:
        assert parallel.map_shards(pool, slow_square, range(4)) == [0, 1, 4, 9]


def test_one_worker_is_this_process_and_two_are_others():
    with parallel.executor(1) as pool:
        assert set(parallel.map_shards(pool, who, range(3))) == {os.getpid()}
    with parallel.executor(2) as pool:
        assert os.getpid() not in parallel.map_shards(pool, who, range(3))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_shard_that_fails_raises_its_own_error(workers):
    with parallel.executor(workers) as pool, pytest.raises(ValueError, match="shard 2 is torn"):
        parallel.map_shards(pool, fail_at_two, range(4))


def test_no_shards_give_no_results():
    with parallel.executor(1) as pool:
        assert parallel.map_shards(pool, square, []) == []


def test_zero_workers_means_one_a_core_and_less_is_refused():
    assert parallel.cores() >= 1
    with pytest.raises(ValueError, match="workers is -1"):
        parallel.executor(-1)


def test_a_label_shows_progress_and_its_absence_shows_nothing(capfd, monkeypatch):
    monkeypatch.delenv("HEADLESS", raising=False)  # `make test` sets it
    with parallel.executor(1) as pool:
        parallel.map_shards(pool, square, range(3))
        assert capfd.readouterr() == ("", "")
        parallel.map_shards(pool, square, range(3), label="counting")
    assert "counting" in "".join(capfd.readouterr())
