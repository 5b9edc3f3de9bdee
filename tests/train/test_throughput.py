"""Room 04 before it trains: an update is measured on the machine as it is."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from models import TOK, settings, tiny

from helpers.manifest import open_room
from helpers.train import throughput
from helpers.train.plan import load_windows

CPU = torch.device("cpu")


@pytest.fixture
def train(run):
    windows, _ = load_windows(run, open_room(run, "tokenize")["result"], TOK.pad_token_id)
    return windows


@pytest.mark.parametrize(("probe", "counts"), [(0.0, [1, 1, 1]), (1e9, [1, 1, 1, 4, 4, 4])])
def test_as_many_windows_as_the_time_allows_and_always_thrice(monkeypatch, run, train, probe, counts):
    """The first update of a size finds memory and compiles its products: only those after it count."""
    seen, load = [], throughput.load_batch
    monkeypatch.setattr(throughput, "load_batch", lambda *args: seen.append(args[1]) or load(*args))
    pace = throughput.measure(tiny(), train, settings(run), 4, "fp32", CPU, probe)
    assert [len(indices) for indices in seen] == counts
    assert pace.per_window > 0 and pace.optimizer > 0
    assert pace.of(10) == pytest.approx(10 * pace.per_window + pace.optimizer)


def test_on_a_gpu_all_windows_are_measured_at_once(monkeypatch, run, train):
    """One window tells nothing there: it takes about as long as many."""

    class Gpu:
        type = "cuda"

    counts, load = [], throughput.load_batch
    monkeypatch.setattr(
        throughput, "load_batch", lambda windows, some, _: counts.append(len(some)) or load(windows, some, CPU)
    )
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_: self)
    monkeypatch.setattr(throughput, "autocast", lambda *_: contextlib.nullcontext())
    waits = []
    monkeypatch.setattr(throughput, "wait", waits.append)
    throughput.measure(tiny(), train, settings(run), 4, "fp32", Gpu(), 0.0)
    assert counts == [1, 1, 1, 4, 4, 4]
    assert len(waits) == 2 * len(counts)  # before each reading of the clock: a GPU is told, and goes on working


def test_where_memory_runs_out_fewer_windows_are_measured(monkeypatch, run, train):
    load = throughput.load_batch

    def measured_with_memory_for(most):
        seen = []

        def small_memory(windows, indices, device):
            if len(indices) > most:
                raise MemoryError("DefaultCPUAllocator: can't allocate memory")
            seen.append(len(indices))
            return load(windows, indices, device)

        monkeypatch.setattr(throughput, "load_batch", small_memory)
        assert throughput.measure(tiny(), train, settings(run), 4, "fp32", CPU, 1e9).per_window > 0
        return seen

    assert measured_with_memory_for(2) == [1, 1, 1, 2, 2, 2]
    assert measured_with_memory_for(1) == [1, 1, 1]
    with pytest.raises(MemoryError):
        measured_with_memory_for(0)


def test_of_the_updates_after_the_first_the_faster_counts(monkeypatch, run, train):
    """By a clock that is read at the start, after backward and at the end of each update."""
    seconds = [(100.0, 10.0), (2.0, 7.0), (5.0, 1.0)]  # the first one finds memory; then something comes between
    clock = iter([each for forward, step in seconds for each in (0.0, forward, forward + step)])
    monkeypatch.setattr(throughput, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert throughput.measure(tiny(), train, settings(run), 4, "fp32", CPU, 0.0) == (2.0, 1.0)


def test_the_windows_are_of_about_the_mean_length(monkeypatch, run, train):
    seen, load = [], throughput.load_batch
    monkeypatch.setattr(throughput, "load_batch", lambda *args: seen.append(args[1]) or load(*args))
    train.lengths = np.random.default_rng(0).integers(1, train.n_ctx, len(train), endpoint=True)
    throughput.measure(tiny(), train, settings(run), 3, "fp32", CPU, 1e9)
    assert train.lengths[seen[-1]].mean() == pytest.approx(train.lengths.mean(), abs=1)


def test_each_of_several_processes_is_measured_with_its_share_of_the_cores(monkeypatch, run, train):
    seen, before = [], torch.get_num_threads()
    monkeypatch.setattr(throughput, "cores", lambda: 6)
    load = throughput.load_batch
    monkeypatch.setattr(throughput, "load_batch", lambda *args: seen.append(torch.get_num_threads()) or load(*args))
    throughput.measure(tiny(), train, settings(run, devices=3), 1, "fp32", CPU, 0.0)
    assert set(seen) == {2} and torch.get_num_threads() == before
